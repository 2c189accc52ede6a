"""Which operations the granted routes let the code call, and to what they narrow its arguments.

An operation is granted when a granted route is *within* its own: the same method, as many segments, the same trailing
slash, literals equal, and at each wildcard a literal, a run parameter, a glob or a wildcard that takes no more. A route
that is wider than the operation's is no grant of it. The answer is for texts and clients: the broker decides each call
on its own, so where several routes grant one operation their values are told argument by argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from broker.specgen.model import Argument, Operation, RouteEntry, route_text
from config.routes import PARAM_NAME, parse_route

_ARGUMENT: Final = re.compile(r"\{([^{}]*)\}")
_PARAM: Final = re.compile(r"\{(" + PARAM_NAME + r")\}", re.ASCII)

#: What a granted route takes in the place of an argument, and the text that says which.
_Taken: TypeAlias = tuple[Literal["anything", "value", "param", "glob"], str]
_ANYTHING: Final[_Taken] = ("anything", "")


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What an argument may be: one of ``values``, the run's value of one of ``params``, or like one of ``globs``.

    A glob is written with ``*``, and a run parameter in it as ``{name}``.
    """

    values: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()

    @property
    def only(self) -> str | None:
        """The one value that is left, if it is one."""
        return self.values[0] if len(self.values) == 1 and not self.params and not self.globs else None


@dataclass(frozen=True, slots=True)
class Granted:
    """A granted operation.

    ``operation`` has only the arguments (and members of arguments) that the grant takes, required where the grant
    requires them. ``narrowed`` is by argument identifier; what is not there takes whatever the operation takes.
    """

    operation: Operation
    narrowed: Mapping[str, Narrowed]


def granted_operations(operations: Iterable[Operation], granted: Sequence[RouteEntry] | None) -> tuple[Granted, ...]:
    """Return the operations that are granted, in their order; all of them as they are when ``granted`` is None."""
    if granted is None:
        return tuple(Granted(operation, {}) for operation in operations)
    index = _Index(granted)
    return tuple(found for operation in operations if (found := _granted(operation, index)) is not None)


def _granted(operation: Operation, index: _Index) -> Granted | None:
    ways = []
    for entry, segments in index.within(operation):
        values = _path_values(operation, segments)
        query = None if values is None else _Query.of(operation, entry)
        if values is not None and query is not None:
            ways.append((values, query))
    if not ways:
        return None
    arguments = tuple(_offered(operation.arguments, [query for _, query in ways]))
    narrowed = {}
    for argument in arguments:
        identifier = argument.identifier
        if argument.place == "path":
            found = _united([values.get(identifier, _ANYTHING) for values, _ in ways])
        else:
            found = _united([taken for _, query in ways for taken in query.values(argument)])
        if found is not None:
            narrowed[identifier] = found
    return Granted(replace(operation, arguments=arguments), narrowed)


class _Index:
    """Granted routes by method and path, so that an operation is not held against each of them."""

    def __init__(self, granted: Sequence[RouteEntry]) -> None:
        self._roots: dict[tuple[str, int], dict[str, Any]] = {}
        for entry in granted:
            route = parse_route(route_text(entry))
            segments = tuple(map(str, route.positions))
            node = self._roots.setdefault((route.method, len(segments)), {})
            for segment in segments[:-1]:
                node = node.setdefault(segment, {})
            node.setdefault(segments[-1], []).append((entry, segments))

    def within(self, operation: Operation) -> Iterator[tuple[RouteEntry, tuple[str, ...]]]:
        """Yield the routes that have the operation's literals, each with its segments."""
        positions = operation.template.split("/")[1:]
        nodes: list[Any] = [self._roots.get((operation.method, len(positions)), {})]
        for position in positions:
            nodes = [
                node[key]
                for node in nodes
                for key in ((position,) if "{" not in position else tuple(node))
                if key in node
            ]
        for found in nodes:
            yield from found


def _path_values(operation: Operation, segments: Sequence[str]) -> dict[str, _Taken] | None:
    """Return what each path argument is in a granted route; None when the route is not within the operation's."""
    runs = {argument.identifier: argument.name for argument in operation.arguments if argument.place == "run"}
    values: dict[str, _Taken] = {}
    for template, segment in zip(operation.template.split("/")[1:], segments, strict=True):
        names = _ARGUMENT.findall(template)
        if not names:
            continue
        found = _split(template, segment)
        if found is None:
            return None
        for name, taken in zip(names, found, strict=True):
            if name in runs and taken[0] != "value" and taken != ("param", runs[name]):
                return None
            values[name] = taken
    return values


