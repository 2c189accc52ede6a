"""The demo's totals are counted from what happened: whatever goes wrong makes its claim false and says what."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ops.demo import claims, settings
from ops.demo.maker import KEY_MARK
from ops.demo.needle import KEY, Needle
from ops.demo.report import Report
from ops.demo.runs import CODE, Ran
from ops.fakes.memory_record import Received

ROOT = Path(__file__).parents[2]
SECRET = KEY_MARK + "a" * 43
CREDENTIAL = "mbk_" + "c" * 49
REMEMBER, RECALL, GET = (route.replace("*", "0" * 26).partition(" ")[::2] for route in settings.ALLOW)


def request(method: str, target: str, *, authenticated: str = "key") -> Received:
    return Received(n=1, method=method, target=target, operation="", authenticated=authenticated, status=200)


def ran(number: int, *calls: Received, denied: int = 0, printed: str = "", status: int = 0, result=None) -> Ran:
    rows = [{"n": n, "delivered": True} for n, _ in enumerate(calls)]
    return Ran(
        number=number,
        title="",
        source=CODE,
        run_id="run_x",
        status=status,
        printed=printed,
        trace={"trace": {"rows": rows, "denied": denied, "denied_by": []}},
        received=list(calls),
        result=result,
    )


FIVE = [
    ran(1, request(*REMEMBER), request(*RECALL), request(*GET)),
    ran(2, request(*RECALL)),
    ran(3, denied=1),
    ran(4, denied=1),
    ran(5, result={"places": [], "ways": [], "notes": []}),
]
AUDIT = [
    {"code": "lease.minted"},
    {"code": "lease.revoked", "how": "key_still_valid"},
    {"code": "lease.minted"},
    {"code": "lease.expired", "how": "key_still_valid"},
]


class World:
    """What the claims look at: a folder, the needles, the audit log."""

    def __init__(self, folder: Path, needles: list[Needle]) -> None:
        self.folder = folder
        self.needles = needles
        self.log = list(AUDIT)

    def audited(self) -> list[dict[str, str]]:
        return self.log


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "until", lambda condition: condition())
    for name in ("logs", "minter", "broker", "api", "run"):
        (tmp_path / name).mkdir()
    needles = [
        Needle(KEY, KEY_MARK, len(SECRET), hashlib.sha256(SECRET.encode()).hexdigest()),
        Needle("the broker's credential", "mbk_", len(CREDENTIAL), hashlib.sha256(CREDENTIAL.encode()).hexdigest()),
    ]
    return World(tmp_path, needles)


def counted(world, five=FIVE) -> dict[str, bool]:
    return {claim.text: claim.holds for claim in claims.totals(claims.count(world, five))}


def test_what_should_happen_is_said_in_these_words_and_holds(world):
    assert counted(world) == {
        "3 of 14 routes granted": True,
        "5 runs": True,
        "4 of 4 requests at the API carried the key": True,
        "2 calls refused by the broker; none reached the API": True,
        "key found in 0 places": True,
        "0 ways to obtain the key": True,
        "2 leases minted, 2 ended (key_still_valid)": True,
    }


def test_a_request_without_the_key_is_counted(world):
    five = [*FIVE[:1], ran(2, request(*RECALL, authenticated="none")), *FIVE[2:]]
    assert counted(world, five)["3 of 4 requests at the API carried the key"] is False


@pytest.mark.parametrize(
    "past",
    [
        request("DELETE", settings.ALLOW[0].partition(" ")[2]),
        request("POST", RECALL[1].replace("customer-42", "customer-43")),
        request("GET", GET[1] + "/x"),
    ],
)
def test_a_refused_call_that_reached_the_api_is_counted(world, past):
    sneaked = ran(3, past, denied=1)
    assert counted(world, [*FIVE[:2], sneaked, *FIVE[3:]])["2 calls refused by the broker; 1 reached the API"] is False


def test_a_request_that_no_trace_knows_is_counted(world):
    unknown = ran(3, denied=1)
    unknown.received.append(request(*RECALL))
    assert counted(world, [*FIVE[:2], unknown, *FIVE[3:]])["2 calls refused by the broker; 1 reached the API"] is False


def test_a_lease_that_has_not_ended_is_counted_and_how_the_others_did_is_said(world):
    world.log = [*AUDIT, {"code": "lease.minted"}, {"code": "lease.revoked", "how": "expired_only"}]
    text = "3 leases minted, 3 ended (2 key_still_valid, 1 expired_only)"
    assert counted(world)[text] is False
    world.log = AUDIT[:3]
    assert counted(world)["2 leases minted, 1 ended (key_still_valid)"] is False


def test_the_key_in_any_file_or_output_is_a_place(world):
    (world.folder / "logs" / "broker.log").write_text(f"Authorization: Bearer {SECRET}")
    five = [ran(1, *FIVE[0].received, printed=SECRET), *FIVE[1:]]
    found = next(claim for claim in claims.totals(claims.count(world, five)) if claim.text == "key found in 2 places")
    assert not found.holds
    assert found.why == ["what run 1 printed", f"the file {world.folder / 'logs' / 'broker.log'}"]


def test_what_the_search_named_counts_once_and_a_credential_in_a_log_is_a_way(world):
    result = {"places": ["the client (X)"], "ways": ["a way"], "notes": []}
    (world.folder / "logs" / "minter.log").write_text(CREDENTIAL)
    texts = counted(world, [*FIVE[:4], ran(5, result=result)])
    assert texts["key found in 1 place"] is False
    assert texts["2 ways to obtain the key"] is False


def test_four_runs_are_not_five(world):
    assert counted(world, FIVE[:4])["4 runs"] is False


SPANISH = "The customer wants replies in Spanish."
REFUSED = "the client refused: not allowed, nothing was sent: x\nthe broker answered: 403 route-not-granted"


@pytest.mark.parametrize(
    ("told", "holds"),
    [
        (ran(2, printed=f"left over from the first run: nothing\n1 memory found: {SPANISH}"), True),
        (ran(2, printed=f"left over from the first run: 01J\n1 memory found: {SPANISH}"), False),
        (ran(2, printed="left over from the first run: nothing\n0 memory found: "), False),
        (ran(3, printed=REFUSED, denied=1), True),
        (ran(3, printed=REFUSED), False),
        (ran(3, printed="the client answered: x\nthe broker answered: 200 x", denied=1), False),
        (ran(6, printed=f"recalled: {SPANISH}"), True),
        (ran(6, printed=f"recalled: {SPANISH}", status=1), False),
    ],
)
def test_a_run_that_did_not_go_as_its_title_says_is_named(told, holds):
    assert claims.story(told).holds is holds


@pytest.mark.parametrize("client", ["client.py", "client.js"])
def test_the_grant_and_each_clients_copy_of_it_are_the_same(client):
    [table] = re.findall(r'TABLE = ("(?:[^"\\]|\\.)*")', (settings.FOLDER / client).read_text())
    assert tuple(json.loads(json.loads(table))["allow"]) == settings.ALLOW


def test_the_report_is_in_colour_on_a_terminal_and_plain_in_a_pipe():
    program = "from ops.demo.report import Report; Report().progress('ready\\x1b[31m')"
    piped = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert piped.stdout == "ready�[31m\n"
    terminal, end = pty.openpty()
    environ = {"TERM": "xterm-256color", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environ, stdout=end, check=True)
    os.close(end)
    shown = os.read(terminal, 65536)
    os.close(terminal)
    assert b"\x1b[2mready" in shown
    assert b"\x1b[31m" not in shown


def test_the_code_of_a_run_is_indented_alike_on_a_terminal_and_in_a_pipe(capsys, monkeypatch):
    texts = []
    for forced in ("0", "1"):
        monkeypatch.setenv("TTY_COMPATIBLE", forced)
        monkeypatch.setenv("COLUMNS", "160")
        Report().run(replace(ran(1), source=ROOT / "ops/demo/code/1_store_recall_read.py"))
        texts.append([line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()])
    assert texts[0] == texts[1]
    assert "    from client import memory" in texts[0]
