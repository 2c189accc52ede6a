"""A document, read with the operator's choices: its routes, its operations, and what became of each of them.

Every operation is told exactly once, carried or not, in the document's order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from broker.specgen.alternatives import Schemes
from broker.specgen.carrying import Carrying, own_security
from broker.specgen.document import Document
from broker.specgen.filters import left_out
from broker.specgen.limits import MAX_OPERATIONS, MAX_PARAMETERS
from broker.specgen.merging import covered, merged, shape_of
from broker.specgen.model import Api, Choices, DocumentError, Note, Operation, Status, Told
from broker.specgen.naming import Wanted, operation_names
from broker.specgen.references import child
from broker.specgen.security import settled
from broker.specgen.servers import Servers
from broker.specgen.texts import quoted
from broker.specgen.walking import Found, walk, webhooks
from config.headers import STANDARD_REQUEST

#: Of the other operations of a route, and of the routes that one covers, so many are named.
_NAMED: Final = 8
_LONGEST: Final = 120


def read_api(
    document: Document, choices: Choices, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> Api:
    """Read every operation of a document. ``progress`` is told how many paths are done, and of how many.

    Errors: ``DocumentError`` when no server of the document can be used and the operator named none.
    """
    notes = list(webhooks(document))
    by_path = _by_path(document, notes)
    found = [one for operations in by_path for one in operations]
    servers = Servers(document, choices, (holder for one in found for holder in one.holders))
    schemes = Schemes(document, choices)
    policy = settled(schemes, (asked for one in found if (asked := own_security(one, schemes)) is not None))
    names = operation_names(Wanted(one.id, one.method, one.path) for one in found)
    carrying = Carrying(document=document, choices=choices, servers=servers, schemes=schemes, policy=policy)
    results: list[tuple[Found, Operation | None, tuple[Note, ...]]] = []
    for done, operations in enumerate(by_path, 1):
        for one in operations:
            key = Wanted(one.id, one.method, one.path).key
            results.append((one, *_carried(carrying, one, names[key])))
        progress(done, len(by_path))
    carried = [operation for _, operation, _ in results if operation is not None]
    catalog = merged(operation.route for operation in carried)
    twice = {id_: count for id_, count in Counter(one.id for one in found if one.id).items() if count > 1}
    more = _shared(carried, twice)
    covers = covered(catalog, shown=_NAMED)
    if covers is None:
        notes.append(Note("warn", "#/paths", "which routes a wildcard covers is not listed: they are too many"))
    for text, (others, count) in (covers or {}).items():
        more.setdefault(shape_of(text), []).append(_cover(others, count))
    told, kept = [], []
    for one, operation, own in results:
        if operation is None:
            told.append(_told(one, "not-carried", own))
            continue
        named = (_same_id(operation, twice[one.id]),) if one.id in twice else ()
        more_said = (replace(note, pointer=one.pointer) for note in more.get(shape_of(operation.route), ()))
        said = (*own, *named, *more_said)
        why = left_out(operation, choices)
        if why:
            told.append(_told(one, "left-out", (*said, Note("warn", one.pointer, why))))
            continue
        limited = any(note.level == "limit" for note in said)
        told.append(_told(one, "limited" if limited else "carried", said))
        kept.append(replace(operation, notes=said))
    return Api(
        title=document.title,
        source=document.name,
        version=document.version,
        sha256=document.sha256,
        origin=servers.root.origin,
        catalog=catalog,
        operations=tuple(kept),
        told=tuple(told),
        security=policy.security,
        request_headers=_headers(kept),
        params=_params(carried, choices),
        notes=(*servers.notes, *notes),
    )


def _by_path(document: Document, notes: list[Note]) -> list[list[Found]]:
    """Return the operations of each path; a document of too many is refused as soon as that is seen."""
    paths = document.root["paths"]
    if len(paths) > MAX_OPERATIONS:
        raise DocumentError(f"{document.name}: has more than {MAX_OPERATIONS} paths")
    by_path: list[list[Found]] = []
    operations = parameters = 0
    for path in paths:
        found = list(walk(document, path, notes))
        operations += len(found)
        # A path item that many paths refer to has its parameters in each of them.
        parameters += sum(one.declares for one in found)
        if operations > MAX_OPERATIONS:
            raise DocumentError(f"{document.name}: has more than {MAX_OPERATIONS} operations")
        if parameters > MAX_PARAMETERS:
            raise DocumentError(
                f"{document.name}: has more than {MAX_PARAMETERS} parameters, counted for each operation"
            )
        by_path.append(found)
    return by_path


def _carried(carrying: Carrying, found: Found, names: tuple[str, str]) -> tuple[Operation | None, tuple[Note, ...]]:
    return (None, (found.lost,)) if found.lost is not None else carrying.carry(found, names)


def _told(found: Found, status: Status, notes: tuple[Note, ...]) -> Told:
    return Told(pointer=found.pointer, label=found.label, id=found.id, status=status, notes=notes)


def _same_id(operation: Operation, count: int) -> Note:
    reason = f"{count} operations have the operationId {quoted(operation.id, _LONGEST)}"
    named = f"in the client this one is {operation.identifier}"
    return Note("warn", child(operation.pointer, "operationId"), f"{reason}; {named}")


def _shared(carried: Sequence[Operation], twice: Container[str]) -> dict[str, list[Note]]:
    """Return a note for each route that several operations have, by its shape. ``twice`` are ids that tell nothing."""
    sharing: dict[str, list[Operation]] = {}
    for operation in carried:
        sharing.setdefault(shape_of(operation.route), []).append(operation)
    notes: dict[str, list[Note]] = {}
    for shape, operations in sharing.items():
        if len(operations) > 1:
            names = (one.identifier if one.id in twice else one.id or one.identifier for one in operations)
            named = _named(names, len(operations))
            reason = f"{len(operations)} operations are one route on the wire, and granting one grants all: {named}"
            notes[shape] = [Note("warn", "", reason)]
    return notes


def _cover(routes: Sequence[str], count: int) -> Note:
    named = _named(routes, count)
    return Note("warn", "", f"its wildcards cover routes of the catalog, which need a grant of their own: {named}")


def _named(texts: Iterable[str], count: int) -> str:
    more = f" and {count - _NAMED} more" if count > _NAMED else ""
    return ", ".join(quoted(text, _LONGEST) for text in itertools.islice(texts, _NAMED)) + more


def _headers(operations: Iterable[Operation]) -> tuple[str, ...]:
    """Return the headers that the code may send beside those that always pass, each in its first spelling."""
    found = {
        argument.name.lower(): argument.name
        for operation in reversed(list(operations))
        for argument in reversed(operation.arguments)
        if argument.place == "header"
    }
    return tuple(name for lower, name in reversed(found.items()) if lower.encode() not in STANDARD_REQUEST)


def _params(carried: Iterable[Operation], choices: Choices) -> Mapping[str, str]:
    used = {argument.name for operation in carried for argument in operation.arguments if argument.place == "run"}
    return {name: pattern for name, pattern in choices.params.items() if name in used}
