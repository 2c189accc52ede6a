"""Makes the vectors of ``v1`` anew: ``python -m tests.vectors.audit.make [DIRECTORY]``. The same bytes every time.

Each case is a folder with the files of a log and ``cases.json`` says how to verify them and what is found. What is in
a folder once released does not change; a new form of the log gets a folder of its own. ``v0`` is a log as it was
written before there were checkpoints, and is not made here.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from config.clock import rfc3339
from config.secret import Secret
from minter import audit_checkpoint, signing
from minter.audit_verify import Head, canonical, genesis, line_hash
from minter.signing import SigningKey

HERE = Path(__file__).parent
INSTALLATION = "00112233445566778899aabbccddeeff"
START = 1_893_456_000.0


def key(seed: str) -> SigningKey:
    raw = hashlib.sha256(b"vectors of the audit log: " + seed.encode()).digest()
    private = Ed25519PrivateKey.from_private_bytes(raw)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return signing.load(Secret(pem), "EdDSA", keyed_fingerprint="")


OURS, NEXT, THEIRS = key("ours"), key("next"), key("theirs")


def chained(records: list[dict[str, Any]], *, prev: str | None = None, seq: int = 0) -> list[bytes]:
    """Write records whose numbers and hashes are all right."""
    prev = genesis(records[0]["installation"]) if prev is None else prev
    lines = []
    for n, record in enumerate(records):
        at = rfc3339(START + seq + n)
        line = canonical({"at": at, **record, "prev": prev, "seq": seq + n + 1})
        prev = line_hash(line)
        lines.append(line + b"\n")
    return lines


def opened(installation: str = INSTALLATION) -> dict[str, Any]:
    return {"code": "audit.opened", "installation": installation}


def continued() -> dict[str, Any]:
    return {"code": "audit.continued", "installation": INSTALLATION}


def named(signer: SigningKey) -> dict[str, Any]:
    return {"code": "audit.signer", "algorithm": "EdDSA", "fingerprint": signer.fingerprint, "kid": signer.kid}


def pinned(n: int, alias: str = "key") -> dict[str, Any]:
    return {"code": "key.pinned", "alias": f"{alias}-{n}", "origins": ["https://api.example.com"]}


def signed(lines: list[bytes], seq: int, signer: SigningKey = OURS, installation: str = INSTALLATION) -> bytes:
    digest = line_hash(lines[seq - 1][:-1])
    made = audit_checkpoint.sign(Head(seq, digest), installation=installation, now=START + 1000 + seq, key=signer)
    return made.line + b"\n"


RECORDS = [opened(), named(OURS), *(pinned(n) for n in range(3, 13))]
LOG = chained(RECORDS)
CHECKPOINTS = [signed(LOG, 5), signed(LOG, 10)]
OTHER = chained([opened(), named(OURS), *(pinned(n, "other") for n in range(3, 13))])
FORGED = chained([opened(), named(THEIRS), *(pinned(n, "forged") for n in range(3, 13))])
#: The log changes its signer: the old one signs the line that names the new one.
TURNED = chained([opened(), named(OURS), pinned(3), pinned(4), named(NEXT), pinned(6), pinned(7)])
#: A log in three files.
FILES = {
    "audit.jsonl.000000000001-000000000004": LOG[:4],
    "audit.jsonl.000000000005-000000000008": chained(
        [continued(), *(pinned(n) for n in range(6, 9))], prev=line_hash(LOG[3][:-1]), seq=4
    ),
}
FILES["audit.jsonl"] = chained(
    [continued(), *(pinned(n) for n in range(10, 13))],
    prev=line_hash(FILES["audit.jsonl.000000000005-000000000008"][-1][:-1]),
    seq=8,
)
ACROSS = [line for lines in FILES.values() for line in lines]


def changed(lines: list[bytes], place: int, change: Callable[[bytes], bytes]) -> list[bytes]:
    return [*lines[:place], change(lines[place]), *lines[place + 1 :]]


def with_signature(checkpoint: bytes, signature: str) -> bytes:
    return canonical({**json.loads(checkpoint), "signature": signature}) + b"\n"


def without_prefix(lines: list[bytes], seq: int) -> bytes:
    """Sign as a checkpoint is signed, without the words that say what the signature is for."""
    body = {name: value for name, value in json.loads(signed(lines, seq)).items() if name != "signature"}
    return with_signature(signed(lines, seq), audit_checkpoint._base64url(OURS.sign_raw(canonical(body))))


def borrowed(lines: list[bytes], seq: int) -> bytes:
    """Sign a checkpoint with another key under our key's name: the signature is good."""
    body = {name: value for name, value in json.loads(signed(lines, seq, THEIRS)).items() if name != "signature"}
    body["kid"] = OURS.kid
    signature = THEIRS.sign_raw(audit_checkpoint.DOMAIN + canonical(body))
    return canonical({**body, "signature": audit_checkpoint._base64url(signature)}) + b"\n"


