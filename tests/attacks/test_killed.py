"""Both programs killed under load: what was promised before the kill holds after it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import random
import signal
import threading
from collections import Counter

import pytest

from tests.attacks.house import serving

pytestmark = pytest.mark.flow

#: How a call or a request may fail while a program is away.
AWAY = (OSError, http.client.HTTPException)


class Load:
    """Threads that open, use and end runs, and note what they were told."""

    def __init__(self, house):
        self.house = house
        self.runs = {}
        self.told_ended = set()
        self.perhaps_ended = set()
        self.unexpected = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(seed,)) for seed in range(2)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, seed):
        choose = random.Random(seed)  # noqa: S311 - chooses what to try, guards nothing
        mine = []
        while not self._stop.is_set():
            with contextlib.suppress(AWAY):
                kind = choose.random()
                if kind < 0.05 or not mine:
                    self._open(mine)
                elif kind < 0.08:
                    self._end(mine.pop(choose.randrange(len(mine))))
                else:
                    self._call(choose.choice(mine))

    def _open(self, mine):
        reply = self.house.caller("POST", "/v1/runs", {"profile": "api"})
        if reply.status == 201:
            run = (reply.json["run_id"], reply.json["run_token"])
            self.runs[run[0]] = run[1]
            mine.append(run)

    def _end(self, run):
        self.perhaps_ended.add(run[0])
        if self.house.caller("DELETE", f"/v1/runs/{run[0]}").status == 200:
            self.told_ended.add(run[0])

    def _call(self, run):
        reply = self.call(*run)
        if reply.status not in (200, 503) and reply.json["code"] != "budget-exhausted":
            self.unexpected.append((reply.status, reply.body))

    def call(self, run_id, token):
        # The path names the run, so that the API can say how many calls of each have reached it.
        return self.house.http("GET", f"/p/api/v1/items/{run_id}", headers={"Authorization": f"Bearer {token}"})


def test_no_run_is_lost_no_end_undone_and_no_budget_widened_by_kills_under_load(tmp_path, upstream):
    upstream.forget()
    profiles = {"api": {"base_url": upstream.origin, "allow": ["GET /v1/items/*"], "max_calls": 40}}
    with serving(tmp_path, profiles, broker_extra="max_runs = 10000") as house:
        with Load(house) as load:
            for programs in (["broker"], ["minter"], ["broker", "minter"]):
                seen = len(upstream.requests)
                house.until(lambda seen=seen: len(upstream.requests) > seen + 20, "calls are made")
                for program in programs:
                    house.stop(program, signal.SIGKILL)
                house.start(*reversed(programs))
        assert load.unexpected == []
        assert load.told_ended
        house.until(lambda: house.http("GET", "/readyz").status == 200, "the broker is ready")
        for run_id, token in load.runs.items():
            if run_id in load.told_ended:
                assert load.call(run_id, token).json["code"] == "run-token-invalid"
            elif run_id not in load.perhaps_ended:
                reply = load.call(run_id, token)
                assert reply.status == 200 or reply.json["code"] == "budget-exhausted", reply.body
        assert max(Counter(request.target for request in upstream.requests).values()) <= 40
        house.run("minter", "audit", "verify")
        house.until(
            lambda: not [lease for lease in house.leases() if lease["run_id"] in load.told_ended], "leases ended"
        )
        live = Counter(lease["run_id"] for lease in house.leases())
        assert max(live.values(), default=0) <= 1


def test_what_outlasts_the_drain_is_cut_and_the_broker_ends_with_0(tmp_path, upstream):
    async def never(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nok\n\r\n")
        await writer.drain()
        await asyncio.Event().wait()

    upstream.forget()
    upstream.answers(never)
    profiles = {"api": {"base_url": upstream.origin, "allow": ["GET /v1/items"]}}
    with serving(tmp_path, profiles, broker_extra="drain = 0.5") as house:
        run = house.open_run()
        with house.stream(run, "/v1/items") as stream:
            assert stream.read1() == b"ok\n"
            assert house.stop("broker") == 0
            with pytest.raises(http.client.IncompleteRead):
                stream.read()
        upstream.forget()
        house.start("broker")
        assert house.call(run, "GET", "/v1/items").status == 200
        assert [row["status"] for row in house.trace(run)["trace"]["rows"]] == [200, 200]
