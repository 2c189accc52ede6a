"""Security schemes and requirements: which placement does what the document asks for, or what to ask the operator.

What the document cannot say is a question; its prose is shown with the question and never acted on.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from broker.placements import Registry
from broker.specgen import texts
from broker.specgen.document import Document
from broker.specgen.model import Choices, Note
from broker.specgen.references import UnresolvedError, child
from broker.specgen.texts import quoted

ROOT: Final = "#/security"
_SCHEMES: Final = "#/components/securitySchemes"
_MOST: Final = 64
#: Of the scopes that a document names, so many are shown.
MOST_SCOPES: Final = 256
_PROSE: Final = 300
#: As many headers as the placement `headers` takes.
MOST_HEADERS: Final = 8
_FIELD: Final = re.compile(r"[^a-z0-9]+", re.ASCII)

Placement = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """One alternative: the schemes that it needs together, and the placement that does it, or what to ask."""

    schemes: tuple[str, ...]
    scopes: tuple[str, ...] = ()
    placement: Placement | None = None
    question: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a security member asks for. Of an empty list there are no ways: nothing is wanted."""

    ways: tuple[Way, ...]
    pointer: str

    @property
    def nothing(self) -> bool:
        """Say whether no credential is wanted, whichever alternative is taken."""
        return all(not way.schemes for way in self.ways)

    @property
    def best(self) -> Way | None:
        """The alternative that a profile does, None when nothing is wanted.

        It is the first that one value does, else the first that several values of one credential do, else the first.
        """
        wanting = [way for way in self.ways if way.schemes]
        doable = [way for way in wanting if way.placement is not None]
        return min(doable, key=lambda way: len(way.schemes) > 1) if doable else next(iter(wanting), None)


@dataclass(slots=True)
class Schemes:
    """The document's security, read once. ``names`` are those that carry a credential, in lower case."""

    document: Document
    choices: Choices
    notes: list[Note] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    _ways: dict[tuple[str, ...], Way] = field(default_factory=dict)
    _declared: dict[str, tuple[Mapping[str, Any], str]] = field(default_factory=dict)
    _registry: Registry = field(default_factory=Registry)

    def __post_init__(self) -> None:
        """Read the schemes that are declared."""
        self.names.add("authorization")
        components = self.document.root.get("components")
        written = components.get("securitySchemes") if isinstance(components, Mapping) else None
        for name, scheme in written.items() if isinstance(written, Mapping) else ():
            pointer = child(_SCHEMES, name)
            try:
                found, where = self.document.resolve(scheme, pointer)
            except UnresolvedError as error:
                self.notes.append(error.note("warn"))
                continue
            if not isinstance(found, Mapping):
                self.notes.append(Note("warn", pointer, "a security scheme is an object", "mend the document"))
                continue
            self._declared[name] = found, where
            if found.get("type") == "apiKey" and isinstance(found.get("name"), str):
                self.names.add(found["name"].lower())
        chosen = self.choices.placement or {}
        headers = chosen.get("headers")
        named = [*headers] if isinstance(headers, Mapping) else [chosen.get("name")]
        self.names |= {name.lower() for name in named if isinstance(name, str)}

    @property
    def root(self) -> Wanted | None:
        """What the document asks for by itself; None when it does not say."""
        written = self.document.root.get("security")
        return None if written is None else self.wanted(written, ROOT)

    @property
    def declared(self) -> tuple[str, ...]:
        """The names of the schemes that the document declares."""
        return tuple(self._declared)

    def wanted(self, written: Any, pointer: str) -> Wanted:
        """Read a ``security`` member: a list of alternatives, each an object of schemes that are needed together."""
        if not isinstance(written, list) or not all(isinstance(entry, Mapping) for entry in written):
            question = f"{pointer} is not a list of objects: how is the credential sent?"
            return Wanted((Way(("",), question=question),), pointer)
        return Wanted(tuple(self._way(entry) for entry in written[:_MOST]), pointer)

    def _way(self, entry: Mapping[str, Any]) -> Way:
        # One too many shows that they are too many.
        some = dict(itertools.islice(entry.items(), MOST_HEADERS + 1))
        names = tuple(sorted(some))
        known = self._ways.get(names)
        if known is None:
            placement, question = self._together(names)
            if placement is not None and (faults := self._registry.check("placement", placement)):
                placement, question = None, f"{listed(names)}: {faults[0]}: how is the credential sent?"
            known = self._ways[names] = Way(names, (), placement, question)
        scopes = [
            scope
            for written in some.values()
            if isinstance(written, list)
            for scope in written[:MOST_SCOPES]
            if isinstance(scope, str)
        ]
        return replace(known, scopes=tuple(scopes)) if scopes else known

    def _together(self, names: tuple[str, ...]) -> tuple[Placement | None, str]:
        if not names:
            return None, ""
        if len(names) == 1:
            return self._alone(names[0])
        headers = {}
        for name in names:
            scheme, _ = self._declared.get(name, ({}, ""))
            header = scheme.get("name")
            is_header = scheme.get("type") == "apiKey" and scheme.get("in") == "header" and isinstance(header, str)
            if not is_header or str(header).lower() == "authorization":
                return None, f"{listed(names)} are needed together, which no placement does: how is the API called?"
            headers[str(header)] = _FIELD.sub("_", name.lower()).strip("_") or "value"
        if len(headers) < len(names):
            return None, f"{listed(names)} are needed together in one header: how is the API called?"
        return {"scheme": "headers", "headers": headers}, ""

    def _alone(self, name: str) -> tuple[Placement | None, str]:
        if name not in self._declared:
            return None, f"the security scheme {quoted(name, 80)} is not defined: how is the credential sent?"
        scheme, _ = self._declared[name]
        kind = scheme.get("type")
        if kind in ("oauth2", "openIdConnect"):
            return {"scheme": "bearer"}, ""
        if kind == "http":
            return _http(name, scheme)
        if kind == "apiKey":
            return _api_key(name, scheme)
        shown = quoted(kind, 40) if isinstance(kind, str) else "(no text)"
        return None, f"{quoted(name, 80)} is of type {shown}, for which there is no placement: how is the API called?"


