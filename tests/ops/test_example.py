"""``make example`` writes a page of what really happened: the same each time, and none when a claim does not hold."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ops.demo import DemoError, example, generated, settings
from ops.demo.claims import Claim, Counted
from ops.demo.engine import HOST_FUNCTION
from ops.demo.page import Played, render
from ops.demo.plays import Sixth
from ops.demo.report import Report
from ops.demo.runs import CODE, Ran
from ops.fakes.memory_record import Received
from tests.ops.test_demo import ROOT, environ, folder, left_over

__all__ = ["folder"]

# Two worlds are started one after the other: some twenty seconds, and more on a machine that does much else.
pytestmark = [pytest.mark.flow, pytest.mark.timeout(240)]

REMEMBER, RECALL, GET = (route.replace("*", "0" * 26).partition(" ")[::2] for route in settings.ALLOW)


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ops.demo.example", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environ(folder), capture_output=True, text=True, check=False, timeout=220
    )


def test_the_page_and_the_generated_files_are_what_the_runs_make_of_them(folder):
    done = make(folder, "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "ops/demo/agent-memory.html is current" in done.stdout
    assert done.stdout.count("4 of 4 requests at the API carried the key") == 2
    assert left_over(folder) == []


def test_a_key_left_in_the_clients_is_named_in_both_languages(folder):
    done = make(folder, "--check", "--sabotage", "key-in-client")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the client (LEFT_IN_BY_MISTAKE)" in done.stdout
    assert "globalThis.LEFT_IN_BY_MISTAKE" in done.stdout
    assert "no page was written" in done.stdout
    assert left_over(folder) == []


def test_no_page_is_written_when_a_claim_does_not_hold(tmp_path, monkeypatch):
    claims = [Claim("it is so", holds=True), Claim("this too", holds=True)]
    monkeypatch.setattr(example, "PAGE", tmp_path / "page.html")
    monkeypatch.setattr(example, "ROOT", tmp_path)
    monkeypatch.setattr(generated, "generate", lambda *, check: "")
    monkeypatch.setattr(example, "_play", lambda report, suffix, sabotage: replace(played(suffix), claims=claims))
    assert example._make(Report(), check=False, sabotage="") == 0
    (tmp_path / "page.html").unlink()
    claims[1] = Claim("this too", holds=False)
    assert example._make(Report(), check=False, sabotage="") == 1
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_is_stale_is_named_with_its_differences_and_not_touched(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.html"
    page.write_text("one\ntwo\n")
    monkeypatch.setattr(example, "PAGE", page)
    monkeypatch.setattr(example, "ROOT", tmp_path)
    assert example._publish(Report(), "one\nthree\n", check=True) == 1
    assert "page.html is stale" in (said := capsys.readouterr().out)
    assert "-two" in said
    assert "+three" in said
    assert page.read_text() == "one\ntwo\n"
    assert example._publish(Report(), "one\nthree\n", check=False) == 0
    assert page.read_text() == "one\nthree\n"
    assert example._publish(Report(), "one\nthree\n", check=True) == 0


def test_a_catalog_of_the_operators_that_is_not_the_documents_fails_the_example(monkeypatch):
    generated.generate(check=True)
    monkeypatch.setattr(settings, "CATALOG", settings.CATALOG[:-1])
    with pytest.raises(DemoError, match=r"grants\.json: its catalog is not the document's"):
        generated.generate(check=True)


def test_a_generated_file_that_is_stale_fails_the_example(tmp_path, monkeypatch):
    monkeypatch.setattr(generated, "COMMAND", (*generated.COMMAND[:4], str(tmp_path), *generated.COMMAND[5:]))
    with pytest.raises(DemoError, match=r"client\.py is missing"):
        generated.generate(check=True)


# --- the page ---


def ran(number: int, suffix: str, *calls: tuple[str, str], denied: int = 0, printed: str = "") -> Ran:
    [source] = CODE.glob(f"{number}_*{suffix}")
    routes = dict(zip((REMEMBER, RECALL, GET), settings.ALLOW, strict=True))
    rows = [
        {
            "n": n,
            "route": routes[call],
            "status": 200,
            "delivered": True,
            "bytes_sent": 70 + n,
            "bytes_back": 300,
            "ms": 1,
        }
        for n, call in enumerate(calls, 1)
    ]
    refusals = [{"code": "route-not-granted", "template": "POST /x/*", "count": denied}] if denied else []
    return Ran(
        number=number,
        title=f"the title of {number}",
        source=source,
        run_id="run_x",
        status=0,
        printed=printed,
        trace={"trace": {"rows": rows, "denied": denied, "denied_by": refusals}},
        received=[
            Received(n=n, method=method, target=target, operation="", authenticated="key", status=200)
            for n, (method, target) in enumerate(calls, 1)
        ],
        result={"places": [], "ways": [], "notes": []} if number == 5 else None,
    )


_SEARCHED = {
    ".py": "environment: A, B\nfiles: 12 read\nnote: x\nthe key was found in: nothing\nways: none",
    ".js": "the client: 23 names\nthe key was found in: nothing",
}


def five(suffix: str) -> list[Ran]:
    return [
        ran(1, suffix, REMEMBER, RECALL, GET, printed="stored " + "0" * 26),
        ran(2, suffix, RECALL, printed="1 memory found: The customer wants replies in Spanish."),
        ran(3, suffix, denied=1, printed="the client refused: customer-43"),
        ran(4, suffix, denied=1),
        ran(5, suffix, printed=_SEARCHED[suffix]),
    ]


def played(suffix: str, runs: list[Ran] | None = None) -> Played:
    counted = Counted(
        runs=5, requests=4, with_key=4, refused=2, past=0, places=[], ways=[], leases=Claim("leases", holds=True)
    )
    sixth = Sixth(ran(6, suffix, RECALL), 200, 401) if suffix == ".py" else None
    return Played(runs or five(suffix), counted, [], sixth)


def section(page: str, name: str) -> str:
    found = re.search(rf'<h[23] id="{name}">(.*?)<h[23] id=', page, re.DOTALL)
    assert found
    return found[1]


def test_the_page_tells_the_figures_that_were_counted():
    page = render(played(".py"), played(".js"))
    assert "<b>3 of 14</b>" in page
    assert "<b>8 of 8</b>" in page
    assert "<b>4</b> calls outside the grant" in page
    less = played(".js")
    page = render(played(".py"), replace(less, counted=replace(less.counted, with_key=3, places=["a place"])))
    assert "<b>7 of 8</b>" in page
    assert "<b>1</b> places" in page


def test_the_page_marks_the_three_granted_routes_and_no_other():
    granted = re.findall(
        r'<tr class="granted">.*?<code>(agent_memory_\w+)</code>', render(played(".py"), played(".js"))
    )
    assert granted == ["agent_memory_memory_get", "agent_memory_recall", "agent_memory_remember"]


def test_what_a_run_printed_is_text_on_the_page_whatever_it_says():
    runs = five(".py")
    runs[1] = replace(runs[1], printed="<script>alert(1)</script>")
    page = render(played(".py", runs), played(".js"))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_what_differs_between_the_languages_is_shown_for_each():
    alike = section(render(played(".py"), played(".js")), "run-2")
    assert alike.count("<table>") == 2
    assert "What it printed, in both languages" in alike
    runs = five(".js")
    runs[1] = ran(2, ".js", RECALL, RECALL, printed="something else")
    apart = section(render(played(".py"), played(".js", runs)), "run-2")
    assert apart.count("<table>") == 4
    assert "something else" in apart
    assert "1 memory found" in apart


def test_what_is_different_on_every_machine_is_left_off():
    shown = section(render(played(".py"), played(".js")), "run-5")
    assert "environment: A, B\nfiles: …\nthe key was found in: nothing\nways: none" in shown
    assert "the client: 23 names\nthe key was found in: nothing" in shown
    assert "12 read" not in shown
    assert "run_x" not in shown


def test_the_page_fetches_nothing_and_its_tags_are_balanced():
    page = example.PAGE.read_text()
    for fetched in ("<script", "<link", "<img", "<iframe", "src=", "url(", "@import"):
        assert fetched not in page
    assert not re.search(r"127\.0\.0\.1|localhost|run_[0-9A-Za-z]|/tmp/|brk_", page)
    Balanced().feed(page)


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.opened.append(tag)

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag


# --- the engine ---


def engine(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "client.js").write_text("")
    (tmp_path / "code.js").write_text(code)
    command = [sys.executable, "-m", "ops.demo.engine", str(tmp_path / "client.js"), str(tmp_path / "code.js")]
    return subprocess.run(command, cwd=ROOT, env={}, capture_output=True, text=True, check=False, timeout=60)


def test_the_engine_has_the_host_function_and_nothing_else_of_the_host(tmp_path):
    done = engine(tmp_path, 'print(Object.getOwnPropertyNames(globalThis).join(" "))')
    names = set(done.stdout.split())
    assert {HOST_FUNCTION, "print"} <= names
    assert not names & {
        "std",
        "os",
        "require",
        "process",
        "fetch",
        "scriptArgs",
        "console",
        "setTimeout",
        "Deno",
        "import",
    }


def test_code_that_fills_the_memory_or_fails_ends_with_status_1(tmp_path):
    done = engine(tmp_path, "const held = []; for (let n = 0; n < 100; n += 1) held.push(new ArrayBuffer(1 << 20));")
    assert done.returncode == 1
    assert "out of memory" in done.stderr
    done = engine(tmp_path, 'print("before"); nothing();')
    assert (done.returncode, done.stdout) == (1, "before\n")
    assert "nothing" in done.stderr
