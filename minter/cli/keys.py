"""``minter keys``: the custody keys one by one: how they come into custody, where they may go, how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from config import load
from config.console import commands, terminal, tokenedit
from config.console.commands import CommandError
from config.durations import parse_duration
from config.errors import ConfigurationError, ExitCode
from config.secret import Secret
from config.settings import MinterSettings
from minter import token_keys
from minter.admin_client import AdminClient
from minter.cli import options
from minter.sources import Context, SourceError, Sources, _files

app = commands.group("Create, import, list, show, rebind, retire and destroy custody keys.")

Alias = Annotated[str, typer.Argument(metavar="ALIAS", help="The key, as minter.toml or grants.json names it.")]
NewAlias = Annotated[str, typer.Argument(metavar="ALIAS", help="What grants.json will call it.")]
Algorithm = Annotated[str, typer.Option("--algorithm", help="EdDSA, ES256, RS256 or HS256.")]
Source = Annotated[
    str | None,
    typer.Option("--source", metavar="REF", help="Where the minter keeps it; default: sealed:ALIAS, in its state."),
]
Owner = Annotated[str, typer.Option("--owner", help="Whose it is, for the report.")]
Purpose = Annotated[str, typer.Option("--purpose", help="What it is for, for the report.")]
SecondCopy = Annotated[str, typer.Option("--second-copy", help="Where another copy of it is, for the report.")]
Origin = Annotated[
    list[str] | None, typer.Option("--origin", help="Where it may go; repeatable; default: where it is first used.")
]
_ALGORITHMS: Final = ("EdDSA", "ES256", "RS256", "HS256")
#: What show prints as tables, or the report alone.
_TABLES = frozenset({"versions", "who_did", "who_may"})
Every = Annotated[str | None, typer.Option("--rotate-every", help="Its period, such as 90d.")]


@app.command()
def create(
    alias: NewAlias,
    *,
    algorithm: Algorithm = "EdDSA",
    source: Source = None,
    owner: Owner = "",
    purpose: Purpose = "",
    second_copy: SecondCopy = "",
    origin: Origin = None,
    rotate_every: Every = None,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Make a signing key. The minter makes it and keeps it: its private half is never shown.

    It is in force at once and after a restart, without a line in minter.toml; grants name it by "key". A static key is
    issued by somebody else: minter keys import.
    """
    _expect("--algorithm", algorithm, _ALGORITHMS)
    words = {"owner": owner, "purpose": purpose, "second_copy": second_copy}
    said: dict[str, Any] = {"use": "signing", "algorithm": algorithm, "source": source or f"sealed:{alias}", **words}
    said |= {"origins": origin or [], "rotate_every": _period(rotate_every)}
    answer = _client(config).post(f"/v1/keys/{commands.in_path(alias)}/create", {"settings": said})
    _show_new(answer, json=json)
    if algorithm == "HS256" and answer["source_ref"].startswith("sealed:"):
        terminal.say(
            "no verifier can be given it, for it is never shown: tokens of it are checked by asking the minter"
        )


