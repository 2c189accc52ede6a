"""Finding the run token in a call, and taking it out.

The run token stands where the API's key would: in ``Authorization`` (``Bearer``, ``Token``, or either side of
``Basic``), or where the profile's placement puts the credential. So an unmodified SDK works with the run token as its
key. Rules, in this order:

1. Every text in the target and the headers that looks like a run token is found, wherever it stands; in the target
   also when it is written with escapes.
2. None: 401 ``run-token-missing``. Two that differ: 400 ``run-token-conflict``.
3. A bad checksum, an unknown token and a run that is over are all 401 ``run-token-invalid``.
4. One that stands elsewhere than a key would: 400 ``run-token-misplaced``, so that it reaches no API and no log of one.
5. With placement ``query`` exactly one literal pair ``name=TOKEN`` is taken out of the target; the rest is matched.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable
from hmac import compare_digest
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from config.problems import ProblemError
from config.tokens import LENGTH, RUN, digest

if TYPE_CHECKING:
    from broker.placements import Placement
    from broker.run import Run

Headers = Iterable[tuple[bytes, bytes]]

_HINT: Final = RUN.encode()
#: What could be meant as a run token. One that was cut or run together with something is one too: an invalid one.
_TOKEN: Final = re.compile(rb"brk_[0-9A-Za-z]{20,}", re.ASCII)
#: How nearly every call has it, with 49 letters and digits behind: then nothing is left to look at where it stands.
_USUAL: Final = (b"Bearer brk_", b"bearer brk_")
_USUAL_LENGTH: Final = len("Bearer ") + LENGTH
_AUTHORIZATION: Final = b"authorization"
_SCHEMES: Final = (b"bearer", b"token")
#: Of a longer Basic value no more is decoded; the limit of a request's head is not much higher.
_MAX_BASIC: Final = 8192


class Seen:
    """What one connection brought last: the token that opened a run, and its digest; and what stood where in a request.

    Nearly every call has the same token again, and many are the same request. ``answered`` are the headers of its last
    answer, and ``lines`` the same as they are written.
    """

    __slots__ = ("answered", "digest", "found", "headers", "lines", "profile", "rest", "target", "token")

    def __init__(self) -> None:
        """Begin with nothing."""
        self.token = b""
        self.digest = b""
        self.headers: Headers = ()
        self.target = b""
        self.profile = ""
        self.rest = b""
        self.found: Found | None = None
        self.answered: Headers = ()
        self.lines = b""


class Found:
    """The run token of one call, before anybody believes it.

    ``places`` are the header values it stands in, by name, but for the usual one; ``in_target`` says that it stands
    in the target.
    """

    __slots__ = ("in_target", "places", "unverified_token")

    def __init__(self, unverified_token: bytes, places: list[tuple[bytes, bytes]], *, in_target: bool) -> None:
        """Take what :func:`find` saw."""
        self.unverified_token = unverified_token
        self.places = places
        self.in_target = in_target

    def run(self, by_digest: Callable[[bytes], Run | None], seen: Seen) -> Run:
        """Return the run that the token opens. ``seen`` is what came over the same connection before.

        Errors: ``ProblemError("run-token-invalid")``, the same for whatever is wrong with it.
        """
        token = self.unverified_token
        if compare_digest(seen.token, token):
            wanted: bytes | None = seen.digest
        else:
            wanted = digest(token.decode("ascii"), RUN)
        # The table is asked each time: a run that is over is not in it any more, nor is a token that was replaced.
        run = by_digest(wanted) if wanted is not None else None
        if run is None or wanted is None:
            raise ProblemError("run-token-invalid")
        seen.token, seen.digest = token, wanted
        return run

    def take_out(self, target: bytes, placement: Placement, prefix: bytes) -> bytes:
        """Return the target without the token.

        ``prefix`` is the profile's ``run_token_prefix``, which may stand before the token.
        Errors: ``ProblemError("run-token-misplaced")`` when the token stands where no key would.
        """
        for name, value in self.places:
            if not self._is_placed(name, value, placement, prefix):
                # The header's name came from the code and is not repeated: a name can hold a token too.
                raise ProblemError("run-token-misplaced")
        if not self.in_target:
            return target
        return self._out_of_query(target, placement, prefix)

    def _is_placed(self, name: bytes, value: bytes, placement: Placement, prefix: bytes) -> bool:
        keys = (self.unverified_token, prefix + self.unverified_token)
        if name == _AUTHORIZATION:
            scheme, _, rest = value.partition(b" ")
            if scheme.lower() in _SCHEMES and rest.strip(b" ") in keys:
                return True
            if scheme.lower() == b"basic":
                user, _, password = _decode_basic(rest).partition(b":")
                # On the other side may stand anything but another one.
                return (user in keys and (password in keys or not _TOKEN.search(password))) or (
                    password in keys and not _TOKEN.search(user)
                )
        if name == b"cookie" and placement.token_cookie is not None:
            pairs = [pair.strip(b" ") for pair in value.split(b";")]
            ours = [pair for pair in pairs if _TOKEN.search(pair)]
            return len(ours) == 1 and ours[0] in [placement.token_cookie + b"=" + key for key in keys]
        return any(value == before + key for before in placement.token_headers.get(name, ()) for key in keys)

    def _out_of_query(self, target: bytes, placement: Placement, prefix: bytes) -> bytes:
        path, _, query = target.partition(b"?")
        if placement.token_query is None:
            raise ProblemError("run-token-misplaced")
        ours = {placement.token_query + b"=" + key for key in (self.unverified_token, prefix + self.unverified_token)}
        pairs = query.split(b"&")
        rest = [pair for pair in pairs if pair not in ours]
        if len(rest) != len(pairs) - 1 or any(_tokens_in(part) for part in (path, *rest)):
            raise ProblemError("run-token-misplaced")
        return path + b"?" + b"&".join(rest) if rest else path


def find(target: bytes, headers: Headers) -> Found:
    """Find the run token of a call.

    Errors: ``ProblemError``: ``run-token-missing``, ``run-token-conflict``.
    """
    places = []
    tokens: set[bytes] = set()
    for name, value in headers:
        if _HINT in value:
            if (
                name == _AUTHORIZATION
                and len(value) == _USUAL_LENGTH
                and value.startswith(_USUAL)
                and value[11:].isalnum()
            ):
                tokens.add(value[7:])
                continue
            found = _TOKEN.findall(value)
        elif name == _AUTHORIZATION and value[:6].lower() == b"basic ":
            found = _TOKEN.findall(_decode_basic(value[6:]))
        else:
            continue
        if found:
            places.append((name, value))
            tokens.update(found)
    found = _tokens_in(target) if _HINT in target or b"%" in target else []
    tokens.update(found)
    if len(tokens) > 1:
        raise ProblemError("run-token-conflict")
    if not tokens:
        raise ProblemError("run-token-missing")
    return Found(tokens.pop(), places, in_target=bool(found))


def _tokens_in(target: bytes) -> list[bytes]:
    """Return what looks like a run token in a target or a part of it, as it is and with its escapes decoded."""
    found: list[bytes] = _TOKEN.findall(target)
    if b"%" in target:
        found += _TOKEN.findall(unquote_to_bytes(target))
    return found


def _decode_basic(value: bytes) -> bytes:
    try:
        return b64decode(value.strip(b" ")[:_MAX_BASIC], validate=True)
    except ValueError:
        return b""
