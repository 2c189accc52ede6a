"""The two clients of a small document, side by side: what each of them sends for the same arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from broker.specgen.clients import javascript_client, python_client
from broker.specgen.model import Api, Choices
from broker.specgen.operations import read_api
from tests.broker.specgen import reading
from tests.broker.specgen.engine import Engine, JavaScriptError
from tests.broker.specgen.loading import load
from tests.worlds.api import Answer
from tests.worlds.api import Api as Recorded

FROM_THE_TABLE: Any = object()


def read(paths: dict[str, Any], version: str = "3.0.3", **choices: Any) -> tuple[Api, Any]:
    document = reading.document(version, paths=paths, servers=[{"url": "https://api.test"}])
    return read_api(document, Choices(deprecated=True, **choices)), document


def files(api: Api, document: Any, *, allow: Any = FROM_THE_TABLE, name: str = "api") -> dict[str, bytes]:
    allow = list(api.catalog) if allow is FROM_THE_TABLE else allow
    named = {"profile": "p", "global_name": name, "allow": allow}
    return {**python_client(api, document, **named), **javascript_client(api, document, **named)}


@dataclass(frozen=True)
class Sent:
    method: str
    target: str
    body: Any
    content_type: str | None
    headers: dict[str, str]


class Pair:
    """``python`` and ``javascript`` call a method and return what was sent; ``answer`` is what comes back."""

    def __init__(
        self, written: dict[str, bytes], recorded: Recorded, directory: Path, profile: str | None = None
    ) -> None:
        self.recorded = recorded
        self.answer = Answer()
        recorded.otherwise = lambda _request: self.answer
        self.module = load(written["client.py"], directory)
        self.client = self.module.Client(base_url=recorded.origin, token="brk_x", profile=profile)
        self.engine = Engine(written["client.js"].decode("ascii"))

    def python(self, method: str, *arguments: Any, **others: Any) -> Sent:
        self.recorded.received.clear()
        getattr(self.client, method)(*arguments, **others)
        (request,) = self.recorded.received
        known = ("host", "accept-encoding", "content-length", "authorization", "content-type")
        headers = {name: value for name, value in request.headers if name not in known}
        target = request.target.removeprefix("/p/p")
        return Sent(request.method, target, request.body, request.header("content-type"), headers)

    def javascript(self, method: str, *arguments: Any, **others: Any) -> Sent:
        self.engine.calls.clear()
        self.engine.call("api", method, [*arguments, *([others] if others else [])])
        (call,) = self.engine.calls
        assert call["profile"] == "p"
        headers = {name.lower(): value for name, value in call.get("headers", {}).items()}
        return Sent(call["method"], call["path"], call.get("body"), call.get("content_type"), headers)

    def both(self, method: str, *arguments: Any, **others: Any) -> Sent:
        """Call the method in both languages, hold them against each other, and return what Python sent."""
        one, other = self.python(method, *arguments, **others), self.javascript(method, *arguments, **others)
        assert replace(one, body=None) == replace(other, body=None), (arguments, others)
        if isinstance(other.body, str):
            assert one.body == other.body.encode(), (one, other)
        return one

    def refused(self, method: str, *arguments: Any, **others: Any) -> str:
        """Call the method in both languages; neither sends anything. Return how Python says why."""
        self.recorded.received.clear()
        self.engine.calls.clear()
        try:
            getattr(self.client, method)(*arguments, **others)
        except (ValueError, TypeError, self.module.NotAllowedError) as error:
            told = error
        else:
            raise AssertionError("the client of Python sent it")
        with pytest.raises(JavaScriptError) as caught:
            self.engine.call("api", method, [*arguments, *([others] if others else [])])
        names = {"ValueError": "RangeError", "TypeError": "TypeError", "NotAllowedError": "NotAllowedError"}
        kind = next(one.__name__ for one in type(told).__mro__ if one.__name__ in names)
        assert caught.value.name == names[kind], (caught.value, told)
        assert self.recorded.received == []
        assert self.engine.calls == []
        return str(told)