@app.command(name="import")
def import_(
    alias: NewAlias,
    *,
    use: Annotated[str, typer.Option("--use", help="static, or signing for a private key of ours.")] = "static",
    algorithm: Algorithm = "EdDSA",
    source: Source = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", help="Read the value from this file, which stays.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="REF", help="Read it from a keyring or another place, which stays.")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="It is at --source already and stays there: nothing is read here.")
    ] = False,
    owner: Owner = "",
    purpose: Purpose = "",
    second_copy: SecondCopy = "",
    origin: Origin = None,
    rotate_every: Every = None,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Take a key that somebody else issued into custody.

    Its value is read from standard input (without echo on a terminal), a file or a place such as keyring:SERVICE/USER:
    never from an argument, and it is never shown again.

    It is in force at once and after a restart, without a line in minter.toml; grants name it by "key".
    """
    if sum((from_file is not None, from_ is not None, in_place)) > 1:
        raise CommandError(ExitCode.USAGE, "give one of --from-file, --from and --in-place")
    if in_place and source is None:
        raise CommandError(ExitCode.USAGE, "--in-place needs --source REF")
    _expect("--use", use, ("static", "signing"))
    _expect("--algorithm", algorithm, _ALGORITHMS)
    words = {"owner": owner, "purpose": purpose, "second_copy": second_copy}
    said: dict[str, Any] = {"use": use, "algorithm": algorithm, "source": source or f"sealed:{alias}", **words}
    said |= {"origins": origin or [], "rotate_every": _period(rotate_every)}
    value = None if in_place else _value(alias, from_file, from_, config)
    client = _client(config)
    answer = client.post(f"/v1/keys/{commands.in_path(alias)}/import", {"settings": said}, secret=value)
    _show_new(answer, json=json)


@app.command(name="list")
def list_(
    *,
    callers: Annotated[
        Path | None, typer.Option("--callers", help="A callers file, whose tokens are listed too.")
    ] = None,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """List the custody keys. Where each is, its active version and where it may go: names only, no value.

    Brokers (and with --callers FILE callers) are listed as well: of their tokens only digests are kept.
    """
    answer = _client(config).get("/v1/custody")
    tokens = list(_tokens(options.settings(config), callers))
    if json:
        terminal.out_json({**answer, "tokens": tokens})
        return
    terminal.table(
        ("KEY", "USE", "WHERE", "ACTIVE", "ORIGINS", "PROFILES", "LAST USED"),
        [
            *(
                (
                    *(key[name] for name in ("alias", "use", "source_ref")),
                    active(key),
                    key["origins"],
                    key["profiles"],
                    terminal.instant(key["last_used_at"]),
                )
                for key in answer["keys"]
            ),
            *(
                (key["alias"], "token", key["source_ref"], terminal.count(key["tokens"], "digest"), "", "", "")
                for key in tokens
            ),
        ],
    )


def _tokens(settings: MinterSettings, callers: Path | None) -> Iterator[dict[str, Any]]:
    now = options.now()
    files: tuple[tuple[Path | None, tokenedit.Which], ...] = ((Path(settings.brokers), "brokers"), (callers, "callers"))
    for path, which in files:
        if path is not None:
            try:
                yield from token_keys.listed(load.read_token_file(path), which, path=path, now=now)
            except ConfigurationError as error:
                terminal.say(f"not listed: {error}")


@app.command()
def show(alias: Alias, *, json: options.Json = False, config: options.Config = options.DEFAULT) -> None:
    """Show one custody key with all its versions and their phases."""
    keys = _client(config).get("/v1/custody")["keys"]
    key = next((key for key in keys if key["alias"] == alias), None)
    if key is None:
        raise CommandError(ExitCode.USAGE, f"there is no custody key {alias}", "See: minter keys list")
    if json:
        terminal.out_json(key)
        return
    terminal.pairs((name, value) for name, value in key.items() if name not in _TABLES)
    terminal.table(
        ("VERSION", "PHASE", "FINGERPRINT", "CREATED", "ACTIVATED", "RETIRES", "DESTROYED", "PROBLEM"),
        (
            (
                *(version[name] for name in ("version", "phase", "fingerprint")),
                *(
                    terminal.instant(version[name])
                    for name in ("created_at", "activated_at", "retire_at", "destroyed_at")
                ),
                version["problem"],
            )
            for version in key["versions"]
        ),
    )
    if key["who_did"]:
        names = ("caller", "broker", "uses", "first_used_at", "last_used_at")
        terminal.table(
            ("USED BY", "THROUGH", "USES", "FIRST", "LAST"), ([user[name] for name in names] for user in key["who_did"])
        )


@app.command()
def rebind(
    alias: Alias,
    origin: Annotated[list[str], typer.Option("--origin", help="https://HOST[:PORT]; repeatable.")],
    *,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Pin a key to other origins than those it was first used for.

    Until this is done a grants file that sends the key elsewhere is refused. Give every origin that it may go to:
    the list replaces the one before.
    """
    answer = _client(config).post(f"/v1/keys/{commands.in_path(alias)}/rebind", {"origins": origin})
    if json:
        terminal.out_json(answer)
    else:
        terminal.say(f"{alias} may go to {', '.join(answer['origins'])} and nowhere else")
        if ended := len(answer["leases"]):
            terminal.say(f"{terminal.count(ended, 'live lease')} for other origins ended")


