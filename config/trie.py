"""A trie over route positions, built when grants load: a look-up visits the target's own positions, not the list.

The order between templates that match the same segments is decided position by position from the left: the larger
:func:`config.routes.rank` first, then the text of the segment. So the first leaf that a look-up reaches is the winner.
Among globs at one place only those are looked at whose literal ends fit: they are found by their ends, not one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from config.params import Pattern
from config.routes import Glob, Literal, Param, Segment, Star, rank

#: (position, full match): what a segment must match beyond what the trie's edges compare.
Check = tuple[int, Callable[[bytes], Any]]


Checks = tuple[tuple[Check, ...], tuple[Check, ...], tuple[Check, ...]]


class Leaf(Protocol):
    """What a trie leads to."""

    @property
    def text(self) -> str:
        """The template as written."""
        ...

    @property
    def checks(self) -> Checks:
        """What is left to check, by the kind of path."""
        ...


L = TypeVar("L", bound=Leaf)

_SAMPLES: Final = 3


class Node(Generic[L]):
    """A place in the trie."""

    __slots__ = ("edges", "globs", "leaf", "literals", "params", "samples", "star", "wild")

    def __init__(self) -> None:
        """Start empty."""
        self.edges: dict[Segment, Node[L]] = {}
        self.literals: dict[bytes, Node[L]] = {}
        #: (name, prefix, suffix, pattern, node), most specific first
        self.params: list[tuple[str, str, str, Pattern | None, Node[L]]] = []
        #: length of prefix, length of suffix -> (prefix, suffix) -> [(order, text between two stars or None, node)]
        self.globs: list[tuple[int, int, dict[tuple[bytes, bytes], list[tuple[int, bytes | None, Node[L]]]]]] = []
        self.star: Node[L] | None = None
        #: Whether there is any edge but literals.
        self.wild = False
        self.leaf: L | None = None
        #: Up to three texts of leaves from here on, for refusals that say what is near.
        self.samples: tuple[str, ...] = ()


class Trie(Generic[L]):
    """Leaves by the positions of their templates."""

    __slots__ = ("root",)

    def __init__(self, entries: Iterable[tuple[Sequence[Segment], L]], patterns: Mapping[str, Pattern]) -> None:
        """Build from (positions, leaf) pairs; of two with the same positions the first stays.

        ``patterns`` are the run parameters' patterns: a value that does not fit its pattern (any more) matches nothing.
        """
        self.root: Node[L] = Node()
        for positions, leaf in entries:
            node = self.root
            for segment in positions:
                node = node.edges.setdefault(segment, Node())
            if node.leaf is None:
                node.leaf = leaf
        _finish(self.root, patterns)

    def find(self, segments: Sequence[bytes], params: Mapping[str, str], kind: int) -> L | None:
        """Return the leaf of the most specific template that matches all of ``segments``, or None."""
        node = self.root
        depth, end = 0, len(segments)
        pending: list[tuple[Node[L], int]] = []
        while True:
            if depth == end:
                leaf = node.leaf
                if leaf is not None and _passes(leaf.checks[kind], segments):
                    return leaf
            else:
                segment = segments[depth]
                depth += 1
                # Only a trailing slash makes an empty segment, and no wildcard takes one.
                if node.wild and segment:
                    pending += _wild(node, segment, depth, params)
                literal = node.literals.get(segment)
                if literal is not None:
                    node = literal
                    continue
            if not pending:
                return None
            node, depth = pending.pop()

    def near(self, segments: Sequence[bytes], params: Mapping[str, str]) -> list[tuple[int, tuple[str, ...]]]:
        """Return (depth, texts) along the most specific way that ``segments`` lead into the trie, deepest last."""
        node: Node[L] | None = self.root
        found = []
        for depth in range(len(segments) + 1):
            if node is None:
                break
            found.append((depth, node.samples))
            if depth < len(segments):
                segment = segments[depth]
                ways = [*_params(node, segment, params), *_globs(node, segment), node.star] if segment else []
                node = node.literals.get(segment) or next((way for way in ways if way is not None), None)
        return found


def glob_fits(parts: Sequence[bytes], segment: bytes) -> bool:
    """Say whether a glob's literal texts fit ``segment`` with something, whatever it is, for every ``*``."""
    prefix, suffix = parts[0], parts[-1]
    if len(segment) <= len(prefix) + len(suffix) or not (segment.startswith(prefix) and segment.endswith(suffix)):
        return False
    return _between_fits(parts[1] if len(parts) > 2 else None, segment, len(prefix), len(suffix))  # noqa: PLR2004


