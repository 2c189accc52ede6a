"""Lines of the audit log in the system's log: a place on another machine, where the system sends its log there.

A line is one datagram (RFC 3164 as ``/dev/log`` takes it: priority and tag, the system adds its own time). It cannot
be taken back: of a batch that failed, lines may stand there that the log does not have. They are told apart by their
numbers and hashes.
"""

from __future__ import annotations

import socket
from typing import Final

from minter.audit_file import AuditUnavailable, Torn, name_of_error

DEVICE: Final = "/dev/log"
#: Facility authpriv (10), severity notice (5).
_PRIORITY: Final = b"<85>"


class Syslog:
    """The system's log as a place for lines. ``timeout_s`` bounds every send."""

    def __init__(self, device: str = DEVICE, *, tag: str = "minter-audit", timeout_s: float = 2.0) -> None:
        self.size = 0
        self._device = device or DEVICE
        self._head = _PRIORITY + tag.encode() + b": "
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def append(self, data: bytes, anew: tuple[int, int] | None = None) -> Torn | None:
        """Send every line. Errors: :class:`AuditUnavailable`."""
        if anew is not None:
            self.size = 0
        try:
            if self._socket is None:
                self._socket = self._connected()
            for line in data.splitlines():
                self._socket.send(self._head + line)
        except OSError as error:
            # The system's log is restarted at times: the next send connects anew.
            self.close()
            raise AuditUnavailable(f"the system's log takes no lines ({name_of_error(error)})") from None
        return None

    def count(self, size: int) -> None:
        """Take so many bytes behind the end for sent."""
        self.size += size

    def settle(self) -> Torn | None:
        """Do nothing: what was sent was sent."""
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(self._timeout_s)
            connection.connect(self._device)
        except OSError:
            connection.close()
            raise
        return connection
