"""How a secret is usually written when an API sends it back.

Each encoder has its own idea of what needs an escape, so there are tables of the usual ones. Most secrets are letters
and digits, which no escape touches: of them there are the value, three of base64 and two of hexadecimal digits.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from itertools import product
from typing import Final
from urllib.parse import quote

#: What encoders leave as it is beside letters, digits and ``_.-~``: all escaped, paths, JavaScript's
#: encodeURIComponent and encodeURI.
_PLAIN_IN_URLS: Final = ("", "/", "!'()*", "!'()*;/?:@&=+$,#")
_ESCAPE: Final = re.compile(rb"%[0-9A-F]{2}")

#: What encoders write as \u00XX: none, Go and Rails, Gson, PHP with its JSON_HEX_ flags, .NET.
_HEX_IN_JSON: Final = ("", "<>&", "<>&'=", "<>&'\"", "<>&'\"+`")
_QUOTED: Final = {"\\": "\\\\", '"': '\\"'}
_IN_JSON: Final = [
    str.maketrans(_QUOTED | slash | {character: f"\\u{ord(character):{digits}}" for character in escaped})
    for escaped, digits, slash in product(_HEX_IN_JSON, ("04x", "04X"), ({}, {"/": "\\/"}))
]

_TEXT: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
#: Text alone; Python; Jinja and Go; Go's templates; PHP; XML; Mustache; Handlebars.
_IN_HTML: Final = [
    str.maketrans(_TEXT | more)
    for more in (
        {},
        {'"': "&quot;", "'": "&#x27;"},
        {'"': "&#34;", "'": "&#39;"},
        {'"': "&#34;", "'": "&#39;", "+": "&#43;"},
        {'"': "&quot;", "'": "&#039;"},
        {'"': "&quot;", "'": "&apos;"},
        {'"': "&quot;"},
        {'"': "&quot;", "'": "&#39;"},
        {'"': "&quot;", "'": "&#39;", "/": "&#x2F;", "`": "&#x60;", "=": "&#x3D;"},
        {'"': "&quot;", "'": "&#x27;", "`": "&#x60;", "=": "&#x3D;"},
    )
]

#: What no escape touches; a shorter part of a secret would stand in most answers.
_UNTOUCHED: Final = re.compile(rb"[A-Za-z0-9_.-]{4,}")

_URL_ALPHABET: Final = bytes.maketrans(b"+/", b"-_")
#: Characters of base64 in which there is something of the 0, 1 or 2 bytes that stand before a value.
_SHARED: Final = (0, 2, 3)


def forms_of(value: bytes) -> frozenset[bytes]:
    """Return the forms of ``value``, itself among them: none is shorter."""
    return frozenset({value, *_escaped(value), *_base64(value), value.hex().encode(), value.hex().upper().encode()})


def clue_of(value: bytes) -> bytes | None:
    """Return a part of ``value`` that its escaped forms have all in common, if there is one worth looking for.

    >>> clue_of(b"p&ss<w0rd/long"), clue_of(b"<<<&&&>>>")
    (b'w0rd', None)
    """
    return max(_UNTOUCHED.findall(value), key=len, default=None)


def _escaped(value: bytes) -> Iterator[bytes]:
    for plain in _PLAIN_IN_URLS:
        upper = quote(value, safe=plain).encode()
        for form in (upper, _ESCAPE.sub(lambda escape: escape[0].lower(), upper)):
            yield form
            yield form.replace(b"%20", b"+")
    text = value.decode("latin-1")  # and back: bytes that are not ASCII stay what they are
    for table in (*_IN_JSON, *_IN_HTML):
        yield text.translate(table).encode("latin-1")


def _base64(value: bytes) -> Iterator[bytes]:
    """Yield what any text that holds ``value`` holds in base64, and what one that ends with it holds.

    The first character of the former may lack 2 or 4 bits that it shares with what stands before, its last with what
    stands behind: those bits are all that can be read.
    """
    for before, shared in enumerate(_SHARED):
        encoded = b64encode(bytes(before) + value).rstrip(b"=")
        whole = (before + len(value)) * 8 // 6
        for form in (encoded[shared:whole], encoded[shared:]):
            yield form
            yield form.translate(_URL_ALPHABET)
