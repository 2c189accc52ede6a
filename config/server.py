"""How both programs listen: sockets bound by us with exact modes, one process that owns them and its signals.

``serve`` binds the groups' listeners, says when it is ready, and returns after SIGTERM or SIGINT: it stops accepting,
lets answers under way finish for ``drain_s`` seconds, then cuts. A second SIGTERM or SIGINT cuts at once. SIGHUP and
SIGUSR1 call back. What a request must be before an application sees it stands in :mod:`config.http_protocol`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import os
import signal
import socket
import ssl
import stat
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
import uvloop

from config.errors import ConfigurationError, Fault
from config.http_server import BACKLOG, Bound, GroupServer
from config.listeners import Limits, Listener, ListenerGroup, Peer, TLSFiles

__all__ = [
    "Bound",
    "Limits",
    "Listener",
    "ListenerGroup",
    "Peer",
    "TLSFiles",
    "bind",
    "release",
    "run",
    "serve",
    "tls_context",
]

T = TypeVar("T")
Callback = Callable[[], Awaitable[None] | None]
_log = structlog.get_logger("config.server")

#: The longest path that fits ``sun_path`` with its closing NUL on Linux; macOS has four fewer.
_UNIX_PATH_BYTES: Final = 107 if sys.platform == "linux" else 103


# --- sockets ---


def bind(listener: Listener, *, group: int | None = None) -> Bound:
    """Bind and listen.

    A Unix socket is 0600 in a 0700 directory, or with ``group`` 0660 in a 0750 one of that group; the directory is
    made when it is missing. A socket left over by us is replaced; a live one, a symbolic link, another owner's, and a
    directory that is open to others are refused.

    Errors: ``ConfigurationError``.
    """
    if listener.kind == "unix":
        return _bind_unix(listener, group)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise _fault(listener, f"the address cannot be used: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        hint = "another process listens there" if error.errno == errno.EADDRINUSE else ""
        raise _fault(listener, f"cannot be bound: {error.strerror}", hint) from None
    sock.setblocking(False)
    return Bound(Listener(listener.kind, listener.host, sock.getsockname()[1]), sock)


def _bind_unix(listener: Listener, group: int | None) -> Bound:
    path = Path(listener.path)
    if len(os.fsencode(path)) > _UNIX_PATH_BYTES:
        raise _fault(listener, f"the path is longer than {_UNIX_PATH_BYTES} bytes", "use a shorter directory")
    _check_directory(listener, path.parent, group)
    _clear_stale(listener, path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The mode is right from the first moment on: narrowest first, then widened for the group.
        before = os.umask(0o177)
        try:
            sock.bind(os.fspath(path))
        finally:
            os.umask(before)
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(0o660)
        sock.listen(BACKLOG)
        status = path.lstat()
    except OSError as error:
        sock.close()
        raise _fault(listener, f"cannot be bound: {error.strerror}") from None
    sock.setblocking(False)
    return Bound(listener, sock, (status.st_dev, status.st_ino))


def _check_directory(listener: Listener, directory: Path, group: int | None) -> None:
    mode = 0o700 if group is None else 0o750
    try:
        directory.mkdir(mode=mode, parents=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise _fault(listener, f"its directory cannot be made: {error.strerror}") from None
    else:
        if group is not None:
            os.chown(directory, -1, group)
        directory.chmod(mode)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise _fault(listener, "its directory is a symbolic link or no directory")
    if status.st_uid not in (os.geteuid(), 0):
        raise _fault(listener, "its directory belongs to another user", "anyone who owns it can replace the socket")
    if stat.S_IMODE(status.st_mode) & ~mode & 0o777:
        raise _fault(
            listener, f"its directory is open to others ({stat.S_IMODE(status.st_mode):04o})", f"chmod {mode:04o}"
        )
    if group is not None and (status.st_gid != group or not status.st_mode & stat.S_IXGRP):
        raise _fault(listener, "its directory does not let the socket's group in", f"chgrp and chmod {mode:04o}")


def _clear_stale(listener: Listener, path: Path) -> None:
    """Remove a socket of ours that nobody listens on; refuse whatever else is there."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise _fault(listener, "something that is no socket stands in its place", "remove it")
    if status.st_uid != os.geteuid():
        raise _fault(listener, "a socket of another user stands in its place", "remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise _fault(listener, f"what stands in its place does not answer: {error.strerror}") from None
    raise _fault(listener, "another process listens there", "stop it first")


def release(bound: Bound) -> None:
    """Close the socket and remove its file, unless the file is another's by now."""
    bound.sock.close()
    if bound.inode is None:
        return
    with contextlib.suppress(OSError):
        path = Path(bound.listener.path)
        status = path.lstat()
        if (status.st_dev, status.st_ino) == bound.inode:
            path.unlink()


def _fault(listener: Listener, what: str, hint: str = "") -> ConfigurationError:
    return ConfigurationError([Fault(f"listen {listener}", what, hint)])


def tls_context(files: TLSFiles) -> ssl.SSLContext:
    """Return a server context for TLS 1.2 or newer; with a client CA, one that takes nobody without its certificate.

    Errors: ``ConfigurationError`` for files that cannot be read, do not fit, or a key that others can read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        if Path(files.key).stat().st_mode & 0o077:
            raise ConfigurationError([Fault("tls.key", "the key can be read by others", "chmod 0600")])
        # An encrypted key would make OpenSSL ask on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
        if files.client_ca:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        # ssl.SSLError is one too; its reason is a fixed phrase.
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        raise ConfigurationError([Fault("tls", f"certificate and key cannot be used: {reason}")]) from None
    return context


# --- serving ---


async def serve(
    groups: Sequence[ListenerGroup],
    *,
    on_ready: Callable[[Sequence[Bound]], Awaitable[None] | None] | None = None,
    on_hup: Callback | None = None,
    on_usr1: Callback | None = None,
    on_drain: Callback | None = None,
    drain_s: float = 10.0,
    stop: asyncio.Event | None = None,
) -> None:
    """Listen for ``groups`` until SIGTERM, SIGINT, or ``stop`` is set; return when all is drained or cut.

    ``on_ready`` is told what was bound, when every listener accepts. ``on_hup`` is called on SIGHUP and ``on_usr1`` on
    SIGUSR1, one call of each at a time; their errors are logged and change nothing. ``on_drain`` is called when the end
    begins: streams that never end by themselves are to be ended there, else they take the whole of ``drain_s``.

    Errors: ``ConfigurationError`` when a listener cannot be bound; nothing listens then.
    """
    bound: list[Bound] = []
    servers: list[GroupServer] = []
    stop = stop or asyncio.Event()
    try:
        for group in groups:
            mine: list[Bound] = []
            for listener in group.listeners:
                mine.append(bind(listener, group=group.socket_group))
                bound.append(mine[-1])
            servers.append(GroupServer(group, mine, _tls(group), drain_s))
        with _signals(_stopper(stop, servers), {signal.SIGHUP: on_hup, signal.SIGUSR1: on_usr1}):
            await _serve(servers, stop, lambda: on_ready(bound) if on_ready else None, on_drain)
    finally:
        for one in bound:
            release(one)


def _tls(group: ListenerGroup) -> ssl.SSLContext | None:
    if group.tls is not None:
        return tls_context(group.tls)
    if any(listener.kind == "tls" for listener in group.listeners):
        raise ConfigurationError([Fault("tls", "a tls: listener needs a certificate and a key")])
    return None


async def _serve(
    servers: Sequence[GroupServer], stop: asyncio.Event, on_ready: Callback, on_drain: Callback | None
) -> None:
    running = [asyncio.create_task(server.serve()) for server in servers]
    ready = asyncio.create_task(_all(server.ready for server in servers))
    stopping = asyncio.create_task(_all([stop]))
    try:
        await asyncio.wait([ready, stopping, *running], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            await _call(on_ready)
        await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
        if on_drain is not None:
            await _call(on_drain)
    finally:
        ready.cancel()
        stopping.cancel()
        for server in servers:
            server.stop.set()
        await asyncio.gather(*running)


async def _all(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


def _stopper(stop: asyncio.Event, servers: Sequence[GroupServer]) -> Callable[[], None]:
    def on_signal() -> None:
        if stop.is_set():
            # Asked twice: whoever asks does not want to wait.
            for server in servers:
                server.cut.set()
        stop.set()

    return on_signal


async def _call(function: Callback) -> None:
    result = function()
    if inspect.isawaitable(result):
        await result


@contextlib.contextmanager
def _signals(
    on_stop: Callable[[], None], callbacks: Mapping[signal.Signals, Callback | None]
) -> Generator[None, None, None]:
    """Handle the process's signals while the block runs. Outside the main thread there are none to handle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers: dict[signal.Signals, Callable[[], None]] = {signal.SIGTERM: on_stop, signal.SIGINT: on_stop}
    for number, callback in callbacks.items():
        if callback is not None:
            handlers[number] = _OnSignal(callback, number.name).request
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


#: What the log says of a callback that failed.
_FAILED: Final = {"SIGHUP": "reload-failed", "SIGUSR1": "rotation-failed"}


class _OnSignal:
    """Runs a signal's callback, one call at a time; signals that come meanwhile make it run once more."""

    def __init__(self, callback: Callback, name: str) -> None:
        self.callback = callback
        self.name = name
        self.wanted = False
        self.task: asyncio.Task[None] | None = None

    def request(self) -> None:
        self.wanted = True
        if self.task is None or self.task.done():
            self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while self.wanted:
            self.wanted = False
            try:
                await _call(self.callback)
            except Exception as error:  # noqa: BLE001 - what fails leaves the service as it is
                _log.error(_FAILED[self.name], type=type(error).__qualname__)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program's main coroutine on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
