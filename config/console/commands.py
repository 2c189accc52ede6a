"""How the command lines of both programs are built, and how a command ends.

``minter`` and ``broker`` are groups of commands of which only the one that was asked for is imported: help and
usage errors answer at once, however much a command needs. What a command raises becomes a message on stderr and one
of the exit statuses of :class:`config.errors.ExitCode`; nothing prints a traceback's values, which may be secret.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Final, NoReturn
from urllib.parse import quote

import typer
from typer.core import TyperCommand, TyperGroup

from config.console import terminal
from config.errors import ConfigurationError, ExitCode
from config.problems import ProblemError


class CommandError(Exception):
    """A command that cannot do what it was asked for. ``hint`` says what to do next."""

    def __init__(self, status: int, what: str, hint: str = "") -> None:
        self.status = status
        self.what = what
        self.hint = hint
        super().__init__(what)


class AnswerError(CommandError):
    """A running service refused. ``lines`` are the faults that it named, when it named some."""

    def __init__(self, problem: Mapping[str, Any], status: int) -> None:
        code = str(problem.get("code", "unknown"))
        title, detail = problem.get("title", "refused"), problem.get("detail", "")
        faults = problem.get("faults")
        self.lines = tuple(map(str, faults)) if isinstance(faults, list) else ()
        said = f"{title}: {detail}"
        if self.lines:
            said = title
        elif code in _ABOUT_THE_WIRE and detail:
            said = detail
        super().__init__(problem_status(code, status), f"{said} [{code}]")


class UnreachableError(CommandError):
    """The running service that a command speaks to does not answer."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(ExitCode.TRY_AGAIN, what, hint)


#: Problems whose title speaks of HTTP, which whoever gives a command did not write.
_ABOUT_THE_WIRE: Final = frozenset({"body-malformed", "parameter-unknown"})

#: Problems of a service whose status alone would give another exit status.
_BY_CODE: Final[Mapping[str, int]] = {
    "reload-refused": ExitCode.CONFIGURATION,
    "secret-unavailable": ExitCode.UPSTREAM,
    "issuer-failed": ExitCode.UPSTREAM,
    "method-not-supported": ExitCode.UNEXPECTED,
}

_BY_STATUS: Final[Mapping[int, int]] = {
    400: ExitCode.USAGE,
    401: ExitCode.REFUSED,
    403: ExitCode.REFUSED,
    404: ExitCode.USAGE,
    409: ExitCode.CONFLICT,
    422: ExitCode.REFUSED,
    429: ExitCode.TRY_AGAIN,
    502: ExitCode.UPSTREAM,
    503: ExitCode.TRY_AGAIN,
    504: ExitCode.UPSTREAM,
}


def problem_status(code: str, status: int) -> int:
    """Return the exit status for a problem that a service answered with.

    An id or alias that does not exist is the mistake of whoever typed it (2); a refusal is 5; what may pass is 75.
    """
    return _BY_CODE.get(code, _BY_STATUS.get(status, ExitCode.UNEXPECTED))


def answered(status: int, body: bytes, *, by: str) -> Any:
    """Return the JSON that a running service answered with.

    Errors: :class:`AnswerError` when it refused; ``CommandError`` when that is not JSON.
    """
    try:
        document = json.loads(body) if body else None
    except ValueError:
        raise CommandError(ExitCode.UNEXPECTED, f"the {by} answered {status} and no JSON") from None
    if status < 400:  # noqa: PLR2004 - HTTP
        return document
    raise AnswerError(document if isinstance(document, dict) else {}, status)


def in_path(name: str) -> str:
    """Return an id or alias as one segment of a path, whatever was typed."""
    return quote(name, safe="")


def group(help_: str) -> typer.Typer:
    """Return an empty command or group of commands in the house style."""
    return typer.Typer(
        help=help_,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def run(name: str, summary: str, commands: Mapping[str, tuple[str, str]]) -> NoReturn:
    """Run the program ``name`` on the command line and exit.

    ``commands`` maps a command's name to (the module whose ``app`` it is, one line of help).
    """

    class Group(_LazyGroup):
        known = commands

    app = typer.Typer(
        cls=Group,
        help=summary,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        rich_markup_mode=None,
    )

    def show_version(*, value: bool) -> None:
        if value:
            metadata = importlib.import_module("importlib.metadata")  # slow, and needed for this only
            terminal.out(f"{name} {metadata.version('minter-broker')}")
            raise typer.Exit

    @app.callback(help=summary)
    def _program(
        *,
        version: bool = typer.Option(
            False, "--version", is_eager=True, callback=show_version, help="Print the version and exit."
        ),
    ) -> None:
        del version

    terminal.set_program(name)
    try:
        _run(typer.main.get_command(app), name)
    except Exception as error:  # noqa: BLE001 - the last door: everything gets its status here
        sys.exit(_ended(error))
    sys.exit(ExitCode.OK)


def _run(program: Any, name: str) -> None:
    """Run the program and send off what it wrote: later, that it cannot be written would be nobody's to say."""
    try:
        program(prog_name=name)
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            # What is left would be tried again when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno != errno.EPIPE:
                raise
            sys.exit(ExitCode.UNEXPECTED)  # whoever read has gone, and needs no message


def _ended(error: Exception) -> int:
    """Say what went wrong and return the exit status."""
    if isinstance(error, ConfigurationError):
        for fault in error.faults:
            terminal.say(str(fault))
        return ExitCode.CONFIGURATION
    if isinstance(error, CommandError):
        for line in error.lines if isinstance(error, AnswerError) else ():
            terminal.say(line)
        terminal.say(error.what)
        if error.hint:
            terminal.say(error.hint)
        return error.status
    if isinstance(error, ProblemError):
        terminal.say(f"{error.problem.title}: {error.detail} [{error.code}]")
        return problem_status(error.code, error.status)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        terminal.say(str(error.strerror))
        return ExitCode.UNEXPECTED
    # A mistake of ours. Its text may quote what it choked on, so only its kind and its place are shown.
    terminal.say(f"unexpected {type(error).__name__}; please report it with these lines:")
    for line in traceback.format_tb(error.__traceback__)[-6:]:
        sys.stderr.write(line)
    return ExitCode.UNEXPECTED


class _LazyGroup(TyperGroup):
    """A group that knows its commands by name and imports one when it is called."""

    known: Mapping[str, tuple[str, str]]

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, summary) in self.known.items():
            self.add_command(TyperCommand(name, help=summary, rich_markup_mode=None), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None:
            return name, command, rest
        real = typer.main.get_command(importlib.import_module(self.known[name][0]).app)
        real.name = name
        return name, real, rest
