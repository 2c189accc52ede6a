r"""Verify an audit log of the minter on a machine that has nothing of it: this file, Python 3.9 or newer, cryptography.

    python verify.py LOG... [--checkpoints FILE]... [--key KEY]... [--head SEQ:HASH] [--installation ID] [--json]

LOG: the files of one log in any order (``audit.jsonl`` and its finished files ``audit.jsonl.FIRST-LAST``).
``--checkpoints``: files with checkpoints, one a line; what a system's log puts before the first brace is skipped.
``--key``: the signer's key id or fingerprint, from a source that you trust; without it the first signer that the log
names is believed, and a log that was rewritten together with its checkpoints verifies.
``--head``: a line that is known to be in the log.

Exit status: 0 it verifies, 7 it does not, 2 it could not be read. It was written apart from the minter's own verifier
and shares no line with it: both must agree on the vectors in ``tests/vectors/audit``.

The format
    A line is a JSON object (names sorted, no spaces, ASCII with \\u escapes) and a line feed. Members of every line:
    seq (from 1), at (RFC 3339), code, prev. prev is the SHA-256 (hexadecimal) of the line before without its line
    feed; of line 1, which is audit.opened, it is the SHA-256 of "minter-broker audit log\\n" + installation. A file
    that continues another begins with audit.continued.
    A checkpoint is a JSON object in the same spelling: v (1), installation, seq, hash (of that line), at, kid (RFC 7638
    thumbprint of key), key (Ed25519, raw, base64url), signature (base64url) over "minter-broker audit checkpoint
    v1\\n" + the object without signature.
    audit.signer (member kid) names a new signer; it is believed once a checkpoint by a believed signer covers it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sys
from datetime import datetime
from typing import Any, Iterable, Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

GENESIS = b"minter-broker audit log\n"
SIGNED = b"minter-broker audit checkpoint v1\n"
LONGEST = 1048576
CHECKPOINT = {"at", "hash", "installation", "key", "kid", "seq", "signature", "v"}

#: A record in canonical spelling parses to something that is written in exactly the same way.
WRITE = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
READ = json.JSONDecoder()


class WrongError(Exception):
    """A record does not verify: ``reason`` is a stable word, the text is for people."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def sha256(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def unbase64(text: str) -> bytes | None:
    """Return the bytes of base64url without padding, or None."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", text):
        return None
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if len(text) % 4 != 1 else b""
    return data if base64.urlsafe_b64encode(data).decode().rstrip("=") == text else None


def read_record(data: bytes) -> dict[str, Any]:
    """Return the record of a line without its line feed. Raises WrongError("form")."""
    if len(data) > LONGEST:
        raise WrongError("form", "the line is too long")
    try:
        text = data.decode("ascii")
        value: dict[str, Any] = READ.decode(text)
        same = isinstance(value, dict) and WRITE.encode(value) == text
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise WrongError("form", "the line is no record in canonical spelling")
    for name in ("at", "code", "prev"):
        if not isinstance(value.get(name), str):
            raise WrongError("form", "the line has no " + name)
    if type(value.get("seq")) is not int:
        raise WrongError("form", "the line has no seq")
    try:
        datetime.fromisoformat(value["at"].replace("Z", "+00:00"))
    except ValueError:
        raise WrongError("form", "at is not an instant") from None
    return value


class Signature:
    """A checkpoint as it was read. ``good`` says whether its signature is."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.seq, self.hash, self.at = value["seq"], value["hash"], value["at"]
        self.installation, self.kid = value["installation"], value["kid"]
        self.names = {self.kid}
        self.good = self._check(value)

    def _check(self, value: dict[str, Any]) -> bool:
        key, signature = unbase64(value["key"]), unbase64(value["signature"])
        if key is None or signature is None or len(key) != 32:
            return False
        jwk = b'{"crv":"Ed25519","kty":"OKP","x":"' + value["key"].encode() + b'"}'
        thumbprint = base64.urlsafe_b64encode(hashlib.sha256(jwk).digest()).decode().rstrip("=")
        body = {name: member for name, member in value.items() if name != "signature"}
        try:
            public = Ed25519PublicKey.from_public_bytes(key)
            public.verify(signature, SIGNED + WRITE.encode(body).encode())
        except (InvalidSignature, ValueError):
            return False
        self.names.add(sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)))
        return bool(thumbprint == self.kid)


def read_checkpoints(data: bytes) -> tuple[list[Signature], int]:
    """Return the checkpoints in a file, and how many lines are none."""
    found: list[Signature] = []
    unread = 0
    for line in data.split(b"\n"):
        text = line[line.find(b"{") :].strip() if b"{" in line else line.strip()
        if not text:
            continue
        try:
            value = READ.decode(text.decode("ascii"))
            shaped = isinstance(value, dict) and WRITE.encode(value).encode() == text and set(value) == CHECKPOINT
            shaped = shaped and type(value["seq"]) is int and type(value["v"]) is int
            shaped = shaped and all(isinstance(value[name], str) for name in CHECKPOINT - {"seq", "v"})
        except (ValueError, RecursionError):
            shaped = False
        if shaped and value["v"] == 1 and value["seq"] > 0:
            found.append(Signature(value))
        else:
            # No checkpoint, or one of a version that this verifier does not know: said, never counted.
            unread += 1
    return found, unread


