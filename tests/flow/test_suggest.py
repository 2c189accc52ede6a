"""``broker specgen suggest``, from what real runs did."""

from __future__ import annotations

import json
import stat

import pytest

from tests.flow.test_main_job import profile
from tests.worlds.api import Answer

pytestmark = pytest.mark.flow

ALLOW = ["GET /v1/customers/*/items/*", "DELETE /v1/customers/*/items/*", "GET /v1/customers/*"]


def test_a_grant_is_narrowed_to_what_its_runs_used(service, api):
    api.otherwise = lambda _request: Answer()
    service.prepare({"api": profile(api, allow=ALLOW, catalog=["PUT /v1/customers/*"], learn=True)})
    service.start()
    runs = [service.open_run(), service.open_run()]
    for run, item in zip(runs, "12", strict=True):
        assert service.call(run, "GET", f"/v1/customers/acme/items/{item}").status == 200
        assert service.call(run, "GET", "/v1/customers/acme").status == 200
        assert service.call(run, "PUT", "/v1/customers/acme").status == 403
    service.caller("DELETE", f"/v1/runs/{runs[0].run_id}")
    named = [word for run in runs for word in ("--run", run.run_id)]
    told = service.run("broker", "specgen", "suggest", *named)
    assert json.loads(told.stdout) == ["GET /v1/customers/*/items/*", "GET /v1/customers/*"]
    assert "unused  DELETE /v1/customers/*/items/*" in told.stderr.decode()
    assert "refused 2 times: route-not-granted, PUT /v1/customers/*" in told.stderr.decode()
    narrowed = service.run("broker", "specgen", "suggest", *named, "--literals")
    assert json.loads(narrowed.stdout) == ["GET /v1/customers/acme/items/*", "GET /v1/customers/acme"]
    whole = json.loads(service.run("broker", "specgen", "suggest", *named, "--json").stdout)
    assert whole["one_value"] == [
        {"route": "GET /v1/customers/*/items/*", "segment": 3, "value": "acme"},
        {"route": "GET /v1/customers/*", "segment": 3, "value": "acme"},
    ]
    assert b"profiles.api.learn" in service.run("broker", "doctor", check=False).stdout
    # The values stand in their own file and nowhere else.
    learned = service.root / "state" / "learned.json"
    service.until(learned.exists, "what was learnt is written")
    assert "acme" in learned.read_text()
    assert stat.S_IMODE(learned.stat().st_mode) == 0o600
    assert "acme" not in service.log("broker") + service.log("minter")
    files = [path for path in service.root.rglob("*") if path.is_file()]
    assert [path for path in files if b"acme" in path.read_bytes()] == [learned]
    for run in runs:
        assert b"acme" not in service.caller("GET", f"/v1/runs/{run.run_id}").body
    assert service.run("broker", "specgen", "suggest", "--run", "run_unknown", check=False).returncode == 2
