"""``broker check``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from broker import check as checking
from broker.cli import options
from config import load
from config.cases import CaseResult, evaluate, parse_cases
from config.console import commands, terminal
from config.errors import ConfigurationError, ExitCode
from config.explain import covers
from config.grants import Grants, Profile

app = commands.group("Check a grants file, and what it must allow and refuse.")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="The grants file.")],
    *,
    cases: Annotated[
        Path | None, typer.Option("--cases", readable=False, help="Calls that must be allowed and refused, as JSON.")
    ] = None,
    placement: Annotated[
        list[str] | None, typer.Option("--placement", help="A third-party placement that may be used; repeatable.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Load a grants file as the broker would, offline, and say what it grants. Every fault is named (status 3).

    For each profile: its routes, which documented routes each wildcard covers, and what was perhaps not meant. What
    stands in `token` is the minter's to check. With --cases a call that comes out wrong ends with status 5. With --json
    faults are an object too: {"faults": [{"where", "what", "hint"}]}.
    """
    try:
        grants = checking.load_grants(file, placements=placement or ())
        results = evaluate(grants, parse_cases(load.read_file(cases), name=str(cases))) if cases is not None else []
    except ConfigurationError as error:
        if json:
            terminal.out_json({"faults": [asdict(fault) for fault in error.faults]})
        raise
    if json:
        terminal.out_json(_as_json(grants, results))
    else:
        for profile in grants.profiles.values():
            _show(profile)
        _show_results(results)
    failed = sum(not result.passed for result in results)
    terminal.say(f"{file} loads: {terminal.count(len(grants.profiles), 'profile')}, digest {grants.digest}")
    if cases is not None:
        terminal.say(f"{len(results) - failed} of {len(results)} cases hold")
    if failed:
        raise typer.Exit(ExitCode.REFUSED)


def _as_json(grants: Grants, results: list[CaseResult]) -> dict[str, Any]:
    return {
        "digest": grants.digest,
        "profiles": {
            profile.name: {
                "digest": profile.digest,
                "base_url": profile.base_url,
                "allow": [rule.text for rule in profile.allow],
                "covers": [
                    {"route": cover.route, "covered": cover.covered, "granted": cover.granted}
                    for cover in covers(profile)
                ],
                "warnings": list(checking.warnings(profile)),
            }
            for profile in grants.profiles.values()
        },
        "cases": [
            {"where": result.where, "call": result.call, "holds": result.passed, "what": result.what}
            for result in results
        ],
    }


def _show(profile: Profile) -> None:
    terminal.out(f"{profile.name}: {profile.base_url}, {terminal.count(len(profile.allow), 'route')} granted")
    found = covers(profile)
    for rule in profile.allow:
        terminal.out(f"  {rule.text}")
        for cover in found:
            if cover.route == rule.text:
                ending = "granted as well" if cover.granted else "documented and not granted: refused"
                terminal.out(f"    covers {cover.covered} ({ending})")
    for warning in checking.warnings(profile):
        terminal.out(f"  warning: {warning}")


def _show_results(results: list[CaseResult]) -> None:
    for result in results:
        terminal.out(f"{'holds' if result.passed else 'FAILS'}  {result.where}  {result.call}  {result.what}".rstrip())
