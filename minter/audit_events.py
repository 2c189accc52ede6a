"""What the audit log may say: every event's code, its meaning and its fields, as an allow list.

An unknown code or field, or a field of another type, raises: a new kind of data cannot slip into the log. No field
holds a path, a query, a body, a credential or a run parameter's value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from config.clock import YEAR_10000

Value = str | int | float | bool | list[str] | None


@dataclass(frozen=True, slots=True)
class EventType:
    """What an event means and which fields it may have; a field that is not given is left out."""

    doc: str
    fields: frozenset[str]


#: Every field, its types and its meaning. Fields that end in ``_at`` take seconds and are written as RFC 3339.
#: None has the name of a member of every line (``at``, ``code``, ``prev``, ``seq``), which would take its place.
FIELDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "lease_id": ((str,), "the lease"),
    "run_id": ((str,), "the run"),
    "broker": ((str,), "id of the broker that asked"),
    "caller": ((str,), "id of the caller that opened the run, as the broker reports it"),
    "profile": ((str,), "name of the profile in the grants file"),
    "kind": ((str,), "token kind"),
    "params_digest": ((str,), "keyed digest of the run parameters"),
    "origin": ((str,), "the upstream's origin"),
    "origins": ((list,), "the upstream origins that a key is pinned to"),
    "grant_digest": ((str,), "digest of the profile as it was granted"),
    "grants_digest": ((str,), "digest of the whole grants file"),
    "fingerprint": ((str,), "fingerprint of a credential or key"),
    "expires_at": ((int, float), "when the credential's lease ends"),
    "how": (
        (str,),
        "how it ended: upstream_deleted, accepted_async, expired_only, key_still_valid, never_made, forgotten",
    ),
    "words": ((str,), "an operator's own words"),
    "reason": ((str,), "why, as a short word"),
    "problem": ((str,), "problem code of a refusal or failure"),
    "attempts": ((int,), "attempts made so far"),
    "next_attempt_at": ((int, float), "when the next attempt is due"),
    "trace_id": ((str,), "the orchestrator's trace id"),
    "reported_by": ((str,), "who said so, when it was not the minter itself"),
    "ended": ((str,), "why a run ended"),
    "calls": ((int,), "calls that were forwarded"),
    "denied": ((int,), "calls that were refused"),
    "shed": ((int,), "calls that were shed by an open breaker"),
    "by_route": ((list,), "calls per granted route: 'profile METHOD /template count'"),
    "denied_by": ((list,), "refused calls: 'code profile METHOD /template count'; - for none of the run's, and none"),
    "grant_digests": ((list,), "the grants that a run was opened with: 'profile digest'"),
    "alias": ((str,), "alias of a custody key"),
    "key_alias": ((str,), "custody key that a credential was made with"),
    "key_version": ((int,), "version of that key"),
    "key_versions": ((list,), "custody keys that a credential was made with: 'alias@version'"),
    "version": ((int,), "version of a custody key"),
    "source": ((str,), "name of the source's kind, never the reference behind it"),
    "algorithm": ((str,), "signature algorithm"),
    "retire_at": ((int, float), "when a version may be destroyed"),
    "publish_until_at": ((int, float), "until when a version is published before it signs"),
    "data_key": ((int,), "number of a data key, which seals values in the state"),
    "forced": ((bool,), "the operator skipped a waiting time"),
    "uid": ((int,), "operating system's user id of the peer"),
    "operation": ((str,), "what was asked for: a route template of the admin or broker API"),
    "principal": ((str,), "id in brokers.json"),
    "program": ((str,), "program and version"),
    "count": ((int,), "how many"),
    "suspects": ((int,), "credentials that may exist upstream though nobody holds them"),
    "faults": ((int,), "how many faults were found"),
    "profiles": ((int,), "how many profiles are loaded"),
    "keys": ((int,), "how many custody keys are loaded"),
    "brokers": ((int,), "how many brokers are known"),
    "installation": ((str,), "id of the installation that the log belongs to"),
    "torn_bytes": ((int,), "bytes of an unfinished last line that were cut off"),
    "torn_sha256": ((str,), "SHA-256 of those bytes"),
    "known_seq": ((int,), "number of the last line that the state knows of"),
    "lost_seq": ((int,), "number of the last line that the state knew"),
    "lost_hash": ((str,), "hash of that line"),
    "kid": ((str,), "RFC 7638 thumbprint of a public key"),
    "sink": ((str,), "which place of the audit log: first (its file) or second"),
    "behind_s": ((int, float), "seconds by which the wall clock stands behind the line before"),
}

_LEASE: Final = ("lease_id", "broker", "run_id", "caller", "profile", "kind", "trace_id")
_ASKED: Final = ("params_digest", "origin", "grant_digest")
_MADE: Final = ("fingerprint", "expires_at", "key_alias", "key_version", "key_versions")
_KEY: Final = ("alias", "version", "fingerprint", "algorithm", "source", "uid", "forced")


def _event(doc: str, *fields: str) -> EventType:
    unknown = set(fields) - FIELDS.keys()
    if unknown:
        raise ValueError(f"fields without a meaning: {sorted(unknown)}")
    return EventType(doc, frozenset(fields))


EVENTS: Final[Mapping[str, EventType]] = {
    # --- the log itself ---
    "audit.opened": _event("First line of a log: it belongs to this installation.", "installation"),
    "audit.continued": _event("First line of a file that continues the one before.", "installation"),
    "audit.signer": _event("From here on this key signs the log's checkpoints.", "kid", "fingerprint", "algorithm"),
    "audit.sink-failed": _event("A place that takes every line lacks lines; the other one has them.", "sink"),
    "audit.sink-restored": _event("A place that lacked lines has them all again.", "sink"),
    "audit.rotation-asked": _event("The log goes on in a new file, because somebody asked for it.", "uid"),
    "audit.healed": _event(
        "The end of the log was unfinished (power loss, full disk) and was cut off.", "torn_bytes", "torn_sha256"
    ),
    "audit.loss-accepted": _event(
        "An operator decided to go on with a log that lacks the line its state knew.",
        "lost_seq",
        "lost_hash",
        "uid",
    ),
    "audit.events-lost": _event(
        "Events that were committed with their rows could not be read at a start: the log lacks them."
    ),
    "clock.went-back": _event("The wall clock stands before the line before this one.", "behind_s"),
    # --- the service ---
    "service.started": _event("The minter is ready.", "program", "profiles", "keys", "brokers", "grants_digest", "uid"),
    "service.stopped": _event("The minter stopped in order.", "reason", "count"),
    "service.reloaded": _event(
        "Grants, brokers and secrets were read anew.", "profiles", "keys", "brokers", "grants_digest", "uid"
    ),
    "reload.refused": _event("A reload did not load; the old state goes on.", "faults", "uid"),
    "brokers.read": _event("The brokers file was replaced, and the minter goes by the new one.", "brokers"),
    "brokers.refused": _event("A replaced brokers file does not load; the brokers stay as they were.", "faults"),
    "backup.written": _event("A backup of the state and this log was written.", "uid"),
    "restore.confirmed": _event(
        "An operator lifted the quarantine of a restored state: the leases of the backup end.",
        *("uid", "count", "suspects", "lost_seq", "lost_hash"),
    ),
    "state.older": _event(
        "The log has lines that the state does not know: an older state was put in its place. It is in quarantine.",
        *("known_seq", "count"),
    ),
    # --- leases ---
    "lease.intent": _event("A credential is about to be made upstream.", *_LEASE, *_ASKED),
    "lease.requested": _event("A broker asked for a credential.", *_LEASE, *_ASKED),
    "lease.minted": _event("A credential was made and may be released.", *_LEASE, *_ASKED, *_MADE),
    "lease.reissued": _event("A live lease was handed out again.", *_LEASE, *_ASKED, *_MADE),
    "lease.refused": _event("A broker asked and was refused.", *_LEASE, *_ASKED, "problem"),
    "lease.mint-failed": _event("The issuer or the source failed.", *_LEASE, *_ASKED, "problem", "attempts", "reason"),
    "lease.orphaned": _event(
        "The minter stopped between mint and commit: a credential may exist that nobody holds.", *_LEASE, "reason"
    ),
    "lease.expired": _event("A lease reached its end.", *_LEASE, "how", "reason", "fingerprint"),
    "lease.revoked": _event(
        "A lease was ended before its time.", *_LEASE, "how", "reason", "fingerprint", "attempts", "uid"
    ),
    "lease.revoke-failed": _event(
        "A revocation failed and is tried again.", *_LEASE, "reason", "attempts", "next_attempt_at"
    ),
    "lease.irrevocable": _event(
        "A revocation kept failing, or cannot be asked for.",
        *(*_LEASE, "reason", "attempts", "next_attempt_at", "problem"),
    ),
    "lease.forgotten": _event(
        "An operator had a lease forgotten whose credential nobody here can end.", *_LEASE, "reason", "uid", "words"
    ),
    "lease.orphan-ended": _event("A kind looked for what a lost mint may have left.", *_LEASE, "how", "reason"),
    "seal.refused": _event(
        "A sealed value did not open and is not used: it was moved, put back or changed.",
        *(*_LEASE, "alias", "version", "reason"),
    ),
    "run.recorded": _event(
        "A broker reported the counts of a run that ended.",
        *("run_id", "broker", "caller", "reported_by", "ended", "calls", "denied", "shed", "by_route", "trace_id"),
        *("denied_by", "grant_digests"),
    ),
    # --- custody ---
    "key.created": _event("A custody key was loaded for the first time.", *_KEY),
    "key.changed": _event("A source holds another value than before, without a rotation.", *_KEY),
    "key.pinned": _event(
        "A key was used for the first time and is pinned to the origins its grants name.", "alias", "origins"
    ),
    "key.rebound": _event("An operator pinned a key to other origins.", "alias", "origins", "uid"),
    "key.declared": _event("An operator declared a key; its value is about to be kept.", "alias", "source", "uid"),
    "key.import-failed": _event("The value of a declared key could not be kept; it is no key.", *_KEY, "reason"),
    "key.out-of-use": _event("An operator retired a key: what was made with it ends.", "alias", "uid", "forced"),
    "key.rotation-begun": _event("A new version is about to be made or kept.", *_KEY),
    "key.rotation-prepared": _event("A new version is in its source and was read back.", *_KEY),
    "key.prove-failed": _event(
        "The issuer does not take a new version, or could not be asked; it stays prepared.", *_KEY, "reason"
    ),
    "key.compromised": _event(
        "An operator said that a key is in the wrong hands: every version before the next goes at once.", *_KEY
    ),
    "key.rotation-published": _event("A new verification key is published.", *_KEY, "publish_until_at"),
    "key.rotation-activated": _event("A new version took over; the one before is retiring.", *_KEY, "retire_at"),
    "key.retired": _event("A retiring version has no live lease any more or reached its deadline.", *_KEY, "reason"),
    "key.destroyed": _event("A retired version was deleted from its source.", *_KEY, "reason"),
    "data-key.renewed": _event("Values are sealed with a new data key from now on.", "version", "data_key"),
    "data-key.destroyed": _event("No value was sealed with a data key any more; it was deleted.", "data_key"),
    "key.destroy-failed": _event("A retired version could not be deleted from its source.", *_KEY, "reason"),
    "key.rotation-aborted": _event("A rotation was given up before the new version took over.", *_KEY, "reason"),
    # --- who may do what ---
    "access.denied": _event(
        "A bad broker credential, a wrong peer, or not an operator.",
        "problem",
        "uid",
        "operation",
        "principal",
        "broker",
    ),
    "leases.mass-revoked": _event("An operator ended many leases at once.", "uid", "count", "reason"),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened; the log adds ``seq``, ``at`` and ``prev``.

    Errors: ``ValueError`` for a code or field outside the allow list, or of another type. The message names the
    field, never its value.

    >>> Event("key.pinned", {"alias": "cf-parent", "origins": ["https://api.example.com"]}).code
    'key.pinned'
    """

    code: str
    fields: Mapping[str, Value]

    def __post_init__(self) -> None:
        kind = EVENTS.get(self.code)
        if kind is None:
            raise ValueError("the audit log knows no such event")
        for name, value in self.fields.items():
            if name not in kind.fields:
                raise ValueError(f"event {self.code} has no field {name!r}")
            if value is None:
                continue
            types = FIELDS[name][0]
            # bool is an int in Python: True where a count belongs is a mistake, not a number.
            if type(value) not in types:
                raise ValueError(f"event {self.code}: field {name!r} has a value of type {type(value).__name__}")
            if type(value) is list and not all(type(item) is str for item in value):
                raise ValueError(f"event {self.code}: field {name!r} is not a list of text")
            # Here, not when it is written: an event that cannot be written would stop the log for all others.
            if type(value) is float and not math.isfinite(value):
                raise ValueError(f"event {self.code}: field {name!r} is not a finite number")
            if name.endswith("_at") and not 0 <= value < YEAR_10000:  # type: ignore[operator]
                raise ValueError(f"event {self.code}: field {name!r} is not an instant")
