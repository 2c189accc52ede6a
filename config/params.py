"""Run parameters: values that the caller fixes when it opens a run, so that the run's code cannot choose them.

A value is data and is never parsed again: one non-empty segment of the plain set plus ``:``, not dots only, that its
pattern matches in full. Patterns run on RE2, whose time is linear in the value, and are checked when grants load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import re2

from config.problems import ProblemError

if TYPE_CHECKING:
    from config.profiles import Profile

MAX_PATTERN: Final = 1000

_VALUE: Final = re.compile(r"(?=[^.]|\.+[^.])[A-Za-z0-9\-._~@+=:]{1,256}", re.ASCII)
_REMEMBERED: Final = 4096


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False  # it would write to standard error by itself
    return options


#: For every use of the engine.
QUIET: Final = _options()


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of RE2 syntax that must match a whole text. Equal when written the same.

    >>> compile_pattern("[a-z]{1,3}").fits("abc")
    True
    """

    text: str
    _compiled: Any = field(compare=False, repr=False)
    _known: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)

    def matches(self, value: str) -> bool:
        """Say whether the whole of ``value`` matches, whatever characters it holds."""
        return self._compiled.fullmatch(value) is not None

    def fits(self, value: str) -> bool:
        """Say whether ``value`` may be a run parameter's value. Remembers: it is asked on every call of a run."""
        known = self._known.get(value)
        if known is None:
            known = _VALUE.fullmatch(value) is not None and self.matches(value)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[value] = known
        return known


def compile_pattern(text: str) -> Pattern:
    """Compile a pattern.

    Errors: ``ValueError`` with the engine's reason; look-around and back-references are not of its language.
    """
    if not text:
        raise ValueError("an empty pattern fits no value")
    if len(text) > MAX_PATTERN:
        raise ValueError(f"a pattern has at most {MAX_PATTERN} characters")
    try:
        return Pattern(text, re2.compile(text, QUIET))
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"not a pattern of the linear-time language (RE2): {reason}") from None
    except UnicodeEncodeError:
        raise ValueError("a pattern is text") from None


def check_params(profile: Profile, given: Mapping[str, str]) -> dict[str, str]:
    """Return of ``given`` what ``profile`` declares, every value checked.

    Names that it does not declare are left out: a run's profiles share one map; see :func:`refuse_unknown`.

    Errors: ``ProblemError("params-invalid")`` that names the parameter, never its value.
    """
    taken = {}
    for name, pattern in profile.params.items():
        value = given.get(name)
        if value is None:
            raise ProblemError("params-invalid", f"the parameter {name} is missing", param=name)
        if not isinstance(value, str) or not pattern.fits(value):
            raise ProblemError("params-invalid", f"the parameter {name} does not fit its pattern", param=name)
        taken[name] = value
    return taken


def refuse_unknown(profiles: Iterable[Profile], given: Mapping[str, str]) -> None:
    """Refuse a parameter that none of a run's profiles declares.

    Errors: ``ProblemError("params-invalid")``; it names what the profiles do declare.
    """
    declared = sorted({name for profile in profiles for name in profile.params})
    if not given.keys() <= set(declared):
        names = ", ".join(declared) or "none"
        raise ProblemError("params-invalid", f"a parameter is given that no profile declares; declared: {names}")
