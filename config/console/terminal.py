"""How both programs speak to an operator: data on stdout, messages on stderr.

A table is drawn by rich on a terminal (``NO_COLOR`` is obeyed) and is lines of tab-separated cells under a header
when it is piped; where a terminal is so narrow that the names in many columns would be cut in two, every row is a
block of lines. ``-`` stands for nothing. What a service reports may hold text that others chose (a trace id): no
control character of it reaches the terminal, and nothing in it is read as markup.
"""

from __future__ import annotations

import getpass
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from config.secret import Secret

_program = "minter-broker"

#: What the last column of a drawn table needs at least, and what stands between two columns.
_LAST: Final = 16
_GAP: Final = 3
#: A table of fewer columns stays one and is folded: as blocks it would be several times as long, for little.
_MANY: Final = 6
#: Work that takes longer than so many seconds is shown.
_LONG_S: Final = 1.0


def set_program(name: str) -> None:
    """Set the name that messages start with."""
    global _program  # noqa: PLW0603 - a process is one program
    _program = name


def say(text: str) -> None:
    """Write a message to stderr."""
    sys.stderr.write(f"{_program}: {plain(text)}\n")


def note(text: str) -> None:
    """Write lines of explanation to stderr, as they are."""
    sys.stderr.write("".join(plain(line) + "\n" for line in text.splitlines()))


def out(text: str) -> None:
    """Write a line of data to stdout."""
    sys.stdout.write(plain(text) + "\n")


def out_secret(secret: Secret) -> None:
    """Write a new token to stdout, alone: the one time that it is shown."""
    sys.stdout.write(secret.reveal() + "\n")


def out_json(value: Any) -> None:
    """Write ``value`` to stdout as JSON that people can read too."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=True) + "\n")


def out_json_line(value: Any) -> None:
    """Write ``value`` to stdout as one line of JSON."""
    sys.stdout.write(json.dumps(value, separators=(",", ":"), ensure_ascii=True) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table to stdout."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for line in ([*columns], *cells):
            sys.stdout.write("\t".join(line) + "\n")
        return
    from rich import box  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    # Of every column but the last, which is prose or may break anywhere, what must stay in one piece.
    whole = [max(map(_longest_word, column)) for column in zip(columns, *cells, strict=True)][:-1]
    fits = sum(whole) + _LAST + _GAP * len(whole) <= console.width
    if cells and not fits and len(columns) >= _MANY:
        _blocks(columns, cells)
        return
    drawn = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column, width in zip(columns, [*(whole if fits else [None] * len(whole)), None], strict=True):
        drawn.add_column(column, overflow="fold", min_width=width)
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(drawn)


def pairs(rows: Iterable[tuple[str, Any]]) -> None:
    """Write ``name: value`` lines to stdout, aligned on a terminal."""
    listed = [(name, _cell(value)) for name, value in rows]
    width = max((len(name) for name, _ in listed), default=0) if sys.stdout.isatty() else 0
    for name, value in listed:
        sys.stdout.write(f"{name + ':':<{width + 1}} {value}\n")


@contextmanager
def waiting(text: str, seconds: float) -> Iterator[Callable[[float], None]]:
    """Show on stderr, if it is a terminal, how much of ``seconds`` has passed; yield what tells it."""
    if not sys.stderr.isatty():
        yield lambda _passed: None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(plain(text), total=max(seconds, 1.0))
        yield lambda passed: progress.update(task, completed=passed)


@contextmanager
def counting(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr, if it is a terminal, that work is under way once it takes a second; yield what tells how far."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

    what = TextColumn("{task.description}", markup=False)
    far = TextColumn("{task.fields[far]}", markup=False)
    progress = Progress(SpinnerColumn(), what, BarColumn(), far, console=Console(stderr=True), transient=True)
    task = progress.add_task(plain(text), total=None, far="")
    late = threading.Timer(_LONG_S, progress.start)
    late.start()
    try:
        yield lambda done, total: progress.update(task, completed=done, total=total, far=f"{done}/{total}")
    finally:
        late.cancel()
        late.join()
        progress.stop()


def ask_secret(what: str) -> Secret:
    """Read a secret from stdin: without echo at a terminal, else the whole of it, less one trailing line break."""
    value = getpass.getpass(f"{what}: ") if sys.stdin.isatty() else sys.stdin.read()
    for ending in ("\r\n", "\n"):
        if value.endswith(ending):
            value = value.removesuffix(ending)
            break
    return Secret(value)


def ask(what: str) -> str:
    """Ask for a line at a terminal."""
    sys.stderr.write(plain(what) + ": ")
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def instant(seconds: float | str | None) -> str:
    """Write an instant for people: UTC, whole seconds. Wire texts (RFC 3339) pass as they are."""
    if seconds is None or seconds == "":
        return ""
    if isinstance(seconds, str):
        return seconds
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def count(number: int, noun: str) -> str:
    """Write a number with its noun: ``1 run``, ``2 runs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def plain(text: str) -> str:
    """Return ``text`` with every control character spelt out."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a row as lines of its own, so that an id can be copied whole."""
    width = max(map(len, columns))
    blocks = ["".join(f"{name:<{width}}  {cell}\n" for name, cell in zip(columns, row, strict=True)) for row in rows]
    sys.stdout.write("\n".join(blocks))


def _longest_word(cell: str) -> int:
    return max(map(len, cell.split()), default=0)


def _cell(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{_cell(name)}: {_cell(item)}" for name, item in value.items())
    return plain(str(value))
