from __future__ import annotations

import asyncio
import base64
import json

import pytest

from config.problems import ProblemError
from tests.broker.asking import Desk
from tests.broker.house import profile


@pytest.fixture
async def desk(tmp_path):
    made = await Desk(tmp_path, {"memory": profile(), "other": profile()}).start()
    yield made
    await made.stop()


@pytest.fixture
async def run(desk):
    return await desk.open()


async def host_call(desk, run, **body):
    reply = await desk.ask("POST", "/v1/call", body, token=run.run_token)
    assert reply.status == 200
    return reply.json


async def test_a_call_is_carried_and_its_answer_comes_back_in_the_envelope(desk, run):
    answer = await host_call(desk, run, method="POST", path="/v1/items?a=%2F", body={"a": 1})
    assert answer == {"status": 200, "content_type": "application/json", "body": '{"ok":1}'}
    assert desk.data_path.calls == [
        (
            run.run_id,
            "memory",
            "POST",
            b"/v1/items?a=%2F",
            [(b"content-type", b"application/json"), (b"content-length", b"7")],
            b'{"a":1}',
        )
    ]


@pytest.mark.parametrize(
    ("given", "sent", "media_type"),
    [
        (
            {"body": "plain \N{GREEK SMALL LETTER PI}"},
            "plain \N{GREEK SMALL LETTER PI}".encode(),
            b"text/plain; charset=utf-8",
        ),
        ({"body": '{"a": 1}', "content_type": "application/json"}, b'{"a": 1}', b"application/json"),
        ({"body": [1, 2.5, None, "x"]}, b'[1,2.5,null,"x"]', b"application/json"),
        ({"body": False}, b"false", b"application/json"),
        ({"body": ""}, b"", b"text/plain; charset=utf-8"),
        ({"body": None}, b"", None),
        ({}, b"", None),
    ],
)
async def test_text_is_sent_as_it_is_and_anything_else_as_json(desk, run, given, sent, media_type):
    await host_call(desk, run, method="POST", path="/v1/items", **given)
    headers, body = desk.data_path.calls[0][4:]
    assert body == sent
    assert dict(headers).get(b"content-type") == media_type
    assert (b"content-length" in dict(headers)) == (media_type is not None)


async def test_an_answer_that_is_not_text_comes_back_in_base64(desk, run):
    desk.data_path.answer = (206, [(b"content-type", b"image/png"), (b"content-encoding", b"gzip")], [b"\x89P", b"NG"])
    answer = await host_call(desk, run, method="GET", path="/v1/items")
    assert answer["encoding"] == "base64"
    assert base64.b64decode(answer["body"]) == b"\x89PNG"
    assert (answer["status"], answer["content_type"], answer["content_encoding"]) == (206, "image/png", "gzip")


async def test_a_refusal_stands_inside_as_the_problem_that_the_data_path_would_answer(desk, run):
    desk.data_path.fail = ProblemError("route-not-granted", nearest=["GET /v1/items"])
    answer = await host_call(desk, run, method="GET", path="/v1/admin")
    assert (answer["status"], answer["content_type"]) == (403, "application/problem+json")
    assert answer["refused_by"] == "broker"
    assert json.loads(answer["body"])["nearest"] == ["GET /v1/items"]


async def test_an_upstreams_own_refusal_of_the_credential_is_told_apart(desk, run):
    desk.data_path.answer = (401, [(b"broker-refused-by", b"upstream")], [b"{}"])
    assert (await host_call(desk, run, method="GET", path="/v1/items"))["refused_by"] == "upstream"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "body-malformed"),
        ({"method": "GET"}, "body-malformed"),
        ({"method": "GET", "path": ""}, "body-malformed"),
        ({"method": "GET", "path": "/v1/items", "header": {}}, "body-malformed"),
        ({"method": "GET", "path": "/v1/items", "content_type": "a\r\nb: c"}, "body-malformed"),
        ({"method": "GET", "path": "/v1/items", "content_type": "text/plain\n"}, "body-malformed"),
        ({"method": "GET", "path": "/v1/items", "profile": "other"}, "profile-not-granted"),
        ({"method": "GET", "path": "/v1/items", "profile": "nothing"}, "profile-not-granted"),
    ],
)
async def test_an_envelope_that_names_no_call_is_refused_inside_and_counted(desk, run, body, code):
    answer = await host_call(desk, run, **body)
    assert json.loads(answer["body"])["code"] == code
    assert desk.data_path.calls == []
    live = desk.house.registry.find(run.run_id, "orchestrator")
    assert live.trace.kept.denied_by == {code: {"": 1}}


@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}")])
async def test_a_body_that_is_nested_without_end_is_refused_inside(desk, run, opened, closed):
    body = b'{"method": "POST", "path": "/v1/items", "body": ' + opened * 100_000 + b"1" + closed * 100_000 + b"}"
    reply = await desk.ask("POST", "/v1/call", body, token=run.run_token)
    assert reply.status == 200
    assert json.loads(reply.json["body"])["code"] == "body-malformed"
    assert desk.data_path.calls == []


