"""Servers: the one origin that a profile is for, and the path that stands before every path of the document.

The text of a server is as untrusted as the rest: it is taken apart with a pattern that knows nothing but a host, a port
and a plain path, and the origin must be one that a profile can have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

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
#: Of a list, so many are looked at.
_MOST: Final = 64
_GIVE: Final = "give --server URL"
_SECOND: Final = "make a second profile for that host with --server"


class ServerError(Exception):
    """A server that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Server:
    """``origin`` is as a profile writes it; ``base`` is empty or begins with a slash and does not end in one."""

    origin: str
    base: str


class Servers:
    """The servers of a document, with the operator's choice."""

    def __init__(self, document: Document, choices: Choices) -> None:
        """Find the document's own.

        Errors: ``DocumentError`` when there is none that can be used.
        """
        self.notes: list[Note] = []
        declared = self._declared(document, strict=not choices.server)
        self._declared_root = declared
        if choices.server:
            try:
                self.root = parse_server(choices.server)
            except ServerError as error:
                raise DocumentError(f"--server: {error}") from None
        elif declared is None:
            raise DocumentError(f"{document.name}: no server says where the API is; {_GIVE}")
        else:
            self.root = declared

    def of(self, holders: tuple[tuple[Mapping[str, Any], str], ...]) -> tuple[str | None, Note | None]:
        """Return the path before an operation's own, and a note when it is on another host (then there is no path).

        ``holders`` are what may say servers of its own, with its pointer, the nearest first.
        """
        for holder, pointer in holders:
            written = holder.get("servers")
            if written is None or written == []:
                continue
            return self._nearer(written, child(pointer, "servers"))
        return self.root.base, None

    def _nearer(self, written: Any, pointer: str) -> tuple[str | None, Note | None]:
        faults = []
        for _, server in _each(written, pointer):
            if isinstance(server, ServerError):
                faults.append(str(server))
            elif server == self._declared_root:
                return self.root.base, None
            elif server.origin == self.root.origin:
                return server.base, None
            else:
                faults.append(f"its server is {server.origin}, another host than the profile's {self.root.origin}")
        return None, Note("stop", pointer, faults[0] if faults else "servers is not a list of servers", _SECOND)

    def _declared(self, document: Document, *, strict: bool) -> Server | None:
        """Return the first of the document's servers that can be used, and note the others."""
        found: Server | None = None
        faults = []
        for pointer, server in _each(document.root.get("servers"), "#/servers"):
            if isinstance(server, ServerError):
                faults.append((pointer, str(server)))
            elif found is None:
                found = server
            elif strict and server != found:
                where = server.origin + server.base
                self.notes.append(Note("warn", pointer, f"another server, {where}; the first one counts", _GIVE))
        if found is None and faults and strict:
            pointer, reason = faults[0]
            raise DocumentError(f"{document.name}: {pointer}: {reason}; {_GIVE}")
        if strict:
            self.notes += [Note("warn", pointer, f"passed over: {reason}", _GIVE) for pointer, reason in faults]
        return found


def parse_server(text: str) -> Server:
    """Take the URL of a server apart.

    Errors: ``ServerError``. It repeats nothing of a text that could hold a password.
    """
    if len(text) > _LONGEST:
        raise ServerError(f"a server's URL has at most {_LONGEST} characters")
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
        raise ServerError("a server has no url, or none that can be read")
    variables = entry.get("variables")
    return _VARIABLE.sub(lambda match: _default(variables, match[1]), url)


def _default(variables: Any, name: str) -> str:
    variable = variables.get(name) if isinstance(variables, Mapping) else None
    default = variable.get("default") if isinstance(variable, Mapping) else None
    shown = quoted(name, 40)
    if not isinstance(variable, Mapping) or not isinstance(default, str):
        raise ServerError(f"the server variable {shown} has no default")
    allowed = variable.get("enum")
    if isinstance(allowed, list) and default not in allowed:
        raise ServerError(f"the default of the server variable {shown} is none of its enum")
    return default