def _http(name: str, scheme: Mapping[str, Any]) -> tuple[Placement | None, str]:
    written = scheme.get("scheme")
    lower = written.lower() if isinstance(written, str) else ""
    if lower in ("bearer", "token"):
        return {"scheme": lower}, ""
    if lower == "basic":
        return None, (
            f"{quoted(name, 80)} is Basic: is the credential the password (--placement basic:user:NAME) or the user "
            f"(--placement basic:password:TEXT)?{_prose(scheme)}"
        )
    question = (
        f"{quoted(name, 80)} is HTTP {quoted(lower, 40)}, for which there is no placement: how is the API called?"
    )
    return None, question + _prose(scheme)


def _api_key(name: str, scheme: Mapping[str, Any]) -> tuple[Placement | None, str]:
    place, key = scheme.get("in"), scheme.get("name")
    if place not in ("header", "query", "cookie") or not isinstance(key, str):
        return None, f"{quoted(name, 80)} does not say where the key goes: in which header, query parameter or cookie?"
    if place == "header" and key.lower() == "authorization":
        return None, (
            f"{quoted(name, 80)} puts the key into Authorization: what stands before it there? Say --placement bearer, "
            f"token, header:Authorization:PREFIX, or header:Authorization for the key alone.{_prose(scheme)}"
        )
    return {"scheme": place, "name": key}, ""


def _prose(scheme: Mapping[str, Any]) -> str:
    shown = texts.quoted(scheme.get("description"), _PROSE)
    return f" The document says: {shown}" if shown != '""' else ""


def listed(names: Iterable[str]) -> str:
    """Return names of schemes as a note shows them."""
    shown = [quoted(name, 80) for name in itertools.islice(names, MOST_HEADERS + 1)]
    return " and ".join(shown[:MOST_HEADERS]) + (" and more" if len(shown) > MOST_HEADERS else "")
