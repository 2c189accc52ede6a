"""One operation as a model is shown it: a line for an index, or an entry with everything that a call needs."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

from broker.specgen.document import Document
from broker.specgen.granted import Granted, Narrowed
from broker.specgen.jsonschemas import Limits, json_schema
from broker.specgen.model import Argument, Body, Operation
from broker.specgen.shapes import member_name, shape
from broker.specgen.texts import CUT, one_line, paragraph, quoted, quoted_paragraph

#: What stands before an operation that is not called without asking.
ASK: Final = "ASK FIRST"

#: Longest description of an argument in the help of a client.
_ARGUMENT_HELP: Final = 200

_SUMMARY: Final = 120
_DESCRIPTION: Final = 400
_HELP: Final = 800
_REMARK: Final = 160
_SHAPE: Final = 240
_RESULT: Final = 400
_VALUE: Final = 100
_MAX_VALUES: Final = 8
_MAX_MEMBERS: Final = 24
_FORMS: Final = {"json": "JSON", "form": "form fields", "multipart": "form fields and files", "raw": "text or bytes"}


def signature(operation: Operation, *, optional: bool = True) -> str:
    """Return how the operation is called, as Python would write its definition; ``...`` for optional ones left out."""
    words = [argument.identifier for argument in operation.arguments if argument.place == "path"]
    if operation.body is not None:
        words.append("body" if operation.body.required else "body=None")
    named = [argument for argument in operation.arguments if argument.place in ("query", "header")]
    shown = [
        name.identifier if name.required else f"{name.identifier}=None" for name in named if optional or name.required
    ]
    if len(shown) < len(named):
        shown.append("...")
    if shown:
        words += ["*", *shown]
    return f"{operation.identifier}({', '.join(words)})"


def calls(operation: Operation) -> tuple[str, str]:
    """Return how a call of the operation looks in Python and in JavaScript, with one argument that is given by name."""
    words = [argument.identifier for argument in operation.arguments if argument.place == "path"]
    if operation.body is not None:
        words.append("body")
    named = [argument for argument in operation.arguments if argument.place in ("query", "header")]
    required = [argument.identifier for argument in named if argument.required]
    names = required or [argument.identifier for argument in named[:1]]
    python = [*words, *(f"{name}=..." for name in names)]
    javascript = [*words, *(["{" + ", ".join(f"{name}: ..." for name in names) + "}"] if names else [])]
    return f"{operation.identifier}({', '.join(python)})", f"{operation.identifier}({', '.join(javascript)})"


def index_line(granted: Granted, *, told: Container[str]) -> str:
    """Return the operation in one line; ``told`` as for :func:`entry`."""
    operation = granted.operation
    words = [signature(operation, optional=False)]
    words += [f"[{name} {narrowed_text(one)}]" for name, one in granted.narrowed.items() if name not in told]
    if operation.destructive:
        words.append(ASK)
    if operation.deprecated:
        words.append("(deprecated)")
    text = one_line(operation.summary, _SUMMARY) or one_line(operation.description, _SUMMARY)
    return " ".join([*words, quoted(text, _SUMMARY)] if text else words)


def entry(document: Document, granted: Granted, *, told: Container[str]) -> str:
    """Return the operation in full, a few indented lines; ``told`` are arguments that are told elsewhere."""
    return "\n  ".join(_lines(document, granted, told))


def help_paragraphs(operation: Operation) -> Iterator[str]:
    """Yield what the help of a client says of the operation; the first line alone tells whether to ask first.

    A model reads it, too: what the document says stands in quotation marks.
    """
    summary = one_line(operation.summary, _ARGUMENT_HELP)
    text = paragraph(operation.description, _HELP)
    told = quoted(summary, _ARGUMENT_HELP)
    if operation.destructive:
        yield f"{ASK}: {told}" if summary else ASK
    elif summary:
        yield told
    if text and text != summary:
        yield quoted_paragraph(text, _HELP)
    if operation.destructive:
        yield f"It may destroy something: {quoted(operation.destructive, _ARGUMENT_HELP)}"
    if operation.deprecated:
        yield "Deprecated."


def narrowed_text(narrowed: Narrowed) -> str:
    """Return what is left of an argument, to be read after its name and ``is``."""
    ways = []
    if narrowed.only is not None:
        return f"always {quoted(narrowed.only, _VALUE)}"
    if narrowed.values:
        shown = ", ".join(quoted(value, _VALUE) for value in narrowed.values[:_MAX_VALUES])
        more = len(narrowed.values) - _MAX_VALUES
        ways.append(f"one of {shown}" + (f" and {more} more" if more > 0 else ""))
    ways += [f"like {quoted(glob, _VALUE)}" for glob in narrowed.globs[:_MAX_VALUES]]
    ways += [f"the run's own {quoted(param, _VALUE)}" for param in narrowed.params[:_MAX_VALUES]]
    return " or ".join(ways)


def argument_help(argument: Argument) -> str:
    """Return what the help of a client says of an argument, empty when the document says nothing."""
    text = one_line(argument.description, _ARGUMENT_HELP)
    return quoted(text, _ARGUMENT_HELP) if text else ""


def _lines(document: Document, granted: Granted, told: Container[str]) -> Iterator[str]:
    operation = granted.operation
    yield signature(operation)
    yield f"{operation.method} {operation.template}"
    if operation.destructive:
        yield f"{ASK}, it may destroy something: {quoted(operation.destructive, _REMARK)}"
    if operation.deprecated:
        yield "deprecated"
    summary, text = one_line(operation.summary, _SUMMARY), one_line(operation.description, _DESCRIPTION)
    if summary:
        yield quoted(summary, _SUMMARY)
    if text and text.rstrip(".") != summary.rstrip("."):
        yield quoted(text, _DESCRIPTION)
    for argument in operation.arguments:
        if argument.identifier not in told:
            yield argument_line(document, argument, granted.narrowed.get(argument.identifier))
    if operation.body is not None:
        yield from _body(document, operation.body)
    if operation.result is not None:
        result = shape(
            json_schema(document, operation.result, Limits(depth=4, nodes=120, text=0), answer=True), _RESULT
        )
        if result != "any":
            yield f"returns {result}"


def argument_line(document: Document, argument: Argument, narrowed: Narrowed | None) -> str:
    """Return an argument in one line: its name and what it may be."""
    line = argument.identifier
    if argument.name != argument.identifier and argument.place != "run":
        line += f" (sent as {quoted(argument.name, _VALUE)})"
    if argument.place == "run":
        return f"{line}: set by the run"
    if narrowed is not None:
        return f"{line}: {narrowed_text(narrowed)}"
    schema = json_schema(document, argument.schema, Limits(depth=3, nodes=60, text=0))
    return f"{line}: {shape(schema, _SHAPE)}{_remark(argument.description)}"


def _body(document: Document, body: Body) -> Iterator[str]:
    sort = _FORMS[body.form] if body.form in ("json", "form") else f"{_FORMS[body.form]}, {quoted(body.media, _VALUE)}"
    schema = json_schema(document, body.schema, Limits(depth=4, nodes=120, text=_REMARK))
    members = schema.get("properties")
    if not members:
        yield f"body ({sort}): {shape(schema, _SHAPE)}{_remark(body.description)}"
        return
    yield f"body ({sort}):{_remark(body.description).removeprefix(',')}"
    required = schema.get("required", ())
    for name, member in list(members.items())[:_MAX_MEMBERS]:
        yield f"  {member_name(name)}{'' if name in required else '?'}: {_member(member)}"
    if len(members) > _MAX_MEMBERS:
        yield f"  {CUT} and {len(members) - _MAX_MEMBERS} more"


def _member(schema: Mapping[str, Any]) -> str:
    # The description is ours to show: `json_schema` quoted what the document says.
    remark = schema.get("description")
    return shape(schema, _SHAPE) + (f", {remark}" if remark else "")


def _remark(text: str) -> str:
    return f", {quoted(text, _REMARK)}" if one_line(text, _REMARK) else ""
