"""Opening compressed bodies piece by piece: what is not decoded cannot be looked through.

No API is asked for compression while its answers are scrubbed; some compress all the same. What comes out is passed on
in the clear. Whatever goes in, what is in memory is one piece of it, a window of 32 KiB and one piece of what comes
out: a bomb is never there as a whole, and whoever counts the pieces can stop in the midst of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

from config.problems import ProblemError

#: The largest piece that comes out.
MAX_PIECE: Final = 64 * 1024
#: Of what comes in so much at a time: zlib copies what it has left over at every step.
_STEP: Final = 16 * 1024

_GZIP: Final = 16 + zlib.MAX_WBITS
#: gzip files may be written one behind the other (RFC 1952 section 2.2). Nobody writes this many in a body, but each
#: costs time and an empty one brings nothing.
MAX_MEMBERS: Final = 1000

_DEFLATE: Final = 8
_LARGEST_WINDOW: Final = 7


class Decoder(Protocol):
    """One compressed body. Feed it every piece, then finish it."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield what comes out, never more than :data:`MAX_PIECE` at once. Go through all of it before the next piece.

        Errors: ``ProblemError("upstream-malformed")``.
        """
        ...

    def finish(self) -> None:
        """Say that no piece follows.

        Errors: ``ProblemError("upstream-broke-off")`` when the body is not complete.
        """
        ...


def decoder_for(content_encoding: bytes) -> Decoder | None:
    """Return what opens a body, or None when it is not compressed.

    ``content_encoding`` is every value of the header, joined by commas; empty when there is none.
    Errors: ``ProblemError("upstream-coding-unsupported")`` for what cannot be opened, or was compressed twice.
    """
    match content_encoding.strip().lower():
        case b"" | b"identity":
            return None
        case b"gzip" | b"x-gzip":
            return _Gzip()
        case b"deflate":
            return _Deflate()
        case _:
            raise ProblemError("upstream-coding-unsupported")


class _Gzip:
    """RFC 1952: members, one behind the other."""

    def __init__(self) -> None:
        self._member: zlib._Decompress | None = None
        self._members = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        for begin in range(0, len(piece), _STEP):
            rest = piece[begin : begin + _STEP]
            while rest:
                member = self._member or self._next()
                yield from _open(member, rest)
                rest = member.unused_data
                if member.eof:
                    self._member = None

    def finish(self) -> None:
        if self._member is not None:
            raise ProblemError("upstream-broke-off")

    def _next(self) -> zlib._Decompress:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise ProblemError("upstream-malformed", "the body is in too many compressed parts")
        self._member = zlib.decompressobj(_GZIP)
        return self._member


class _Deflate:
    """``deflate`` is RFC 1950 with RFC 1951 in it (RFC 9110 section 8.4.1.2); some send the latter alone."""

    def __init__(self) -> None:
        self._stream: zlib._Decompress | None = None

    def feed(self, piece: bytes) -> Iterator[bytes]:
        for begin in range(0, len(piece), _STEP):
            stream = self._stream or self._begin(piece[0])
            yield from _open(stream, piece[begin : begin + _STEP])
            if stream.unused_data:
                raise _malformed()

    def finish(self) -> None:
        if self._stream is not None and not self._stream.eof:
            raise ProblemError("upstream-broke-off")

    def _begin(self, first: int) -> zlib._Decompress:
        # The first byte of RFC 1950 names the method and the window. RFC 1951 alone begins so only with a stored block
        # whose padding is not zero, as nobody writes it.
        wrapped = first & 0x0F == _DEFLATE and first >> 4 <= _LARGEST_WINDOW
        self._stream = zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
        return self._stream


def _open(stream: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    try:
        opened = stream.decompress(data, MAX_PIECE)
        while opened:
            yield opened
            opened = b"" if stream.eof else stream.decompress(stream.unconsumed_tail, MAX_PIECE)
    except zlib.error:
        raise _malformed() from None


def _malformed() -> ProblemError:
    return ProblemError("upstream-malformed", "the body is not compressed as its header says")
