"""``callers.json`` and ``brokers.json``: who may present a token, by SHA-256 digest only.

Pure operations on the parsed file; ``config/load.py`` reads, locks and writes. ``callers.json`` is
``{"callers": [{"id", "tokens": [{"sha256", "not_after"?}]}]}``; ``brokers.json`` has ``brokers`` and, for each, the
``uid`` it must connect from and the ``profiles`` it may ask for (absent: all). A broker with ``introspect`` and no
profile may only ask whether a token is active: that is what a resource server is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final

import msgspec

from config.clock import parse_rfc3339, rfc3339
from config.errors import ConfigurationError, Fault
from config.secret import Secret
from config.tokens import Prefix, digest, generate

#: An id of a caller or broker. It appears in logs and in the audit, so it is kept plain.
ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}", re.ASCII)

#: The end of the text itself: `$` alone also matches before a last line break in Python.
_END: Final = "$(?!\n)"

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}" + _END)]


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One token by its digest. ``not_after`` (RFC 3339) ends the overlap of a rotation; absent: no end."""

    sha256: Digest
    not_after: str | None = None


class Principal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A caller, or a broker (then with ``uid``, ``profiles``, ``introspect``)."""

    id: Annotated[str, msgspec.Meta(pattern="^" + ID.pattern + _END)]
    tokens: list[TokenEntry] = []
    uid: int | None = None
    profiles: list[str] | None = None
    introspect: bool = False

    def may_ask_for(self, profile: str) -> bool:
        """Say whether a broker's list holds the profile; callers have no such list."""
        return self.profiles is None or profile in self.profiles


class TokenFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Either file: one of the two lists is filled."""

    callers: list[Principal] = []
    brokers: list[Principal] = []

    def principals(self) -> list[Principal]:
        """Return whichever list is there."""
        return self.callers or self.brokers


def check(file: TokenFile, *, where: str) -> None:
    """Refuse what the schema cannot say: an id twice, a digest twice, a bad instant, a caller with broker fields.

    Errors: ``ConfigurationError`` with every fault.
    """
    faults: list[Fault] = []
    if file.callers and file.brokers:
        faults.append(Fault(where, "callers and brokers stand in files of their own"))
    ids: set[str] = set()
    digests: set[str] = set()
    for number, principal in enumerate(file.principals()):
        place = f"{where}: {'callers' if file.callers else 'brokers'}[{number}]"
        if principal.id in ids:
            faults.append(Fault(f"{place}.id", f"{principal.id} stands twice"))
        ids.add(principal.id)
        if file.callers and (principal.uid is not None or principal.profiles is not None or principal.introspect):
            faults.append(Fault(place, "a caller has only id and tokens"))
        for index_, entry in enumerate(principal.tokens):
            if entry.sha256 in digests:
                faults.append(Fault(f"{place}.tokens[{index_}].sha256", "the digest stands twice"))
            digests.add(entry.sha256)
            if entry.not_after is not None:
                try:
                    parse_rfc3339(entry.not_after)
                except ValueError:
                    faults.append(
                        Fault(f"{place}.tokens[{index_}].not_after", "expected an RFC 3339 instant with zone")
                    )
    if faults:
        raise ConfigurationError(faults)


def index(file: TokenFile) -> Mapping[bytes, tuple[Principal, float | None]]:
    """Return digest -> (principal, end of the token or None), for :func:`find`."""
    return {
        bytes.fromhex(entry.sha256): (principal, parse_rfc3339(entry.not_after) if entry.not_after else None)
        for principal in file.principals()
        for entry in principal.tokens
    }


def find(
    known: Mapping[bytes, tuple[Principal, float | None]], token: str, prefix: Prefix, *, now: float
) -> Principal | None:
    """Return who presented ``token``, or None: malformed, unknown and past its overlap look the same."""
    key = digest(token, prefix)
    found = known.get(key) if key is not None else None
    if found is None or (found[1] is not None and now >= found[1]):
        return None
    return found[0]


def create(principals: Iterable[Principal], principal: Principal, prefix: Prefix) -> tuple[list[Principal], Secret]:
    """Return the list with ``principal`` added, and its first token.

    Errors: ``KeyError`` when the id is taken, ``ValueError`` when it is not one.
    """
    listed = list(principals)
    if not ID.fullmatch(principal.id):
        raise ValueError("an id is 1 to 100 letters, digits and . _ @ -, and starts with a letter or digit")
    if any(other.id == principal.id for other in listed):
        raise KeyError(principal.id)
    token = generate(prefix)
    return [*listed, msgspec.structs.replace(principal, tokens=[_entry(token, prefix)])], token


def rotate(
    principals: Iterable[Principal], id_: str, prefix: Prefix, *, now: float, overlap_s: float
) -> tuple[list[Principal], Secret]:
    """Return the list with a new token for ``id_``; its other tokens end after ``overlap_s``, or sooner.

    Errors: ``KeyError`` when there is no such id.
    """
    token = generate(prefix)

    def change(principal: Principal) -> Principal:
        end = now + overlap_s
        kept = [
            msgspec.structs.replace(entry, not_after=rfc3339(min(end, _end(entry))))
            for entry in principal.tokens
            if _end(entry) > now
        ]
        return msgspec.structs.replace(principal, tokens=[*(kept if overlap_s > 0 else []), _entry(token, prefix)])

    return _changed(principals, id_, change), token


def revoke(principals: Iterable[Principal], id_: str) -> list[Principal]:
    """Return the list without ``id_``.

    Errors: ``KeyError`` when there is no such id.
    """
    listed = list(principals)
    if not any(principal.id == id_ for principal in listed):
        raise KeyError(id_)
    return [principal for principal in listed if principal.id != id_]


def _changed(principals: Iterable[Principal], id_: str, change: Callable[[Principal], Principal]) -> list[Principal]:
    listed = list(principals)
    if not any(principal.id == id_ for principal in listed):
        raise KeyError(id_)
    return [change(principal) if principal.id == id_ else principal for principal in listed]


def _end(entry: TokenEntry) -> float:
    return parse_rfc3339(entry.not_after) if entry.not_after else float("inf")


def _entry(token: Secret, prefix: Prefix) -> TokenEntry:
    value = digest(token.reveal(), prefix)
    if value is None:
        raise ValueError("not a token of ours")
    return TokenEntry(sha256=value.hex())
