"""What nobody should read into the custody report. It says so itself, at its end."""

from __future__ import annotations

from typing import Final

_TEXT: Final = """
Callers are what the brokers say they are: the minter knows a broker by its token and user, a caller by the broker's
word alone.

Uses count credentials that were lent. What a broker did with them, only its run records say, and those are its own
word too.

A static key that was lent stays valid after its lease until it is rotated. That nobody copied it meanwhile, nobody can
prove.

The audit log is proven only up to the last checkpoint that is kept outside this machine: what came after it could have
been rewritten by whoever holds the minter's user.

The minter's own user and root can read its memory, its sources and its state, and can change this program: the report
shows what an honest minter knows, not what such a person did.

How a place protects a key is what that kind of place does by design. Whether the disk is encrypted, who has backups and
who is root, the report does not look at.
"""


def does_not_prove() -> list[str]:
    """Return the limits, one sentence or two each."""
    return [" ".join(paragraph.split()) for paragraph in _TEXT.strip().split("\n\n")]
