"""The helpers that both programs' applications answer with."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest
import structlog
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from config.asgi import BodyBrokeOff, describe, exception_handlers, json_response, read_body, send_json, send_problem
from config.problems import ProblemError
from tests.config.serving import served

CANARY = "canary-77ab"


def receiving(*messages):
    rest = list(messages)

    async def receive():
        return rest.pop(0)

    return receive


def piece(body, more):
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_is_read_whole():
    assert await read_body(receiving(piece(b"ab", True), piece(b"", True), piece(b"c", False)), 3) == b"abc"


async def test_a_body_is_refused_as_soon_as_it_is_too_long():
    with pytest.raises(ProblemError) as caught:
        await read_body(receiving(piece(b"ab", True), piece(b"cd", True)), 3)
    assert (caught.value.code, caught.value.members) == ("request-too-large", {"limit": 3})


async def test_a_body_that_is_announced_as_too_long_is_not_read_at_all():
    with pytest.raises(ProblemError, match="request-too-large"):
        await read_body(receiving(), 3, {"body_length": 4})
    assert await read_body(receiving(piece(b"abc", False)), 3, {"body_length": None}) == b"abc"


async def test_a_body_that_breaks_off_is_never_taken_for_a_short_one():
    with pytest.raises(BodyBrokeOff):
        await read_body(receiving(piece(b"ab", True), {"type": "http.disconnect"}), 3)


async def test_answers_are_json_that_nobody_caches():
    sent = []

    async def send(message):
        sent.append(message)

    await send_json(send, 201, {"a": 1}, extra=[(b"x", b"y")])
    assert sent[0]["status"] == 201
    headers = dict(sent[0]["headers"])
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"content-length"] == b"%d" % len(sent[1]["body"])
    assert headers[b"x"] == b"y"
    assert msgspec.json.decode(sent[1]["body"]) == {"a": 1}


async def test_a_problem_is_sent_with_its_status_and_who_refused():
    sent = []

    async def send(message):
        sent.append(message)

    await send_problem(send, ProblemError("breaker-open", retry_after=1.2), "broker")
    headers = dict(sent[0]["headers"])
    assert (sent[0]["status"], headers[b"retry-after"], headers[b"broker-refused-by"]) == (503, b"2", b"broker")


def test_an_unexpected_error_is_logged_once_and_never_with_its_text():
    with structlog.testing.capture_logs() as logs:
        error = ValueError(CANARY)
        first, second = describe(error), describe(error)
    assert first.members == second.members
    assert len(logs) == 1
    assert CANARY not in str(logs)


async def fails(request):
    raise ValueError(CANARY)


async def refuses(request):
    raise ProblemError("run-not-found")


async def answers(request):
    return json_response({"a": 1})


APP = Starlette(
    routes=[Route("/fails", fails), Route("/refuses", refuses), Route("/answers", answers)],
    exception_handlers=exception_handlers("minter"),
)


@pytest.mark.parametrize(
    ("request_line", "status", "code"),
    [
        (b"GET /fails", 500, "internal-error"),
        (b"GET /refuses", 404, "run-not-found"),
        (b"GET /elsewhere", 404, "not-found"),
        (b"POST /answers", 405, "method-not-supported"),
        (b"OPTIONS /answers", 405, "method-not-supported"),
    ],
)
def test_every_error_of_a_starlette_application_is_a_problem(request_line, status, code):
    with structlog.testing.capture_logs() as logs, served(APP, by="minter") as world:
        reply = world.ask(request_line + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (reply.status, reply.code) == (status, code)
    assert reply.header("x-content-type-options") == "nosniff"
    assert CANARY not in str(reply) + str(logs)
    assert len(logs) == (status == 500)
    if status == 405:
        assert set(reply.header("allow").split(", ")) == {"GET", "HEAD"}


async def reads(request):
    return json_response({"read": len(await read_body(request.receive, 1000))})


async def streams(_request):
    async def pieces():
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0)

    return StreamingResponse(pieces())


@pytest.mark.parametrize("target", [b"/reads", b"/streams"])
def test_a_client_that_goes_away_is_no_error_of_the_program(target):
    """Else whoever can connect fills the log with errors, and hides among them what is one."""
    ended = threading.Event()
    app = Starlette(
        routes=[Route("/reads", reads, methods=["POST"]), Route("/streams", streams, methods=["POST"])],
        exception_handlers=exception_handlers("minter"),
    )

    async def noting(scope, receive, send):
        try:
            await app(scope, receive, send)
        finally:
            ended.set()

    with structlog.testing.capture_logs() as logs, served(noting) as world:
        with world.client() as client:
            length = b"10" if target == b"/reads" else b"0"
            client.send(b"POST " + target + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\n")
            if target == b"/streams":
                client.take(1000)
        assert ended.wait(5)
    assert logs == []


def test_an_answer_of_a_starlette_application_is_json_that_nobody_caches():
    with served(APP) as world:
        reply = world.ask(b"GET /answers HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (reply.status, reply.header("content-type"), reply.body) == (200, "application/json", b'{"a":1}')
    assert (reply.header("cache-control"), reply.header("x-content-type-options")) == ("no-store", "nosniff")