@app.command()
def retire(
    alias: Alias,
    *,
    force: Annotated[bool, typer.Option("--force", help="Though the grants in force refer to it.")] = False,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Take a key out of use for good.

    It is not lent any more and signs nothing, and what was made with it ends. A retired key does not come back; import
    it anew under another alias. Its values stay until minter keys destroy.
    """
    answer = _client(config).post(f"/v1/keys/{commands.in_path(alias)}/retire", {"force": force})
    if json:
        terminal.out_json(answer)
        return
    terminal.say(f"{alias} is retired; {terminal.count(len(answer['leases']), 'live lease')} ended")
    if answer["profiles"]:
        terminal.say(f"requests for these profiles are refused from now on: {', '.join(answer['profiles'])}")
    terminal.say(f"to delete its values: minter keys destroy {alias}")


@app.command()
def destroy(
    alias: Alias,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: options.Json = False,
    config: options.Config = options.DEFAULT,
) -> None:
    """Delete every value of a retired key.

    That is done wherever the minter can write, and what is left to do is said. Its versions stay listed as destroyed.
    When a source fails, give the command again.
    """
    if not yes:
        _confirm(alias)
    answer = _client(config).post(f"/v1/keys/{commands.in_path(alias)}/destroy", {})
    if json:
        terminal.out_json(answer)
        return
    terminal.say(f"{alias}: {terminal.count(len(answer['versions']), 'version')} destroyed")
    for one in answer["to_do"]:
        terminal.say(f"still to do: {one}")


def active(key: Mapping[str, Any]) -> str:
    """Return the active version of a key, with what stands beside it during a rotation."""
    phases = {version["phase"]: version["version"] for version in key["versions"]}
    words = [f"v{phases['active']}"] if "active" in phases else ["none"]
    words += [f"v{phases[phase]} {phase}" for phase in ("prepared", "retiring") if phase in phases]
    if key.get("retired_at"):
        words.append("destroyed" if set(phases) == {"destroyed"} else "retired")
    return ", ".join(words)


# --- small ones ---


def _client(config: Path) -> AdminClient:
    return AdminClient(options.settings(config))


def _expect(option: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise CommandError(ExitCode.USAGE, f"{option}: expected {', '.join(known[:-1])} or {known[-1]}")


def _period(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--rotate-every: {error}") from None


def _value(alias: str, file: Path | None, ref: str | None, config: Path) -> Secret:
    """Read the value as the user who runs this, from where it was said."""
    try:
        if file is not None:
            value = _files.read(file, lambda _status: None)
        elif ref is not None:
            settings = options.settings(config)
            value = Sources(Context.of(settings, dict(os.environ)), third_party=settings.sources).read(ref)
        else:
            value = terminal.ask_secret(f"Value of {alias}")
    except SourceError as error:
        raise CommandError(ExitCode.UPSTREAM, f"{file or ref} {error.what}", error.hint) from None
    if not len(value):
        raise CommandError(
            ExitCode.USAGE, "there is no value on standard input", f"For example: minter keys import {alias} < FILE"
        )
    return value


def _show_new(answer: Mapping[str, Any], *, json: bool) -> None:
    if json:
        terminal.out_json(answer)
        return
    terminal.say(f"{answer['alias']} is in custody at {answer['source_ref']}, fingerprint {answer['fingerprint']}")
    terminal.say(f'grants name it by "key": "{answer["alias"]}"; then: minter reload')


def _confirm(alias: str) -> None:
    if not sys.stdin.isatty():
        raise CommandError(ExitCode.USAGE, "nobody can be asked here: give --yes if that is meant")
    if terminal.ask(f"Type the alias to destroy every value of {alias}") != alias:
        raise CommandError(ExitCode.USAGE, "that is not the alias: nothing was done")
