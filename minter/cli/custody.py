"""``minter custody report``: where every key is, who may use it, who did, and what is still out there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from config.clock import parse_rfc3339, rfc3339
from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ExitCode
from config.load import write_atomic
from minter.admin_client import AdminClient
from minter.cli import options

app = commands.group("Report where every key is, who may use it and who did, and what is still out there.")

Html = Annotated[bool, typer.Option("--html", help="Write one self-contained HTML file.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Where the HTML goes, instead of stdout.")]
At = Annotated[str | None, typer.Option("--at", help="As of this instant (RFC 3339): what is due and over by then.")]


@app.callback(invoke_without_command=True, no_args_is_help=False)
def custody(
    context: typer.Context,
    *,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Report where every key is; the same as ``minter custody report``."""
    if context.invoked_subcommand is None:
        report(json=json, config=config)
    elif any(_is_given(context, name) for name in ("json", "config")):
        raise CommandError(ExitCode.USAGE, "options stand behind the command: minter custody report --json")


@app.command()
def report(
    *,
    json: options.Json = False,
    html: Html = False,
    output: Output = None,
    at: At = None,
    config: options.Config = options.DEFAULT,
) -> None:
    """Report where every key is, who may use it and who did.

    With it: open leases, what is unused or too wide, and what none of this proves.

    Names and fingerprints only; auditors may read this too (auditor_uids). Two reports of one state with the same --at
    are equal, byte for byte; the audit log's last line in it says which state that was.
    """
    if json and html:
        raise CommandError(ExitCode.USAGE, "give --json or --html, not both")
    if output is not None and not html:
        raise CommandError(ExitCode.USAGE, "--output is for --html")
    answer = AdminClient(options.settings(config)).get("/v1/custody", at=_instant(at))
    if json:
        terminal.out_json(answer)
    elif html:
        from minter.cli.custody_html import render  # noqa: PLC0415 - the template engine is needed for this only

        _write(render(answer), output)
    else:
        from minter.cli.custody_text import show  # noqa: PLC0415 - as above, for what draws

        show(answer)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _instant(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return rfc3339(parse_rfc3339(text))
    except (ValueError, OverflowError):
        raise CommandError(ExitCode.USAGE, "--at takes an instant such as 2026-11-30T12:00:00Z") from None


def _write(document: str, output: Path | None) -> None:
    if output is None:
        # In the encoding that the document names, whatever the terminal's is.
        sys.stdout.buffer.write(document.encode())
        return
    if output.exists() and not output.is_file():
        raise CommandError(ExitCode.USAGE, f"{output} is no regular file")
    try:
        # Readable by whoever asked for it: who else may read it, they decide.
        write_atomic(output, document.encode(), mode=0o600)
    except OSError as error:
        raise CommandError(ExitCode.USAGE, f"{output} cannot be written: {error.strerror}") from None
    terminal.say(f"written to {output}")
