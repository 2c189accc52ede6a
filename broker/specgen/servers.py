"""Servers: the one origin that a profile is for, and the path that stands before every path of the document.

The text of a server is as untrusted as the rest: it is taken apart with a pattern that knows nothing but a host, a port
and a plain path, and the origin must be one that a profile can have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from broker.specgen.document import Document
from broker.specgen.model import Choices, DocumentError, Note
from broker.specgen.references import child
from broker.specgen.texts import quoted
from config.origin import parse_origin
from config.routes import Literal, parse_route

_URL: Final = re.compile(r"(https?)://([^/?#\\@\s]+)(/[^?#\\\s]*)?", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_DEFAULT_PORT: Final = {"https": ":443", "http": ":80"}
_LONGEST: Final = 2048
_LONGEST_DEFAULT: Final = 256
#: Of a list, so many are looked at.
_MOST: Final = 64
_ROOT: Final = "#/servers"
_GIVE: Final = "give --server URL"
_SECOND: Final = "make a second profile for that host with --server"


class ServerError(Exception):
    """A server that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Server:
    """``origin`` is as a profile writes it; ``base`` is empty or begins with a slash and does not end in one."""

    origin: str
    base: str


Holder: TypeAlias = tuple[Mapping[str, Any], str]


class Servers:
    """The servers of a document, with the operator's choice.

    The choice takes the place of the document's servers. Where it is the host of operations with servers of their own,
    and not the document's, the profile is for these: all others are on another host then.
    """

    def __init__(self, document: Document, choices: Choices, holders: Iterable[Holder] = ()) -> None:
        """Find the document's own. ``holders`` are the path items and operations, which may have others.

        Errors: ``DocumentError`` when there is none that can be used.
        """
        self.notes: list[Note] = []
        self._declared: Server | None = None
        self._elsewhere = False
        servers = list(_each(document.root.get("servers"), _ROOT))
        usable = [(pointer, server) for pointer, server in servers if isinstance(server, Server)]
        if usable:
            self._declared = usable[0][1]
        if choices.server:
            try:
                self.root = parse_server(choices.server)
            except ServerError as error:
                raise DocumentError(f"--server: {error}") from None
            declared = {server.origin for _, server in usable}
            if declared and self.root.origin not in declared:
                self._elsewhere = self.root.origin in _origins(holders)
            return
        faults = [(pointer, server) for pointer, server in servers if isinstance(server, ServerError)]
        if self._declared is None:
            pointer, fault = faults[0] if faults else (_ROOT, ServerError("no server says where the API is"))
            raise DocumentError(f"{document.name}: {pointer}: {fault}; {_GIVE}")
        self.root = self._declared
        for pointer, server in usable:
            if server != self.root:
                reason = f"another server, {server.origin}{server.base}; {self.root.origin}{self.root.base} is used"
                self.notes.append(Note("warn", pointer, reason, _GIVE))
        self.notes += [Note("warn", pointer, f"passed over: {fault}", _GIVE) for pointer, fault in faults]

    def of(self, holders: Sequence[Holder]) -> tuple[str, Note | None]:
        """Return the path before an operation's own, and a note when it is on another host (the path is nothing then).

        ``holders`` are what may say servers of its own, the nearest first.
        """
        for holder, pointer in holders:
            written = holder.get("servers")
            if written is not None and written != []:
                return self._nearer(written, child(pointer, "servers"))
        if self._elsewhere and self._declared is not None:
            return "", Note("stop", _ROOT, self._other(self._declared), "make a profile for that host without --server")
        return self.root.base, None

    def _nearer(self, written: Any, pointer: str) -> tuple[str, Note | None]:
        faults = []
        for _, server in _each(written, pointer):
            if isinstance(server, ServerError):
                faults.append(str(server))
            elif server == self._declared and not self._elsewhere:
                return self.root.base, None
            elif server.origin == self.root.origin:
                return server.base, None
            else:
                faults.append(self._other(server))
        return "", Note("stop", pointer, faults[0] if faults else "servers is not a list of servers", _SECOND)

    def _other(self, server: Server) -> str:
        return f"its server is {server.origin}{server.base}, on another host than {self.root.origin}"


def _origins(holders: Iterable[Holder]) -> set[str]:
    return {
        server.origin
        for holder, pointer in holders
        for _, server in _each(holder.get("servers"), pointer)
        if isinstance(server, Server)
    }


def parse_server(text: str) -> Server:
    """Take the URL of a server apart.

    Errors: ``ServerError``. It repeats nothing of a text that could hold a password.
    """
    match = _URL.fullmatch(text)
    if match is None:
        raise ServerError(_reason(text))
    scheme, host = match[1].lower(), match[2].lower().removesuffix(_DEFAULT_PORT[match[1].lower()])
    origin = f"{scheme}://{host}"
    try:
        parse_origin(origin)
    except ValueError as error:
        raise ServerError(f"{quoted(text, 100)} cannot be the origin of a profile: {error}") from None
    base = (match[3] or "").removesuffix("/")
    if base:
        try:
            route = parse_route(f"GET {base}")
        except ValueError as error:
            raise ServerError(f"the path of {quoted(text, 100)} cannot be carried: {error}") from None
        if route.trailing_slash or not all(isinstance(segment, Literal) for segment in route.segments):
            raise ServerError(f"the path of {quoted(text, 100)} holds an empty segment, or a wildcard")
    return Server(origin, base)


def _reason(text: str) -> str:
    if "@" in text:
        return "a server holds no user and no password"
    shown = quoted(text, 100)
    if text.startswith("/") or "://" not in text:
        return f"{shown} is relative to where the document was published"
    if "?" in text or "#" in text:
        return f"{shown} has a query or a fragment"
    return f"{shown} is no URL of http or https"


def _each(written: Any, pointer: str) -> Iterator[tuple[str, Server | ServerError]]:
    """Yield each server of a list, or why it is none."""
    if written is not None and not isinstance(written, list):
        yield pointer, ServerError("servers is not a list")
        return
    for index, entry in enumerate((written or [])[:_MOST]):
        try:
            yield child(pointer, index), parse_server(_filled(entry))
        except ServerError as error:
            yield child(pointer, index), error


def _filled(entry: Any) -> str:
    """Return a server's URL with its variables' defaults."""
    url = entry.get("url") if isinstance(entry, Mapping) else None
    if not isinstance(url, str) or len(url) > _LONGEST:
        raise ServerError(f"a server has no url of at most {_LONGEST} characters")
    variables = entry.get("variables")
    return _VARIABLE.sub(lambda match: _default(variables, match[1]), url)


def _default(variables: Any, name: str) -> str:
    variable = variables.get(name) if isinstance(variables, Mapping) else None
    default = variable.get("default") if isinstance(variable, Mapping) else None
    shown = quoted(name, 40)
    if not isinstance(variable, Mapping) or not isinstance(default, str):
        raise ServerError(f"the server variable {shown} has no default")
    # It may stand in the URL many times.
    if len(default) > _LONGEST_DEFAULT:
        raise ServerError(f"the default of the server variable {shown} has more than {_LONGEST_DEFAULT} characters")
    allowed = variable.get("enum")
    if isinstance(allowed, list) and default not in allowed:
        raise ServerError(f"the default of the server variable {shown} is none of its enum")
    return default
