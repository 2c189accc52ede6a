"""Compiled grants: what matching, minting and serving read. Made by ``config/compiling.py`` only, never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from config.params import Pattern
from config.query import QueryRules
from config.routes import Route

#: Fields of a token object that refer to a secret; all but ``key`` say where it is.
SECRET_FIELDS: Final = ("key", "env", "file", "keyring", "credential")
#: Fields of a token object that hold constants, in which such a name means nothing.
_CONSTANTS: Final = frozenset({"claims"})


@dataclass(frozen=True, slots=True)
class RouteRule:
    """One entry of ``allow`` or ``catalog``. ``text`` is the template as written; traces and logs name it.

    ``query`` is None when the route takes no query; ``encoded`` is the escapes that are listed, or a boolean.
    """

    route: Route
    query: QueryRules | None = None
    encoded: bool | frozenset[str] = False
    wide: bool = False
    credential: bool = True

    @property
    def text(self) -> str:
        """The template as written."""
        return self.route.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named grant.

    Durations are seconds, sizes bytes. ``base_url`` is the origin without a trailing slash. ``allowed_callers`` holds
    ``"*"`` when every caller may use it. ``request_headers`` and ``response_headers`` are lower-case names *with* the
    standard ones; ``fixed_headers`` replace what the code sent under the same name. ``token`` and ``placement`` are as
    written. ``preambles`` are the texts of the files that ``preamble_file`` names, by name, when they were at hand.

    ``source`` is the profile as written, in canonical JSON; ``digest`` (``sha256:...``) is over it, and
    :func:`config.grants.compile_profile` makes an equal profile of it again.
    """

    name: str
    base_url: str
    scheme: str
    host: str
    port: int
    allowed_callers: frozenset[str]
    token: dict[str, Any] | None
    placement: dict[str, Any]
    allow: tuple[RouteRule, ...]
    catalog: tuple[RouteRule, ...]
    params: Mapping[str, Pattern]
    request_headers: frozenset[bytes]
    response_headers: frozenset[bytes]
    fixed_headers: tuple[tuple[bytes, bytes], ...]
    ttl_s: float
    max_ttl_s: float
    max_calls: int
    max_concurrent: int
    max_request: int
    max_response: int
    breaker_max_s: float
    health_check: RouteRule | None
    scrub: str
    private_addresses: bool
    learn: bool
    run_token_prefix: str
    env: Mapping[str, str]
    scopes: tuple[str, ...]
    global_name: str | None
    preamble_files: tuple[str, ...]
    preambles: Mapping[str, bytes]
    digest: str
    source: bytes

    def allows_caller(self, caller: str) -> bool:
        """Say whether ``caller`` may open runs with this profile."""
        return caller in self.allowed_callers or "*" in self.allowed_callers

    def key_aliases(self) -> dict[str, str | None]:
        """Return every secret that ``token`` refers to: alias to source reference, None when the settings say it.

        An inline ``{"env": "NAME"}`` has the alias and the reference ``env:NAME``.
        """
        return dict(secret_references(self.token))


def secret_references(token: Any) -> Iterator[tuple[str, str | None]]:
    """Yield (alias, source reference or None) of every secret that a token object refers to, at any depth."""
    if isinstance(token, list):
        for inner in token:
            yield from secret_references(inner)
    if not isinstance(token, dict):
        return
    for name, value in token.items():
        if name in _CONSTANTS:
            continue
        if name in SECRET_FIELDS and isinstance(value, str):
            yield (value, None) if name == "key" else (f"{name}:{value}", f"{name}:{value}")
        else:
            yield from secret_references(value)


def token_faults(path: str, token: Any) -> Iterator[tuple[str, str]]:
    """Yield (place, reason) of what is wrong with a token object whatever its kind is."""
    if isinstance(token, list):
        for index, inner in enumerate(token):
            yield from token_faults(f"{path}[{index}]", inner)
    if not isinstance(token, dict):
        return
    given = [name for name in SECRET_FIELDS if isinstance(token.get(name), str)]
    if len(given) > 1:
        yield path, "a secret has one place; found " + " and ".join(given)
    for name, value in token.items():
        if name in ("scope", "scopes"):
            texts = value if isinstance(value, list) else [value]
            if any(isinstance(text, str) and "*" in text for text in texts):
                yield f"{path}.{name}", "a scope is named; a wildcard is forbidden"
        if name not in _CONSTANTS:
            yield from token_faults(f"{path}.{name}", value)


@dataclass(frozen=True, slots=True)
class Grants:
    """A loaded grants file. ``digest`` (``sha256:...``) is over all profiles as written."""

    profiles: Mapping[str, Profile]
    digest: str
