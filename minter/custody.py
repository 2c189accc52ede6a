"""Custody keys: which there are, the value of each active version, where each may go, and who used it.

Rules of this module:

1. Secrets are read at start, at a reload and when a rotation activates one; in between they are in memory, as
   ``Secret``. What cannot be read is a fault that names the reference.
2. A key goes only to the origins it is pinned to: those of the settings, else those that the grants named for it when
   it was first used. Checked at load, there for every spelling of its place (``minter/places.py``), and at every use.
3. The minter makes a signing key only when it has never known one of that alias: a key that is gone is a fault.
4. A shared signing secret (HS256), which is never published, is held until it is destroyed: only it verifies what it
   signed.
5. A change is staged, then adopted as a whole: a reload with a fault changes nothing.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from config.clock import Clock
from config.errors import ConfigurationError
from config.origin import parse_origin
from config.problems import ProblemError
from config.profiles import Grants
from config.secret import Secret
from config.settings import AUDIT_SIGNER, SEALING_KEY, KeySettings, MinterSettings
from minter import declared_keys, key_rows, lease_rows, signing
from minter.audit_events import Event, Value
from minter.data_keys import DataKeys
from minter.held import Held, Reader, own_key
from minter.key_loading import Staged, Staging, setting_faults
from minter.key_rows import KeyRow, VersionRow
from minter.key_users import Uses
from minter.places import Places
from minter.signing import SigningError, SigningKey
from minter.sources import Sources
from minter.store import Connection, Store, committed

__all__ = ["Custody", "Held", "Staged", "Store"]

#: A key that goes to more places is no key for a place.
MAX_ORIGINS: Final = 100


class Custody:
    """The custody keys of one minter. Made empty; :meth:`load` fills it."""

    def __init__(self, settings: MinterSettings, *, sources: Sources, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.reader = Reader(settings, sources)
        self.data_keys = DataKeys(own_key(settings, SEALING_KEY), sources, clock)
        self._held: dict[str, Held] = {}
        #: Shared secrets on their way out.
        self._retiring: dict[tuple[str, int], SigningKey] = {}
        self._keys: dict[str, KeyRow] = {}
        self._versions: dict[tuple[str, int], VersionRow] = {}
        self._pins: dict[str, frozenset[str]] = {}
        #: By the grants in force: the origins and the profiles of each key.
        self._wanted: Mapping[str, frozenset[str]] = {}
        self._profiles: Mapping[str, tuple[str, ...]] = {}
        self._lent: frozenset[str] = frozenset()
        self.uses = Uses()
        self._params_key = b""
        self._jwks = b'{"keys":[]}'

    # --- what kinds ask for ---

    def settings_of(self, alias: str) -> KeySettings | None:
        """Return what the settings say of a key; of one that the grants name inline (``env:NAME``), the defaults."""
        return self.reader.settings_of(alias)

    def is_lent(self, alias: str) -> bool:
        """Say whether a profile of the grants in force lends the key as it is."""
        return alias in self._lent

    def fingerprint(self, value: Secret) -> str:
        """Return the keyed fingerprint of a secret that a person may have chosen."""
        return self.reader.fingerprint(value)

    def secret(self, alias: str, origin: str) -> tuple[Secret, int]:
        """Return the active version's value and number, for a credential that goes to ``origin``.

        Errors: ``secret-unavailable`` when it is not loaded, ``origin-not-pinned`` when it may not go there.
        """
        held = self._use(alias, origin)
        return held.secret, held.version

    def signing_key(self, alias: str, origin: str) -> tuple[SigningKey, int]:
        """Return the active version of a signing key and its number; otherwise like :meth:`secret`."""
        held = self._use(alias, origin)
        if held.signer is None:
            raise ProblemError("secret-unavailable", f"custody key {alias} is no signing key")
        return held.signer, held.version

    def checkpoint_signer(self) -> SigningKey | None:
        """Return the key that signs the audit log's checkpoints; None when it is not loaded. From any thread."""
        held = self._held.get(AUDIT_SIGNER)
        return None if held is None else held.signer

    def checkpoint_signer_before(self, kid: str) -> SigningKey | None:
        """Return a key that signed checkpoints before, while it is retiring. From any thread."""
        for (alias, _), signer in tuple(self._retiring.items()):
            if alias == AUDIT_SIGNER and signer.kid == kid:
                return signer
        return None

    def param_digest(self, params: Mapping[str, str]) -> str:
        """Return the keyed digest of run parameters, which is all that is kept of them."""
        data = msgspec.json.encode(dict(params), order="sorted")
        return "hmac-sha256:" + hmac.digest(self._params_key, data, "sha256").hex()

    def record_use(
        self,
        connection: Connection,
        versions: Iterable[tuple[str, int]],
        *,
        origin: str,
        caller: str,
        broker: str,
        now: float,
    ) -> list[Event]:
        """Count a mint, and pin a key that is used for the first time. Part of the write that commits the lease.

        ``versions`` are :attr:`minter.kinds.Minted.key_versions`; ``caller`` is the broker's word.
        """
        events = []
        for alias, _ in versions:
            self.uses.count(alias, caller=caller, broker=broker, now=now)
            if alias not in self._pins:
                # Believed only once it was read back: a transaction may fail after this returns.
                pins = frozenset(key_rows.origins(connection, alias))
                if pins:
                    self._pins[alias] = pins
                else:
                    wanted = sorted(self._wanted.get(alias, frozenset()) | {origin})
                    key_rows.pin(connection, alias, wanted)
                    events.append(Event("key.pinned", {"alias": alias, "origins": wanted}))
        return events

    def _use(self, alias: str, origin: str) -> Held:
        held = self._held.get(alias)
        if held is None:
            what = "retired" if alias in self.reader.retired else "not loaded"
            raise ProblemError("secret-unavailable", f"custody key {alias} is {what}")
        pins = self._pins.get(alias)
        if pins is not None and origin not in pins:
            raise ProblemError("origin-not-pinned")
        return held

    # --- public keys ---

    def jwks(self) -> bytes:
        """Return the JWK set of every signing key that verifiers may meet: public members only."""
        return self._jwks

    def read_token(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a token that one of our keys signed and that has not ended, else None."""
        claims = self._verified(token)
        expires_at = claims.get("exp") if claims else None
        if type(expires_at) is not int or self.clock.now() >= expires_at:
            return None
        return claims

    def _verified(self, token: str) -> dict[str, Any] | None:
        kid = signing.kid_of(token)
        try:
            for alias, held in self._held.items():
                if alias != AUDIT_SIGNER and held.signer is not None and held.signer.kid == kid:
                    return held.signer.verify(token)
            for (alias, _), signer in self._retiring.items():
                if alias != AUDIT_SIGNER and signer.kid == kid:
                    return signer.verify(token)
            for row in self._versions.values():
                if self._is_public(row) and row.public_jwk is not None:
                    jwk = msgspec.json.decode(row.public_jwk)
                    if jwk["kid"] == kid:
                        return signing.verify(token, jwk, signing.algorithm(row.algorithm))
        except SigningError:
            return None
        return None

    # --- loading ---

    async def load(self, store: Store, grants: Grants) -> None:
        """Stage and adopt: what a start does."""
        await self.adopt(store, await self.stage(store, grants))

    async def stage(self, store: Store, grants: Grants) -> Staged:
        """Read every secret of the settings and of ``grants``; change nothing.

        Errors: ``ConfigurationError`` with every fault.
        """
        if not self._params_key:
            await self.data_keys.open(store)
            self.reader.fingerprint_key = await self.data_keys.installation_key(store, "fingerprint_key")
            self._params_key = await self.data_keys.installation_key(store, "params_key")
        keys, versions = await store.read(lambda c: (key_rows.keys(c), key_rows.versions(c)))
        self._learn(keys)
        places = Places(self.reader, grants, keys, versions)
        staging = Staging(self.reader, grants, keys, versions, wanted=places.wanted(), now=self.clock.now())
        faults = [*setting_faults(self.settings), *places.faults()]
        await asyncio.to_thread(staging.read)
        if faults or staging.faults:
            raise ConfigurationError([*faults, *staging.faults])
        await asyncio.to_thread(staging.make_missing)
        if staging.faults:
            raise ConfigurationError(staging.faults)
        return staging.result()

    async def adopt(self, store: Store, staged: Staged) -> list[str]:
        """Write what is new and put what was staged in force.

        Return the keys whose value is another than before without a rotation: what was lent of them is of no use.
        """

        def work(connection: Connection) -> tuple[tuple[dict[str, KeyRow], list[VersionRow]], Sequence[Event]]:
            for key in staged.keys.values():
                key_rows.add_key(connection, key)
            active = _active(key_rows.versions(connection))
            told: list[Event] = []
            for row, events in staged.changed:
                # A rotation may have put another version in force since this one was read.
                if active.get(row.alias, row.version) == row.version:
                    key_rows.put_version(connection, row)
                    told += events
                    if any(event.code == "key.changed" for event in events):
                        # With what says that it was noticed: a start after a crash would not notice it again.
                        lease_rows.mark(connection, row.alias, "key-changed")
            return (key_rows.keys(connection), key_rows.versions(connection)), told

        keys, versions = await store.write(work)
        self._wanted, self._profiles, self._lent = staged.wanted, staged.profiles, staged.lent
        # As the rows are now: an operator may have retired or rebound one since it was staged.
        self._learn(keys)
        self._keys |= {alias: keys[alias] for alias in staged.keys}
        for alias in staged.keys:
            pins = self._settings_pins(alias) or keys[alias].origins
            if pins:
                self._pins[alias] = frozenset(pins)
        active = _active(versions)
        held = {
            alias: held
            for alias, held in staged.held.items()
            if active.get(alias) == held.version and alias not in self.reader.retired
        }
        changed = [
            alias
            for alias, new in held.items()
            if (old := self._held.get(alias)) is not None
            and old.version == new.version
            and old.fingerprint != new.fingerprint
        ]
        # Keys that the grants no longer name stay: what was made with them may still have to be ended with them.
        self._held |= held
        self._retiring |= staged.retiring
        self.put(versions)
        return changed

    async def learn(self, store: Store) -> None:
        """Learn which keys operators declared: before a grants file is checked, which may name them."""
        self._learn(await store.read(key_rows.keys))

    def _learn(self, keys: Mapping[str, KeyRow]) -> None:
        # Added to: what these rows were read before may be in force already, and none of it ever goes away.
        self.reader.declared = {**self.reader.declared, **declared_keys.settings_in(keys)}
        self.reader.retired |= declared_keys.retired_in(keys)

    def _settings_pins(self, alias: str) -> Sequence[str]:
        named = self.settings.keys.get(alias)
        return named.origins if named is not None else ()

    # --- what changes while it runs ---

    async def rebind(self, store: Store, alias: str, origins: Sequence[str], *, uid: int | None = None) -> list[str]:
        """Pin a key to other origins than before. Errors: ``key-not-found``, ``body-malformed``."""
        if alias not in self._keys:
            raise ProblemError("key-not-found")
        if self._settings_pins(alias):
            raise ProblemError("body-malformed", f"minter.toml says where key {alias} may go: change it there")
        wanted = sorted(set(origins))
        if len(wanted) > MAX_ORIGINS:
            raise ProblemError("body-malformed", f"a key may go to {MAX_ORIGINS} origins at most")
        try:
            for origin in wanted:
                parse_origin(origin)
        except ValueError as error:
            raise ProblemError("body-malformed", str(error)) from None
        if not wanted:
            raise ProblemError("body-malformed", "no origin was given")

        def work(connection: Connection) -> tuple[None, list[Event]]:
            key_rows.pin(connection, alias, wanted)
            fields: dict[str, Value] = {"alias": alias, "origins": wanted, "uid": uid}
            return None, [Event("key.rebound", fields)]

        refused = await committed(store.write(work))
        self._pins[alias] = frozenset(wanted)
        self._keys[alias] = replace(self._keys[alias], origins=tuple(wanted))
        if refused is not None:
            raise refused
        return wanted

    def flush(self, connection: Connection) -> tuple[None, Sequence[Event]]:
        """Write the uses that were counted in memory: a piece of work for the store, at every tick and at the end."""
        self.uses.write(connection)
        return None, ()

    def aliases(self) -> list[str]:
        """Return the alias of every key that is loaded."""
        return sorted(self._held)

    def origins_of(self, alias: str) -> list[str]:
        """Return where a key may go; nothing before its first use."""
        return sorted(self._pins.get(alias, ()))

    def profiles_of(self, alias: str) -> tuple[str, ...]:
        """Return the profiles of the grants in force that refer to a key."""
        return self._profiles.get(alias, ())

    def rotating(self) -> bool:
        """Say whether any key has a version that is on its way in or out."""
        return any(row.phase in ("prepared", "retiring") for row in self._versions.values())

    def version_in_use(self, alias: str) -> int | None:
        """Return which version of a key is lent or signs."""
        held = self._held.get(alias)
        return None if held is None else held.version

    def hold(self, alias: str, held: Held, *, rotated_at: float) -> None:
        """Put another active version in force: a rotation's last word, after its transaction."""
        before = self._held.get(alias)
        if before is not None and before.signer is not None:
            known = self._versions.get((alias, before.version))
            if known is not None and known.phase != "destroyed":
                self._retiring[alias, before.version] = before.signer
        self._held[alias] = held
        if alias in self._keys:
            self._keys[alias] = replace(self._keys[alias], last_rotated_at=rotated_at)

    def take(self, key: KeyRow, row: VersionRow, held: Held) -> None:
        """Put a key that an operator declared in force, after its transaction."""
        self.reader.declared = {**self.reader.declared, key.alias: declared_keys.read(key.settings)}
        self._keys[key.alias] = key
        if key.origins:
            self._pins[key.alias] = frozenset(key.origins)
        self._held[key.alias] = held
        self.put([row])

    def let_go(self, alias: str) -> None:
        """Take a key out of use, after its transaction: it is lent, signs and verifies no more."""
        self.reader.retired |= {alias}
        self._held.pop(alias, None)
        self._retiring = {id_: key for id_, key in self._retiring.items() if id_[0] != alias}
        self.put(())

    def put(self, rows: Iterable[VersionRow]) -> None:
        """Take over rows that were written, and publish what is to be published from now on."""
        for row in rows:
            self._versions[row.alias, row.version] = row
        self._retiring = {id_: key for id_, key in self._retiring.items() if self._versions[id_].verifies_unpublished}
        public = (row.public_jwk for row in self._versions.values() if self._is_public(row))
        keys = [jwk for jwk in public if jwk is not None]
        self._jwks = ('{"keys":[' + ",".join(keys) + "]}").encode()

    def _is_public(self, row: VersionRow) -> bool:
        if row.phase == "destroyed" or row.is_going or row.alias in self.reader.retired:
            return False
        return row.published_at is not None


def _active(rows: Iterable[VersionRow]) -> dict[str, int]:
    return {row.alias: row.version for row in rows if row.phase == "active"}
