"""The core schema of YAML 1.2: what the text of a scalar is."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from broker.specgen.limits import MAX_SHOWN
from broker.specgen.texts import quoted

#: What ``!!`` stands for.
CORE: Final = "tag:yaml.org,2002:"

_INT: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NUMBER_STARTS: Final = frozenset("+-.0123456789")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    CORE + "str": (str,),
    CORE + "null": (type(None),),
    CORE + "bool": (bool,),
    CORE + "int": (int,),
    CORE + "float": (int, float),
}


def value_of(text: str, tag: str | None, *, plain: bool) -> Any:
    """Return what a scalar is. ``plain`` says that it has no quotes, is no block and has no tag.

    What JSON has no number for (``.inf``, ``.nan``, ``1e999``) stays the text that was written.

    Errors: ``ValueError`` with the reason, for a tag that the core schema does not have or that the text is not.
    """
    if tag is None or tag == "!":
        return _plain(text) if plain and tag is None else text
    if tag not in _TYPES:
        raise ValueError(f"the tag {quoted(tag, MAX_SHOWN)} has no value in JSON")
    value = text if tag == CORE + "str" else _plain(text)
    # True is an int to Python.
    if not isinstance(value, _TYPES[tag]) or isinstance(value, bool) != (tag == CORE + "bool"):
        raise ValueError(f"{quoted(text, MAX_SHOWN)} is not what its tag {quoted(tag, MAX_SHOWN)} says")
    return value


def _whole(text: str) -> int:
    if text[:2] not in {"0o", "0x"}:
        return int(text)
    number = int(text, 0)
    str(number)  # of such digits Python reads any number, and could never write it again
    return number


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    try:
        if _INT.fullmatch(text):
            return _whole(text)
        if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
            return number
    except ValueError:
        pass  # more digits than Python converts
    return text
