"""``broker specgen``: from an OpenAPI document to the enforced list, the client and the tool text."""

from __future__ import annotations

import importlib
import json as jsonlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from broker.specgen import choices, summary
from broker.specgen.document import read_document
from broker.specgen.generate import NAMES, Options, generate
from broker.specgen.model import Api, Choices, DocumentError
from broker.specgen.operations import read_api
from broker.specgen.outdir import GRANTS, Directory
from config import load
from config.console import commands, terminal
from config.console.commands import CommandError
from config.errors import ExitCode
from config.grants import Profile, parse_grants


class _OrSuggest(TyperCommand):
    """The command, unless its first word is ``suggest``, which is a command of its own."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the one or the other."""
        if args[:1] != ["suggest"]:
            return super().make_context(info_name, args, parent, **extra)
        suggest = typer.main.get_command(importlib.import_module("broker.cli.specgen_suggest").app)
        return suggest.make_context(f"{info_name} suggest", args[1:], parent, **extra)


app = commands.group("Make routes, clients and the text for a model of an OpenAPI document.")


@app.command(
    cls=_OrSuggest,
    epilog="broker specgen suggest --run ID says which routes runs really used. A document of that name is ./suggest.",
)
def specgen(
    document: Annotated[
        Path, typer.Argument(metavar="DOCUMENT", readable=False, help="OpenAPI 3.0, 3.1 or 3.2, as JSON or YAML.")
    ],
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="Where to write.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Grant what matches: 'GET /v1/*', an operationId; repeatable."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Only operations with it; repeatable.")] = None,
    method: Annotated[list[str] | None, typer.Option(metavar="METHOD", help="Only these methods; repeatable.")] = None,
    deprecated: Annotated[bool, typer.Option("--deprecated", help="Deprecated operations too.")] = False,
    bind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Write a constant for a parameter: it is no wildcard any more; repeatable."
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=PATTERN]", help="Make it a run parameter, which the code does not choose; repeatable."
        ),
    ] = None,
    slashes: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Let the values of a path parameter hold %2F; repeatable.")
    ] = None,
    server: Annotated[str, typer.Option(metavar="URL", help="The API's base URL, in place of the document's.")] = "",
    placement: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Where the credential goes: bearer, token, basic, basic:user:NAME, header:NAME, "
            "header:NAME:PREFIX, query:NAME, cookie:NAME, or the object as JSON.",
        ),
    ] = None,
    profile: Annotated[str | None, typer.Option(metavar="NAME", help="The profile; default: from the title.")] = None,
    global_name: Annotated[
        str | None,
        typer.Option("--global", metavar="NAME", help="The client's name in the code; default: from the profile."),
    ] = None,
    caller: Annotated[list[str] | None, typer.Option(metavar="ID", help="Who may use the profile; repeatable.")] = None,
    grants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="Make clients and texts for what its profile grants, no more."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; status 1 when a file is stale.")] = False,
    emit: Annotated[str | None, typer.Option(metavar="FILE", help="Print this one file; write nothing.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that specgen did not write, too.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print report.json, whose names are stable; without -o nothing is written.")
    ] = False,
) -> None:
    """Read an OpenAPI document; write its routes, a profile to start from, clients, and what a model is shown.

    Files: catalog.json, grants.json, client.py, client.pyi, client.js, client.d.ts, description.txt, tools.json,
    report.txt, report.json. The same document and options give the same bytes. Nothing is granted without --allow.
    The network is never asked. A grants.json that was edited is kept.

    Status 5 when an operation is not carried (the report says why), 3 when the document cannot be used.
    """
    _check_modes(out=out, check=check, emit=emit, json=json)
    with _usage():
        chosen = Choices(
            server=server,
            bind=choices.bindings(bind or ()),
            params=choices.run_parameters(param or ()),
            slashes=frozenset(slashes or ()),
            placement=choices.placement(placement) if placement is not None else None,
            tags=frozenset(tag or ()),
            methods=choices.methods(method or ()),
            allow=tuple(allow or ()),
            deprecated=deprecated,
        )
    granting = _granting(grants, profile) if grants is not None else None
    try:
        with terminal.counting(f"reading {document.name}") as progress:
            read = read_document(document)
            api = read_api(read, chosen, progress)
        with _usage():
            choices.check_found(chosen, api)
            named = replace(_options(api, profile, global_name, granting), callers=choices.callers(caller or ()))
        with terminal.counting("making clients and texts"):
            files = generate(read, api, replace(named, grants=bool(allow)))
    except DocumentError as error:
        raise CommandError(ExitCode.CONFIGURATION, str(error)) from None
    if emit is not None:
        typer.echo(files[emit], nl=False)
    elif json:
        terminal.out_json(jsonlib.loads(files["report.json"]))
    if out is not None:
        try:
            directory = Directory(out)
            if check:
                _check(directory, files, named.profile)
                return
            _write(directory, files, named, api, force=force)
        except OSError as error:
            raise CommandError(ExitCode.CONFIGURATION, f"{error.filename or out}: {error.strerror}") from None
    if any(told.status == "not-carried" for told in api.told):
        raise typer.Exit(ExitCode.REFUSED)


