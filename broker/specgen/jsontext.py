"""JSON as a document may be written: large, and still nothing that two readers could understand differently."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from broker.specgen.limits import MAX_DEPTH, MAX_NODES, MAX_SHOWN
from broker.specgen.model import DocumentError
from broker.specgen.references import child
from broker.specgen.texts import quoted

#: An escape of half a pair, in JSON or in YAML; whole pairs look the same, so it only says that a look is worth it.
_SURROGATE: Final = re.compile(r"\\(?:u|U0000)[dD][89a-fA-F]")


def read_json(text: str) -> Any:
    """Return the value that the text holds.

    Errors: ``DocumentError`` for what is no JSON, a name that stands twice in an object, a number or a character that
    does not exist, and for a text that would cost more than ``limits.py`` allows. The line names no file.
    """
    # Counted in the text: afterwards the memory is spent. Those inside strings count too, which real documents bear.
    if text.count(",") + text.count("{") + text.count("[") > MAX_NODES:
        raise DocumentError(f"holds more than {MAX_NODES} values")
    hooks = _Hooks()
    try:
        document = json.loads(
            text, object_pairs_hook=hooks.pairs, parse_float=hooks.number, parse_constant=hooks.number
        )
    except json.JSONDecodeError as error:
        raise DocumentError(f"not JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise DocumentError(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise DocumentError("holds a number with too many digits") from None
    _check_depth(document)
    hooks.check(document)
    check_characters(text, document)
    return document


def check_characters(text: str, document: Any) -> None:
    """Refuse half of a surrogate pair, which cannot be written out again; the document was read from ``text``."""
    if not _SURROGATE.search(text):
        return
    for pointer, value in _walk(document):
        for held in (value, *(value if isinstance(value, dict) else ())):
            if isinstance(held, str) and not _encodes(held):
                raise DocumentError(f"{pointer} holds half of a surrogate pair")


class _Hooks:
    """Notes while parsing what is wrong, since only afterwards it is known where it stands."""

    def __init__(self) -> None:
        self._twice: tuple[dict[str, Any], str] | None = None
        self._endless = False

    def pairs(self, members: list[tuple[str, Any]]) -> dict[str, Any]:
        """Make an object. The last fault is kept: an earlier one may lie in what a double name threw away."""
        found = dict(members)
        if len(found) < len(members):
            counts = Counter(name for name, _ in members)
            self._twice = found, next(name for name, count in counts.items() if count > 1)
        return found

    def number(self, text: str) -> float:
        """Read a number with a fraction or an exponent, or the name of one that JSON does not have."""
        number = float(text)
        self._endless = self._endless or not math.isfinite(number)
        return number

    def check(self, document: Any) -> None:
        """Raise what was noted, with its place."""
        if self._twice is not None:
            found, name = self._twice
            where = next(pointer for pointer, value in _walk(document) if value is found)
            raise DocumentError(f"{quoted(name, MAX_SHOWN)} stands twice in {where}")
        if self._endless:
            for pointer, value in _walk(document):
                if isinstance(value, float) and not math.isfinite(value):
                    raise DocumentError(f"{pointer} is a number that JSON does not have")


def _check_depth(document: Any) -> None:
    # Level by level: recursion would end where the document wants it to.
    level = [document]
    for _ in range(MAX_DEPTH + 1):
        level = [value for value in level if isinstance(value, (dict, list))]
        if not level:
            return
        level = list(chain.from_iterable(value.values() if isinstance(value, dict) else value for value in level))
    raise DocumentError(f"nested deeper than {MAX_DEPTH} levels")


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    todo = [("#", value)]
    while todo:
        pointer, value = todo.pop()
        yield pointer, value
        if isinstance(value, dict):
            todo += [(child(pointer, name), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            todo += [(child(pointer, index), inner) for index, inner in enumerate(value)]


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
