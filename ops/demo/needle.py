"""How to look for a secret without holding it: by the SHA-256 digest of every substring that could be it.

A secret of the demo begins with a known mark and has a known length. Each place where the mark occurs, plain or in one
of the encodings that code uses to hide things, is hashed and compared; so is each token-like word of that length. The
searcher knows marks, lengths and digests; none of them helps to obtain the secret.

This file runs in the searched process too: it needs the standard library and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Iterator

#: What the secret that all this is about is called.
KEY = "the key"
#: How the searcher's last line begins, which is for the demo.
RESULT = "result: "

_WORD = re.compile(rb"[0-9A-Za-z_-]{24,}")
_BASE64 = re.compile(rb"[0-9A-Za-z+/_-]+")
_HEX = re.compile(rb"[0-9A-Fa-f]+")
#: Of a longer word only the places where a mark begins are hashed: every offset of a large blob would take minutes.
_LONGEST_WORD = 160
#: How far around a mark an encoded secret can reach.
_REACH = 1024


class Needle:
    """One secret to look for.

    ``mark`` is what it begins with; ``name`` is what to call it when it is found.
    """

    def __init__(self, name: str, mark: str, length: int, sha256: str) -> None:
        """Take the digest as 64 hexadecimal digits."""
        self.name = name
        self.mark = mark
        self.length = length
        self.sha256 = sha256

    def is_here(self, data: bytes, at: int) -> bool:
        """Say whether the secret stands in ``data`` at an offset."""
        window = data[at : at + self.length]
        return len(window) == self.length and hashlib.sha256(window).hexdigest() == self.sha256

    def as_dict(self) -> dict[str, str | int]:
        """Return what the searcher is told."""
        return {"name": self.name, "mark": self.mark, "length": self.length, "sha256": self.sha256}


class Needles:
    """Looks for several secrets at once.

    >>> secret = "mark-" + "x" * 30
    >>> needles = Needles([Needle("it", "mark-", 35, hashlib.sha256(secret.encode()).hexdigest())])
    >>> sorted(needles.found_in(b"key=" + secret.encode())), sorted(needles.found_in(secret[::-1].encode()))
    (['it'], ['it'])
    >>> needles.found_in(secret[:-1].encode())
    {}
    """

    def __init__(self, needles: Iterable[Needle]) -> None:
        """Take the secrets to look for."""
        self._needles = list(needles)
        encoded = {form for needle in self._needles for form in _encodings(needle.mark.encode())}
        self._encoded = re.compile(b"|".join(sorted(map(re.escape, encoded), reverse=True)))

    @property
    def reach(self) -> int:
        """Return how many bytes two pieces of a stream must overlap so that nothing is missed between them."""
        return 2 * _REACH

    def found_in(self, data: bytes) -> dict[str, bytes]:
        """Return the secrets that occur in ``data``, plain or encoded, by name."""
        found = self._plain(data)
        for decoded in self._decoded(data):
            found |= self._plain(decoded)
        return found

    def _plain(self, data: bytes) -> dict[str, bytes]:
        found = {}
        for needle in self._needles:
            mark, at = needle.mark.encode(), -1
            while (at := data.find(mark, at + 1)) >= 0:
                if needle.is_here(data, at):
                    found[needle.name] = data[at : at + needle.length]
                    break
        for match in _WORD.finditer(data):
            word = match[0]
            if len(word) > _LONGEST_WORD:
                continue
            for needle in self._needles:
                for at in range(len(word) - needle.length + 1):
                    if needle.is_here(word, at):
                        found[needle.name] = word[at : at + needle.length]
        return found

    def _decoded(self, data: bytes) -> Iterator[bytes]:
        for match in self._encoded.finditer(data):
            around = data[max(0, match.start() - _REACH) : match.end() + _REACH]
            yield around.replace(b"\0", b"")
            yield around[::-1]
            for run in _HEX.findall(around):
                yield binascii.unhexlify(run[: len(run) // 2 * 2])
                yield binascii.unhexlify(run[1 : 1 + (len(run) - 1) // 2 * 2])
            for run in _BASE64.findall(around):
                # The alignment is not known: try all four.
                text = run.replace(b"-", b"+").replace(b"_", b"/")
                for skip in range(4):
                    aligned = text[skip:]
                    aligned = aligned[:-1] if len(aligned) % 4 == 1 else aligned
                    yield base64.b64decode(aligned + b"=" * (-len(aligned) % 4))


def _encodings(mark: bytes) -> Iterator[bytes]:
    """Write a mark as it looks reversed, in hexadecimal, in UTF-16 and UTF-32, and inside base64 at any alignment."""
    yield mark[::-1]
    yield mark.hex().encode()
    yield mark.hex().upper().encode()
    for width in (2, 4):
        yield (b"\0" * (width - 1)).join(mark[at : at + 1] for at in range(len(mark)))
    for pad in range(3):
        encoded = base64.b64encode(b"\0" * pad + mark)
        # The first and last characters also depend on what stands beside the mark.
        inner = encoded[(0, 2, 3)[pad] : len((b"\0" * pad + mark).hex()) // 2 * 8 // 6]
        yield inner
        yield inner.replace(b"+", b"-").replace(b"/", b"_")
