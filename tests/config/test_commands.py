from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from config.console.commands import AnswerError
from tests.worlds.console import Console

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def console(tmp_path):
    return Console(tmp_path)


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_help_lists_every_command_and_imports_nothing_heavy(program):
    code = (
        "import sys\n"
        f"sys.argv = ['{program}', '--help']\n"
        f"from {program}.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'aiohttp', 'sqlalchemy', 'starlette', 'uvicorn', 'cryptography', 'jsonschema', 'structlog'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "doctor" in done.stdout


@pytest.mark.parametrize("program", ["minter", "broker"])
@pytest.mark.parametrize("arguments", [("relaod",), ("reload", "--nonsense"), ("init",), ()])
def test_a_usage_error_ends_with_two_and_says_so_on_stderr(console, program, arguments):
    done = console(program, *arguments)
    assert (done.status, done.out) == (2, "")
    assert "Usage:" in done.err


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_the_list_of_commands_says_each_in_a_whole_sentence(program, console):
    named = re.findall(r'^    "([a-z-]+)": \(', (ROOT / program / "cli/__init__.py").read_text(), re.MULTILINE)
    assert "doctor" in named
    for arguments in ((), *((name,) for name in named)):
        shown = console(program, *arguments, "--help")
        assert shown.status == 0
        _, _, commands = shown.out.partition("Commands:\n")
        assert "..." not in commands, arguments
        # What the text calls DIRECTORY is called that in the usage line as well.
        assert not re.search(r"[{\[][a-z]+[}\]]", shown.out.splitlines()[0]), arguments


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_does_not_load(console):
    (console.root / "grants.json").write_text("{}")
    (console.root / "grants.json").chmod(0)
    done = console("broker", "check", "grants.json")
    assert (done.status, "cannot be read: Permission denied" in done.err) == (3, True)


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (
            {"code": "run-not-found", "title": "There is no run", "detail": "Look."},
            "There is no run: Look. [run-not-found]",
        ),
        (
            {"code": "body-malformed", "title": "The body is not right", "detail": "the value is empty"},
            "the value is empty [body-malformed]",
        ),
        (
            {"code": "reload-refused", "title": "It does not load", "detail": "x: y", "faults": ["x: y"]},
            "It does not load [reload-refused]",
        ),
        ({}, "refused:  [unknown]"),
    ],
)
def test_what_a_service_refused_is_said_once_and_in_the_words_of_a_command(problem, said):
    assert AnswerError(problem, 400).what == said


def test_a_misspelt_command_is_met_with_a_guess(console):
    assert "Did you mean 'reload'?" in console("minter", "relaod").err


@pytest.mark.parametrize("program", ["minter", "broker"])
def test_the_version_is_printed_alone(console, program):
    done = console(program, "--version")
    assert done.status == 0
    assert done.out.startswith(f"{program} ")


@pytest.mark.parametrize(
    ("program", "commands"),
    [
        ("minter", "init serve rotate brokers keys leases audit custody kinds doctor reload"),
        ("broker", "init serve check explain callers runs exec doctor reload"),
    ],
)
def test_every_command_is_there_and_explains_itself(console, program, commands):
    for command in commands.split():
        done = console(program, command, "--help")
        assert done.status == 0, (command, done.err)
        assert done.out.startswith(f"Usage: {program} {command}")


def test_settings_that_do_not_load_end_with_three_and_every_fault_on_a_line(console):
    (console.root / "minter.toml").write_text('auditt = "x"\nlisten = 3\ndrain = "soon"\n')
    done = console("minter", "brokers", "list")
    assert (done.status, done.out) == (3, "")
    assert "did you mean audit?" in done.err
    assert "listen" in done.err


def test_a_mistake_of_ours_ends_with_one_and_shows_no_value(console, tmp_path):
    code = (
        "import sys, types, typer\n"
        "module = types.ModuleType('broken'); module.app = typer.Typer()\n"
        "@module.app.command()\n"
        "def go() -> None: raise RuntimeError('sekret-CANARY')\n"
        "sys.modules['broken'] = module; sys.argv = ['minter', 'go']\n"
        "from config.console import commands\n"
        "commands.run('minter', 'x', {'go': ('broken', 'x')})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "RuntimeError" in done.stderr
    assert "minter: unexpected" in done.stderr


@pytest.mark.parametrize(("place", "said"), [("/dev/full", "broker: No space left on device\n"), ("pipe", "")])
@pytest.mark.parametrize("asked", [("--json",), ("--emit", "client.js")])
def test_what_cannot_be_written_to_stdout_ends_with_one_and_no_traceback(tmp_path, place, said, asked):
    document = ROOT / "ops/demo/agent-memory.openapi.json"
    if place == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(place, os.O_WRONLY)
    try:
        done = subprocess.run(
            [Path(sys.executable).parent / "broker", "specgen", document, *asked],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, said)
