"""Every operation of a document, found once, and nothing else that stands in a path item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from broker.specgen.document import Document
from broker.specgen.model import Note
from broker.specgen.references import UnresolvedError, child
from broker.specgen.texts import quoted

_PATHS: Final = "#/paths"
#: The methods that a path item has members for; ``query`` from 3.2 on.
_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
_MORE: Final = "additionalOperations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An operation, or what stands in its place. ``method`` is in capitals, empty where a whole path item is lost.

    With ``lost`` it cannot be read at all.
    """

    method: str
    path: str
    pointer: str
    item: Mapping[str, Any] = field(default_factory=dict)
    item_pointer: str = ""
    node: Mapping[str, Any] = field(default_factory=dict)
    lost: Note | None = None

    @property
    def label(self) -> str:
        """``METHOD /path`` as the document writes it."""
        return f"{self.method} {self.path}" if self.method else self.path

    @property
    def holders(self) -> tuple[tuple[Mapping[str, Any], str], ...]:
        """What may say servers of its own, the nearest first, each with its pointer."""
        return (self.node, self.pointer), (self.item, self.item_pointer)

    @property
    def declares(self) -> int:
        """How many parameters it has, with those of its path item."""
        lists = (self.node.get("parameters"), self.item.get("parameters"))
        return sum(len(written) for written in lists if isinstance(written, list))

    @property
    def id(self) -> str:
        """The operationId, or nothing."""
        written = self.node.get("operationId")
        return written if isinstance(written, str) else ""


def walk(document: Document, path: str, notes: list[Note]) -> Iterator[Found]:
    """Yield the operations of one path, in the document's order; what else is worth knowing goes to ``notes``.

    A path item that cannot be read is one entry: nobody knows how many operations it has.
    """
    if path.startswith("x-"):
        return
    pointer = child(_PATHS, path)
    written = document.root["paths"][path]
    try:
        item, item_pointer = document.resolve(written, pointer)
    except UnresolvedError as error:
        yield Found(method="", path=path, pointer=pointer, lost=error.note())
        return
    if item is None or item == {}:
        notes.append(Note("warn", pointer, "has no operations"))
        return
    if not isinstance(item, Mapping):
        lost = Note("stop", item_pointer, "a path item is an object", "mend the document")
        yield Found(method="", path=path, pointer=pointer, lost=lost)
        return
    for name, node in item.items():
        # Beside a reference, what the path item itself says.
        base = pointer if name in written else item_pointer
        if name == _MORE:
            yield from _additional(path, node, child(base, name))
        elif name.lower() in _METHODS:
            at = Found(method=name.upper(), path=path, pointer=child(base, name), item=item, item_pointer=item_pointer)
            yield _operation(document, name, node, at)


def webhooks(document: Document) -> Iterator[Note]:
    """Yield a note when the document has operations that the API calls and nobody else."""
    written = document.root.get("webhooks")
    if isinstance(written, Mapping) and written:
        yield Note("warn", "#/webhooks", f"{len(written)} webhooks, which the API calls and no client does")


def _operation(document: Document, name: str, node: Any, at: Found) -> Found:
    try:
        node, pointer = document.resolve(node, at.pointer)
    except UnresolvedError as error:
        return replace(at, lost=error.note())
    if not isinstance(node, Mapping):
        return replace(at, lost=Note("stop", pointer, "an operation is an object", "mend the document"))
    found = replace(at, node=node, pointer=pointer)
    if name == name.lower():
        return found
    reason = f"{quoted(name, 40)} is no member of a path item"
    return replace(found, lost=Note("stop", pointer, reason, "write the method in lower case"))


def _additional(path: str, written: Any, pointer: str) -> Iterator[Found]:
    if not isinstance(written, Mapping):
        lost = Note("stop", pointer, f"{_MORE} is an object", "mend the document")
        yield Found(method="", path=path, pointer=pointer, lost=lost)
        return
    for name, node in written.items():
        # Such a name is the method itself, in any case.
        lost = Note("stop", child(pointer, name), f"the method {quoted(name, 40)} is none of a route")
        yield Found(
            method=name,
            path=path,
            pointer=child(pointer, name),
            node=node if isinstance(node, Mapping) else {},
            lost=lost,
        )
