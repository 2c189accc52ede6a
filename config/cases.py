"""Must-allow and must-refuse cases of a grants file, for CI: ``broker check FILE --cases cases.json``.

```json
{"must_allow":  [{"profile": "mem", "call": "GET /v1/items/7", "params": {"customer": "acme"},
                   "route": "GET /v1/items/*"}],
 "must_refuse": [{"profile": "mem", "call": "DELETE /v1/items/7", "code": "route-not-granted"}]}
```

``call`` is a method, a space and the raw target. ``route`` (which route must decide), ``code`` (how it must be refused)
and ``caller`` (who opens the run) are checked where they are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from config import strictjson
from config.errors import ConfigurationError, Fault
from config.match import Matcher
from config.params import check_params, refuse_unknown
from config.problems import PROBLEMS, ProblemError
from config.profiles import Grants
from config.validation import struct_faults

Call = Annotated[str, Meta(pattern="^[^ ]+ [^ ]*$", description="METHOD, a space, the raw target")]


class _Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    profile: str
    call: Call
    params: dict[str, str] = {}
    caller: str | None = None


class MustAllow(_Case, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call that must be granted, by ``route`` if that is given."""

    route: str | None = None


class MustRefuse(_Case, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call that must be refused, with ``code`` if that is given."""

    code: str | None = None


class Cases(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cases file."""

    must_allow: list[MustAllow] = []
    must_refuse: list[MustRefuse] = []


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How one case came out. ``what`` says what happened instead, empty when it passed."""

    where: str
    call: str
    what: str

    @property
    def passed(self) -> bool:
        """Say whether the case came out as it must."""
        return not self.what


def parse_cases(data: bytes, *, name: str) -> Cases:
    """Parse a cases file.

    Errors: ``ConfigurationError`` with every fault.
    """
    document, faults = strictjson.parse(data, where=name)
    faults += struct_faults(Cases, document, where=name)
    if faults:
        raise ConfigurationError(faults)
    cases = msgspec.convert(document, type=Cases)
    faults = [
        Fault(f"{name}: must_refuse[{index}].code", "no such problem code")
        for index, case in enumerate(cases.must_refuse)
        if case.code is not None and case.code not in PROBLEMS
    ]
    if not cases.must_allow and not cases.must_refuse:
        faults.append(Fault(name, "holds no case: it would pass whatever the grants say"))
    if faults:
        raise ConfigurationError(faults)
    return cases


def evaluate(grants: Grants, cases: Cases) -> list[CaseResult]:
    """Run all cases against ``grants``, in the order of the file."""
    matchers = {name: Matcher(profile) for name, profile in grants.profiles.items()}
    results = []
    for index, allowed in enumerate(cases.must_allow):
        try:
            route = _decide(matchers, allowed)
        except ProblemError as refused:
            what = f"refused: {refused.code}"
        else:
            what = "" if allowed.route in (None, route) else f"decided by {route}"
        results.append(CaseResult(f"must_allow[{index}]", allowed.call, what))
    for index, refused_case in enumerate(cases.must_refuse):
        try:
            what = f"granted by {_decide(matchers, refused_case)}"
        except ProblemError as refused:
            what = "" if refused_case.code in (None, refused.code) else f"refused, but with {refused.code}"
        results.append(CaseResult(f"must_refuse[{index}]", refused_case.call, what))
    return results


def _decide(matchers: dict[str, Matcher], case: Any) -> str:
    """Return the route that grants a case's call, going the way of a run: caller, parameters, match."""
    matcher = matchers.get(case.profile)
    if matcher is None or (case.caller is not None and not matcher.profile.allows_caller(case.caller)):
        raise ProblemError("profile-unknown")
    refuse_unknown([matcher.profile], case.params)
    params = check_params(matcher.profile, case.params)
    method, _, target = case.call.partition(" ")
    return matcher.match(method, target.encode(), params).rule.text
