"""From a profile as written to a compiled one: the rules that types cannot say, every fault at once.

A field that the schema found wrong is not looked at again; all others are, so that one load names everything.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from config import headers, strictjson
from config.durations import parse_duration
from config.errors import Fault
from config.grantsfile import ProfileSource, RouteObject
from config.origin import Origin, parse_origin
from config.params import Pattern, compile_pattern
from config.profiles import Profile, RouteRule, token_faults
from config.query import compile_query
from config.routes import PARAM_NAME, parse_route
from config.sizes import parse_size
from config.target import LISTABLE
from config.tokenfiles import ID

T = TypeVar("T")
V = TypeVar("V")

ReadPreamble = Callable[[str], bytes]
CheckObject = Callable[[str, dict[str, Any]], list[Fault]]

PROFILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

_DEFAULT_TTL_S: Final = 900.0
_LONGEST_TTL_S: Final = 30 * 86400.0
_LONGEST_BREAK_S: Final = 3600.0
_LARGEST_BODY: Final = 4 << 30
_LARGEST_PREAMBLE: Final = 4 << 20
_PARAM_NAME: Final = re.compile(PARAM_NAME, re.ASCII)
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_ENV_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_ENV_FIELDS: Final = frozenset({"base_url", "run_token", "profile"})
_GLOBAL: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]{0,63}", re.ASCII)
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}", re.ASCII)
_NOWHERE: Final = Origin("https", "invalid", 443)


def within(place: str, outer: str) -> bool:
    """Say whether a fault's place is ``outer`` or inside it."""
    return place == outer or (place.startswith(outer) and place[len(outer)] in ".[")