@lru_cache(maxsize=4096)
def _split(template: str, segment: str) -> tuple[_Taken, ...] | None:
    """Split a granted segment at a template's arguments: None when it is not within.

    A ``*`` and a ``{name}`` of the granted one count as a character that no literal has. Where the texts between two
    arguments can stand in more than one place, nothing is told of either.
    """
    literals = [re.escape(text) for text in _ARGUMENT.split(template)[::2]]
    param = _PARAM.search(segment)
    text = _PARAM.sub("\0", segment)
    early, late = (re.fullmatch(unit.join(literals), text) for unit in ("(.+?)", "(.+)"))
    if early is None or late is None:
        return None
    if early.groups() != late.groups():
        return tuple(_ANYTHING for _ in early.groups())
    return tuple(_taken(group, param[1] if param is not None else "") for group in early.groups())


def _taken(text: str, param: str) -> _Taken:
    if text == "*":
        return _ANYTHING
    if text == "\0":
        return "param", param
    return "glob" if "*" in text or "\0" in text else "value", text.replace("\0", "{" + param + "}")


class _Query:
    """The query rules of a granted route, as they bear on one operation."""

    def __init__(self, rules: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self._rules = rules
        self._own = own

    @classmethod
    def of(cls, operation: Operation, entry: RouteEntry) -> _Query | None:
        """Return the rules; None when they refuse what every call of the operation sends."""
        query = cls(_rules(entry), _rules(operation.route))
        fixed = all(query.takes(name, value) for name, value in operation.fixed_query)
        required = all(query.members(argument) for argument in operation.arguments if argument.required)
        return query if fixed and required else None

    def takes(self, name: str, value: str) -> bool:
        """Say whether a constant may be sent; a run parameter's value is not known, so it may."""
        found = _rule(self._rules[name]) if name in self._rules else []
        return any(taken == ("value", value) or taken[0] in ("anything", "param") for taken in found)

    def members(self, argument: Argument) -> tuple[str, ...]:
        """Return the members of an argument that may be sent; what goes as a whole has one of no name."""
        if argument.place != "query":
            return ("",)
        if argument.shape == "object" and argument.style == "deepObject":
            return tuple(name for name in argument.members if f"{argument.name}[{name}]" in self._rules)
        if argument.shape == "object" and argument.style == "form" and argument.explode:
            return tuple(name for name in argument.members if name in self._rules)
        return ("",) if argument.name in self._rules else ()

    def requires(self, argument: Argument) -> bool:
        """Say whether the grant itself requires the argument."""
        rule = self._rules.get(argument.name) if argument.place == "query" else None
        return isinstance(rule, Mapping) and bool(rule.get("required"))

    def values(self, argument: Argument) -> list[_Taken]:
        """Return what the grant takes of an argument and its operation does, if that is less."""
        if argument.place != "query" or argument.name not in self._rules:
            return [_ANYTHING]
        taken = _rule(self._rules[argument.name])
        known = _rule(self._own[argument.name]) if argument.name in self._own else [_ANYTHING]
        if _ANYTHING in known:
            return taken
        if _ANYTHING in taken or set(known) <= set(taken):
            return [_ANYTHING]
        # A grant of values that the document does not know: the document may be the older of the two.
        return [one for one in taken if one in known or one[0] == "param"] or taken


def _offered(arguments: Iterable[Argument], ways: Sequence[_Query]) -> Iterator[Argument]:
    for argument in arguments:
        members = {member for query in ways for member in query.members(argument)}
        if not members:
            continue
        kept = tuple(member for member in argument.members if "" in members or member in members)
        required = argument.required or all(query.requires(argument) for query in ways)
        yield replace(argument, required=required, members=kept)


def _rules(entry: RouteEntry) -> Mapping[str, Any]:
    rules = entry.get("query") if isinstance(entry, dict) else None
    return rules if isinstance(rules, Mapping) else {}


def _rule(rule: Any) -> list[_Taken]:
    """Return what a rule takes: constants, a run parameter, or more than constants."""
    if isinstance(rule, str):
        param = _PARAM.fullmatch(rule)
        return [_ANYTHING if rule in ("any", "int") else ("param", param[1]) if param is not None else ("value", rule)]
    if not isinstance(rule, Mapping):
        return [("value", str(value)) for value in rule]
    if rule.get("const") is not None:
        return [("value", str(rule["const"]))]
    if rule.get("values") is not None:
        return [("value", str(value)) for value in rule["values"]]
    return [("param", str(rule["param"])) if rule.get("param") is not None else _ANYTHING]


def _united(ways: Iterable[_Taken]) -> Narrowed | None:
    taken = dict.fromkeys(ways)
    if _ANYTHING in taken:
        return None
    of = {kind: tuple(text for sort, text in taken if sort == kind) for kind in ("value", "param", "glob")}
    return Narrowed(of["value"], of["param"], of["glob"])
