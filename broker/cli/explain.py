"""``broker explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker import check
from broker import explain as explaining
from broker.cli import options
from config.console import commands, terminal
from config.errors import ExitCode
from config.explain import Explanation
from config.problems import PROBLEMS

app = commands.group("Say which route decides about a call, and why not the others.")


@app.command()
def explain(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="The profile.")],
    method: Annotated[str, typer.Argument(metavar="METHOD", help="GET, POST ...")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The raw target: path and query, without /p/PROFILE.")
    ],
    *,
    param: Annotated[list[str] | None, typer.Option("--param", help="A run parameter NAME=VALUE; repeatable.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", readable=False, help="The grants file; default: the one that the settings name."),
    ] = None,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Say which route decides about a call, and why not the others. A call that is refused ends with status 5.

    Nothing is sent and no service is asked: the answer is what the grants file says.
    """
    placements: list[str] = []
    if file is None:
        settings = options.settings(config)
        file, placements = Path(settings.grants), settings.placements
    params = explaining.parameters(param or ())
    found = explaining.explained(check.load_grants(file, placements=placements), profile, method, target, params)
    if json:
        terminal.out_json(
            {
                "granted": found.granted,
                "route": found.rule.text if found.rule else None,
                "code": found.code or None,
                "detail": found.detail or None,
                "candidates": [
                    {"route": one.route, "listed": one.listed, "verdict": one.verdict, "why": one.why}
                    for one in found.candidates
                ],
            }
        )
    else:
        terminal.out(f"granted by {found.rule.text}" if found.rule else f"refused: {found.code}: {_why(found)}")
        terminal.table(
            ("VERDICT", "LISTED", "ROUTE", "WHY"),
            ((one.verdict, one.listed, one.route, one.why) for one in found.candidates),
        )
    if not found.granted:
        raise typer.Exit(ExitCode.REFUSED)


def _why(found: Explanation) -> str:
    """Say why a call is refused. Where the detail is but what its sender may do, the table below says more."""
    problem = PROBLEMS[found.code]
    return problem.title if found.detail == problem.remedy else found.detail
