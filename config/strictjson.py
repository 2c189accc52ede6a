"""JSON, read strictly: what two readers could understand differently is a fault with its place.

Faults: not UTF-8, a byte-order mark, duplicate names in an object, NaN and infinities (also by overflow), lone
surrogates, nesting deeper than :data:`MAX_DEPTH`, more than :data:`MAX_BYTES`.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from config.errors import ConfigurationError, Fault

MAX_DEPTH: Final = 32
MAX_BYTES: Final = 16 << 20


class _Object(dict[str, Any]):
    """An object that remembers which of its names were written twice, until the walk reports them."""

    twice: tuple[str, ...] = ()


class _NotANumber:
    """Stands where the text had NaN, Infinity or a number too large to hold."""


def parse(data: bytes, *, where: str) -> tuple[Any, list[Fault]]:
    """Return the document and what is wrong inside it, which the document is returned without.

    Errors: ``ConfigurationError`` when the text is no JSON at all.
    """
    if len(data) > MAX_BYTES:
        raise _unreadable(where, f"the file is larger than {MAX_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _unreadable(where, f"not UTF-8, at byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise _unreadable(where, "starts with a byte-order mark; remove it")
    try:
        document = json.loads(
            text, object_pairs_hook=_pairs, parse_constant=lambda _: _NotANumber(), parse_float=_number
        )
    except json.JSONDecodeError as error:
        raise _unreadable(where, f"not JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise _unreadable(where, f"nested deeper than {MAX_DEPTH}") from None
    except ValueError:
        raise _unreadable(where, "holds a number with too many digits") from None
    faults: list[Fault] = []
    return _walk(document, where + ": ", "", 0, faults), faults


def canonical(value: Any) -> bytes:
    """Return the one way to write a JSON value: sorted names, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _pairs(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        found.twice = tuple(sorted(name for name, count in counts.items() if count > 1))
    return found


def _number(text: str) -> float | _NotANumber:
    number = float(text)
    return _NotANumber() if number in (float("inf"), float("-inf")) else number


def _walk(value: Any, where: str, path: str, depth: int, faults: list[Fault]) -> Any:
    place = where + (path or "the document")
    if depth > MAX_DEPTH:
        faults.append(Fault(place, f"nested deeper than {MAX_DEPTH}"))
        return None
    if isinstance(value, _Object):
        faults += [Fault(f"{where}{_member(path, name)}", "stands twice in the object") for name in value.twice]
        return {
            _text(name, place, faults): _walk(inner, where, _member(path, name), depth + 1, faults)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_walk(inner, where, f"{path}[{index}]", depth + 1, faults) for index, inner in enumerate(value)]
    if isinstance(value, _NotANumber):
        faults.append(Fault(place, "not a number that JSON has"))
        return 0
    return _text(value, place, faults) if isinstance(value, str) else value


def _text(text: str, place: str, faults: list[Fault]) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        faults.append(Fault(place, "holds half of a surrogate pair"))
        return text.encode(errors="replace").decode()
    return text


def _member(path: str, name: str) -> str:
    name = name.encode(errors="replace").decode()
    return f"{path}.{name}" if path else name


def _unreadable(where: str, what: str) -> ConfigurationError:
    return ConfigurationError([Fault(where, what)])
