"""A grants file that changes while runs are open: narrower at once, wider never, elsewhere not at all."""

from __future__ import annotations

import http.client
import threading

import pytest

from tests.flow.test_main_job import profile
from tests.worlds.api import Answer, Api

pytestmark = pytest.mark.flow


@pytest.fixture
def started(service, api):
    for path in ("/v1/items", "/v1/items/7"):
        api.on("GET", path)
    service.prepare({"api": profile(api)})
    service.start()
    return service


def reload(service, profiles):
    service.grant(profiles)
    service.reload("minter")
    service.reload("broker")


def test_a_route_that_is_taken_away_is_refused_in_the_middle_of_a_run(started, api):
    run = started.open_run()
    assert started.call(run, "GET", "/v1/items/7").status == 200
    reload(started, {"api": profile(api, allow=["GET /v1/items"])})
    assert started.call(run, "GET", "/v1/items/7").status == 403
    assert started.call(run, "GET", "/v1/items").status == 200


def test_a_route_that_is_added_is_for_later_runs_only(started, api):
    api.on("GET", "/v1/more")
    run = started.open_run()
    reload(started, {"api": profile(api, allow=["GET /v1/items", "GET /v1/more"])})
    assert started.call(run, "GET", "/v1/more").status == 403
    assert started.call(run, "GET", "/v1/items").status == 200
    assert started.call(started.open_run(), "GET", "/v1/more").status == 200


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"allow": ["GET /v1/items"]}), ({"scrub": "off"}, {"scrub": "mask"})],
    ids=["its route is taken away", "its answer must be scrubbed"],
)
def test_an_open_stream_that_the_new_grants_do_not_take_is_cut(started, api, before, after):
    reload(started, {"api": profile(api, **before)})
    go_on = threading.Event()

    def slowly():
        yield b"first\n"
        go_on.wait(20)
        yield b"second\n"

    api.on("GET", "/v1/items/7", lambda _request: Answer(body=slowly()))
    run = started.open_run()
    try:
        with started.stream(run, "/v1/items/7") as stream:
            assert stream.read1() == b"first\n"
            reload(started, {"api": profile(api, **after)})
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):  # by timing
                stream.read()
    finally:
        go_on.set()


@pytest.mark.parametrize("change", ["placement", "token", "gone"])
def test_a_swapped_placement_or_token_ends_the_run(started, api, change):
    run = started.open_run()
    assert started.call(run, "GET", "/v1/items").status == 200
    changed = {
        "placement": {"api": profile(api, placement={"scheme": "header", "name": "X-API-Key"})},
        "token": {"api": profile(api, token={"type": "jwt", "key": "signer", "audience": api.origin})},
        "gone": {"other": profile(api)},
    }[change]
    reload(started, changed)
    reply = started.call(run, "GET", "/v1/items")
    assert reply.status in (401, 403), reply.body
    assert len(api.received) == 1


def test_a_secret_is_not_moved_to_another_origin_until_an_operator_says_so(started, api):
    run = started.open_run()
    assert started.call(run, "GET", "/v1/items").status == 200
    with Api() as elsewhere:
        elsewhere.on("GET", "/v1/items")
        reload(started, {"api": profile(elsewhere)})
        assert "origin" in started.log("minter")
        # The minter kept the old grants: the broker's new one is not its own, so no credential is given.
        other = started.open_run()
        reply = started.call(other, "GET", "/v1/items")
        assert reply.status == 503, reply.body
        assert elsewhere.received == []
        started.run("minter", "keys", "rebind", "api", "--origin", elsewhere.origin)
        started.reload("minter")
        started.until(lambda: started.call(other, "GET", "/v1/items").status == 200, "the key serves its new origin")
        assert len(elsewhere.received) == 1


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_a_reload_with_faults_keeps_what_was_there_and_names_them(started, program):
    run = started.open_run()
    started.grant({"api": {"base_url": "https://x.example", "alow": []}})
    started.reload(program)
    assert "alow" in started.log(program)
    assert started.call(run, "GET", "/v1/items").status == 200


def test_a_revoked_caller_is_refused_without_a_restart(started):
    started.run("broker", "callers", "revoke", "support-agent", "--file", "callers.json")
    started.until(lambda: started.caller("GET", "/v1/runs").status == 401, "the caller is refused")


def test_a_rotated_caller_token_works_beside_the_old_one_during_the_overlap(started):
    new = started.run(
        "broker", "callers", "rotate", "support-agent", "--overlap", "1h", "--file", "callers.json"
    ).stdout
    started.until(lambda: started.caller("GET", "/v1/runs", token=new.decode().strip()).status == 200, "the new token")
    assert started.caller("GET", "/v1/runs").status == 200
