"""The stubs of the clients, for editors and type checkers: ``client.pyi`` and ``client.d.ts``.

Every text of the document goes through an encoder of its language (``ascii`` and JSON, both of them ASCII in one line);
names are ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from broker.specgen.document import Document
from broker.specgen.entries import argument_help, help_paragraphs
from broker.specgen.model import Api, Argument, Operation
from broker.specgen.stamp import stamp
from broker.specgen.types import ListOf, Member, Named, OneOf, Type, Types, Union

_WORD: Final = re.compile(r"\w+", re.ASCII)
_ESCAPED: Final = re.compile(r"\\([\"\\])")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)

_PYTHON: Final = {
    "": "Any",
    "string": "str",
    "bytes": "bytes",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "dict[str, Any]",
}
_TYPESCRIPT: Final = {
    "": "any",
    "bytes": "Uint8Array",
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "object": "{ [name: string]: unknown }",
}
#: What a method of the same name would hide.
_BUILTINS: Final = ("bool", "bytes", "dict", "list", "str")
#: Names that the stubs use themselves.
_PYTHON_TAKEN: Final = frozenset(
    {"Any", "Literal", "NamedTuple", "NotRequired", "TypedDict", "Answer", "CallError", "Client", "NotAllowedError"}
    | {"Exception", "bool", "bytes", "dict", "float", "int", "list", "str", "object", "type", "None", "RUN"}
)
_TYPESCRIPT_TAKEN: Final = frozenset(
    {"Answer", "CallError", "Client", "NotAllowedError", "Options", "Error", "Promise", "Uint8Array", "Date", "any"}
    | {"bigint", "boolean", "never", "number", "object", "string", "symbol", "undefined", "unknown", "void", "null"}
    | {"client", "create", "declare", "global", "type", "fetch", "globalThis"}
)

_PYTHON_HEAD: Final = """\
from typing import Any, Literal, NamedTuple
from typing_extensions import NotRequired, TypedDict

class NotAllowedError(Exception):
    nearest: list[str]

class CallError(Exception):
    status: int
    code: str | None
    body: Any

class Answer(NamedTuple):
    status: int
    content_type: str
    body: Any

"""
_PYTHON_CLIENT: Final = """\
class Client:
    def __init__(
        self, base_url: str | None = None, token: str | None = None, profile: str | None = None, timeout: float = 60.0
    ) -> None: ...
    def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer: ...
    def find(self, text: str = "") -> list[str]: ...
    def close(self) -> None: ...
