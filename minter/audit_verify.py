"""The audit log's form, and the check of its chain and its checkpoints. Pure.

A log is lines, in one file or, since it goes on in a new one at times, in several. A line is a JSON object in one
canonical spelling (ASCII, names sorted, no spaces) and ends in one line feed. ``seq`` counts from 1; ``prev`` is the
SHA-256 of the line before, its line feed left out; the first line is ``audit.opened`` and its ``prev`` is
:func:`genesis` of the installation's id. A file that continues another begins with ``audit.continued``.

What the chain shows by itself: an edit, a removal, a reorder, a splice or a duplicate anywhere before the last line.
What it cannot show is a log that ends too early, a last line that was rewritten, or a whole log that was: for that a
line is needed that was known to be in it and is kept elsewhere. That is a *checkpoint*, which is signed
(``minter/audit_checkpoint.py``), or a *head*, which is not: the minter keeps one in its state.

Which signer is believed: those that are pinned; without a pin the first that the log names (``audit.signer``), or the
first that signed. A later one is believed once a checkpoint of one that is believed covers the line that names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec

#: Longer lines are not ours.
MAX_LINE: Final = 1 << 20
#: Events that are no fault and that a reviewer wants to hear of.
NOTABLE: Final = frozenset(
    {"audit.healed", "audit.loss-accepted", "audit.sink-failed", "audit.sink-restored", "clock.went-back"}
)
_MEMBERS: Final = (("at", str), ("code", str), ("prev", str), ("seq", int))


def _no_fraction(_text: str) -> float:
    raise ValueError("left to the other library")


_decode = msgspec.json.Decoder(float_hook=_no_fraction).decode
_encode_plain = msgspec.json.Encoder(order="sorted").encode
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode

#: Why a log does not verify, as a stable word. Both verifiers use the same.
Reason = Literal[
    "form",  # the line is no record
    "unfinished",  # it has no line feed
    "start",  # the first line begins no log
    "installation",  # it belongs to another installation
    "sequence",  # seq does not count on
    "chain",  # prev is not the hash of the line before
    "head",  # the line is not the one that a head names
    "checkpoint",  # the line is not the one that a checkpoint names
    "signature",  # a checkpoint of the line has a wrong signature
    "signer",  # the checkpoint's signer is not believed
    "cut",  # a line that was in the log is not there any more
    "empty",
]


@dataclass(frozen=True, slots=True)
class Head:
    """A line that is known to be in the log: its number and the SHA-256 of its bytes, in hexadecimal."""

    seq: int
    hash: str


class Checked(Protocol):
    """A checkpoint whose signature is good; whether its signer is believed is decided here."""

    @property
    def installation(self) -> str: ...  # noqa: D102 - as in minter/audit_checkpoint.py
    @property
    def seq(self) -> int: ...  # noqa: D102
    @property
    def hash(self) -> str: ...  # noqa: D102
    @property
    def at(self) -> str: ...  # noqa: D102
    @property
    def kid(self) -> str: ...  # noqa: D102
    @property
    def fingerprint(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Bad:
    """The first record that does not verify, and why. ``line`` counts the lines that were read from 1.

    ``seq`` is the number that the record has or should have.
    """

    line: int
    why: str
    reason: Reason = "form"
    seq: int = 0


class _BadError(ValueError):
    def __init__(self, reason: Reason, why: str) -> None:
        self.reason: Reason = reason
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Report:
    """What :func:`verify` found. ``bad`` is None when the log verifies; ``head`` is the last good line.

    ``first`` is the number of the first line: above 1 what came before was not looked at. ``proven`` is the last
    checkpoint that the log agrees with: what is written up to there has not been changed since. ``pinned`` says
    whether its signer was named by whoever asked, or taken from the log. ``notable`` lists (seq, code) of events that
    are no fault and that a reviewer wants to hear of.
    """

    lines: int
    head: Head | None
    installation: str | None
    bad: Bad | None
    notable: list[tuple[int, str]] = field(default_factory=list)
    first: int = 1
    proven: Checked | None = None
    pinned: bool = False


def canonical(record: dict[str, Any]) -> bytes:
    """Return the one spelling of a record, without its line feed.

    Everything outside printable ASCII is escaped: line breaks, terminal escapes, marks that turn the direction of
    writing, U+2028 and lone surrogates. One record is one line, whatever its fields hold.
    """
    return _encode(record).encode("ascii")


def line_hash(line: bytes) -> str:
    """Return the SHA-256 of a line without its line feed, in hexadecimal."""
    return hashlib.sha256(line).hexdigest()


def genesis(installation: str) -> str:
    """Return what the first line's ``prev`` must be for this installation."""
    return line_hash(b"minter-broker audit log\n" + installation.encode())


