"""Query rules: which parameters a route takes and what their values may be.

A route without rules takes no query. The rules are an object from parameter name to rule; one that is not listed is
refused. A rule is

- a text: ``"any"`` (any text), ``"int"`` (``-?(0|[1-9][0-9]{0,18})``), ``"{name}"`` (the run parameter's value), and
  every other text is a constant;
- a list of texts: any one of these constants;
- an object with at most one of ``type`` (``"any"`` or ``"int"``), ``pattern`` (RE2, full match), ``values``
  (constants), ``const`` (a constant, also one that reads like a word above) and ``param`` (a run parameter), and with
  ``required`` and ``repeat``, both false when left out. Without any of the first five it takes any text.

On the wire a query is pairs ``name=value`` joined by ``&``; no pair is empty. Names are literal, but ``[`` and ``]``
may be escaped, and ``<`` and ``>``, which cannot stand raw in a target, are (ops/adr/0015). A value is decoded to be
compared, never to be sent: the bytes received are the bytes sent. It must fit under both readings of ``+`` (a plus, a
space). ``name`` without ``=`` is taken only where the rule takes nothing but the empty constant, because servers
differ on what it means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from config.params import Pattern, compile_pattern
from config.problems import ProblemError
from config.routes import PARAM_NAME

_INT: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)
_PARAM: Final = re.compile(r"\{(" + PARAM_NAME + r")\}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9\-._~\[\]<>$@:!*'(),/]{1,256}", re.ASCII)
#: The escapes that a name may hold.
_BRACKET: Final = re.compile(rb"%(?:5B|5D|3C|3E)", re.IGNORECASE)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ONLY_EMPTY: Final = frozenset({""})
_SOURCES: Final = ("type", "pattern", "values", "const", "param")
#: Names under which APIs take a credential: the placement says where one goes, the code never does.
_CREDENTIAL: Final = frozenset({"access_token", "oauth_token", "api_key", "apikey", "client_secret", "authorization"})


@dataclass(frozen=True, slots=True)
class Rule:
    """One parameter's rule. With neither ``values``, ``pattern``, ``param`` nor ``integer`` any text fits."""

    values: frozenset[str] | None = None
    pattern: Pattern | None = None
    param: str | None = None
    integer: bool = False
    required: bool = False
    repeat: bool = False

    def fits(self, value: str, params: Mapping[str, str]) -> bool:
        """Say whether a decoded value is one that the rule takes."""
        if self.values is not None:
            return value in self.values
        if self.param is not None:
            return value == params.get(self.param)
        if self.integer:
            return _INT.fullmatch(value) is not None
        return self.pattern is None or self.pattern.matches(value)


@dataclass(frozen=True, slots=True)
class QueryRules:
    """The rules of one route. ``required`` are the names that must be there."""

    rules: Mapping[str, Rule]
    required: frozenset[str]

    @property
    def params(self) -> set[str]:
        """The run parameters that the rules refer to."""
        return {rule.param for rule in self.rules.values() if rule.param is not None}


def compile_query(written: Mapping[str, Any]) -> tuple[QueryRules, list[tuple[str, str]]]:
    """Compile rules as the grants file has them; return also what is wrong, as (parameter name, reason) pairs."""
    rules, wrong = {}, []
    for name, rule in written.items():
        try:
            rules[name] = _compile(name, rule)
        except ValueError as error:
            wrong.append((name, str(error)))
    return QueryRules(rules, frozenset(name for name, rule in rules.items() if rule.required)), wrong


def _compile(name: str, written: Any) -> Rule:
    if not _NAME.fullmatch(name):
        raise ValueError("a query name is letters, digits and -._~[]<>$@:!*'(),/")
    if name.lower() in _CREDENTIAL:
        raise ValueError("this name carries a credential; where one goes is said by `placement`")
    if isinstance(written, str):
        param = _PARAM.fullmatch(written)
        if param is not None:
            return Rule(param=param[1])
        return Rule(integer=written == "int") if written in ("any", "int") else Rule(values=_constants([written]))
    if not isinstance(written, Mapping):
        for value in written:
            if _PARAM.fullmatch(value):
                raise ValueError('a list holds constants; a run parameter is a rule of its own: "{name}"')
        return Rule(values=_constants(written))
    return _compile_object(written)


def _compile_object(written: Mapping[str, Any]) -> Rule:
    given = [source for source in _SOURCES if written.get(source) is not None]
    if len(given) > 1:
        raise ValueError("a rule has one of " + ", ".join(_SOURCES))
    pattern, values, const = written.get("pattern"), written.get("values"), written.get("const")
    if const is not None:
        values = [const]
    return Rule(
        values=_constants(values) if values is not None else None,
        pattern=compile_pattern(pattern) if pattern is not None else None,
        param=written.get("param"),
        integer=written.get("type") == "int",
        required=bool(written.get("required")),
        repeat=bool(written.get("repeat")),
    )


def _constants(values: Any) -> frozenset[str]:
    if not values:
        raise ValueError("an empty list takes no value")
    if any(_CONTROL.search(value) for value in values):
        raise ValueError("a constant holds no control characters")
    if len(set(values)) < len(values):
        raise ValueError("a constant stands twice")
    return frozenset(values)


def check_query(rules: QueryRules | None, raw_query: bytes | None, params: Mapping[str, str]) -> None:
    """Pass when a query (without its ``?``; None when there is none) is one that the rules take.

    ``raw_query`` has passed ``config.target.split_target``: its escapes decode, and no character is foreign.

    Errors: ``ProblemError("query-not-granted")``; the detail names parameters of the rules, never of the query.
    """
    if rules is None:
        if raw_query is not None:
            raise _refused("the route takes no query")
        return
    seen: set[str] = set()
    for pair in raw_query.split(b"&") if raw_query is not None else ():
        seen.add(_check_pair(rules, pair, params, seen))
    missing = rules.required - seen
    if missing:
        raise _refused("the query lacks " + ", ".join(sorted(missing)))


def _check_pair(rules: QueryRules, pair: bytes, params: Mapping[str, str], seen: set[str]) -> str:
    raw_name, equals, raw_value = pair.partition(b"=")
    if b"%" in raw_name:
        raw_name = _BRACKET.sub(lambda escape: unquote_to_bytes(escape[0]), raw_name)
    name = raw_name.decode("ascii")
    rule = rules.rules.get(name)
    if rule is None:
        listed = ", ".join(rules.rules) or "none"
        raise _refused(f"the query holds a parameter that the route does not list; listed: {listed}")
    if name in seen and not rule.repeat:
        raise _refused(f"{name} is given more than once")
    if not equals and rule.values != _ONLY_EMPTY:
        raise _refused(f"{name} needs = and a value")
    if b"[" in raw_value or b"]" in raw_value:
        raise _refused(f"the value of {name} holds a raw bracket")
    value = unquote_to_bytes(raw_value).decode()
    if not rule.fits(value, params):
        raise _refused(f"the value of {name} is not one that the route takes")
    if b"+" in raw_value and not rule.fits(unquote_to_bytes(raw_value.replace(b"+", b" ")).decode(), params):
        raise _refused(f"the value of {name} does not fit when + is read as a space")
    return name


def _refused(detail: str) -> ProblemError:
    return ProblemError("query-not-granted", detail)
