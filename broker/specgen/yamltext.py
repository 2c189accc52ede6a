"""YAML as a document may be written: the 1.2 core schema over PyYAML's events, so that a text stays the text it is.

``on`` and ``no`` are text, and so are dates; a key is always text, a response's ``200`` too. Merge keys (``<<``) are
taken, since published documents have them. What an alias repeats is shared and not copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import yaml

from broker.specgen.jsontext import check_characters
from broker.specgen.limits import MAX_ALIASED, MAX_DEPTH, MAX_NODES, MAX_SHOWN
from broker.specgen.model import DocumentError
from broker.specgen.texts import one_line, quoted
from broker.specgen.yamlscalars import CORE, value_of

#: The parser in C where PyYAML was built with it: ten times as fast.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MAX_TAG_DIRECTIVES: Final = 100
#: Characters of what the parser says.
_MAX_PROBLEM: Final = 200
_MERGE: Final = "<<"
_TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH} levels"


def read_yaml(text: str) -> Any:
    """Return the value that the text's one document holds.

    Errors: ``DocumentError`` with the line, for what is no YAML, a key that stands twice, a tag that JSON has no
    value for, aliases that repeat too much or lead back to themselves, and for a text that would cost more than
    ``limits.py`` allows. It names no file.
    """
    # The parser in C compares each with all before it.
    if text.count("%TAG") > _MAX_TAG_DIRECTIVES:
        raise DocumentError(f"more than {_MAX_TAG_DIRECTIVES} %TAG directives")
    try:
        loader = _LOADER(text)
        try:
            document = _Composer().compose(loader)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise DocumentError(f"not YAML: {one_line(error.problem, _MAX_PROBLEM)}{line}") from None
    except yaml.YAMLError as error:
        raise DocumentError(f"not YAML: {one_line(str(error), _MAX_PROBLEM)}") from None
    check_characters(text, document)
    return document


class _Open:
    """A mapping or a sequence whose end has not come yet."""

    __slots__ = ("event", "height", "key", "merged", "merging", "size", "value")

    def __init__(self, event: Any, value: dict[str, Any] | list[Any]) -> None:
        self.event = event
        self.value = value
        #: The key whose value comes next; whether it is the merge key; what merge keys named.
        self.key: str | None = None
        self.merging = False
        self.merged: list[dict[str, Any]] = []
        #: The values in it, itself included, and those that aliases repeat; its levels.
        self.size = 1
        self.height = 1


class _Anchor:
    """What an alias repeats. ``written`` is a scalar's text, which is what the alias is as a key."""

    __slots__ = ("height", "open", "size", "value", "written")

    def __init__(self, value: Any, written: str | None = None) -> None:
        self.value = value
        self.written = written
        self.open = written is None
        self.size = 1
        self.height = 0


class _Composer:
    """Builds a document from events, on a stack of its own: recursion would end where the document wants it to."""

    def __init__(self) -> None:
        self._stack: list[_Open] = []
        self._anchors: dict[str, _Anchor] = {}
        self._aliased = 0
        self._documents = 0
        self._root: Any = None

    def compose(self, loader: Any) -> Any:
        """Take every event; return the root of the one document."""
        takes: dict[type, Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: lambda event: self._start(event, {}, "map"),
            yaml.SequenceStartEvent: lambda event: self._start(event, [], "seq"),
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._document,
        }
        events = 0
        while (kind := type(event := loader.get_event())) is not yaml.StreamEndEvent:
            events += 1
            if events > MAX_NODES:
                raise DocumentError(f"holds more than {MAX_NODES} values")
            take = takes.get(kind)
            if take is not None:
                take(event)
        if not self._documents:
            raise DocumentError("holds nothing")
        return self._root

    def _document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            raise _error(event, "a second document starts")

    def _awaits_key(self) -> _Open | None:
        top = self._stack[-1] if self._stack else None
        return top if top is not None and top.key is None and isinstance(top.value, dict) else None

    def _scalar(self, event: Any) -> None:
        top = self._awaits_key()
        value = event.value if top is not None else _resolved(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(_resolved(event), event.value)
        if top is None:
            self._place(value, 1, 0, event)
            return
        top.merging = value == _MERGE and event.implicit[0]
        self._key(top, value, event)

    def _start(self, event: Any, value: dict[str, Any] | list[Any], tag: str) -> None:
        if self._awaits_key() is not None:
            raise _error(event, "a key is no text")
        if event.tag not in {None, "!", CORE + tag}:
            raise _error(event, f"the tag {quoted(event.tag, MAX_SHOWN)} has no value in JSON")
        if len(self._stack) == MAX_DEPTH:
            raise _error(event, _TOO_DEEP)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(value)
        self._stack.append(_Open(event, value))

    def _end(self, _event: Any) -> None:
        ended = self._stack.pop()
        if ended.merged and isinstance(ended.value, dict):
            own = dict(ended.value)
            ended.value.clear()
            for mapping in reversed(ended.merged):
                ended.value.update(mapping)
            ended.value.update(own)
        anchor = self._anchors.get(ended.event.anchor)
        # Unless the name was given to something else inside.
        if anchor is not None and anchor.value is ended.value:
            anchor.open, anchor.size, anchor.height = False, ended.size, ended.height
        self._place(ended.value, ended.size, ended.height, ended.event)

    def _alias(self, event: Any) -> None:
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            raise _error(event, f"the alias {quoted(event.anchor, MAX_SHOWN)} names nothing")
        if anchor.open:
            raise _error(event, f"the alias {quoted(event.anchor, MAX_SHOWN)} stands inside what it names")
        self._aliased += anchor.size
        if self._aliased > MAX_ALIASED:
            raise _error(event, f"aliases repeat more than {MAX_ALIASED} values")
        top = self._awaits_key()
        if top is None:
            self._place(anchor.value, anchor.size, anchor.height, event)
        elif anchor.written is None:
            raise _error(event, "a key is no text")
        else:
            self._key(top, anchor.written, event)

    def _key(self, top: _Open, key: str, event: Any) -> None:
        if not top.merging and key in top.value:
            raise _error(event, f"{quoted(key, MAX_SHOWN)} stands twice in its mapping")
        top.key = key

    def _place(self, value: Any, size: int, height: int, event: Any) -> None:
        if not self._stack:
            self._root = value
            return
        top = self._stack[-1]
        top.size += size
        top.height = max(top.height, height + 1)
        if len(self._stack) + height > MAX_DEPTH:
            raise _error(event, _TOO_DEEP)
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.merging:
            named = value if isinstance(value, list) else [value]
            if not all(isinstance(mapping, dict) for mapping in named):
                raise _error(event, "<< takes a mapping, or a list of mappings")
            top.merged += named
        elif top.key is not None:
            top.value[top.key] = value
        top.key, top.merging = None, False


def _resolved(event: Any) -> Any:
    try:
        return value_of(event.value, event.tag, plain=event.implicit[0])
    except ValueError as error:
        raise _error(event, str(error)) from None


def _error(event: Any, reason: str) -> DocumentError:
    return DocumentError(f"{reason}, line {event.start_mark.line + 1}")