@pytest.mark.parametrize("escape", ["b", "%62"])
async def test_a_run_token_in_the_path_reaches_nobody(desk, run, escape):
    answer = await host_call(desk, run, method="GET", path=f"/v1/items/{escape}{run.run_token[1:]}")
    assert json.loads(answer["body"])["code"] == "run-token-misplaced"
    assert run.run_token not in json.dumps(answer)
    assert desk.data_path.calls == []


async def test_a_run_token_in_the_media_type_reaches_nobody(desk, run):
    media_type = f"text/plain; note={run.run_token}"
    answer = await host_call(desk, run, method="POST", path="/v1/items", body="x", content_type=media_type)
    assert json.loads(answer["body"])["code"] == "run-token-misplaced"
    assert run.run_token not in json.dumps(answer)
    assert desk.data_path.calls == []


async def test_a_target_is_no_longer_than_on_the_data_path(desk, run):
    longest = "/" + "a" * 8191
    assert (await host_call(desk, run, method="GET", path=longest))["status"] == 200
    answer = await host_call(desk, run, method="GET", path=longest + "a")
    assert (answer["status"], json.loads(answer["body"])["code"]) == (414, "target-too-long")
    assert len(desk.data_path.calls) == 1


async def test_with_several_profiles_the_envelope_says_which(desk):
    run = await desk.open(profile=None, profiles=["memory", "other"])
    answer = await host_call(desk, run, method="GET", path="/v1/items")
    assert json.loads(answer["body"])["code"] == "profile-not-granted"
    assert (await host_call(desk, run, method="GET", path="/v1/items", profile="other"))["status"] == 200
    assert desk.data_path.calls[0][1] == "other"


@pytest.mark.parametrize("path", ["/caf\N{LATIN SMALL LETTER E WITH ACUTE}", "/a\r\nb", "/a b", "http://evil/x", "x"])
async def test_a_path_goes_to_the_data_path_byte_for_byte_and_never_mended(desk, run, path):
    await host_call(desk, run, method="GET", path=path)
    assert desk.data_path.calls[0][3] == path.encode()


