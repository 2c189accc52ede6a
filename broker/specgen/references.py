"""References: ``$ref`` followed inside the document and the files beside it, never over the network.

A reference counts from the file that it stands in, which the pointer of its place says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote

from broker.specgen.limits import MAX_CHAIN, MAX_MERGED, MAX_SHOWN
from broker.specgen.model import DocumentError, Level, Note
from broker.specgen.texts import quoted

#: What RFC 3986 lets stand in a fragment as it is.
_FRAGMENT: Final = "~!$&'()*+,;=:@?"
_PATH_ITEM: Final = re.compile(r"#/(?:paths|webhooks|components/pathItems)/[^/]+")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")

_BUNDLE: Final = "bundle the document into one file"


class UnresolvedError(Exception):
    """A reference that leads nowhere; ``pointer`` is where it stands."""

    def __init__(self, pointer: str, reason: str, remedy: str) -> None:
        super().__init__(f"{pointer}: {reason}")
        self.pointer = pointer
        self.reason = reason
        self.remedy = remedy

    def note(self, level: Level = "stop") -> Note:
        """Return what the report says of it."""
        return Note(level, self.pointer, self.reason, self.remedy)


def child(pointer: str, *tokens: str | int) -> str:
    """Return the pointer of what stands below, each token escaped (RFC 6901, then for a URI fragment).

    >>> child("#/paths", "/pets/{id}", "get")
    '#/paths/~1pets~1%7Bid%7D/get'
    """
    for token in tokens:
        pointer = f"{pointer}/{_escaped(token) if isinstance(token, str) else token}"
    return pointer


@lru_cache(maxsize=4096)
def _escaped(token: str) -> str:
    # Half of a surrogate pair cannot be escaped: the reader refuses it, and says where with the pointer made here.
    return quote(token.replace("~", "~0").replace("/", "~1"), safe=_FRAGMENT, errors="replace")


class References:
    """Follows references.

    ``load`` returns the root of a file by its name ("" is the document itself), and ``locate`` the name of the file
    that an address in another file leads to; both raise ``DocumentError`` with the reason.
    """

    def __init__(self, load: Callable[[str], Any], locate: Callable[[str, str], str], *, siblings_count: bool) -> None:
        self._load = load
        self._locate = locate
        self._siblings_count = siblings_count
        # By the node's identity; the node is kept, so that no other can take its identity over.
        self._followed: dict[tuple[int, bool], tuple[Any, tuple[Any, str]]] = {}
        self._targets: dict[tuple[str, str], tuple[Any, str]] = {}
        self._merged = 0

    def follow(self, node: Any, pointer: str) -> tuple[Any, str]:
        """Return what a node with ``$ref`` stands for, and where that stands; see ``Document.resolve``."""
        siblings_count = self._siblings_count or _PATH_ITEM.fullmatch(pointer) is not None
        key = id(node), siblings_count
        known = self._followed.get(key)
        if known is None:
            known = self._followed[key] = node, self._follow(node, pointer, frozenset(), siblings_count=siblings_count)
        return known[1]

    def _follow(
        self,
        node: Any,
        pointer: str,
        seen: frozenset[tuple[str, str]],
        *,
        siblings_count: bool,
    ) -> tuple[Any, str]:
        beside: list[tuple[str, dict[str, Any]]] = []
        while isinstance(node, Mapping) and "$ref" in node:
            reference = node["$ref"]
            if not isinstance(reference, str):
                raise UnresolvedError(pointer, "$ref is no text", "write where it leads to")
            file = reference.file if isinstance(reference, _Elsewhere) else pointer.partition("#")[0]
            step = file, reference
            if step in seen:
                raise UnresolvedError(
                    pointer,
                    f"the reference {quoted(reference, MAX_SHOWN)} comes back to itself",
                    "write one of them out",
                )
            if len(seen) == MAX_CHAIN:
                raise UnresolvedError(pointer, f"more than {MAX_CHAIN} references lead to references", "shorten them")
            seen |= {step}
            if siblings_count and len(node) > 1:
                beside.append((file, {name: value for name, value in node.items() if name != "$ref"}))
            node, pointer = self._target(file, reference, pointer, seen)
        return self._overlaid(node, beside, pointer), pointer

    def _overlaid(self, target: Any, beside: list[tuple[str, dict[str, Any]]], pointer: str) -> Any:
        if not beside or not (isinstance(target, Mapping) or target is True):
            return target
        merged = {} if target is True else dict(target)
        self._count(len(merged), pointer)
        for file, members in reversed(beside):
            self._count(len(members), pointer)
            same = file == pointer.partition("#")[0]
            merged.update(members if same else self._from_elsewhere(members, file, pointer))
        return merged

    def _from_elsewhere(self, value: Any, file: str, pointer: str) -> Any:
        """Copy what stands beside a reference for a place in another file; its references still count from ``file``."""
        if not isinstance(value, (dict, list)):
            return value
        self._count(len(value), pointer)
        if isinstance(value, list):
            return [self._from_elsewhere(inner, file, pointer) for inner in value]
        copy = {name: self._from_elsewhere(inner, file, pointer) for name, inner in value.items()}
        reference = copy.get("$ref")
        if isinstance(reference, str):
            copy["$ref"] = _Elsewhere(reference)
            copy["$ref"].file = file
        return copy

    def _count(self, members: int, pointer: str) -> None:
        self._merged += members
        if self._merged > MAX_MERGED:
            raise UnresolvedError(pointer, f"more than {MAX_MERGED} members stand beside references", _BUNDLE)

    def _target(self, file: str, reference: str, place: str, seen: frozenset[tuple[str, str]]) -> tuple[Any, str]:
        known = self._targets.get((file, reference))
        if known is None:
            try:
                known = self._find(file, reference, seen)
            except _LostError as error:
                raise UnresolvedError(
                    place, f"the reference {quoted(reference, MAX_SHOWN)} {error}", error.remedy
                ) from None
            self._targets[file, reference] = known
        return known

    def _find(self, file: str, reference: str, seen: frozenset[tuple[str, str]]) -> tuple[Any, str]:
        address, _, fragment = reference.partition("#")
        if _ADDRESS.match(address):
            raise _LostError("leads to the network, which is never asked", _BUNDLE)
        if address:
            try:
                file = self._locate(file, unquote(address))
            except DocumentError as error:
                raise _LostError(
                    f"leads to a file that {error}", "put the file inside the document's directory"
                ) from None
        try:
            node = self._load(file)
        except DocumentError as error:
            raise _LostError(f"leads to a file that cannot be used: {error}", "mend the file") from None
        pointer = f"{file}#"
        if not fragment:
            return node, pointer
        for token in _tokens(fragment):
            # Tools that bundle write pointers through what is itself a reference.
            if isinstance(node, Mapping) and "$ref" in node and token not in node:
                node, pointer = self._follow(node, pointer, seen, siblings_count=self._siblings_count)
            node, pointer = _step(node, token), child(pointer, token)
        return node, pointer


class _Elsewhere(str):
    """A reference that was written in another file than the one whose pointer it now stands under."""

    __slots__ = ("file",)
    file: str


class _LostError(Exception):
    """What is wrong with a reference, to be told with its place."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


def _tokens(fragment: str) -> list[str]:
    try:
        text = unquote(fragment, errors="strict")
    except UnicodeDecodeError:
        raise _LostError("is no UTF-8 once its escapes are read", "write a JSON pointer, #/...") from None
    if not text.startswith("/"):
        raise _LostError("names an anchor, which is not supported", "write a JSON pointer, #/...")
    if _BAD_ESCAPE.search(text):
        raise _LostError("has a ~ that is neither ~0 nor ~1", "write ~ as ~0")
    return [token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/")]


def _step(node: Any, token: str) -> Any:
    if isinstance(node, Mapping) and token in node:
        return node[token]
    if isinstance(node, list) and _INDEX.fullmatch(token) and int(token) < len(node):
        return node[int(token)]
    raise _LostError("leads to nothing", "write what it should lead to")
