"""One operation of a document, carried into our words: its route, what the code gives, what is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.specgen.alternatives import Schemes, Wanted
from broker.specgen.bodies import read_body, read_result
from broker.specgen.document import Document
from broker.specgen.model import Argument, Choices, Note, Operation, RouteEntry
from broker.specgen.naming import identifier
from broker.specgen.parameters import Parameters, read_parameters
from broker.specgen.paths import Path, PathError, check_literal, check_route, read_path
from broker.specgen.queries import path_options, query_rules
from broker.specgen.references import child
from broker.specgen.security import Policy
from broker.specgen.servers import Servers
from broker.specgen.texts import quoted
from broker.specgen.walking import Found
from config.routes import METHODS

_CONFIRM: Final = "x-forge-require-confirmation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrying:
    """What all operations of a document are carried with."""

    document: Document
    choices: Choices
    servers: Servers
    schemes: Schemes
    policy: Policy

    def carry(self, found: Found, names: tuple[str, str]) -> tuple[Operation | None, tuple[Note, ...]]:
        """Return the operation, None when it cannot be carried, and what the operator should know in either case.

        ``names`` are its identifier and that of its tool.
        """
        notes: list[Note] = []
        if found.method not in METHODS:
            reason = f"{quoted(found.method, 40)} is no method of a route; there are {', '.join(METHODS)}"
            return None, (Note("stop", found.pointer, reason),)
        base, lost = self.servers.of(found.holders)
        if lost is not None:
            return None, (lost,)
        try:
            settled = {*self.choices.bind, *self.choices.params}
            path = read_path(found.path, child("#/paths", found.path), settled)
            notes.extend(path.notes)
            self._check_fixed(path)
            parameters = self._parameters(found, path)
            notes.extend(parameters.notes)
            body, more = read_body(self.document, found.node, found.pointer, found.method)
            notes.extend(more)
            if any(note.level == "stop" for note in notes):
                return None, tuple(notes)
            fillings, arguments = self._arguments(path, parameters)
            template = path.written(base, {name: filled.template for name, filled in fillings.items()})
            text = f"{found.method} " + path.written(base, {name: one.route for name, one in fillings.items()})
            check_route(text)
        except PathError as error:
            return None, (*notes, Note("stop", child("#/paths", found.path), error.reason, error.remedy))
        fixed = (*path.fixed_query, *parameters.fixed_query)
        attached, note = self.policy.sends(self._wanted(found))
        if note is not None:
            notes.append(note)
        operation = Operation(
            pointer=found.pointer,
            id=found.id,
            identifier=names[0],
            tool=names[1],
            method=found.method,
            template=template,
            route=self._route(text, arguments, fixed, attached=attached),
            arguments=arguments,
            fixed_query=fixed,
            body=body,
            result=read_result(self.document, found.node, found.pointer),
            summary=_text(found.node, "summary"),
            description=_text(found.node, "description"),
            tags=_tags(found.node),
            deprecated=found.node.get("deprecated") is True,
            destructive=_destructive(found),
        )
        return operation, tuple(notes)

    def _check_fixed(self, path: Path) -> None:
        for name, _ in path.fixed_query:
            if name.lower() in self.policy.security.names:
                raise PathError(f"the query in the path holds {quoted(name, 40)}, where the credential goes")

    def _parameters(self, found: Found, path: Path) -> Parameters:
        return read_parameters(
            self.document,
            found.item,
            found.item_pointer,
            found.node,
            found.pointer,
            names=path.names,
            choices=self.choices,
            refused=self.policy.security.names,
            fixed=frozenset(name for name, _ in path.fixed_query),
        )

    def _arguments(self, path: Path, parameters: Parameters) -> tuple[dict[str, _Filling], tuple[Argument, ...]]:
        """Give the arguments their identifiers, the path's first; return also what stands for each name of the path."""
        taken: set[str] = set()
        fillings: dict[str, _Filling] = {}
        arguments: list[Argument] = []
        for name in path.names:
            bound = self.choices.bind.get(name)
            if bound is not None:
                try:
                    check_literal(bound)
                except PathError as error:
                    raise PathError(f"--bind {name}: {error.reason}", "bind another value") from None
                fillings[name] = _Filling(bound, bound)
                continue
            argument = replace(parameters.path[name], identifier=identifier(name, taken))
            route = "*"
            if name in self.choices.params:
                argument, route = replace(argument, place="run"), "{" + name + "}"
            arguments.append(argument)
            fillings[name] = _Filling("{" + argument.identifier + "}", route)
        arguments += [replace(one, identifier=_identifier(one, taken)) for one in parameters.arguments]
        return fillings, tuple(arguments)

    def _route(
        self, text: str, arguments: tuple[Argument, ...], fixed: tuple[tuple[str, str], ...], *, attached: bool
    ) -> RouteEntry:
        entry: dict[str, Any] = {"route": text}
        rules = query_rules(self.document, arguments, fixed)
        if rules:
            entry["query"] = rules
        options = [
            path_options(self.document, argument, self.choices) for argument in arguments if argument.place == "path"
        ]
        listed = sorted({escape for encoded, _ in options if isinstance(encoded, list) for escape in encoded})
        if any(encoded for encoded, _ in options):
            entry["encoded"] = listed or True
        if any(wide for _, wide in options):
            entry["wide"] = True
        if not attached:
            entry["credential"] = False
        return entry if len(entry) > 1 else text

    def _wanted(self, found: Found) -> Wanted | None:
        own = own_security(found, self.schemes)
        return own if own is not None else self.schemes.root


@dataclass(frozen=True, slots=True)
class _Filling:
    """What stands for a name of the path in the client's template and in the route."""

    template: str
    route: str


def own_security(found: Found, schemes: Schemes) -> Wanted | None:
    """Return what an operation asks for itself; None when it leaves that to the document."""
    written = found.node.get("security")
    return None if written is None else schemes.wanted(written, child(found.pointer, "security"))


def _identifier(argument: Argument, taken: set[str]) -> str:
    plain = identifier(argument.name, set())
    if plain not in taken:
        return identifier(argument.name, taken)
    return identifier(f"{argument.name}_{argument.place}", taken)


def _text(node: Mapping[str, Any], name: str) -> str:
    written = node.get(name)
    return written if isinstance(written, str) else ""


def _tags(node: Mapping[str, Any]) -> tuple[str, ...]:
    written = node.get("tags")
    return tuple(tag for tag in written if isinstance(tag, str)) if isinstance(written, list) else ()


def _destructive(found: Found) -> str:
    written = found.node.get(_CONFIRM)
    if isinstance(written, str) and written:
        return written
    if written not in (None, False, ""):
        return "the document asks for a confirmation"
    return "DELETE removes what it names" if found.method == "DELETE" else ""
