"""Arguments for an operation, as code would give them: strategies of values that can be sent.

What a value looks like on the wire is not known here: the tests compare that with what the catalog allows.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from broker.specgen import schemas
from broker.specgen.model import Argument, Operation, SchemaAt

#: What a path segment can always carry, and what only an ``encoded`` and ``wide`` one can.
_PLAIN = st.text("abcXYZ019-_~@+=", min_size=1, max_size=12)
_ANY = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="%/\\;?#"), max_size=12)
_INTEGERS = st.integers(-(10**18), 10**18)
_NUMBERS = st.integers(-1000, 1000) | st.floats(-1000, 1000, allow_nan=False).map(lambda value: round(value, 3))
_BY_KIND = {"integer": _INTEGERS, "number": _NUMBERS, "boolean": st.booleans()}


def scalars(document: Any, at: SchemaAt) -> st.SearchStrategy[Any]:
    """Return values of a scalar schema; text when it says nothing."""
    known = schemas.enum_of(document, at)
    if known:
        return st.sampled_from([value for value in known if value is not None])
    kinds = schemas.types(document, at)
    if not kinds or not kinds <= _BY_KIND.keys():
        return _ANY
    return st.one_of([_BY_KIND[kind] for kind in sorted(kinds)])


def values(document: Any, argument: Argument) -> st.SearchStrategy[Any]:
    """Return values of a query or header argument."""
    if argument.style == "json":
        return st.dictionaries(st.text("abc", min_size=1), st.integers() | _ANY, max_size=3)
    if argument.shape == "array":
        inner = scalars(document, schemas.items(document, argument.schema)) if argument.place != "header" else _PLAIN
        return st.lists(inner, min_size=1, max_size=3)
    if argument.shape == "object":
        listed = schemas.members(document, argument.schema)
        members = {
            name: _PLAIN if argument.place == "header" else scalars(document, listed[name]) for name in argument.members
        }
        return st.fixed_dictionaries({}, optional=members).filter(bool)
    if argument.place == "header":
        return _PLAIN
    return scalars(document, argument.schema)


def segments(document: Any, operation: Operation, argument: Argument) -> st.SearchStrategy[Any]:
    """Return values of a path argument that its route can carry."""
    if argument.shape == "array":
        return st.lists(_INTEGERS, min_size=1, max_size=3)
    if argument.shape == "object":
        names = st.sampled_from(argument.members) if argument.members else st.text("abc", min_size=1, max_size=3)
        return st.dictionaries(names, _INTEGERS, min_size=1, max_size=3)
    entry = operation.route
    free = isinstance(entry, dict) and entry.get("encoded") and entry.get("wide")
    kinds = schemas.types(document, argument.schema)
    if schemas.enum_of(document, argument.schema) or (kinds and kinds <= _BY_KIND.keys()):
        return scalars(document, argument.schema)
    text = _ANY if free else _PLAIN
    return text.filter(lambda value: bool(value.strip(".")))


def calls(document: Any, operation: Operation) -> st.SearchStrategy[tuple[list[Any], Any, dict[str, Any]]]:
    """Return (path arguments in order, body or None, the other arguments by identifier)."""
    path = [one for one in operation.arguments if one.place == "path"]
    others = [one for one in operation.arguments if one.place in ("query", "header")]
    required = {one.identifier: values(document, one) for one in others if one.required}
    optional = {one.identifier: values(document, one) for one in others if not one.required}
    body: st.SearchStrategy[Any] = st.none()
    if operation.body is not None:
        body = bodies(operation.body.form)
        if not operation.body.required:
            body = st.none() | body
    return st.tuples(
        st.tuples(*(segments(document, operation, one) for one in path)).map(list),
        body,
        st.fixed_dictionaries(required, optional=optional),
    )


def bodies(form: str) -> st.SearchStrategy[Any]:
    """Return a body that a client writes in this form."""
    text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)
    names = st.text("abcDEF_", min_size=1, max_size=8)
    if form == "json":
        inner = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text
        return st.dictionaries(names, inner | st.lists(inner, max_size=3), max_size=4)
    if form in ("form", "multipart"):
        return st.dictionaries(names, text, min_size=1, max_size=4)
    return text
