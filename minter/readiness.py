"""Whether the minter can do its work: each check by its name, for ``/readyz``."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Readiness:
    """A check returns the reason why it is not met, or nothing."""

    def __init__(self) -> None:
        self._checks: dict[str, Callable[[], str]] = {}
        self._notes: dict[str, Callable[[], str]] = {}

    def add(self, name: str, check: Callable[[], str]) -> None:
        """Add a check."""
        self._checks[name] = check

    def note(self, name: str, check: Callable[[], str]) -> None:
        """Add something that is to be mended and that the minter works without."""
        self._notes[name] = check

    def notes(self) -> Mapping[str, str]:
        """Return each of those with its reason; empty is well."""
        return {name: check() for name, check in self._notes.items()}

    def report(self) -> Mapping[str, str]:
        """Return each check's reason; empty is met."""
        return {name: check() for name, check in self._checks.items()}

    def ready(self) -> bool:
        """Say whether all are met."""
        return not any(self.report().values())