def _between_fits(between: bytes | None, segment: bytes, prefix: int, suffix: int) -> bool:
    if between is None:
        return True
    # The leftmost place leaves the most for the second star.
    at = segment.find(between, prefix + 1)
    return at >= 0 and at + len(between) < len(segment) - suffix


def _passes(checks: tuple[Check, ...], segments: Sequence[bytes]) -> bool:
    for position, fullmatch in checks:  # noqa: SIM110 - a generator would cost more than the checks
        if fullmatch(segments[position]) is None:
            return False
    return True


def _wild(node: Node[L], segment: bytes, depth: int, params: Mapping[str, str]) -> list[tuple[Node[L], int]]:
    """Return the ways on from ``node`` but the literal one, the most specific last: it is taken up first."""
    ways = [(node.star, depth)] if node.star is not None else []
    if node.globs:
        ways += [(following, depth) for following in reversed(_globs(node, segment))]
    if node.params:
        ways += [(following, depth) for following in reversed(_params(node, segment, params))]
    return ways


def _globs(node: Node[L], segment: bytes) -> list[Node[L]]:
    found = []
    for prefix, suffix, table in node.globs:
        if len(segment) > prefix + suffix:
            for order, between, following in table.get((segment[:prefix], segment[len(segment) - suffix :]), ()):
                if _between_fits(between, segment, prefix, suffix):
                    found.append((order, following))
    found.sort(key=lambda entry: entry[0])
    return [following for _, following in found]


def _params(node: Node[L], segment: bytes, params: Mapping[str, str]) -> list[Node[L]]:
    found = []
    for name, prefix, suffix, pattern, following in node.params:
        value = params.get(name)
        if value is None or pattern is None or (prefix + value + suffix).encode() != segment:
            continue
        # The value was checked when the run was opened, but maybe against an older, wider pattern.
        if pattern.fits(value):
            found.append(following)
    return found


def _finish(node: Node[L], patterns: Mapping[str, Pattern]) -> None:
    tables: dict[tuple[int, int], dict[tuple[bytes, bytes], list[tuple[int, bytes | None, Node[L]]]]] = {}
    samples = [node.leaf.text] if node.leaf is not None else []
    for order, segment in enumerate(sorted(node.edges, key=lambda edge: (-rank(edge), str(edge)))):
        following = node.edges[segment]
        _finish(following, patterns)
        samples += following.samples[: _SAMPLES - len(samples)]
        if isinstance(segment, Literal):
            node.literals[segment.text.encode()] = following
        elif isinstance(segment, Param):
            pattern = patterns.get(segment.name)
            node.params.append((segment.name, segment.prefix, segment.suffix, pattern, following))
        elif isinstance(segment, Glob):
            parts = [part.encode() for part in segment.parts]
            table = tables.setdefault((len(parts[0]), len(parts[-1])), {})
            between = parts[1] if len(parts) > 2 else None  # noqa: PLR2004
            table.setdefault((parts[0], parts[-1]), []).append((order, between, following))
        elif isinstance(segment, Star):
            node.star = following
    node.globs = [(prefix, suffix, table) for (prefix, suffix), table in tables.items()]
    node.wild = bool(node.params or node.globs or node.star is not None)
    node.samples = tuple(samples)
    node.edges = {}
