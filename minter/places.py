"""Which aliases name the same secret: a pin belongs to the secret, however a grants file spells its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from config.errors import Fault
from config.profiles import Grants
from minter.held import Reader
from minter.key_rows import KeyRow, VersionRow


class Places:
    """The aliases of the settings, of ``grants`` and of the state, by the place that each names."""

    def __init__(
        self, reader: Reader, grants: Grants, keys: Mapping[str, KeyRow], versions: Sequence[VersionRow]
    ) -> None:
        self._reader = reader
        self._keys = keys
        self._grants = grants
        at: defaultdict[str, set[str]] = defaultdict(set)
        for alias in {*reader.named(), *keys, *_named(grants)}:
            settings = reader.settings_of(alias)
            if settings is not None:
                at[reader.sources.place(settings.source)].add(alias)
        for row in versions:
            if row.phase != "destroyed":
                at[reader.sources.place(row.source_ref)].add(row.alias)
        self._same: defaultdict[str, set[str]] = defaultdict(set)
        for aliases in at.values():
            for alias in aliases:
                self._same[alias] |= aliases

    def wanted(self) -> dict[str, frozenset[str]]:
        """Return the origins that the grants name for the secret behind each alias that they name."""
        named: defaultdict[str, set[str]] = defaultdict(set)
        for profile in self._grants.profiles.values():
            for alias in profile.key_aliases():
                named[alias].add(profile.base_url)
        return {
            alias: frozenset().union(*(named[other] for other in self._same[alias] | {alias} if other in named))
            for alias in named
        }

    def faults(self) -> list[Fault]:
        """Return what the grants want to lend that they may not: a pinned secret elsewhere, a signing key at all."""
        found = []
        named = self._reader.named()
        for name, profile in self._grants.profiles.items():
            for alias in profile.key_aliases():
                for other in self._judges(alias):
                    settings = named.get(other)
                    if settings is not None and settings.use == "signing" and other != alias:
                        what = f"{alias} is where signing key {other} lives, which is never lent"
                        found.append(Fault(f"profiles.{name}.token", what))
                    pins = self.pins(other)
                    if pins and profile.base_url not in pins:
                        declared = settings is not None and settings.origins
                        hint = "see origins in minter.toml" if declared else f"minter keys rebind {other}"
                        as_ = "" if other == alias else f" ({alias} is the same)"
                        what = f"custody key {other}{as_} is pinned to other origins"
                        found.append(Fault(f"profiles.{name}.base_url", what, hint))
        return found

    def pins(self, alias: str) -> Sequence[str]:
        """Return where a key may go, by the settings, else by the state."""
        settings = self._reader.settings.keys.get(alias)
        if settings is not None and settings.origins:
            return settings.origins
        return self._keys[alias].origins if alias in self._keys else ()

    def _judges(self, alias: str) -> list[str]:
        """Return the aliases whose pins hold for ``alias``. What is declared is the operator's own word."""
        return [alias] if alias in self._reader.named() else sorted(self._same[alias] | {alias})


def _named(grants: Grants) -> Iterable[str]:
    return {alias for profile in grants.profiles.values() for alias in profile.key_aliases()}