def jumped() -> list[bytes]:
    """Every hash is right and one number does not count on."""
    lines, prev = LOG[:6], line_hash(LOG[5][:-1])
    for n, record in enumerate(RECORDS[6:], start=8):
        line = canonical({"at": rfc3339(START + n), **record, "prev": prev, "seq": n})
        prev = line_hash(line)
        lines = [*lines, line + b"\n"]
    return lines


GOOD = {"ok": True}


def bad(seq: int, reason: str) -> dict[str, Any]:
    return {"ok": False, "bad_seq": seq, "reason": reason}


def cases() -> dict[str, dict[str, Any]]:
    """Return every case: files, checkpoints, options, and what is expected."""
    one: dict[str, dict[str, Any]] = {}

    def case(name: str, log: Any, expected: dict[str, Any], *checkpoints: bytes, **options: Any) -> None:
        files = log if isinstance(log, dict) else {"audit.jsonl": log}
        one[name] = {"files": files, "checkpoints": list(checkpoints), "options": options, "expected": expected}

    proven = {**GOOD, "proven_seq": 10}
    case("good-chain-alone", LOG, {**GOOD, "proven_seq": None})
    case("good-with-checkpoints", LOG, proven, *CHECKPOINTS)
    case("good-pinned-by-kid", LOG, proven, *CHECKPOINTS, keys=[OURS.kid])
    case("good-pinned-by-fingerprint", LOG, proven, *CHECKPOINTS, keys=[OURS.fingerprint])
    case("good-head", LOG, GOOD, head=f"12:{line_hash(LOG[11][:-1])}", installation=INSTALLATION)
    case("good-checkpoints-from-a-system-log", LOG, proven, *(b"Jan  1 host minter: " + c for c in CHECKPOINTS))
    case("good-a-torn-checkpoint-is-none", LOG, proven, CHECKPOINTS[0][:99], b"\n", *CHECKPOINTS)
    case("good-files", FILES, {**GOOD, "proven_seq": 11}, signed(ACROSS, 3), signed(ACROSS, 11))
    moved = {name: lines for name, lines in FILES.items() if not name.endswith("-000000000004")}
    case("good-first-file-moved-away", moved, {**GOOD, "proven_seq": 4}, signed(ACROSS, 4))
    case("good-first-file-moved-away-unproven", moved, {**GOOD, "proven_seq": None})
    finished = {"audit.jsonl.000000000001-000000000004": LOG[:4]}
    case("good-a-finished-file-alone", finished, {**GOOD, "proven_seq": 3}, signed(LOG, 3), signed(LOG, 9))
    turned = [signed(TURNED, 3), signed(TURNED, 5), signed(TURNED, 5, NEXT), signed(TURNED, 7, NEXT)]
    case("good-another-signer", TURNED, {**GOOD, "proven_seq": 7}, *turned, keys=[OURS.kid])
    hostile = [opened(), pinned(2, "\r\n\x1b[31m\u2028\u202e\ud800\x00\x7f"), pinned(3, '","code":"forged')]
    case("good-hostile-text", chained(hostile), GOOD)
    # What a chain and checkpoints of the same hand cannot show: said by every verifier as not proven.
    case("good-a-rewritten-whole-without-checkpoints", FORGED, {**GOOD, "proven_seq": None})

    case("edited", changed(LOG, 6, lambda line: line.replace(b"key-7", b"kex-7")), bad(8, "chain"))
    edited_last = changed(LOG, 11, lambda line: line.replace(b"key-12", b"kex-12"))
    case("edited-last-line", edited_last, bad(12, "checkpoint"), signed(LOG, 12))
    case("edited-last-line-by-head", edited_last, bad(12, "head"), head=f"12:{line_hash(LOG[11][:-1])}")
    case("removed", [*LOG[:4], *LOG[5:]], bad(5, "sequence"))
    case("removed-first", LOG[1:], bad(1, "start"))
    case("reordered", [*LOG[:3], LOG[4], LOG[3], *LOG[5:]], bad(4, "sequence"))
    case("duplicated", [*LOG[:6], LOG[5], *LOG[6:]], bad(7, "sequence"))
    case("spliced-in", [*LOG[:6], OTHER[6], *LOG[6:]], bad(7, "chain"))
    case("spliced-over", [*LOG[:6], OTHER[6], *LOG[7:]], bad(7, "chain"))
    case("spliced-end", [*LOG[:6], *OTHER[6:]], bad(7, "chain"))
    case("inserted-number", jumped(), bad(7, "sequence"))
    case("truncated", LOG[:9], bad(10, "cut"), *CHECKPOINTS)
    case("truncated-by-head", LOG[:9], bad(10, "cut"), head=f"12:{line_hash(LOG[11][:-1])}")
    case("torn", [*LOG[:11], LOG[11][:-20]], bad(12, "unfinished"))
    case("emptied", [], bad(1, "empty"), *CHECKPOINTS)
    case("rewritten-whole", FORGED, bad(5, "signer"), *CHECKPOINTS)
    case("rewritten-whole-pinned", FORGED, bad(5, "checkpoint"), *CHECKPOINTS, keys=[OURS.kid])
    rewritten = chained([opened(), named(OURS), *(pinned(n, "forged") for n in range(3, 13))])
    case("rewritten-whole-same-signer", rewritten, bad(5, "checkpoint"), *CHECKPOINTS)
    theirs = [signed(FORGED, 5, THEIRS), signed(FORGED, 10, THEIRS)]
    case("rewritten-with-checkpoints-pinned", FORGED, bad(5, "signer"), *theirs, keys=[OURS.kid])
    case("rewritten-with-checkpoints-one-kept-elsewhere", FORGED, bad(7, "signer"), *theirs, signed(LOG, 7))
    case(
        "rewritten-end",
        [*LOG[:7], *chained([pinned(n, "forged") for n in range(8, 13)], prev=line_hash(LOG[6][:-1]), seq=7)],
        bad(10, "checkpoint"),
        *CHECKPOINTS,
    )
    sneaked = chained([opened(), named(OURS), pinned(3), named(THEIRS), pinned(5), pinned(6)])
    case("a-signer-nobody-vouches-for", sneaked, bad(6, "signer"), signed(sneaked, 3), signed(sneaked, 6, THEIRS))
    case("another-installation", LOG, bad(1, "installation"), installation="ff" * 16)
    foreign = signed(LOG, 5, installation="ff" * 16)
    case("checkpoint-of-another-installation", LOG, bad(5, "installation"), foreign)
    case(
        "checkpoint-with-a-wrong-signature",
        LOG,
        bad(5, "signature"),
        with_signature(CHECKPOINTS[0], json.loads(CHECKPOINTS[1])["signature"]),
    )
    moved_hash = canonical({**json.loads(CHECKPOINTS[0]), "hash": line_hash(LOG[5][:-1])}) + b"\n"
    case("checkpoint-edited", LOG, bad(5, "signature"), moved_hash)
    case(
        "checkpoint-with-another-kid",
        LOG,
        bad(5, "signature"),
        canonical({**json.loads(CHECKPOINTS[0]), "kid": NEXT.kid}) + b"\n",
    )
    case("checkpoint-that-borrows-a-kid", FORGED, bad(5, "signature"), borrowed(FORGED, 5), keys=[OURS.kid])
    case("checkpoint-without-its-prefix", LOG, bad(5, "signature"), without_prefix(LOG, 5))
    case(
        "checkpoint-beyond-the-end-with-a-wrong-signature",
        LOG[:9],
        bad(10, "signature"),
        with_signature(CHECKPOINTS[1], json.loads(CHECKPOINTS[0])["signature"]),
    )
    case(
        "genesis-of-another-installation", changed(LOG, 0, lambda line: line.replace(b"0011", b"0012")), bad(1, "chain")
    )
    case("not-canonical-space", changed(LOG, 4, lambda line: line.replace(b'","', b'", "', 1)), bad(5, "form"))
    case(
        "not-canonical-order",
        changed(
            LOG,
            4,
            lambda line: json.dumps(dict(reversed(json.loads(line).items())), separators=(",", ":")).encode() + b"\n",
        ),
        bad(5, "form"),
    )
    case("doubled-member", changed(LOG, 4, lambda line: line.replace(b'"seq":5', b'"seq":5,"seq":5')), bad(5, "form"))
    case("not-ascii", changed(LOG, 4, lambda line: line.replace(b"key-5", "kéy-5".encode())), bad(5, "form"))
    case("a-number-that-is-text", changed(LOG, 4, lambda line: line.replace(b'"seq":5', b'"seq":"5"')), bad(5, "form"))
    case("no-instant", changed(LOG, 4, lambda line: line.replace(b"2030-01-01T", b"2030-13-01T")), bad(5, "form"))
    case("blank-line", [*LOG[:4], b"\n", *LOG[4:]], bad(5, "form"))
    case("crlf", changed(LOG, 4, lambda line: line[:-1] + b"\r\n"), bad(5, "form"))
    middle = {name: lines for name, lines in FILES.items() if not name.endswith("-000000000008")}
    case("middle-file-removed", middle, bad(5, "sequence"))
    edited_file = {
        **FILES,
        "audit.jsonl.000000000005-000000000008": changed(
            FILES["audit.jsonl.000000000005-000000000008"], 3, lambda line: line.replace(b"key-8", b"kex-8")
        ),
    }
    case("finished-file-edited", edited_file, bad(9, "chain"))
    case("moved-away-start-contradicts-a-checkpoint", moved, bad(5, "checkpoint"), signed(OTHER, 4))
    return one


def main(target: Path) -> None:
    index: list[dict[str, Any]] = []
    for name, case in cases().items():
        folder = target / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, lines in case["files"].items():
            (folder / file).write_bytes(b"".join(lines))
        if case["checkpoints"]:
            (folder / "checkpoints.jsonl").write_bytes(b"".join(case["checkpoints"]))
        index.append(
            {
                "name": name,
                "files": list(case["files"]),
                "checkpoints": bool(case["checkpoints"]),
                **case["options"],
                "expected": case["expected"],
            }
        )
    (target / "cases.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "v1")