def parse_line(line: bytes) -> dict[str, Any]:
    """Read one line without its line feed.

    Errors: ``ValueError`` with the reason when it is not a record in canonical spelling.
    """
    if len(line) > MAX_LINE:
        raise ValueError("the line is too long")
    record = _plain(line)
    if record is None:
        try:
            record = json.loads(line)
            same = type(record) is dict and canonical(record) == line
        except (ValueError, RecursionError):
            raise ValueError("the line is not JSON") from None
        if not same:
            raise ValueError("the line is not an object in canonical spelling")
    for name, kind in _MEMBERS:
        if type(record.get(name)) is not kind:
            raise ValueError(f"the line has no {name}")
    try:
        datetime.fromisoformat(record["at"])
    except ValueError:
        raise ValueError("at is not an instant") from None
    return record


def _plain(line: bytes) -> dict[str, Any] | None:
    """Read a line that is canonical and in which both libraries spell everything alike; None for any other.

    A log is millions of such lines, and this takes a fifth of the time. What the libraries spell in two ways: escapes
    (hence no backslash and nothing that would need one) and numbers with a fraction.
    """
    if b"\\" in line or b"\x7f" in line or not line.isascii():
        return None
    try:
        record: Any = _decode(line)
        return record if type(record) is dict and _encode_plain(record) == line else None
    except (ValueError, RecursionError):
        return None


def verify(
    lines: Iterable[bytes],
    *,
    installation: str | None = None,
    head: Head | None = None,
    checkpoints: Sequence[Checked] = (),
    forged: Collection[int] = (),
    pins: Collection[str] = (),
) -> Report:
    """Check a whole log and report the first record that is wrong.

    ``lines`` are as binary files give them, line feeds included, those of older files first. ``installation``: the id
    that the log must belong to. ``head``: a line that must be in it. ``forged``: the numbers of lines that a checkpoint
    with a wrong signature names. ``pins``: key ids or fingerprints of the checkpoints' signers; empty: see the top of
    this module.
    """
    chain = _Chain(installation, head, checkpoints, pins, forged)
    for line in lines:
        try:
            chain.add(line)
        except _BadError as error:
            return chain.report(error)
    try:
        chain.end()
    except _BadError as error:
        return chain.report(error)
    return chain.report(None)


