"""Unmodified SDKs and the APIs of the seed: the run token goes where the key would go."""

from __future__ import annotations

import json

import pytest

from tests.flow.test_main_job import profile
from tests.worlds.api import Answer
from tests.worlds.service import CANARY

pytestmark = pytest.mark.flow


def test_the_openai_sdk_streams_with_the_run_token_as_its_key(service, api):
    openai = pytest.importorskip("openai")

    def chunks(_request):
        for text in ("Hel", "lo"):
            piece = {
                "id": "c1",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
            }
            yield f"data: {json.dumps(piece)}\n\n".encode()
        yield b"data: [DONE]\n\n"

    api.on(
        "POST",
        "/v1/chat/completions",
        lambda request: Answer(headers=[("Content-Type", "text/event-stream")], body=chunks(request)),
    )
    service.prepare({"api": profile(api, allow=["POST /v1/chat/completions"], run_token_prefix="sk-")})
    service.start()
    run = service.open_run()
    key = run.profiles["api"]["api_key"]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{service.port}/p/api/v1", api_key=key, max_retries=0) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Say hello"}], stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == "Hello"
        with pytest.raises(openai.PermissionDeniedError) as caught:
            client.models.list()
    assert caught.value.code == "route-not-granted"
    assert key == "sk-" + run.token
    (request,) = api.received
    assert request.header("authorization") == f"Bearer {CANARY}"


def test_mem0s_platform_has_trailing_slashes_and_the_token_scheme(service, api):
    api.on("POST", "/v3/memories/add/", Answer(body=b'{"results": []}'))
    granted = profile(
        api, allow=["POST /v3/memories/add/"], catalog=["POST /v3/memories/search/"], placement={"scheme": "token"}
    )
    service.prepare({"mem0": granted})
    service.start()
    run = service.open_run("mem0")
    headers = {"Authorization": f"Token {run.token}", "Content-Type": "application/json"}
    body = b'{"messages": [], "user_id": "u"}'
    assert service.http("POST", "/p/mem0/v3/memories/add/", headers=headers, body=body).status == 200
    assert service.http("POST", "/p/mem0/v3/memories/add", headers=headers, body=body).status == 403
    (request,) = api.received
    assert request.header("authorization") == f"Token {CANARY}"


def test_mem0s_own_server_gets_x_api_key_and_no_authorization_at_all(service, api):
    api.on("POST", "/search", Answer(body=b"[]"))
    granted = profile(api, allow=["POST /search"], placement={"scheme": "header", "name": "X-API-Key"})
    service.prepare({"mem0": granted})
    service.start()
    run = service.open_run("mem0")
    for headers in (
        {"X-API-Key": run.token},
        {"Authorization": f"Bearer {run.token}"},
        {"X-API-Key": run.token, "Authorization": f"Bearer {run.token}"},
    ):
        assert service.http("POST", "/p/mem0/search", headers=headers, body=b"{}").status == 200
        assert api.received[-1].header("x-api-key") == CANARY
        assert api.received[-1].header("authorization") is None
        assert run.token not in repr(api.received[-1])


def test_a_query_key_replaces_the_run_token_and_other_pairs_stay(service, api):
    api.on("GET", "/v1/items")
    granted = profile(
        api,
        allow=[{"route": "GET /v1/items", "query": {"page": "int"}}],
        placement={"scheme": "query", "name": "key"},
    )
    service.prepare({"api": granted})
    service.start()
    run = service.open_run()
    assert service.http("GET", f"/p/api/v1/items?key={run.token}&page=2").status == 200
    assert api.received[0].target == f"/v1/items?page=2&key={CANARY}"
    assert service.http("GET", f"/p/api/v1/items?page=2&other={run.token}").status in (400, 401)
    assert len(api.received) == 1
