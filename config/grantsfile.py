"""The grants file as it is written: the types that its JSON Schema and its faults come from.

What these types cannot say (routes, patterns, origins, one thing against another) is checked in
``config/compiling.py``. A description here is what an editor shows and what ``grants.schema.json`` holds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, field

MAX_CALLS: int = 100_000
MAX_CONCURRENT: int = 1_000

_TYPED = {"required": ["type"], "properties": {"type": {"type": "string"}}}
_SCHEMED = {"required": ["scheme"], "properties": {"scheme": {"type": "string"}}}

Duration: TypeAlias = Annotated[
    int | float | str, Meta(description="Seconds, or a whole number with s, m, h or d, such as 15m.")
]
Size: TypeAlias = Annotated[
    int | str, Meta(description="Bytes, or a whole number with B, KiB, MiB or GiB, such as 1MiB.")
]


class QueryRuleObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A query rule with at most one of type, pattern, values, const and param; without any it takes any text."""

    type: Annotated[Literal["any", "int"] | None, Meta(description="Any text, or a whole number.")] = None
    pattern: Annotated[str | None, Meta(description="RE2; must match the whole value.")] = None
    values: Annotated[list[str] | None, Meta(description="Any one of these constants.")] = None
    const: Annotated[str | None, Meta(description="This constant, also when it reads any, int or {name}.")] = None
    param: Annotated[str | None, Meta(description="The value of this run parameter.")] = None
    required: Annotated[bool, Meta(description="The query must hold it.")] = False
    repeat: Annotated[bool, Meta(description="It may stand more than once.")] = False


QueryRule: TypeAlias = Annotated[
    str | list[str] | QueryRuleObject,
    Meta(
        description='"any", "int", "{name}" (a run parameter); another text is a constant; a list is any of its '
        "constants; an object says more."
    ),
]


class RouteObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A route with more than its template."""

    route: Annotated[str, Meta(description="METHOD /path")]
    query: Annotated[
        dict[str, QueryRule], Meta(description="The query parameters that it takes; none when left out.")
    ] = {}
    encoded: Annotated[
        bool | list[str],
        Meta(
            description="Whether wildcard segments take percent-escapes; a list adds escapes that are otherwise "
            'refused, such as "%2F".'
        ),
    ] = False
    wide: Annotated[bool, Meta(description="Whether a * also takes :!$&'()*,")] = False
    credential: Annotated[bool, Meta(description="false: no lease is asked for and nothing is attached.")] = True


FileName: TypeAlias = Annotated[str, Meta(min_length=1)]
RouteEntry: TypeAlias = Annotated[str | RouteObject, Meta(description="METHOD /path, or an object that says more.")]


class ProfileSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One origin, its routes, its token and its placement."""

    base_url: Annotated[str, Meta(description="The origin only; https unless loopback.")]
    allowed_callers: Annotated[list[str], Meta(description='Ids of callers; "*" for all must be written out.')]
    token: Annotated[
        dict[str, Any] | None,
        Meta(description="How the credential is made; none when left out.", extra_json_schema=_TYPED),
    ] = None
    placement: Annotated[dict[str, Any], Meta(description="Where the credential goes.", extra_json_schema=_SCHEMED)] = (
        field(default_factory=lambda: {"scheme": "bearer"})
    )
    allow: Annotated[list[RouteEntry], Meta(description="The granted routes; an empty list grants nothing.")] = []
    catalog: Annotated[list[RouteEntry], Meta(description="All the routes that the API has; grants nothing.")] = []
    params: Annotated[
        dict[str, str], Meta(description="Run parameters and the RE2 patterns of their values (full match).")
    ] = {}
    request_headers: Annotated[list[str], Meta(description="Headers from the code beside the standard ones.")] = []
    response_headers: Annotated[list[str], Meta(description="Headers to the code beside the standard ones.")] = []
    fixed_headers: Annotated[dict[str, str], Meta(description="Headers that every call carries.")] = {}
    ttl: Annotated[Duration | None, Meta(description="A run's lifetime unless it asks otherwise; 15m.")] = None
    max_ttl: Annotated[Duration, Meta(description="A run's longest lifetime.")] = "24h"
    max_calls: Annotated[int, Meta(ge=1, le=MAX_CALLS, description="Calls of a run, denied attempts included.")] = 256
    max_concurrent: Annotated[int, Meta(ge=1, le=MAX_CONCURRENT, description="Calls of a run at once.")] = 16
    max_request: Annotated[Size, Meta(description="The largest request body.")] = "1MiB"
    max_response: Annotated[Size, Meta(description="The largest response body.")] = "32MiB"
    breaker_max: Annotated[Duration, Meta(description="The longest pause after 429 or 503; 1s to 1h.")] = "30s"
    health_check: Annotated[
        str | None, Meta(description="GET and a literal path that may be asked once a second after a 503.")
    ] = None
    scrub: Annotated[
        Literal["mask", "refuse", "off"],
        Meta(
            description="What happens to the credential in an answer: masked, or the answer is refused, or nothing, "
            "and compression passes."
        ),
    ] = "mask"
    private_addresses: Annotated[bool, Meta(description="Whether the origin may have a private address.")] = False
    learn: Annotated[
        bool,
        Meta(
            description="Whether the values that wildcards take are kept, for `broker specgen suggest`; not for long."
        ),
    ] = False
    run_token_prefix: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_-]*$(?!\n)", max_length=32, description="For SDKs that check a key's shape.")
    ] = ""
    env: Annotated[
        dict[str, str],
        Meta(description="What `broker exec` sets; {base_url}, {run_token} and {profile} are filled in."),
    ] = {}
    scopes: Annotated[list[str], Meta(description="Scopes of the credential; never a wildcard.")] = []
    global_name: Annotated[
        str | None, Meta(description="The client's name in the code; `broker specgen --global` writes it there.")
    ] = field(name="global", default=None)
    preamble_file: Annotated[
        FileName | Annotated[list[FileName], Meta(min_length=1, max_length=2)] | None,
        Meta(description="The client beside the grants file that runs are served; a list has one for each language."),
    ] = None


class GrantsSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Named grants: what a run may call, and whose credential it uses there."""

    profiles: Annotated[dict[str, ProfileSource], Meta(description="The profiles by name.")]
    schema: Annotated[str | None, Meta(description="For editors; not read.")] = field(name="$schema", default=None)