class Verifier:
    """Reads a log line by line and remembers what it takes to judge the next."""

    def __init__(
        self,
        checkpoints: Iterable[Signature] = (),
        keys: Iterable[str] = (),
        head: tuple[int, str] | None = None,
        installation: str | None = None,
    ) -> None:
        self.keys = set(keys)
        self.head = head
        self.wanted = installation
        self.installation: str | None = None
        self.checkpoints: dict[int, list[Signature]] = {}
        for one in checkpoints:
            self.checkpoints.setdefault(one.seq, []).append(one)
        self.believed: set[str] = set()
        self.named: set[str] = set()
        self.first = self.seq = 0
        self.last_hash = ""
        self.lines = 0
        self.proven: Signature | None = None

    def line(self, raw: bytes) -> None:
        """Take the next line, line feed included."""
        if raw[-1:] != b"\n":
            raise WrongError("unfinished", "the line has no end: the minter was stopped while it wrote, or it was cut")
        data = raw[:-1]
        record = read_record(data)
        if not self.first:
            self.begin(record)
        if record["seq"] != self.seq + 1:
            raise WrongError("sequence", "seq is %d where %d belongs" % (record["seq"], self.seq + 1))
        if record["prev"] != self.last_hash:
            raise WrongError("chain", "prev is not the hash of the line before: one of the two was changed")
        digest = sha256(data)
        if self.head and self.head[0] == record["seq"] and self.head[1] != digest:
            raise WrongError("head", "the line is not the one that --head names")
        if record["code"] == "audit.signer" and isinstance(record.get("kid"), str):
            if not self.keys and not self.believed:
                self.believed.add(record["kid"])
            self.named.add(record["kid"])
        self.compare(record["seq"], digest)
        self.seq, self.last_hash = record["seq"], digest
        self.lines += 1

    def begin(self, record: dict[str, Any]) -> None:
        """Take the first line for what the chain hangs on."""
        installation = record.get("installation")
        opened = record["code"] == "audit.opened"
        continued = record["code"] == "audit.continued" and record["seq"] > 1
        if not isinstance(installation, str) or not (opened or continued):
            raise WrongError("start", "the first line begins no log")
        if self.wanted is not None and installation != self.wanted:
            raise WrongError("installation", "the log belongs to another installation")
        self.installation = installation
        if continued:
            self.first, self.seq, self.last_hash = record["seq"], record["seq"] - 1, record["prev"]
            self.compare(self.seq, self.last_hash)
        else:
            self.first, self.seq, self.last_hash = 1, 0, sha256(GENESIS + installation.encode())

    def compare(self, seq: int, digest: str) -> None:
        """Hold a line against the checkpoints that name it; a signer that one brings in may judge the next."""
        rest = self.checkpoints.get(seq)
        if not rest:
            return
        if not all(one.good for one in rest):
            raise WrongError("signature", "the signature of a checkpoint of it is wrong")
        while rest:
            judged = [one for one in rest if self.believes(one)]
            if not judged:
                raise WrongError("signer", "a checkpoint of it is signed by " + rest[0].kid + ", which is not believed")
            for one in judged:
                if one.installation != self.installation:
                    raise WrongError("installation", "a checkpoint of it belongs to another installation")
                if one.hash != digest:
                    raise WrongError(
                        "checkpoint", "the line is not the one that was signed: it or one before was changed"
                    )
            self.proven = judged[0]
            self.believed |= self.named
            self.named = set()
            rest = [one for one in rest if one not in judged]

    def believes(self, checkpoint: Signature) -> bool:
        """Say whether a signer is believed."""
        if self.keys & checkpoint.names:
            return True
        if not self.keys and not self.believed:
            self.believed.add(checkpoint.kid)
        return checkpoint.kid in self.believed

    def end(self) -> None:
        """Judge the end of the log."""
        if not self.lines:
            raise WrongError("empty", "the log is empty")
        if self.head and self.head[0] > self.seq:
            raise WrongError("cut", "the log ends at seq %d; seq %d was in it" % (self.seq, self.head[0]))
        beyond = [one for seq in sorted(self.checkpoints) if seq > self.seq for one in self.checkpoints[seq]]
        if not all(one.good for one in beyond):
            raise WrongError("signature", "the log ends at seq %d; a later checkpoint's signature is wrong" % self.seq)
        for one in beyond:
            if not self.believes(one):
                raise WrongError("signer", "a checkpoint of seq %d is signed by %s, not believed" % (one.seq, one.kid))
        if beyond:
            raise WrongError("cut", "the log ends at seq %d; seq %d was signed" % (self.seq, beyond[-1].seq))


