"""Makes the demo's secrets and hands each to the one who may have it, in a process of its own.

The API's key and the signing key go into pipes that the minter inherits, the broker's credential into one of the
broker's. The demo itself gets digests only, so that its own memory is no place where the key could be found.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import string
import sys
from typing import Final

from joserfc.jwk import OKPKey

from config import tokens
from config.process import harden

#: What the key begins with. The searched code joins the pieces itself, so that the mark stands in none of its files.
KEY_MARK: Final = "fake-agent-memory-token-held-by-the-minter-"
_RANDOM: Final = 43
_LETTERS: Final = string.digits + string.ascii_letters


def main(arguments: list[str]) -> None:
    """Write key, credential and signing key to three descriptors; print what is known of the first two.

    A fourth descriptor gets the API's key in clear, for the test that plants it where it must not be.
    """
    harden()
    key = KEY_MARK + "".join(secrets.choice(_LETTERS) for _ in range(_RANDOM))
    credential = tokens.generate(tokens.BROKER).reveal()
    signer = json.dumps(OKPKey.generate_key("Ed25519").as_dict(private=True))
    for descriptor, text in zip(map(int, arguments[:3]), (key, credential, signer), strict=True):
        os.write(descriptor, text.encode() + b"\n")
        os.close(descriptor)
    for leak in map(int, arguments[3:]):
        os.write(leak, key.encode())
        os.close(leak)
    known = {"key": _known(KEY_MARK, key), "credential": _known(tokens.BROKER, credential)}
    sys.stdout.write(json.dumps(known))


def _known(mark: str, secret: str) -> dict[str, str | int]:
    return {"mark": mark, "length": len(secret), "sha256": hashlib.sha256(secret.encode()).hexdigest()}


if __name__ == "__main__":
    main(sys.argv[1:])