def host_calls(desk, run, count, receive, send):
    """Begin so many host calls over connections of their own."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/call",
        "target": b"/v1/call",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer " + run.run_token.encode()), (b"content-type", b"application/json")],
    }
    return [asyncio.create_task(desk._control(dict(scope), receive, send)) for _ in range(count)]


async def test_a_run_holds_no_more_bodies_in_memory_than_it_may_make_calls_at_once(desk, run):
    """A body that is sent without an end costs memory before anything has been decided about it."""
    gone = asyncio.Event()

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_message):
        pass

    waiting = host_calls(desk, run, 16, receive, send)
    live = desk.house.registry.find(run.run_id, "orchestrator")
    while live.host_calls < 16:  # noqa: ASYNC110 - the loop goes round until all have begun
        await asyncio.sleep(0)
    answer = await host_call(desk, run, method="GET", path="/v1/items")
    assert (answer["status"], json.loads(answer["body"])["code"]) == (429, "too-many-concurrent")
    assert live.trace.kept.denied_by == {"too-many-concurrent": {"": 1}}
    gone.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert live.host_calls == 0
    assert (await host_call(desk, run, method="GET", path="/v1/items"))["status"] == 200


async def test_an_answer_that_the_code_does_not_read_counts_until_it_is_gone(desk, run):
    desk.data_path.answer = (200, [], [b"x" * 1_000_000])
    body = json.dumps({"method": "GET", "path": "/v1/items"}).encode()
    reading = asyncio.Event()
    taken: list[int] = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        taken.append(len(message.get("body", b"")))
        if len(taken) > 1:
            await reading.wait()

    (waiting,) = host_calls(desk, run, 1, receive, send)
    while len(taken) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    live = desk.house.registry.find(run.run_id, "orchestrator")
    assert live.host_calls == 1
    assert desk.control.envelope.memory.held > 1_000_000
    reading.set()
    await waiting
    assert live.host_calls == 0
    assert desk.control.envelope.memory.held == 0
    assert sum(taken) > 1_000_000
    assert max(taken) <= 65_536


class Uploading:
    """A code that sends ``first`` and then nothing until it is let go on, or is gone."""

    def __init__(self, first, rest=None):
        self.first = first
        self.rest = rest
        self.go_on = asyncio.Event()
        self.answer = b""

    async def receive(self):
        if self.first is not None:
            first, self.first = self.first, None
            return {"type": "http.request", "body": first, "more_body": True}
        await self.go_on.wait()
        if self.rest is None:
            return {"type": "http.disconnect"}
        rest, self.rest = self.rest, None
        return {"type": "http.request", "body": rest, "more_body": False}

    async def send(self, message):
        self.answer += message.get("body", b"")


async def held(desk, count):
    while desk.control.envelope.memory.held != count:  # noqa: ASYNC110 - the loop goes round until it is so
        await asyncio.sleep(0)


@pytest.mark.parametrize("rest", [b"x" * 600, b'", "nope": 1}', b'"}', None])
async def test_host_calls_of_all_runs_hold_no_more_bytes_at_once_than_the_process_may(desk, run, rest):
    memory = desk.control.envelope.memory
    memory.limit = 1000
    other = await desk.open()
    first = Uploading(b'{"method": "POST", "path": "/v1/items", "body": "' + b"x" * 551, rest)
    (waiting,) = host_calls(desk, run, 1, first.receive, first.send)
    await held(desk, 600)
    answer = await host_call(desk, other, method="POST", path="/v1/items", body="x" * 500)
    assert (answer["status"], json.loads(answer["body"])["code"]) == (429, "too-many-requests")
    live = desk.house.registry.find(other.run_id, "orchestrator")
    assert live.trace.kept.denied_by == {"too-many-requests": {"": 1}}
    assert (live.host_calls, memory.held) == (0, 600)
    assert (await host_call(desk, other, method="GET", path="/v1/items"))["status"] == 200
    first.go_on.set()
    # Whatever becomes of it: refused in the middle, no call at all, an answer, or the code is gone.
    await asyncio.gather(waiting, return_exceptions=True)
    assert memory.held == 0
    assert (await host_call(desk, other, method="POST", path="/v1/items", body="x" * 500))["status"] == 200
    assert memory.held == 0


@pytest.mark.parametrize("answer", [b"x" * 1001, b"\0" * 300])
async def test_an_answer_that_does_not_fit_is_refused_and_says_that_the_call_was_made(desk, run, answer):
    memory = desk.control.envelope.memory
    memory.limit = 1000
    desk.data_path.answer = (200, [], [answer[:200], answer[200:]])
    problem = json.loads((await host_call(desk, run, method="GET", path="/v1/items"))["body"])
    assert (problem["status"], problem["code"]) == (429, "too-many-requests")
    assert "the call was made" in problem["detail"]
    assert len(desk.data_path.calls) == 1
    assert memory.held == 0


async def test_a_call_that_is_under_way_holds_what_it_sends_and_what_has_come_back(desk, run):
    memory = desk.control.envelope.memory
    seen = []

    def carry(run, granted, asking, target):
        seen.append(memory.held)
        asking.begin(200, [], None, bodiless=False)
        asking.piece(b"y" * 70)
        seen.append(memory.held)
        raise OSError

    desk.data_path.carry = carry
    with pytest.raises(OSError):
        await host_call(desk, run, method="POST", path="/v1/items", body="x" * 50)
    assert seen == [50, 120]
    assert memory.held == 0


async def test_the_envelope_takes_only_json(desk, run):
    reply = await desk.ask("POST", "/v1/call", b"{}", token=run.run_token, headers={"Content-Type": "text/plain"})
    assert (reply.status, reply.code) == (415, "media-type-not-supported")


async def test_headers_are_handed_to_the_data_path_and_the_envelope_describes_its_body_itself(desk, run):
    given = {
        "If-Match": '"1"',
        "X-Request-Id": " a ",
        "Content-Type": "text/html",
        "Content-Length": "9",
        "Transfer-Encoding": "chunked",
    }
    await host_call(desk, run, method="POST", path="/v1/items", body={"a": 1}, headers=given)
    await host_call(desk, run, method="GET", path="/v1/items", headers={"Accept": "text/csv"})
    assert [headers for *_, headers, _ in desk.data_path.calls] == [
        [
            (b"if-match", b'"1"'),
            (b"x-request-id", b"a"),
            (b"content-type", b"application/json"),
            (b"content-length", b"7"),
        ],
        [(b"accept", b"text/csv")],
    ]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"X-A": "a\r\nb: c"}, "body-malformed"),
        ({"X-A": "a\n"}, "body-malformed"),
        ({"X A": "a"}, "body-malformed"),
        ({"X-A:": "a"}, "body-malformed"),
        ({"X-A\n": "a"}, "body-malformed"),
        ({"": "a"}, "body-malformed"),
        ({"X-A": "é"}, "body-malformed"),
        ({"X-A": ["a"]}, "body-malformed"),
        ({f"X-{number}": "a" for number in range(33)}, "body-malformed"),
    ],
    ids=lambda value: json.dumps(value)[:30],
)
async def test_headers_that_could_be_read_as_more_are_refused(desk, run, headers, code):
    answer = await host_call(desk, run, method="GET", path="/v1/items", headers=headers)
    assert json.loads(answer["body"])["code"] == code
    assert desk.data_path.calls == []


async def test_a_run_token_in_a_header_reaches_nobody(desk, run):
    for headers in ({"X-Key": "k " + run.run_token}, {run.run_token: "x"}):
        answer = await host_call(desk, run, method="GET", path="/v1/items", headers=headers)
        assert json.loads(answer["body"])["code"] == "run-token-misplaced"
    assert desk.data_path.calls == []


async def test_a_run_token_that_was_cut_reaches_nobody_either(desk, run):
    cut = run.run_token[:-1]
    for more in (
        {"headers": {"Accept": cut}},
        {"content_type": f"text/{cut}", "body": ""},
        {"path": f"/v1/items?a={cut}"},
    ):
        answer = await host_call(desk, run, **{"method": "POST", "path": "/v1/items", **more})
        assert json.loads(answer["body"])["code"] == "run-token-misplaced"
    assert desk.data_path.calls == []