class Compiler:
    """Compiles one profile and collects what is wrong with it in ``faults``."""

    def __init__(
        self, name: str, where: str, *, known_faulty: Collection[str] = (), read_preamble: ReadPreamble | None = None
    ) -> None:
        """``where`` is the profile's place; ``known_faulty`` are places inside it that the schema already named."""
        self.name = name
        self.where = where
        self.faults: list[Fault] = []
        self._known = known_faulty
        self._read_preamble = read_preamble
        self._query_key: Any = None

    def compile(self, source: ProfileSource, written: Mapping[str, Any]) -> Profile:
        """Return the profile; it is fit for use only when ``faults`` stays empty."""
        origin = self._try("base_url", parse_origin, source.base_url) or _NOWHERE
        params = self._params(source)
        ttl_s, max_ttl_s = self._lifetimes(source)
        canonical = strictjson.canonical(written)
        self._token(source)
        # With a query placement the pair of that name is the broker's: no rule may give it to the code.
        self._query_key = source.placement.get("name") if source.placement.get("scheme") == "query" else None
        allow = self._routes("allow", source.allow, params)
        return Profile(
            name=self.name,
            base_url=source.base_url,
            scheme=origin.scheme,
            host=origin.host,
            port=origin.port,
            allowed_callers=self._callers(source),
            token=source.token,
            placement=source.placement,
            allow=allow,
            catalog=self._routes("catalog", source.catalog, None),
            params=MappingProxyType(params),
            **self._headers(source),
            ttl_s=ttl_s,
            max_ttl_s=max_ttl_s,
            max_calls=source.max_calls,
            max_concurrent=source.max_concurrent,
            max_request=self._size("max_request", source.max_request, 0),
            max_response=self._size("max_response", source.max_response, 1),
            breaker_max_s=self._duration("breaker_max", source.breaker_max, 1.0, _LONGEST_BREAK_S),
            health_check=self._health_check(source),
            scrub=source.scrub,
            private_addresses=source.private_addresses,
            learn=source.learn,
            run_token_prefix=source.run_token_prefix,
            env=MappingProxyType(self._env(source)),
            scopes=self._scopes(source),
            global_name=self._global(source),
            preamble_files=_names(source.preamble_file),
            preambles=MappingProxyType(self._preambles(source)),
            digest="sha256:" + hashlib.sha256(canonical).hexdigest(),
            source=canonical,
        )

    def _fault(self, path: str, what: str, hint: str = "") -> None:
        place = f"{self.where}{'' if path.startswith('[') else '.'}{path}"
        if place not in self._known:
            self.faults.append(Fault(place, what, hint))

    def _try(self, path: str, parse: Callable[[V], T], value: V) -> T | None:
        try:
            return parse(value)
        except ValueError as error:
            self._fault(path, str(error))
            return None

    def _callers(self, source: ProfileSource) -> frozenset[str]:
        callers = source.allowed_callers
        for index, caller in enumerate(callers):
            if caller != "*" and not ID.fullmatch(caller):
                self._fault(f"allowed_callers[{index}]", "a caller's id is letters, digits and . _ @ -")
            if caller in callers[:index]:
                self._fault(f"allowed_callers[{index}]", "stands twice")
        if "*" in callers and len(callers) > 1:
            self._fault("allowed_callers", '"*" already means every caller; write it alone or the ids alone')
        return frozenset(callers)

    def _params(self, source: ProfileSource) -> dict[str, Pattern]:
        params = {}
        for name, text in source.params.items():
            if not _PARAM_NAME.fullmatch(name):
                self._fault(f"params.{name}", "a parameter's name is letters, digits and _ . -, not a digit first")
            pattern = self._try(f"params.{name}", compile_pattern, text)
            if pattern is not None:
                params[name] = pattern
        return params

    def _routes(
        self, field: str, entries: list[str | RouteObject], params: Mapping[str, Pattern] | None
    ) -> tuple[RouteRule, ...]:
        """Compile a list of routes. ``params`` is None for the catalog, whose names stand for wildcards."""
        rules = []
        first: dict[str, int] = {}
        for index, entry in enumerate(entries):
            path = f"{field}[{index}]"
            if any(within(fault, f"{self.where}.{path}") for fault in self._known):
                continue
            rule = self._route(path, RouteObject(route=entry) if isinstance(entry, str) else entry, params)
            if rule is None:
                continue
            shape = rule.route.shape
            if shape in first:
                self._fault(path, f"the same route as {field}[{first[shape]}]")
            else:
                first[shape] = index
                rules.append(rule)
        return tuple(rules)

    def _route(self, path: str, entry: RouteObject, params: Mapping[str, Pattern] | None) -> RouteRule | None:
        route = self._try(path, parse_route, entry.route)
        rules, wrong = compile_query({name: _plain(rule) for name, rule in entry.query.items()})
        for name, reason in wrong:
            self._fault(f"{path}.query.{name}", reason)
        if self._query_key in rules.rules:
            self._fault(f"{path}.query.{self._query_key}", "the placement puts the credential there")
        encoded = self._encoded(path, entry.encoded)
        if route is None:
            return None
        if params is not None:
            for name in dict.fromkeys((*route.params, *sorted(rules.params))):
                if name not in params:
                    self._fault(path, f"{{{name}}} is not declared", f"declare {name} in params, or write *")
            if not route.wildcards:
                for field, given in (("encoded", entry.encoded), ("wide", entry.wide)):
                    if given:
                        self._fault(f"{path}.{field}", "has no effect: the route has no *")
        return RouteRule(route, rules if rules.rules else None, encoded, entry.wide, entry.credential)

    def _encoded(self, path: str, encoded: bool | list[str]) -> bool | frozenset[str]:  # noqa: FBT001
        if isinstance(encoded, bool):
            return encoded
        for index, escape in enumerate(encoded):
            if escape not in LISTABLE:
                self._fault(
                    f"{path}.encoded[{index}]",
                    "not an escape that may be listed",
                    "listed are upper-case escapes of printable ASCII other than letters, digits, - _ ~, such as %2F",
                )
        if not encoded:
            self._fault(f"{path}.encoded", "an empty list; write true to take the escapes that are always needed")
        return frozenset(encoded)

    def _headers(self, source: ProfileSource) -> dict[str, Any]:
        lists = (source.request_headers, source.response_headers, source.fixed_headers)
        for path, reason in headers.list_faults(*lists, placed=headers.placed(source.placement)):
            self._fault(path, reason)
        return {
            "request_headers": headers.STANDARD_REQUEST | _lower(source.request_headers),
            "response_headers": headers.STANDARD_RESPONSE | _lower(source.response_headers),
            "fixed_headers": tuple(
                (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
                for name, value in source.fixed_headers.items()
            ),
        }

    def _token(self, source: ProfileSource) -> None:
        for field, required, value in (("token", "type", source.token), ("placement", "scheme", source.placement)):
            if value is not None and not isinstance(value.get(required), str):
                self._fault(f"{field}.{required}", "missing" if required not in value else "expected a text")
        for path, reason in token_faults("token", source.token):
            self._fault(path, reason)

    def _lifetimes(self, source: ProfileSource) -> tuple[float, float]:
        max_ttl_s = self._duration("max_ttl", source.max_ttl, 1.0, _LONGEST_TTL_S)
        if source.ttl is None:
            return min(_DEFAULT_TTL_S, max_ttl_s), max_ttl_s
        ttl_s = self._duration("ttl", source.ttl, 1.0, _LONGEST_TTL_S)
        if ttl_s > max_ttl_s:
            self._fault("ttl", "longer than max_ttl", "raise max_ttl or shorten ttl")
        return ttl_s, max_ttl_s

    def _duration(self, path: str, value: str | float, least: float, most: float) -> float:
        seconds = self._try(path, parse_duration, value)
        if seconds is not None and not least <= seconds <= most:
            self._fault(path, f"expected {least:g} to {most:g} seconds")
        return least if seconds is None else seconds

    def _size(self, path: str, value: str | int, least: int) -> int:
        size = self._try(path, parse_size, value)
        if size is not None and not least <= size <= _LARGEST_BODY:
            self._fault(path, f"expected {least} to {_LARGEST_BODY} bytes")
        return least if size is None else size

    def _health_check(self, source: ProfileSource) -> RouteRule | None:
        if source.health_check is None:
            return None
        route = self._try("health_check", parse_route, source.health_check)
        if route is None:
            return None
        if route.method != "GET" or route.wildcards or route.params:
            self._fault("health_check", "expected GET and a path without wildcards and parameters")
        return RouteRule(route)

    def _env(self, source: ProfileSource) -> dict[str, str]:
        for name, value in source.env.items():
            path = f"env.{name}"
            if not _ENV_NAME.fullmatch(name):
                self._fault(path, "not the name of an environment variable")
            elif name.startswith(("BROKER_", "MINTER_")):
                self._fault(path, "BROKER_ and MINTER_ are the programs' own")
            if "\0" in value:
                self._fault(path, "holds a NUL")
            unknown = set(_ENV_FIELD.findall(value)) - _ENV_FIELDS
            if unknown:
                self._fault(path, "only {base_url}, {run_token} and {profile} are filled in")
        return dict(source.env)

    def _scopes(self, source: ProfileSource) -> tuple[str, ...]:
        for index, scope in enumerate(source.scopes):
            path = f"scopes[{index}]"
            if "*" in scope:
                self._fault(path, "a scope is named; a wildcard is forbidden")
            elif not _SCOPE.fullmatch(scope):
                self._fault(path, 'a scope is printable ASCII without space, " and \\')
            if scope in source.scopes[:index]:
                self._fault(path, "stands twice")
        return tuple(source.scopes)

    def _global(self, source: ProfileSource) -> str | None:
        if source.global_name is not None and not _GLOBAL.fullmatch(source.global_name):
            self._fault("global", "expected a name as JavaScript and Python have them")
        return source.global_name

    def _preambles(self, source: ProfileSource) -> dict[str, bytes]:
        names = _names(source.preamble_file)
        listed = not isinstance(source.preamble_file, str)
        languages = [name.rpartition(".")[2] for name in names]
        preambles = {}
        for index, name in enumerate(names):
            path = f"preamble_file[{index}]" if listed else "preamble_file"
            if languages[index] in languages[:index]:
                self._fault(path, "a second client in the same language", "one ends with .py, the other with .js")
            preamble = self._preamble(path, name)
            if preamble is not None:
                preambles[name] = preamble
        return preambles

    def _preamble(self, path: str, name: str) -> bytes | None:
        if self._read_preamble is None:
            return None
        try:
            preamble = self._read_preamble(name)
            preamble.decode()
        except UnicodeDecodeError:
            self._fault(path, "the file is not UTF-8")
            return None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            self._fault(path, f"the file cannot be read: {reason}")
            return None
        if len(preamble) > _LARGEST_PREAMBLE:
            self._fault(path, f"the file is larger than {_LARGEST_PREAMBLE} bytes")
        return preamble


def _plain(rule: Any) -> Any:
    """Turn a rule object back into the mapping that ``config/query.py`` reads."""
    if isinstance(rule, str | list):
        return rule
    return {name: getattr(rule, name) for name in rule.__struct_fields__}


def _names(written: str | list[str] | None) -> tuple[str, ...]:
    """Return the names that ``preamble_file`` has as a text or a list."""
    return (written,) if isinstance(written, str) else tuple(written or ())


def _lower(names: list[str]) -> frozenset[bytes]:
    return frozenset(name.lower().encode("latin-1", "replace") for name in names)
