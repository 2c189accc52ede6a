"""What a start or a reload reads of the custody keys, before any of it is put in force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from config.errors import Fault
from config.origin import parse_origin
from config.profiles import Grants, Profile
from config.settings import AUDIT_SIGNER, SEALING_KEY, MinterSettings
from minter import signing
from minter.audit_events import Event
from minter.held import OWN_KEYS, SIGNERS, Held, Reader, is_sendable, is_too_short, key_event, key_fault, version_row
from minter.key_rows import KeyRow, VersionRow
from minter.signing import SigningKey
from minter.sources import MissingError, SourceError, versioned

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What was read, to be adopted as a whole.

    ``changed``: versions that are new or not as they were, each with what the audit log is told. ``wanted``: the
    origins that the grants name for each key. ``lent``: the keys that kind ``static`` lends as they are. ``retiring``:
    the shared secrets that still verify what they signed.
    """

    held: Mapping[str, Held]
    keys: Mapping[str, KeyRow]
    changed: Sequence[tuple[VersionRow, Sequence[Event]]]
    wanted: Mapping[str, frozenset[str]]
    lent: frozenset[str]
    profiles: Mapping[str, tuple[str, ...]]
    retiring: Mapping[tuple[str, int], SigningKey]


def lent(profiles: Iterable[Profile]) -> frozenset[str]:
    """Return the keys that kind ``static`` lends as they are."""
    return frozenset(
        alias
        for profile in profiles
        if profile.token is not None and profile.token.get("type") == "static"
        for alias in profile.key_aliases()
    )


def scrubbed(profiles: Iterable[Profile]) -> frozenset[str]:
    """Return those of them that answers are to be scrubbed of."""
    return lent(profile for profile in profiles if profile.scrub != "off")


class Staging:
    """Reads every key of the settings and of ``grants``. It blocks: run it outside the event loop."""

    def __init__(
        self,
        reader: Reader,
        grants: Grants,
        keys: Mapping[str, KeyRow],
        versions: Sequence[VersionRow],
        *,
        wanted: Mapping[str, frozenset[str]],
        now: float,
    ) -> None:
        self._reader = reader
        self._now = now
        self._known = keys
        self._ever = {row.alias for row in versions}
        self._active = {row.alias: row for row in versions if row.phase == "active"}
        self._to_verify = [row for row in versions if row.verifies_unpublished]
        self._retiring: dict[tuple[str, int], SigningKey] = {}
        profiles: defaultdict[str, list[str]] = defaultdict(list)
        for name, profile in grants.profiles.items():
            for alias in profile.key_aliases():
                profiles[alias].append(name)
        self._lent = lent(grants.profiles.values())
        self._scrubbed = scrubbed(grants.profiles.values())
        self._wanted = wanted
        self._profiles = {alias: tuple(found) for alias, found in profiles.items()}
        self._held: dict[str, Held] = {}
        self._missing: list[str] = []
        self._changed: list[tuple[VersionRow, Sequence[Event]]] = []
        self.faults: list[Fault] = []

    def read(self) -> None:
        """Read what is there; change nothing. What is wrong is in :attr:`faults`."""
        # The sealing key is open by now (minter/data_keys.py): it is never held beside the keys that are used.
        for alias in sorted({*self._reader.named(), AUDIT_SIGNER, *self._wanted} - {SEALING_KEY}):
            settings = self._reader.settings_of(alias)
            if settings is None or alias in self._reader.retired:
                # An alias that nobody declared: the check of the token names its place in the grants file.
                continue
            row = self._active.get(alias)
            if row is None and alias in self._reader.declared and alias not in self._reader.settings.keys:
                # An operator's command was cut off before the key was in force: given again, it goes on.
                continue
            version = row.version if row is not None else 1
            ref = versioned(settings.source, version)
            try:
                held = self._reader.read(alias, ref, version)
                if alias in self._lent and not is_sendable(held.secret):
                    raise SourceError("cannot be sent", "a static key is one line of printable ASCII")  # noqa: TRY301
                if alias in self._scrubbed and is_too_short(held.secret):
                    _log.warning("key-too-short-to-scrub", alias=alias)
                self._take(alias, held, ref)
            except SourceError as error:
                may_make = settings.use in SIGNERS and alias not in self._ever
                if may_make and isinstance(error, MissingError) and self._reader.sources.writable(ref):
                    self._missing.append(alias)
                else:
                    self.faults.append(key_fault(alias, ref, error))
        for row in self._to_verify:
            signer = self._reader.read_retiring(row)
            if signer is not None:
                self._retiring[row.alias, row.version] = signer

    def make_missing(self) -> None:
        """Make the signing keys that never were. After all else was read: a start that fails leaves nothing behind."""
        for alias in self._missing:
            settings = self._reader.settings_of(alias)
            if settings is None:
                continue
            value = signing.generate(settings.algorithm)
            try:
                self._reader.sources.write(settings.source, value)
                self._take(alias, self._reader.take(alias, value, 1), settings.source)
            except SourceError as error:
                self.faults.append(key_fault(alias, settings.source, error))

    def result(self) -> Staged:
        """Return what was read, once there are no faults."""
        keys = {}
        for alias in self._held:
            settings = self._reader.settings_of(alias)
            row = self._known.get(alias) or KeyRow(alias=alias, created_at=self._now)
            keys[alias] = replace(row, owner=settings.owner, purpose=settings.purpose) if settings else row
        return Staged(
            held=self._held,
            keys=keys,
            changed=self._changed,
            wanted=self._wanted,
            lent=self._lent,
            profiles=self._profiles,
            retiring=self._retiring,
        )

    def _take(self, alias: str, held: Held, ref: str) -> None:
        self._held[alias] = held
        before = self._active.get(alias)
        row = version_row(alias, held, ref, now=self._now)
        events = []
        if before is None:
            # Nobody can have met a key that is new, so it needs no time of publication.
            settings = self._reader.settings_of(alias)
            published_at = None if settings is not None and settings.use == "checkpoints" else self._now
            row = replace(row, phase="active", published_at=published_at, activated_at=self._now)
            events.append(key_event("key.created", row))
        elif (before.fingerprint, before.source_ref) == (row.fingerprint, row.source_ref):
            return
        else:
            row = replace(
                before,
                source_ref=ref,
                fingerprint=row.fingerprint,
                algorithm=row.algorithm,
                public_jwk=row.public_jwk,
            )
            if row.fingerprint != before.fingerprint:
                events.append(key_event("key.changed", row))
        self._changed.append((row, events))


def setting_faults(settings: MinterSettings) -> list[Fault]:
    """Return what is wrong with the settings of keys beyond their types."""
    faults = []
    for alias, key in settings.keys.items():
        if ":" in alias:
            faults.append(Fault(f"keys.{alias}", "an alias has no colon: that is how grants name sources"))
        if OWN_KEYS.get(alias, key.use) != key.use:
            faults.append(
                Fault(f"keys.{alias}.use", f"is {key.use}", f'{alias} is written with use = "{OWN_KEYS[alias]}"')
            )
        elif alias not in OWN_KEYS and key.use in OWN_KEYS.values():
            own = next(name for name, use in OWN_KEYS.items() if use == key.use)
            faults.append(Fault(f"keys.{alias}.use", f"only {own} has use {key.use}"))
        for index, origin in enumerate(key.origins):
            try:
                parse_origin(origin)
            except ValueError as error:
                faults.append(Fault(f"keys.{alias}.origins[{index}]", str(error)))
    return faults