@contextmanager
def _usage() -> Iterator[None]:
    """End with status 2 when the operator wrote what cannot be meant."""
    try:
        yield
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, str(error)) from None


def _check_modes(*, out: Path | None, check: bool, emit: str | None, json: bool) -> None:
    if emit is not None and emit not in NAMES:
        raise CommandError(ExitCode.USAGE, "--emit is one of " + ", ".join(NAMES))
    if emit is not None and (out is not None or json):
        raise CommandError(ExitCode.USAGE, "--emit prints one file and excludes -o and --json")
    if check and (out is None or json):
        raise CommandError(ExitCode.USAGE, "--check compares the files in -o DIR and excludes --json")
    if out is None and emit is None and not json:
        raise CommandError(ExitCode.USAGE, "there is no place to write to", "Give -o DIR, or --emit FILE to print one.")


def _granting(file: Path, name: str | None) -> Profile:
    """Return the profile of an existing grants file; what it refers to is not read, as it may be made only now."""
    profiles = parse_grants(load.read_file(file), name=str(file)).profiles
    if name is None and len(profiles) == 1:
        return next(iter(profiles.values()))
    found = profiles.get(name or "")
    if found is None:
        what = "has no profile of that name" if name is not None else "has several profiles, or none"
        names = ", ".join(profiles)
        raise CommandError(ExitCode.USAGE, f"{file} {what}", f"Give --profile with one of: {names}" if names else "")
    return found


def _options(api: Api, profile: str | None, global_name: str | None, granting: Profile | None) -> Options:
    if granting is None:
        name = choices.profile_name(profile, api.title, api.origin)
        return Options(profile=name, global_name=choices.global_name(global_name, name))
    return Options(
        profile=granting.name,
        global_name=choices.global_name(global_name or granting.global_name, granting.name),
        granted=jsonlib.loads(granting.source).get("allow", []),
    )


def _write(directory: Directory, files: Mapping[str, bytes], named: Options, api: Api, *, force: bool) -> None:
    foreign = [] if force else directory.foreign(files)
    kept = GRANTS in foreign
    others = [str(directory.path / name) for name in foreign if name != GRANTS]
    if others:
        raise CommandError(
            ExitCode.CONFLICT,
            "specgen did not write these, or they were changed since; nothing was written: " + ", ".join(others),
            "Move them away, choose another DIR, or replace them with --force.",
        )
    changed = directory.write({name: data for name, data in files.items() if not (kept and name == GRANTS)})
    terminal.say(f"{directory.path}: " + (f"wrote {', '.join(changed)}" if changed else "everything was up to date"))
    if kept:
        path = directory.path / GRANTS
        terminal.say(f"kept {path}, which is not as specgen wrote it; --force replaces it")
        if named.granted is None:
            terminal.say(f"--grants {path} makes clients and texts for what it grants")
        for difference in directory.kept_catalog(files, named.profile):
            terminal.say(f"{directory.path / difference.name} {difference.what}")
    for line in summary.summary(api):
        terminal.say(line)
    fresh = {} if kept else jsonlib.loads(files[GRANTS])["profiles"][named.profile]
    terminal.note(summary.next_steps(api, str(directory.path), fresh))


def _check(directory: Directory, files: Mapping[str, bytes], profile: str) -> None:
    found = directory.differences(files, profile)
    for difference in found:
        terminal.out(f"{directory.path / difference.name} {difference.what}")
        for line in difference.lines:
            terminal.out(f"  {line}")
    if found:
        terminal.say(
            f"{terminal.count(len(found), 'file')} not up to date; the same command without --check writes them"
        )
        raise typer.Exit(1)
    terminal.say(f"{directory.path} is up to date")