def numbers_of(name: str) -> tuple[int, int] | None:
    """Return the numbers in the name of a finished file, or None."""
    match = re.search(r"\.([0-9]{12,})-([0-9]{12,})$", name)
    return (int(match.group(1)), int(match.group(2))) if match else None


def verify(
    names: Sequence[str],
    checkpoints: Sequence[Signature],
    keys: Iterable[str] = (),
    head: tuple[int, str] | None = None,
    installation: str | None = None,
) -> dict[str, Any]:
    """Verify files in the order of their lines; return what was found as a dictionary."""
    names = sorted(names, key=lambda name: (numbers_of(name) or (1 << 62, 0))[0])
    end = numbers_of(names[-1])
    if end:
        # A finished file without what follows it: what was signed later is not about it.
        checkpoints = [one for one in checkpoints if one.seq <= end[1]]
        head = head if head and head[0] <= end[1] else None
    verifier = Verifier(checkpoints, keys, head, installation)
    bad, place = None, (names[0], 0)
    try:
        for name in names:
            place = (name, 0)
            with open(name, "rb") as file:
                for number, raw in enumerate(file, 1):
                    place = (name, number)
                    verifier.line(raw)
        place = (place[0], place[1] + 1)
        verifier.end()
    except WrongError as wrong:
        seq = verifier.seq + 1
        bad = {"seq": seq, "reason": wrong.reason, "why": str(wrong), "file": place[0], "line": place[1]}
    proven = verifier.proven
    return {
        "ok": bad is None,
        "lines": verifier.lines,
        "first": verifier.first or None,
        "last": {"seq": verifier.seq, "hash": verifier.last_hash} if verifier.lines else None,
        "installation": verifier.installation,
        "proven": {"seq": proven.seq, "at": proven.at, "kid": proven.kid} if proven else None,
        "signer_pinned": bool(verifier.keys),
        "bad": bad,
    }


def tell(found: dict[str, Any], unread: int) -> None:
    """Say what was found, in words."""
    if not found["ok"]:
        bad = found["bad"]
        print("DOES NOT VERIFY: %s line %d (seq %d): %s" % (bad["file"], bad["line"], bad["seq"], bad["why"]))
        if bad["reason"] == "signer":
            print("Who signs after whom, the checkpoints from then say: give all that there are, or --key")
        return
    print("verifies: %d lines, last %d %s" % (found["lines"], found["last"]["seq"], found["last"]["hash"]))
    if found["proven"]:
        print("integrity is proven up to seq %(seq)d, signed at %(at)s by %(kid)s" % found["proven"])
        if not found["signer_pinned"]:
            print("not proven: that this key is the minter's; give --key")
        if found["last"]["seq"] > found["proven"]["seq"]:
            print("not proven: %d lines after it" % (found["last"]["seq"] - found["proven"]["seq"]))
    else:
        print("not proven: that the log was not rewritten as a whole; give --checkpoints")
    if found["first"] > 1:
        print("not here: lines 1 to %d" % (found["first"] - 1))
    if unread:
        print("not read: %d lines of the checkpoints" % unread)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Verify an audit log of the minter.", epilog="Exit status: 0 verifies, 7 does not, 2 not read."
    )
    parser.add_argument("logs", nargs="+", metavar="LOG", help="the files of one log, in any order")
    again = "; may be given again"
    parser.add_argument(
        "--checkpoints", action="append", default=[], metavar="FILE", help="checkpoints, kept elsewhere at best" + again
    )
    parser.add_argument("--key", action="append", default=[], help="key id or fingerprint of a signer" + again)
    parser.add_argument("--head", metavar="SEQ:HASH", help="a line that is known to be in the log")
    parser.add_argument("--installation", metavar="ID", help="the installation that the log must be of")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    for name in options.logs:
        if name.endswith(".checkpoints"):
            parser.error(name + " holds checkpoints: give it as --checkpoints")
    head = None
    if options.head:
        number, _, digest = options.head.partition(":")
        if not number.isdigit() or not re.fullmatch("[0-9a-f]{64}", digest):
            parser.error("--head is SEQ:HASH")
        head = (int(number), digest)
    checkpoints: list[Signature] = []
    unread = 0
    try:
        for name in options.checkpoints:
            with open(name, "rb") as file:
                more, none = read_checkpoints(file.read())
            checkpoints += more
            unread += none
        found = verify(options.logs, checkpoints, options.key, head, options.installation)
    except OSError as error:
        print("verify: cannot read %s: %s" % (error.filename, error.strerror), file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found))
    else:
        tell(found, unread)
    return 0 if found["ok"] else 7


if __name__ == "__main__":
    sys.exit(main())