"""
_TYPESCRIPT_HEAD: Final = """\
export interface Options {
  profile?: string;
  hostCall?: (call: string) => string | Promise<string>;
  fetch?: (url: string, settings: any) => Promise<any>;
  baseUrl?: string;
  token?: string;
}
export interface Answer {
  status: number;
  content_type: string;
  body: any;
}
export declare class NotAllowedError extends Error {
  nearest: string[];
}
export declare class CallError extends Error {
  status: number;
  code: string | null;
  body: any;
}
export declare function create(options?: Options): Client;
export declare const client: Client;
"""
_TYPESCRIPT_CLIENT: Final = """\
export interface Client {
  raw(
    method: string,
    path: string,
    body?: any,
    options?: { contentType?: string; headers?: { [name: string]: string } },
  ): Promise<Answer>;
  find(text?: string): string[];
"""


def python_stub(api: Api, document: Document, global_name: str) -> bytes:
    """Return ``client.pyi``: the signatures that the client has, with the document's types."""
    own = {operation.identifier for operation in api.operations}
    hidden = frozenset(own.intersection(_BUILTINS))
    types = Types(document, {*_PYTHON_TAKEN, global_name, *own})
    methods = "".join(_python_method(types, operation, hidden) for operation in api.operations)
    named = "".join(_typed_dict(name, members) for name, members in types.named())
    client = _WORD.sub(lambda word: _seen(word[0], hidden), _PYTHON_CLIENT) + methods
    known = "".join(f"_{name} = {name}\n" for name in sorted(hidden))
    last = f"\n{global_name}: Client\n" if global_name.isidentifier() else ""
    return (_comment("#", api) + _PYTHON_HEAD + known + named + client + last).encode("ascii")


def javascript_stub(api: Api, document: Document, global_name: str) -> bytes:
    """Return ``client.d.ts``: a module's types, and those of the global that the script defines."""
    types = Types(document, set(_TYPESCRIPT_TAKEN) | {global_name})
    methods = [_typescript_method(types, operation) for operation in api.operations]
    named = [_interface(name, members) for name, members in types.named()]
    known = f"declare global {{\n  const {global_name}: Client;\n}}\n" if _IDENTIFIER.fullmatch(global_name) else ""
    text = (
        _comment("//", api) + _TYPESCRIPT_HEAD + "".join(named) + _TYPESCRIPT_CLIENT + "".join(methods) + "}\n" + known
    )
    return text.encode("ascii")


def _comment(mark: str, api: Api) -> str:
    return f"{mark} {json.dumps(stamp(api))}\n"


def _inputs(types: Types, operation: Operation) -> Iterator[tuple[str, Type, bool, bool]]:
    """Yield (identifier, type, required, by keyword), as the clients take them."""
    for one in operation.arguments:
        if one.place == "path":
            yield one.identifier, _input(types, operation, one), True, False
    if operation.body is not None:
        yield "body", _body(types, operation), operation.body.required, False
    for one in operation.arguments:
        if one.place in ("query", "header"):
            yield one.identifier, _input(types, operation, one), one.required, True


def _input(types: Types, operation: Operation, one: Argument) -> Type:
    return types.of(one.schema, f"{operation.identifier}_{one.identifier}")


def _body(types: Types, operation: Operation) -> Type:
    body = operation.body
    if body is None or body.form == "raw":
        return Union(("string", "bytes"))
    return types.of(body.schema, operation.identifier + "_body") if body.form == "json" else "object"


def _result(types: Types, operation: Operation) -> Type:
    return "" if operation.result is None else types.of(operation.result, operation.identifier + "_result")


def _docs(operation: Operation) -> str:
    arguments = [
        f"{one.identifier}: {told}"
        for one in operation.arguments
        if (told := argument_help(one)) and one.place != "run"
    ]
    lines = [*help_paragraphs(operation), f"{operation.method} {operation.template}", "\n".join(arguments)]
    return "\n\n".join(line for line in lines if line)


def _python_method(types: Types, operation: Operation, hidden: frozenset[str]) -> str:
    parts = ["self"]
    keywords = False
    for name, kind, required, keyword in _inputs(types, operation):
        if keyword and not keywords:
            parts.append("*")
            keywords = True
        written = _python(kind, hidden)
        parts.append(f"{name}: {written}" if required else f"{name}: {_or_none(written)} = None")
    head = f"    def {operation.identifier}({', '.join(parts)}) -> {_python(_result(types, operation), hidden)}:"
    return f"{head}\n        {_docs(operation)!a}\n"


def _or_none(written: str) -> str:
    return written if written == "Any" or written.endswith("| None") else written + " | None"


def _python(kind: Type, hidden: frozenset[str] = frozenset()) -> str:
    """Return a type; ``hidden`` are the built-in types that go by another name here."""
    if kind is None:
        return "None"
    if isinstance(kind, str):
        return _WORD.sub(lambda word: _seen(word[0], hidden), _PYTHON[kind])
    if isinstance(kind, Named):
        return kind.name
    if isinstance(kind, OneOf):
        return f"Literal[{', '.join(map(ascii, kind.values))}]"
    if isinstance(kind, ListOf):
        return f"{_seen('list', hidden)}[{_python(kind.items, hidden)}]"
    return " | ".join(_python(one, hidden) for one in kind.types)


def _seen(word: str, hidden: frozenset[str]) -> str:
    return "_" + word if word in hidden else word


def _typed_dict(name: str, members: list[Member]) -> str:
    written = [
        f"    {one.name!a}: {_python(one.type) if one.required else f'NotRequired[{_python(one.type)}]'},\n"
        for one in members
    ]
    return f'{name} = TypedDict("{name}", {{\n{"".join(written)}}})\n\n'


def _typescript_method(types: Types, operation: Operation) -> str:
    inputs = list(_inputs(types, operation))
    options = [(name, kind, required) for name, kind, required, keyword in inputs if keyword]
    needs = any(required for _, _, required in options)
    parts = []
    for name, kind, required, keyword in inputs:
        if not keyword:
            written = _typescript(kind)
            empty = f"{name}: {written} | null | undefined" if needs else f"{name}?: {written} | null"
            parts.append(f"{name}: {written}" if required else empty)
    if options:
        members = [f"{name}{'' if required else '?'}: {_typescript(kind)}" for name, kind, required in options]
        parts.append(f"options{'' if needs else '?'}: {{ {'; '.join(members)} }}")
    result = _typescript(_result(types, operation))
    return f"  {_remark(_docs(operation))}\n  {operation.identifier}({', '.join(parts)}): Promise<{result}>;\n"


def _remark(text: str) -> str:
    """Return a documentation comment; nothing in it ends it, and all of it is ASCII."""
    # Quotation marks and their backslashes stay as the text has them: in a comment they end nothing.
    lines = [_ESCAPED.sub(r"\1", json.dumps(line)[1:-1]).replace("*/", "*\\/") for line in text.split("\n")]
    return "/** " + "\n   * ".join(lines) + " */"


def _typescript(kind: Type) -> str:
    if kind is None:
        return "null"
    if isinstance(kind, str):
        return _TYPESCRIPT[kind]
    if isinstance(kind, Named):
        return kind.name
    if isinstance(kind, OneOf):
        return " | ".join(map(json.dumps, kind.values))
    if isinstance(kind, ListOf):
        return f"({_typescript(kind.items)})[]"
    return " | ".join(_typescript(one) for one in kind.types)


def _interface(name: str, members: list[Member]) -> str:
    written = [f"  {json.dumps(one.name)}{'' if one.required else '?'}: {_typescript(one.type)};\n" for one in members]
    return f"export type {name} = {{\n{''.join(written)}}};\n"
