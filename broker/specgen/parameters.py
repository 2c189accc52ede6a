"""The parameters of an operation: which of them the code gives, which are fixed, and which are never offered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.specgen.declared import Declared, LostError
from broker.specgen.document import Document
from broker.specgen.model import Argument, Choices, Note, Place, SchemaAt
from broker.specgen.queries import pair_fault, takes_empty, wire_names
from broker.specgen.references import UnresolvedError, child
from broker.specgen.styles import read_style, shown
from broker.specgen.texts import quoted
from broker.specgen.withheld import names_credential, withheld

#: Far more than any operation has.
_MAX_PARAMETERS: Final = 500
_NOT_OF_3: Final = ("body", "formData")


@dataclass(frozen=True, slots=True)
class Parameters:
    """What an operation's parameters come to.

    ``path`` has an argument for each name of the template. ``arguments`` are those of the query and the headers,
    required ones first. ``fixed_query`` are the pairs that the operator bound. No argument has its identifier yet.
    """

    path: Mapping[str, Argument]
    arguments: tuple[Argument, ...]
    fixed_query: tuple[tuple[str, str], ...]
    notes: tuple[Note, ...]


def read_parameters(
    document: Document,
    item: Mapping[str, Any],
    item_pointer: str,
    operation: Mapping[str, Any],
    operation_pointer: str,
    *,
    names: Sequence[str],
    choices: Choices,
    refused: frozenset[str],
    fixed: frozenset[str] = frozenset(),
) -> Parameters:
    """Read the parameters of an operation and those that its path item gives to all of its operations.

    ``names`` are those in the path's template, ``refused`` the names (lower case) that carry a credential, ``fixed``
    the names that the path's own query has. Notes of level "stop" say that the operation cannot be carried; the rest
    of what is returned then stands for nothing.
    """
    reading = _Reading(document, choices, refused, fixed)
    shared = reading.declared(item.get("parameters"), child(item_pointer, "parameters"))
    own = reading.declared(operation.get("parameters"), child(operation_pointer, "parameters"))
    declared = list({**shared, **own}.values())
    if len(declared) > _MAX_PARAMETERS:
        note = Note("stop", operation_pointer, f"has more than {_MAX_PARAMETERS} parameters")
        return Parameters({}, (), (), (*reading.notes, note))
    path = {one.name: one for one in declared if one.place == "path"}
    arguments = {}
    for name in dict.fromkeys(names):
        if name in path:
            arguments[name] = reading.path(path.pop(name))
        else:
            arguments[name] = reading.undeclared(name, operation_pointer)
    for one in path.values():
        reading.notes.append(one.note("warn", "does not stand in the path; it is left out", "mend the document"))
    for one in declared:
        if one.place != "path":
            reading.other(one)
    reading.settle_members()
    return Parameters(arguments, reading.ordered(), tuple(reading.fixed), tuple(reading.notes))


class _Reading:
    """The reading of one operation's parameters: what was found so far."""

    def __init__(self, document: Document, choices: Choices, refused: frozenset[str], in_path: frozenset[str]) -> None:
        self.notes: list[Note] = []
        self.fixed: list[tuple[str, str]] = []
        self._document = document
        self._choices = choices
        self._refused = refused
        self._in_path = in_path
        self._arguments: list[tuple[Declared, Argument]] = []

    def declared(self, parameters: Any, pointer: str) -> dict[tuple[str, str], Declared]:
        """Return the Parameter Objects of a list by what tells them apart; of two alike the first one counts."""
        found: dict[tuple[str, str], Declared] = {}
        for one in self._each(parameters, pointer):
            if one.key in found:
                self.notes.append(one.note("warn", "stands twice; the first one counts", "mend the document"))
            else:
                found[one.key] = one
        return found

    def path(self, declared: Declared) -> Argument:
        """Return the argument for a parameter of the path."""
        argument = self._argument(declared, "path")
        if argument is None:  # a note says so, and stops the operation
            return _any_text(declared.name, declared.pointer)
        free = declared.name not in self._choices.params and declared.name not in self._choices.bind
        if free and names_credential(declared.name):
            reason = "is named like a credential, which the code would have to know"
            remedy = declared.option("--param ") + ", so that whoever opens the run gives it"
            self.notes.append(declared.note("limit", reason, remedy))
        slashes = declared.node.get("x-multi-segment") is True or declared.node.get("allowReserved") is True
        if slashes and free and declared.name not in self._choices.slashes:
            remedy = declared.option("--slashes ") + ", if the API takes %2F in a segment"
            self.notes.append(declared.note("limit", "its values may hold slashes, which are not sent", remedy))
        return argument

    def undeclared(self, name: str, pointer: str) -> Argument:
        """Return the argument for a name of the template that no parameter declares."""
        reason = f"path parameter {quoted(name, 80)} is not declared; it is taken as a text"
        self.notes.append(Note("warn", pointer, reason, "declare it"))
        return _any_text(name, pointer)

    def other(self, declared: Declared) -> None:
        """Take in a parameter that is not the path's."""
        if declared.place in ("query", "header", "cookie"):
            note = withheld(declared, self._refused)
            if note is not None:
                self.notes.append(note)
            elif declared.place == "query" and declared.name in self._in_path:
                self.notes.append(declared.note("warn", "is fixed by the query that stands in the path"))
            elif declared.place == "query":
                self._query(declared)
            elif (argument := self._argument(declared, "header")) is not None:
                self._arguments.append((declared, argument))
        elif declared.place == "querystring":
            self.notes.append(declared.lost("a whole query is not carried", "describe its parameters one by one"))
        elif declared.place in _NOT_OF_3:
            self.notes.append(declared.lost("is of Swagger 2.0 and means nothing here", "describe it as requestBody"))
        else:
            self.notes.append(declared.lost("its place is not known", "mend the document"))

    def settle_members(self) -> None:
        """Leave out of the objects what is bound, carries a credential, or is another parameter's name."""
        taken = {*self._in_path, *(name for name, _ in self.fixed)}
        for _, argument in self._arguments:
            if argument.place == "query" and not _is_spread(argument):
                taken.update(wire_names(argument))
        settled = []
        for declared, argument in self._arguments:
            settled_argument = self._settled(declared, argument, taken) if _is_spread(argument) else argument
            if settled_argument is not None:
                settled.append((declared, settled_argument))
        self._arguments = settled

    def ordered(self) -> tuple[Argument, ...]:
        """Return the arguments: required ones first, the query's before the headers'."""
        found = [argument for _, argument in self._arguments]
        return tuple(sorted(found, key=lambda argument: (not argument.required, argument.place == "header")))

    def _each(self, parameters: Any, pointer: str) -> Iterator[Declared]:
        if parameters is None:
            return
        if not isinstance(parameters, list):
            self._stop(pointer, "parameters is not a list")
            return
        for index, node in enumerate(parameters[: _MAX_PARAMETERS + 1]):
            try:
                found, place = self._document.resolve(node, child(pointer, index))
            except UnresolvedError as error:
                # A parameter that is not known may be a required one.
                self.notes.append(error.note("stop"))
                continue
            if not isinstance(found, Mapping):
                self._stop(place, "a parameter is not an object")
                continue
            name, where, required = found.get("name"), found.get("in"), found.get("required")
            if not isinstance(name, str) or not name or not isinstance(where, str):
                self._stop(place, "a parameter has no name, or does not say where it stands (in)")
                continue
            yield Declared(found, place, name, where, where == "path" or required is True)

    def _stop(self, pointer: str, reason: str) -> None:
        self.notes.append(Note("stop", pointer, reason, "mend the document"))

    def _query(self, declared: Declared) -> None:
        bound = self._choices.bind.get(declared.name)
        argument = self._argument(declared, "query")
        if argument is None:
            return
        if bound is None:
            if declared.node.get("allowEmptyValue") is True and not takes_empty(self._document, argument):
                self.notes.append(declared.note("limit", "an empty value is not sent"))
            self._arguments.append((declared, argument))
        elif _is_spread(argument):
            remedy = f"bind its members, by the names that are sent: {shown(list(wire_names(argument)))}"
            self.notes.append(declared.lost("is bound as a whole, but is sent member by member", remedy))
        elif (fault := pair_fault(declared.name, bound)) is not None:
            self.notes.append(declared.note("stop", f"cannot be bound to this value: {fault}"))
        else:
            self.fixed.append((declared.name, bound))

    def _argument(self, declared: Declared, place: Place) -> Argument | None:
        try:
            written = read_style(self._document, declared)
        except LostError as error:
            self.notes.append(declared.lost(error.reason, error.remedy))
            return None
        self.notes.extend(written.notes)
        description = declared.node.get("description")
        return Argument(
            identifier="",
            name=declared.name,
            place=place,
            required=declared.required,
            schema=written.schema,
            description=description if isinstance(description, str) else "",
            style=written.style,
            explode=written.explode,
            shape=written.shape,
            members=written.members,
        )

    def _settled(self, declared: Declared, argument: Argument, taken: set[str]) -> Argument | None:
        kept, lost = [], []
        for member, name in zip(argument.members, wire_names(argument), strict=True):
            bound = self._choices.bind.get(name)
            if name in taken or name.lower() in self._refused or names_credential(name):
                lost.append(member)
            elif bound is None:
                kept.append(member)
            elif (fault := pair_fault(name, bound)) is not None:
                self.notes.append(declared.note("stop", f"{quoted(name, 80)} cannot be bound to this value: {fault}"))
            else:
                self.fixed.append((name, bound))
            taken.add(name)
        if lost:
            reason = f"its members {shown(lost)} are left out: they carry a credential, or another parameter's name"
            self.notes.append(declared.note("limit", reason) if kept else declared.lost(reason))
        return replace(argument, members=tuple(kept)) if kept else None


def _is_spread(argument: Argument) -> bool:
    return argument.place == "query" and argument.shape == "object" and argument.explode


def _any_text(name: str, pointer: str) -> Argument:
    schema = SchemaAt({"type": "string"}, pointer)
    return Argument(identifier="", name=name, place="path", required=True, schema=schema)
