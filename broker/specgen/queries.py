"""The rules of a route's query, as the grants file writes them, and what its wildcards must take.

What the document says of a value is advice, but for what a rule can say exactly: a whole number, a list of constants.
An enum that a list cannot hold (very long, or with values that no query carries) becomes "any": nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from broker.specgen import schemas
from broker.specgen.document import Document
from broker.specgen.model import Argument, Choices, SchemaAt
from broker.specgen.patterns import only_plain
from config.query import compile_query
from config.routes import PARAM_NAME, PLAIN, WIDE

_WORDS: Final = ("any", "int")
_PARAM: Final = re.compile(r"\{" + PARAM_NAME + r"\}", re.ASCII)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_CONSTANTS: Final = 256
_MAX_CONSTANT: Final = 256
#: Whole numbers that every client writes with the same digits.
_EXACT: Final = 1 << 53
#: Formats whose values need no escape.
_PLAIN_FORMATS: Final = frozenset({"uuid", "date"})
_PLAIN_TYPES: Final = frozenset({"integer", "number", "boolean"})


def query_rules(
    document: Document, arguments: Sequence[Argument], fixed_query: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return the rules of a route: the arguments' in their order, then the fixed pairs', which are required.

    A fixed pair counts before an argument of its name.
    """
    rules: dict[str, Any] = {}
    for argument in arguments:
        if argument.place == "query":
            for name, rule in _rules(document, argument):
                rules.setdefault(name, rule)
    fixed: dict[str, list[str]] = {}
    for name, value in fixed_query:
        fixed.setdefault(name, []).append(value)
    for name, values in fixed.items():
        rules[name] = _rule(list(dict.fromkeys(values)), required=True, repeat=len(values) > 1)
    return rules


def wire_names(argument: Argument) -> tuple[str, ...]:
    """Return the names under which a query argument stands in a query; an object's are in the order of its members."""
    if argument.shape == "object" and argument.style == "deepObject":
        return tuple(f"{argument.name}[{member}]" for member in argument.members)
    if argument.shape == "object" and argument.style == "form" and argument.explode:
        return argument.members
    return (argument.name,)


def pair_fault(name: str, value: str = "") -> str | None:
    """Return why no rule can let ``name=value`` pass, or None when one can."""
    _, wrong = compile_query({name: {"const": value}})
    return wrong[0][1] if wrong else None


def takes_empty(document: Document, argument: Argument) -> bool:
    """Say whether the rules let every value of a query argument be empty."""
    rules, _ = compile_query(query_rules(document, [argument], ()))
    return all(rule.fits("", {}) for rule in rules.rules.values())


def path_options(document: Document, argument: Argument, choices: Choices) -> tuple[bool | list[str], bool]:
    """Return what the route must say for the argument's wildcard to take its values: ``encoded`` and ``wide``."""
    if argument.name in choices.slashes:
        return ["%2F"], True
    if argument.style == "json" or argument.shape == "object":
        return True, True
    if argument.shape == "array":
        encoded, _ = _scalar_options(document, schemas.items(document, argument.schema))
        return encoded, True  # the comma between two items
    return _scalar_options(document, argument.schema)


def _scalar_options(document: Document, at: SchemaAt) -> tuple[bool, bool]:
    listed = schemas.enum_of(document, at)
    values = None if listed is None else _constants(listed)
    if values is not None:
        wide = any(_holds_other(value, PLAIN) for value in values)
        return any(_holds_other(value, PLAIN + WIDE) for value in values), wide
    kinds = schemas.types(document, at)
    if kinds and kinds <= _PLAIN_TYPES:
        return False, False
    schema = schemas.resolved(document, at).schema
    if kinds == {"string"} and isinstance(schema, Mapping):
        form, pattern = schema.get("format"), schema.get("pattern")
        if (isinstance(form, str) and form in _PLAIN_FORMATS) or (isinstance(pattern, str) and only_plain(pattern)):
            return False, False
    return True, True


def _holds_other(value: str, marks: str) -> bool:
    return any(character not in marks for character in value)


def _rules(document: Document, argument: Argument) -> list[tuple[str, Any]]:
    at, required = argument.schema, argument.required
    if argument.style == "json" or (argument.shape != "scalar" and not _exploded(argument)):
        return [(argument.name, _rule("any", required=required))]
    if argument.shape == "scalar":
        return [(argument.name, _rule(_source(document, at), required=required))]
    if argument.shape == "array":
        # One value alone is written like an array of one.
        only_arrays = schemas.types(document, at) == {"array"}
        source = _source(document, schemas.items(document, at)) if only_arrays else "any"
        return [(argument.name, _rule(source, required=required, repeat=True))]
    known = schemas.members(document, at)
    # Which of its members an object must have, only the API judges: the client does not know it.
    return [
        (name, _rule(_source(document, known[member])))
        for member, name in zip(argument.members, wire_names(argument), strict=True)
    ]


def _exploded(argument: Argument) -> bool:
    return argument.style == "deepObject" or (argument.style == "form" and argument.explode)


def _source(document: Document, at: SchemaAt) -> str | list[str]:
    """Return "any", "int", or the constants that a value may be."""
    listed = schemas.enum_of(document, at)
    values = None if listed is None else _constants(listed)
    if values:
        return values
    kinds = schemas.types(document, at)
    if kinds == {"boolean"}:
        return ["true", "false"]
    return "int" if kinds == {"integer"} and listed is None else "any"


def _constants(listed: Iterable[Any]) -> list[str] | None:
    """Return the values as a query has them, or None when a list of constants cannot hold them all."""
    texts = []
    for value in listed:
        if value is None:
            continue  # is not sent
        text = _text(value)
        if text is None or len(text) > _MAX_CONSTANT or _CONTROL.search(text):
            return None
        texts.append(text)
    distinct = list(dict.fromkeys(texts))
    return distinct if 0 < len(distinct) <= _MAX_CONSTANTS else None


def _text(value: Any) -> str | None:
    """Return a value as the clients write it; None for what is no scalar, and for numbers that they may not hold."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and abs(value) < _EXACT:
        # Never with an exponent; a whole number has no point.
        digits = format(Decimal(repr(value)), "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return None


def _rule(source: str | list[str], *, required: bool = False, repeat: bool = False) -> Any:
    flags = {name: True for name, wanted in (("required", required), ("repeat", repeat)) if wanted}
    if isinstance(source, str):
        return {"type": source, **flags} if flags else source
    if len(source) == 1:
        (only,) = source
        reads_otherwise = only in _WORDS or _PARAM.fullmatch(only) is not None
        return {"const": only, **flags} if flags or reads_otherwise else only
    reads_otherwise = any(_PARAM.fullmatch(value) is not None for value in source)
    return {"values": source, **flags} if flags or reads_otherwise else source
