"""A client of JavaScript in QuickJS, which has nothing but the language and one host function."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import quickjs

Answerer = Callable[[dict[str, Any]], dict[str, Any]]

_RUN = """
(function (path, method, given) {
  globalThis.__outcome = null;
  const revived = JSON.parse(given, (name, value) =>
    value !== null && typeof value === "object" && Object.keys(value).join() === "$big" ? BigInt(value.$big)
    : value !== null && typeof value === "object" && Object.keys(value).join() === "$bytes"
      ? Uint8Array.from(value.$bytes)
    : value);
  const shown = (value) => value instanceof Uint8Array ? {$bytes: Array.from(value)} : value;
  Promise.resolve().then(() => globalThis[path][method](...revived)).then(
    (value) => { globalThis.__outcome = JSON.stringify({value: value === undefined ? null : shown(value)}); },
    (error) => { globalThis.__outcome = JSON.stringify({
      error: error.name, message: error.message, status: error.status, nearest: error.nearest, code: error.code}); });
})
"""


class JavaScriptError(Exception):
    """What the method rejected with."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told["error"] + ": " + told["message"])
        self.name = told["error"]
        self.status = told.get("status")
        self.code = told.get("code")
        self.nearest = told.get("nearest")


class Engine:
    """``calls`` are what the host function was handed; ``answer`` says what it returns.

    There is no limit of time: QuickJS sets none where it calls back into Python.
    """

    def __init__(self, source: str, answer: Answerer | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self._answer = answer or (lambda _call: {"status": 200, "content_type": "application/json", "body": "{}"})
        self._context = quickjs.Context()
        self._context.set_memory_limit(256 << 20)
        self.add("__broker_host_call", self._host)
        self.eval(source)
        self._run = self._context.eval(_RUN)

    def add(self, name: str, function: Callable[[str], str]) -> None:
        """Give the code a global function of text."""
        self._context.add_callable(name, function)

    def eval(self, source: str) -> Any:
        return self._context.eval(source)

    def call(self, name: str, method: str, arguments: list[Any]) -> Any:
        """Call a method and return what its promise came to. Whole numbers beyond a double become BigInt."""
        self._run(name, method, json.dumps(_plain(arguments)))
        while self._context.execute_pending_job():
            pass
        outcome = json.loads(self._context.eval("globalThis.__outcome"))
        if "error" in outcome:
            raise JavaScriptError(outcome)
        return outcome["value"]

    def _host(self, text: str) -> str:
        call = json.loads(text)
        self.calls.append(call)
        return json.dumps(self._answer(call))


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) > 2**53:
        return {"$big": str(value)}
    if isinstance(value, bytes):
        return {"$bytes": list(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value
