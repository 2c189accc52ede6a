"""One request and its answer, as the connection sees it: what an ASGI cycle and a direct answer have in common."""

from __future__ import annotations

import abc
import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from config.http_protocol import Protocol as Connection

#: ``SO_LINGER`` on, zero seconds: closing resets, so that an answer without a length is seen to break off.
_RESET: Final = struct.pack("ii", 1, 0)


class Exchange(abc.ABC):
    """A request that is being answered, or waits for its turn behind others of its connection.

    ``response_started`` and ``response_complete`` tell how far the answer is; ``keep_alive`` whether the connection
    serves another request after it; ``waiting_for_100_continue`` that the client holds its body back.
    """

    response_started: bool
    response_complete: bool
    keep_alive: bool
    waiting_for_100_continue: bool

    @abc.abstractmethod
    def start(self) -> None:
        """Begin to answer: it is this request's turn. Its body may have come already, or comes later, or never."""

    @abc.abstractmethod
    def feed(self, body: bytes) -> None:
        """Take a piece of the request's body."""

    @abc.abstractmethod
    def end_of_request(self) -> None:
        """Take the end of the request."""

    @abc.abstractmethod
    def client_reads(self, *, reads: bool) -> None:
        """Take note that the client keeps up with the answer, or does not."""

    @abc.abstractmethod
    def disconnect(self) -> None:
        """Take note that the client is gone, or that its body was refused: nothing more can be answered here."""

    @abc.abstractmethod
    def cut(self) -> None:
        """End the connection in the middle of the answer, so that the client cannot take it for whole."""

    @abc.abstractmethod
    def shut_down(self) -> None:
        """End at once, with an answer if none has begun: the server ends."""


class Direct(Protocol):
    """Who answers the targets that begin with ``prefix`` inside the protocol.

    What is known of the request stands in the connection: ``url``, ``headers``, ``body_length``.
    """

    prefix: bytes

    def exchange(self, connection: Connection, method: str, *, new: bool, keep_alive: bool) -> Exchange:
        """Return the exchange of the request whose head was just read. It must not raise.

        ``new`` says HTTP/1.1; ``keep_alive`` that the client may send another request after it.
        """
        ...


def reset(transport: asyncio.Transport) -> None:
    """Drop a connection so that its peer sees an error rather than an orderly end."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
