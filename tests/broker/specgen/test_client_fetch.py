"""The client of JavaScript without a host function: through fetch it sends what Python's sends."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from tests.broker.specgen import pair
from tests.broker.specgen.engine import Engine, JavaScriptError
from tests.broker.specgen.fetching import with_fetch
from tests.broker.specgen.loading import load
from tests.broker.specgen.test_client_js import PATHS
from tests.worlds.api import Answer
from tests.worlds.api import Api as Recorded

API, DOCUMENT = pair.read(PATHS)


@pytest.fixture
def recorded():
    with Recorded() as api:
        api.otherwise = lambda _request: Answer()
        yield api


def source(**options: Any) -> str:
    return pair.files(API, DOCUMENT, **options)["client.js"].decode()


@pytest.mark.parametrize(
    ("method", "arguments", "others"),
    [
        ("free", ["a b:ü"], {}),
        ("form", [], {"q": ["a&b", "ü"]}),
        ("header", [], {"X_Thing": "a b"}),
        ("send", [{"ü": [1, None, 2**70]}], {}),
        ("urlencoded", [{"a b": "ü&", "list": [1, True], "object": {"x": "ü"}}], {}),
        ("multipart", [{"a": "ü", "object": {"x": 1}, "file": b"\xff\xfe\r\n"}], {}),
        ("text", ["ü\n"], {}),
        ("maybe", [], {"q": ["x"]}),
    ],
)
def test_fetch_is_given_what_python_sends(recorded, tmp_path, method, arguments, others):
    module = load(pair.files(API, DOCUMENT)["client.py"], tmp_path)
    with closing(module.Client(base_url=recorded.origin, token="brk_x")) as client:
        getattr(client, method)(*arguments, **others)
    engine, settings = with_fetch(source(), baseUrl=recorded.origin, token="brk_x")
    options = [None] if method == "maybe" else []
    engine.call("remote", method, [*arguments, *options, *([others] if others else [])])
    one, other = recorded.received
    assert (one.method, one.target, one.body) == (other.method, other.target, other.body)
    for name in ("authorization", "content-type", "x-thing"):
        assert one.header(name) == other.header(name), name
    assert one.header("authorization") == "Bearer brk_x"
    assert engine.calls == []
    (setting,) = settings
    assert (setting["redirect"], setting["credentials"]) == ("manual", "omit")


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (Answer(body=b'{"a": 1}'), {"a": 1}),
        (Answer(headers=[("Content-Type", "application/problem+json; charset=utf-8")], body='["ü"]'.encode()), ["ü"]),
        (Answer(headers=[("Content-Type", "text/plain")], body="ü".encode()), "ü"),
        (Answer(headers=[("Content-Type", "text/plain")], body=b"\xff"), {"$bytes": [255]}),
        (Answer(body=b"no json"), "no json"),
        (Answer(body=b""), None),
        (Answer(headers=[("Content-Type", "image/png")], body=b"\xff\x00"), {"$bytes": [255, 0]}),
    ],
)
def test_an_answer_of_fetch_is_parsed_by_what_it_says_it_is(recorded, answer, value):
    recorded.otherwise = lambda _request: answer
    engine, _ = with_fetch(source(), baseUrl=recorded.origin, token="brk_x")
    assert engine.call("remote", "form", []) == value


def test_a_redirect_is_a_failure_and_is_not_followed(recorded):
    recorded.otherwise = lambda _request: Answer(302, [("Location", recorded.origin + "/elsewhere")], b"")
    engine, _ = with_fetch(source(), baseUrl=recorded.origin, token="brk_x")
    with pytest.raises(JavaScriptError, match="302"):
        engine.call("remote", "form", [])
    assert [request.target for request in recorded.received] == ["/p/p/form"]


def test_a_client_that_knows_no_list_asks_the_broker_once_and_keeps_to_it(recorded):
    told = {"profiles": {"p": {"routes": ["GET /form"]}}, "params": {}}
    recorded.on("GET", "/v1/self", Answer(body=json.dumps(told).encode()))
    engine, _ = with_fetch(source(allow=None), baseUrl=recorded.origin, token="brk_x")
    engine.call("remote", "form", [])
    engine.call("remote", "form", [])
    with pytest.raises(JavaScriptError, match="nothing was sent") as caught:
        engine.call("remote", "free", ["x"])
    assert caught.value.nearest == ["GET /form"]
    assert [request.target for request in recorded.received] == ["/v1/self", "/p/p/form", "/p/p/form"]
    assert recorded.received[0].header("authorization") == "Bearer brk_x"


def test_a_broker_that_does_not_tell_leaves_the_judging_to_each_call(recorded):
    recorded.on("GET", "/v1/self", Answer(404))
    engine, _ = with_fetch(source(allow=None), baseUrl=recorded.origin, token="brk_x")
    engine.call("remote", "free", ["x"])
    assert [request.target for request in recorded.received] == ["/v1/self", "/p/p/free/x"]


@pytest.mark.parametrize("tail", ["", "/", "/p/p", "/base/p/p/"])
def test_the_url_is_the_brokers_or_the_profiles(recorded, tail):
    engine, _ = with_fetch(source(), baseUrl=recorded.origin + tail, token="brk_x")
    engine.call("remote", "form", [])
    (request,) = recorded.received
    assert request.target == ("/base" if "base" in tail else "") + "/p/p/form"


@pytest.mark.parametrize(
    "url", ["broker:80", "ftp://127.0.0.1", "http://", "http://127.0.0.1/?x", "http://127.0.0.1#x"]
)
def test_an_url_that_is_none_of_a_broker_is_refused(url):
    engine, settings = with_fetch(source(), baseUrl=url, token="brk_x")
    with pytest.raises(JavaScriptError, match="http://host:port"):
        engine.call("remote", "form", [])
    assert settings == []


def test_url_and_token_may_come_from_the_environment(recorded):
    engine, _ = with_fetch(source())
    engine.eval("delete globalThis.__broker_host_call")
    with pytest.raises(JavaScriptError, match="neither a host function nor baseUrl is there"):
        engine.call("remote", "form", [])
    environment = {"BROKER_URL": recorded.origin}
    engine.eval(f"globalThis.process = {{env: {json.dumps(environment)}}}")
    with pytest.raises(JavaScriptError, match="neither a host function nor token is there"):
        engine.call("remote", "form", [])
    engine.eval("process.env.BROKER_RUN_TOKEN = 'brk_e'")
    engine.call("remote", "form", [])
    (request,) = recorded.received
    assert (request.target, request.header("authorization")) == ("/p/p/form", "Bearer brk_e")


def test_a_setting_that_a_client_does_not_have_is_refused():
    engine = Engine(source())
    with pytest.raises(Exception, match="a client takes profile, hostCall, fetch, baseUrl, token"):
        engine.eval("BrokerClient.create({base_url: 'x'})")


def test_a_header_of_any_name_is_sent(recorded):
    named = {"name": "__proto__", "in": "header", "schema": {"type": "string"}}
    written = pair.files(*pair.read({"/a": {"get": {"operationId": "a", "parameters": [named]}}}))
    engine, _ = with_fetch(written["client.js"].decode(), baseUrl=recorded.origin, token="brk_x")
    engine.call("remote", "a", [{"proto": "1"}])
    assert recorded.received[0].header("__proto__") == "1"
