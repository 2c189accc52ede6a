"""Named points at which a test kills the process, to see what a crash there leaves behind.

A point is a call of :func:`reached` between two steps that must survive a crash. In a program that nobody tests it does
nothing: it is armed by ``MINTER_TEST_FAILPOINT=NAME`` (or ``NAME:N`` for the N-th time) alone, which is removed from
the environment when it is read and named in the log.
"""

from __future__ import annotations

import os
import signal
from collections.abc import MutableMapping
from typing import Final

VARIABLE: Final = "MINTER_TEST_FAILPOINT"

#: Every point by name, with what has happened by then and what has not.
POINTS: Final[dict[str, str]] = {
    # A mint. Of a local kind there is no intent: its points are those of one transaction.
    "mint.requested": "a lease was asked for and admitted; nothing is written",
    "mint.intent-written": "the intent is committed and audited; the issuer has not been asked",
    "mint.made": "the issuer has made a credential; nothing says so here",
    "mint.committed": "the lease is committed and audited; nobody has its credential",
    "mint.answered": "the broker has been given the credential",
    "mint.reissued": "a live lease is about to be handed out again, and the log says so",
    "mint.failed": "the issuer did not make a credential, or did not say so; the intent stands",
    # The end of a lease. A local kind's is over once its row is written.
    "revoke.stopped": "nobody can use the lease any more; its row says that it lives",
    "revoke.row-written": "the row says that the lease ended; its issuer has not been asked",
    "revoke.attempted": "the issuer has answered, or failed; the row does not say so",
    "revoke.outcome-written": "the outcome is committed and audited; nobody was told",
    # What a lost mint may have left.
    "orphan.looked": "the kind has looked, and ended what it found; the row says suspect",
    "orphan.outcome-written": "what became of the suspect is committed and audited",
    "forget.written": "a forgotten lease is over and audited; nobody was answered",
    # The audit log: an append, a checkpoint, and going on in a new file.
    "audit.computed": "lines are chained; nothing is written",
    "audit.written": "lines are written to a file and not synced",
    "audit.synced": "lines are written to a file and synced, and do not count yet",
    "audit.checkpoint-signed": "a checkpoint is signed and kept nowhere",
    "audit.checkpoint-written": "a checkpoint is in its file and synced; the other places do not have it",
    "audit.next-made": "the log is about to go on in a new file, which is made and has no name yet",
    "audit.renamed": "the finished file has its name; there is no file to go on in",
    "audit.anew": "the new file is in its place and empty",
    # A transaction of the store, whatever is in it.
    "store.begun": "a transaction has begun; nothing is in it",
    "store.work-done": "the rows are written; the transaction is not committed",
    "store.committed": "the transaction is committed; the audit log knows nothing of it",
    "store.told": "the audit log has its lines, synced; nobody knows the outcome",
    # A change of the schema.
    "migrate.copying": "a whole copy of the state stands beside it, under a name that nobody looks for",
    "migrate.copied": "the copy has its name; nothing is changed",
    "migrate.begun": "the transaction of the change has begun",
    "migrate.statement": "another statement of the change is about to be made",
    "migrate.done": "every statement of the change is made; nothing is committed",
    "migrate.committed": "the change is committed; the state is not open yet",
    # A restore, and its confirmation.
    "restore.staged": "the backup is verified beside its place and the state is marked; nothing is moved",
    "restore.aside": "what stood in the place is moved aside; nothing is there",
    "restore.log-placed": "the audit log is in its place; the state is not",
    "restore.state-placed": "the state is in its place, in quarantine; the mark is still there",
    "restore.confirmed": "the confirmation is committed and audited; the leases of the backup still live",
    "restore.settled": "the leases of the backup have ended; the state does not say so yet",
    # The keys that seal the state, and the rotation of the one that wraps them.
    "seal.renewed": "a new data key is committed; this process still seals with the one before",
    "seal.moved": "a batch of values was sealed anew; memory still knows the old data key",
    "rewrap.begun": "the row of a new sealing key is committed; the key is nowhere",
    "rewrap.written": "the new sealing key is in its source and was read back; its row does not say so",
    "rewrap.prepared": "the new sealing key is known and kept; the old one wraps the data keys",
    "rewrap.activating": "everything is ready for the new sealing key to take over",
    "rewrap.activated": "the new sealing key wraps the data keys; this process seals with the old data key",
    "rewrap.moved": "no value needs the old sealing key; it is still in its source",
    "rewrap.deleted": "the old sealing key is gone from its source; its row does not say so",
    # A reload.
    "reload.read": "grants, brokers and secrets are read and checked; the old ones are in force",
    "reload.adopted": "the state knows the new keys; the old grants are in force",
    "reload.swapped": "the new grants are in force; what may not go on still lives",
    "reload.ended": "what may not go on has ended; streams of brokers that lost something are open",
    # Custody keys that come and go (minter/key_making.py, minter/key_ending.py).
    "key.declared": "a new key's row is committed; its value is nowhere",
    "key.written": "a new key's value is in its source; the key is not in use",
    "key.created": "a new key is active in the state; memory does not know it",
    "key.retired": "a key is retired in the state; memory still holds it, its leases live",
    "key.deleted": "a value of a retired key is deleted; its row does not say so",
    "key.destroyed": "a version of a retired key is destroyed; nobody was answered",
    # A rotation of a custody key (minter/rotation_steps.py).
    "rotate.begun": "the row of a new version is committed; its value is nowhere",
    "rotate.made": "the issuer has made a new root secret; it is kept nowhere here",
    "rotate.written": "the new value is in its source; it was not read back",
    "rotate.read-back": "the new value was read back; its row does not say so",
    "rotate.prepared": "the new version is prepared; it was not proved, published or activated",
    "rotate.proved": "the issuer accepts the new root secret; it is not active",
    "rotate.published": "the new verification key is published; it does not sign",
    "rotate.activating": "the new version was read once more; the old one is active",
    "rotate.activated": "the new version is active in the state; memory holds the old one",
    "rotate.retiring": "the log says that the old version goes; what was made with it lives",
    "rotate.ended": "what was made with the old version has ended; its value is there",
    "rotate.deleted-upstream": "the issuer has deleted the old root secret; its source has it",
    "rotate.deleted": "the old value is deleted from its source; its row says it retires",
    "rotate.destroyed": "the old version is destroyed; nobody was answered",
}

_armed: str | None = None
_left = 0


def arm(environ: MutableMapping[str, str]) -> str | None:
    """Arm the point that the environment names; return its name, or None.

    Errors: ``ValueError`` for a point that does not exist.
    """
    global _armed, _left
    given = environ.pop(VARIABLE, "")
    if not given:
        return None
    name, _, count = given.partition(":")
    if name not in POINTS:
        raise ValueError(f"there is no failpoint {name!r}")
    _armed, _left = name, int(count or "1")
    return name


def reached(name: str) -> None:
    """Die here, when a test asked for it: no cleanup, no flush, no other thread gets to do anything more."""
    global _left  # noqa: PLW0603
    if name == _armed:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
