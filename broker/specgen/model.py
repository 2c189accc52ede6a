"""What specgen knows of a document, in our words: frozen, in the document's order.

Texts of the document (names, descriptions) stand here as they were written and are untrusted: whoever writes them out
encodes or cleans them. A *pointer* is where something stands: a JSON pointer as a URI fragment (RFC 6901 section 6),
``#/paths/~1pets/get``; in another file its path from the document's directory stands before the ``#``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

#: An entry of ``allow`` and ``catalog`` as the grants file has it: a template, or an object that says more.
RouteEntry: TypeAlias = "str | dict[str, Any]"

Place: TypeAlias = Literal["path", "query", "header", "run"]
#: How a value is written (OpenAPI "Style Values"); "json" is a parameter with ``content`` of JSON.
Style: TypeAlias = Literal["simple", "form", "spaceDelimited", "pipeDelimited", "deepObject", "json"]
Shape: TypeAlias = Literal["scalar", "array", "object"]
#: What becomes of an operation, from best to worst. "left-out" is the operator's own choice (a filter).
Status: TypeAlias = Literal["carried", "limited", "left-out", "not-carried"]
#: What a note means for its operation: "stop" not carried, "limit" carried with a limit, "warn" only worth knowing.
Level: TypeAlias = Literal["warn", "limit", "stop"]

#: Longest name of a tool (the limit of the APIs that models are called by).
MAX_TOOL_NAME: Final = 64


def route_text(entry: RouteEntry) -> str:
    """Return the template of an entry, ``METHOD /path``."""
    return entry if isinstance(entry, str) else str(entry["route"])


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the operator should know: where, what, and what to do about it."""

    level: Level
    pointer: str
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class SchemaAt:
    """A schema as it stands in the document, references and all, and where: what its references count from."""

    schema: Any
    pointer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One thing that the code gives to a method of the client.

    ``identifier`` is legal in Python and JavaScript and its own within the operation; ``name`` is what goes on the
    wire, byte for byte. ``members`` are the names of an object's members that can be sent, for ``shape`` "object".
    A ``place`` of "run" is a run parameter in the path: ``name`` is the parameter's, and the code does not choose it.
    """

    identifier: str
    name: str
    place: Place
    required: bool
    schema: SchemaAt
    description: str = ""
    style: Style = "simple"
    explode: bool = False
    shape: Shape = "scalar"
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What an operation is sent: ``media`` is the Content-Type; ``form`` how the client writes it.

    "json" is any JSON value, "form" ``application/x-www-form-urlencoded`` from an object, "multipart" from an object,
    "raw" text or bytes as they are.
    """

    media: str
    form: Literal["json", "form", "multipart", "raw"]
    required: bool
    schema: SchemaAt
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation that is carried.

    ``template`` is the whole path on the wire, base path included, with ``{identifier}`` of an argument where the code
    chooses; everything else in it is literal. ``route`` is its entry for ``allow`` and ``catalog``. ``arguments`` are
    in the order of a call: the path's as they stand in the template, then required ones, then the rest.
    ``fixed_query`` is sent with every call. ``result`` is the schema of its successful JSON answer, if it says one.
    ``destructive`` is a reason to ask before it is called, empty when there is none.
    """

    pointer: str
    id: str
    identifier: str
    tool: str
    method: str
    template: str
    route: RouteEntry
    arguments: tuple[Argument, ...] = ()
    fixed_query: tuple[tuple[str, str], ...] = ()
    body: Body | None = None
    result: SchemaAt | None = None
    summary: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    deprecated: bool = False
    destructive: str = ""
    notes: tuple[Note, ...] = ()

    @property
    def route_text(self) -> str:
        """The route's template, ``METHOD /path``."""
        return route_text(self.route)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of one operation of the document. ``label`` is ``METHOD /path`` as the document writes it."""

    pointer: str
    label: str
    id: str
    status: Status
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How the API wants to be sent its credential.

    ``placement`` is None when the document does not say it: ``question`` then says what to ask the operator.
    ``names`` are the headers, query parameters and cookies (lower case) that carry a credential: never offered to code.
    """

    placement: Mapping[str, Any] | None
    question: str = ""
    scopes: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """A document, read with the operator's choices.

    ``catalog`` is every route that is carried, filters or not, merged and without doubles; ``operations`` are the
    carried ones that no filter left out. ``told`` has one entry for each operation of the document, in its order.
    ``params`` are the patterns of the run parameters that the operator named.
    """

    title: str
    source: str
    version: str
    sha256: str
    origin: str
    catalog: tuple[RouteEntry, ...]
    operations: tuple[Operation, ...]
    told: tuple[Told, ...]
    security: Security
    request_headers: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the operator chose on the command line.

    ``server`` overrides the document's servers (a whole URL, base path included). ``bind`` writes a constant in the
    place of a parameter (path or query) of that name; ``params`` makes a path parameter a run parameter with that
    pattern; ``slashes`` names path parameters whose values may hold ``%2F``. ``placement`` overrides the security
    schemes. Filters: an operation is left out unless it has one of ``tags``, one of ``methods`` and matches one of
    ``allow`` (globs over ``METHOD /path`` of its route, or its operationId; empty: no filter); deprecated ones are
    left out unless ``deprecated``. ``allow`` also grants: the profile to start from lists what it left in, and nothing
    without it.
    """

    server: str = ""
    bind: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    slashes: frozenset[str] = frozenset()
    placement: Mapping[str, Any] | None = None
    tags: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    allow: tuple[str, ...] = ()
    deprecated: bool = False


class DocumentError(Exception):
    """A document that cannot be used at all: one line that says where and why. Exit status 3."""
