"""Names for the code: of methods, arguments and tools, made of names that a document may write in any way.

A name depends on what is named, not on where it stands: a clash is settled by a hash of what is named, so a document
whose operations are listed in another order gives the same names.
"""

from __future__ import annotations

import builtins
import hashlib
import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broker.specgen.model import MAX_TOOL_NAME

_MAX_IDENTIFIER: Final = 96
_HASH: Final = 6
#: So much of a name is looked at; what differs only behind it is told apart by the hash.
_LOOKED_AT: Final = 1024

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_]+", re.ASCII)
_FOREIGN_TO_TOOLS: Final = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)
#: Marks that tell names apart (`created<`, `created>`) and would not be seen.
_MARKS: Final = str.maketrans({"<": "_lt", ">": "_gt"})

#: Reserved words of JavaScript, strict mode and modules included, that are none of Python's.
_JAVASCRIPT: Final = frozenset(
    {"abstract", "arguments", "boolean", "byte", "case", "catch", "char", "const", "debugger", "default", "delete"}
    | {"do", "double", "enum", "eval", "export", "extends", "false", "final", "float", "function", "goto", "implements"}
    | {"instanceof", "int", "interface", "let", "long", "native", "new", "null", "package", "private", "protected"}
    | {"public", "short", "static", "super", "switch", "synchronized", "this", "throw", "throws", "transient", "true"}
    | {"typeof", "undefined", "var", "void", "volatile", "Infinity", "NaN"}
)
#: What the clients use themselves, and what every object of JavaScript has.
_OURS: Final = frozenset(
    {"self", "client", "body", "headers", "options", "raw", "call", "help", "find", "close", "then", "constructor"}
    | {"Answer", "Any", "Literal"}  # types of the stubs, which a method of that name would hide
    | {"prototype", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString", "valueOf"}
)
RESERVED: Final = frozenset(keyword.kwlist) | _JAVASCRIPT | _OURS
#: What the languages, their hosts and the clients have under that name already: a client in its place would be missed.
GLOBALS: Final = frozenset(
    # JavaScript, and what browsers and Node add
    {"AggregateError", "Array", "ArrayBuffer", "Atomics", "BigInt", "Boolean", "DataView", "Date", "Error", "Function"}
    | {"Iterator", "JSON", "Map", "Math", "Number", "Object", "Promise", "Proxy", "Reflect", "RegExp", "Set", "String"}
    | {"Symbol", "URL", "WeakMap", "WeakRef", "WeakSet", "Uint8Array", "decodeURI", "decodeURIComponent", "encodeURI"}
    | {"encodeURIComponent", "escape", "globalThis", "isFinite", "isNaN", "parseFloat", "parseInt", "unescape"}
    | {"atob", "btoa", "clearInterval", "clearTimeout", "console", "crypto", "document", "exports", "fetch", "frames"}
    | {"global", "globalthis", "history", "location", "module", "name", "navigator", "parent", "performance", "process"}
    | {"queueMicrotask", "require", "screen", "setInterval", "setTimeout", "structuredClone", "top", "window"}
    # the clients
    | {"BrokerClient", "Answer", "Any", "CallError", "Callable", "Client", "Iterator", "NamedTuple", "NotAllowedError"}
    | {"RUN", "annotations", "decimal", "difflib", "dt", "enum", "http", "inspect", "json", "math", "os", "re"}
    | {"select", "threading", "unquote", "unquote_to_bytes", "urlsplit", "uuid"}
    # Python (of the names that are made, which are in small letters, no version since 3.11 has added one)
    | set(dir(builtins))
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An operation that needs a name: its operationId, which may be empty, and what tells it from all others."""

    id: str
    method: str
    path: str

    @property
    def key(self) -> str:
        """What no two operations of a document share."""
        return f"{self.method} {self.path}"

    @property
    def text(self) -> str:
        """What the name is made of."""
        return self.id or f"{self.method.lower()} {self.path}"


def identifier(text: str, taken: set[str], *, key: str = "") -> str:
    """Return a name that Python and JavaScript take and that no client uses itself; it is added to ``taken``.

    ``key`` is what a clash is settled by, when it is not the text.

    >>> taken = set()
    >>> [identifier(text, taken) for text in ("item-id", "class", "2things", "include[]", "__proto__")]
    ['item_id', 'class_', 'x_2things', 'include', 'proto']
    """
    return _unique(_identifier(text), taken, key or text, _MAX_IDENTIFIER)


def tool_name(text: str, taken: set[str], *, key: str = "") -> str:
    """Return a name for a tool, of at most 64 letters, digits, ``_`` and ``-``; it is added to ``taken``."""
    return _unique(_tool(text), taken, key or text, MAX_TOOL_NAME)


def operation_names(wanted: Iterable[Wanted]) -> dict[str, tuple[str, str]]:
    """Return the identifier and the name of the tool of each operation, by its key.

    Of several that want one name the plain one goes to an operation that says it (operationId), not to one whose name
    is made of its path, and then to the first path in the order of the alphabet.
    """
    identifiers: set[str] = set()
    tools: set[str] = set()
    ordered = sorted(wanted, key=lambda one: (not one.id, one.path, one.method))
    return {
        one.key: (identifier(one.text, identifiers, key=one.key), tool_name(one.text, tools, key=one.key))
        for one in ordered
    }


def _identifier(text: str) -> str:
    plain = _FOREIGN.sub("_", text[:_LOOKED_AT].translate(_MARKS)).strip("_")
    if not plain:
        return "x_" + _digest(text)
    if plain[0].isdigit():
        plain = "x_" + plain
    if plain in RESERVED:
        plain += "_"
    return _within(plain, text, _MAX_IDENTIFIER)


def _tool(text: str) -> str:
    plain = _FOREIGN_TO_TOOLS.sub("_", text[:_LOOKED_AT]).strip("_-")
    return _within(plain or "x_" + _digest(text), text, MAX_TOOL_NAME)


def _within(plain: str, text: str, limit: int) -> str:
    if len(plain) <= limit and len(text) <= _LOOKED_AT:
        return plain
    return f"{plain[: limit - _HASH - 1]}_{_digest(text)}"


def _unique(name: str, taken: set[str], key: str, limit: int) -> str:
    found, salt = name, key
    while found in taken:
        digest = _digest(salt)
        found = f"{name[: limit - _HASH - 1]}_{digest}"
        salt += digest
    taken.add(found)
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
