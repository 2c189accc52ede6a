from __future__ import annotations

import io
import os
import pty
import sys
import threading
from contextlib import contextmanager

import pytest

from config.console import terminal
from config.secret import Secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("Zürich", "Zürich"),
    ],
)
def test_no_control_character_of_others_reaches_the_terminal(text, shown, capsys):
    terminal.out(text)
    terminal.say(text)
    terminal.table(("A",), [(text,)])
    captured = capsys.readouterr()
    assert captured.out == f"{shown}\nA\n{shown}\n"
    assert captured.err == f"minter-broker: {shown}\n"


def test_a_piped_table_is_tab_separated_and_marks_what_is_empty(capsys):
    terminal.table(("A", "B", "C", "D"), [(1, None, ["x", "y"], {}), (True, "", "a\tb", {"k": 2})])
    assert capsys.readouterr().out == "A\tB\tC\tD\n1\t-\tx, y\t-\nyes\t-\ta\\tb\tk: 2\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_looks_like_markup_is_shown_as_it_is(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", "100")
    terminal.table(("A",), [("[red]x[/red]",)])
    assert "[red]x[/red]" in screen.getvalue()


def drawn(monkeypatch, width, *table):
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    terminal.table(*table)
    return screen.getvalue()


def test_a_name_is_whole_on_a_narrow_terminal_and_only_the_last_column_is_folded(monkeypatch):
    lease, place = "lse_tFvsL2QEq3lwCwSan94ia3", "file:/var/lib/minter/signer.pem"
    wide = drawn(monkeypatch, 80, ("LEASE", "PLACE", "WHAT"), [(lease, place, "many words " * 9)])
    assert lease in wide
    assert place in wide
    assert len(wide.splitlines()) > 4
    columns = ("LEASE", "PLACE", "A", "B", "C", "WHAT")
    narrow = drawn(monkeypatch, 60, columns, [(lease, place, 1, 2, 3, "a b"), (1, None, 4, 5, 6, "c")])
    first, _, second = narrow.partition("\n\n")
    assert first == f"LEASE  {lease}\nPLACE  {place}\nA      1\nB      2\nC      3\nWHAT   a b"
    assert second == "LEASE  1\nPLACE  -\nA      4\nB      5\nC      6\nWHAT   c\n"


def test_a_narrow_table_of_few_columns_is_folded(monkeypatch):
    narrow = drawn(monkeypatch, 30, ("WHERE", "WHAT"), [("/var/lib/minter/state/minter.db", "is there")])
    assert "─" in narrow
    assert "/var/lib/minter" in narrow
    assert "/var/lib/minter/state/minter.db" not in narrow


def test_an_empty_table_is_its_header(monkeypatch):
    for width in (60, 20):
        assert "LEASE" in drawn(monkeypatch, width, ("LEASE", "PLACE"), [])


@pytest.mark.parametrize(
    ("given", "read"),
    [("value\n", "value"), ("value\r\n", "value"), ("va\nlue\n\n", "va\nlue\n"), ("value", "value"), ("", "")],
)
def test_a_secret_from_a_pipe_loses_one_line_break(monkeypatch, given, read):
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    secret = terminal.ask_secret("New value")
    assert isinstance(secret, Secret)
    assert secret.reveal() == read


def test_counts_are_plain_english():
    assert [terminal.count(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


@contextmanager
def screen(monkeypatch):
    """Make standard error a terminal; yield the end that shows what is written. In the test: a capture is a phase's."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        patched.setenv("TERM", "xterm")
        yield ours
    os.close(ours)


def test_work_that_takes_long_shows_how_far_it_is(monkeypatch):
    monkeypatch.setattr(terminal, "_LONG_S", 0.0)
    with screen(monkeypatch) as shows, terminal.counting("pets\x1b[31m.json") as tell:
        tell(3, 12)
        shown = b""
        while b"3/12" not in shown:
            shown += os.read(shows, 65536)
    assert rb"pets\x1b" in shown


def test_work_that_is_done_at_once_shows_nothing(monkeypatch):
    with screen(monkeypatch) as shows:
        with terminal.counting("pets.json") as tell:
            tell(12, 12)
        sys.stderr.write("end")
        sys.stderr.flush()
        assert os.read(shows, 65536) == b"end"


def test_work_that_fails_leaves_no_display_behind(monkeypatch):
    monkeypatch.setattr(terminal, "_LONG_S", 0.0)
    before = set(threading.enumerate())

    def work(shows):
        with terminal.counting("pets.json"):
            assert os.read(shows, 1)
            raise ValueError

    with screen(monkeypatch) as shows, pytest.raises(ValueError):
        work(shows)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)  # what draws is told to end, and not waited for
        assert not thread.is_alive()


def test_without_a_terminal_progress_is_not_shown(capsys):
    with terminal.counting("pets.json") as tell:
        tell(1, 2)
    assert capsys.readouterr().err == ""