class _Chain:
    def __init__(
        self,
        installation: str | None,
        head: Head | None,
        checkpoints: Sequence[Checked],
        pins: Collection[str],
        forged: Collection[int],
    ) -> None:
        self._wanted = installation
        self._known = head
        self._installation: str | None = None
        self._prev = ""
        self._notable: list[tuple[int, str]] = []
        self._start = 1
        self._seq = 0
        self._at: dict[int, list[Checked]] = {}
        for checkpoint in checkpoints:
            self._at.setdefault(checkpoint.seq, []).append(checkpoint)
        self._forged = frozenset(forged)
        self._signers = _Signers(pins)
        self._proven: Checked | None = None
        self.count = 0

    def add(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            raise _BadError(
                "unfinished", "the line is unfinished: a torn end that the minter heals at its next start, or a cut"
            )
        line = line[:-1]
        try:
            record = parse_line(line)
        except ValueError as error:
            raise _BadError("form", str(error)) from None
        if self.count == 0:
            self._first(record)
        seq, code = record["seq"], record["code"]
        if seq != self._seq + 1:
            raise _BadError("sequence", f"seq is {seq} where {self._seq + 1} belongs")
        if record["prev"] != self._prev:
            raise _BadError("chain", "prev is not the hash of the line before: that line or this one was changed")
        digest = line_hash(line)
        if self._known is not None and seq == self._known.seq and digest != self._known.hash:
            raise _BadError("head", "the line is not the one that the known head names")
        if code in NOTABLE:
            self._notable.append((seq, code))
        elif code == "audit.signer":
            self._signers.name(record.get("kid"))
        if seq in self._at or seq in self._forged:
            self._checkpoints(seq, digest)
        self._prev = digest
        self._seq = seq
        self.count += 1

    def _first(self, record: dict[str, Any]) -> None:
        installation = record.get("installation")
        continued = record["code"] == "audit.continued" and record["seq"] > 1
        if not isinstance(installation, str) or not (continued or record["code"] == "audit.opened"):
            raise _BadError("start", "the first line is neither audit.opened nor audit.continued")
        if self._wanted is not None and installation != self._wanted:
            raise _BadError("installation", "the log belongs to another installation")
        self._installation = installation
        self._prev = genesis(installation)
        if continued:
            self._start, self._seq, self._prev = record["seq"], record["seq"] - 1, record["prev"]
            if self._seq in self._at or self._seq in self._forged:
                self._checkpoints(self._seq, self._prev)

    def _checkpoints(self, seq: int, digest: str) -> None:
        """Compare a line with the checkpoints that name it, those of believed signers first."""
        if seq in self._forged:
            raise _BadError("signature", "the signature of a checkpoint of it is wrong")
        waiting = self._at.get(seq, [])
        while waiting:
            believed = [checkpoint for checkpoint in waiting if self._signers.believe(checkpoint)]
            if not believed:
                raise _BadError("signer", f"a checkpoint of it is signed by {waiting[0].kid}, which is not believed")
            for checkpoint in believed:
                if checkpoint.installation != self._installation:
                    raise _BadError("installation", "a checkpoint of it belongs to another installation")
                if checkpoint.hash != digest:
                    since = f"after {self._proven.seq}" if self._proven else "of those before"
                    raise _BadError(
                        "checkpoint", f"the line is not the one that was signed: it or one {since} was changed"
                    )
            self._proven = believed[0]
            self._signers.covered()
            waiting = [checkpoint for checkpoint in waiting if checkpoint not in believed]

    def end(self) -> None:
        if self.count == 0:
            raise _BadError("empty", "the log is empty")
        if self._known is not None and self._seq < self._known.seq:
            raise _BadError("cut", f"the log ends at seq {self._seq}; seq {self._known.seq} was in it: it was cut")
        if any(seq > self._seq for seq in self._forged):
            raise _BadError("signature", f"the log ends at seq {self._seq}; a later checkpoint's signature is wrong")
        beyond = sorted(seq for seq in self._at if seq > self._seq)
        for seq in beyond:
            for checkpoint in self._at[seq]:
                if not self._signers.believe(checkpoint):
                    raise _BadError(
                        "signer", f"a checkpoint of seq {seq} is signed by {checkpoint.kid}, which is not believed"
                    )
        if beyond:
            raise _BadError("cut", f"the log ends at seq {self._seq}; seq {beyond[-1]} was signed: it was cut")

    def report(self, error: _BadError | None) -> Report:
        head = Head(self._seq, self._prev) if self.count else None
        bad = None if error is None else Bad(self.count + 1, str(error), error.reason, self._seq + 1)
        return Report(
            self.count,
            head,
            self._installation,
            bad,
            self._notable,
            first=self._start,
            proven=self._proven,
            pinned=self._signers.pinned,
        )


class _Signers:
    """Who is believed so far, and who was named since the last line that somebody believed has signed."""

    def __init__(self, pins: Collection[str]) -> None:
        self.pinned = bool(pins)
        self._pins = frozenset(pins)
        self._believed: set[str] = set()
        self._named: set[str] = set()

    def name(self, kid: object) -> None:
        if not isinstance(kid, str):
            return
        if not self.pinned and not self._believed:
            self._believed.add(kid)
        self._named.add(kid)

    def covered(self) -> None:
        self._believed |= self._named
        self._named.clear()

    def believe(self, checkpoint: Checked) -> bool:
        if not self._pins.isdisjoint((checkpoint.kid, checkpoint.fingerprint)):
            return True
        if not self.pinned and not self._believed:
            self._believed.add(checkpoint.kid)
        return checkpoint.kid in self._believed
