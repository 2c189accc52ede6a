"""``minter rotate broker:ID`` and ``caller:ID``: tokens, of which only digests are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from config.clock import rfc3339
from config.console import terminal, tokenedit
from config.console.commands import CommandError
from config.console.tokenedit import TokensOf, Which
from config.errors import ExitCode
from minter.admin_client import AdminClient
from minter.cli import options

_WHICH: Final[dict[str, Which]] = {"broker": "brokers", "caller": "callers"}
_OVERLAP: Final = "24h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How: ``overlap`` as it was typed; ``compromised`` keeps the old one for no moment."""

    overlap: str | None
    compromised: bool
    dry_run: bool
    json: bool


def is_token(alias: str) -> bool:
    """Say whether an alias is one of a broker's or caller's token. No source of secrets has these names."""
    return alias.partition(":")[0] in _WHICH and ":" in alias


def rotate(alias: str, file: Path | None, terms: Terms, config: Path) -> None:
    """Give a broker or caller a new token. It is printed, alone, on stdout."""
    kind, _, id_ = alias.partition(":")
    if kind == "caller" and file is None:
        raise CommandError(
            ExitCode.USAGE, "the minter knows no callers: give their file", f"minter rotate {alias} --file callers.json"
        )
    tokens = TokensOf(file or Path(options.settings(config).brokers), _WHICH[kind])
    if terms.compromised and terms.overlap is not None:
        raise CommandError(ExitCode.USAGE, "--compromised and --overlap exclude each other")
    overlap_s = 0.0 if terms.compromised else tokenedit.overlap(terms.overlap or _OVERLAP)
    now = options.now()
    ends = rfc3339(now + overlap_s)
    if terms.dry_run:
        if not any(principal.id == id_ for principal in tokens.listed()):
            raise CommandError(ExitCode.USAGE, f"there is no {kind} {id_} in {tokens.path}")
        does = f"put the digest of a new token into {tokens.path} and print the token"
        retire = "the old one ends, and with it every live lease" if terms.compromised else "the old one ends"
        steps = (("activate", rfc3339(now), does), ("retire", ends, retire))
        _show_plan(alias, steps, _touched(kind, id_, config), json=terms.json)
        return
    terminal.out_secret(tokens.rotate(id_, now=now, overlap_s=overlap_s))
    terminal.say(f"{kind} {id_} has a new token in {tokens.path}; the old one ends at {ends}")
    if kind == "broker":
        terminal.say("a running broker reads its credential when it starts")
    if terms.compromised:
        _end_what_it_lent(kind, id_, config)


def _touched(kind: str, id_: str, config: Path) -> list[dict[str, Any]] | None:
    """Return the live leases that were asked for with the token; None when no minter can be asked."""
    try:
        client = AdminClient(options.settings(config))
        leases: list[dict[str, Any]] = client.get("/v1/leases", **{kind: id_, "state": "active"})["leases"]
    except CommandError as error:
        terminal.say(f"whom it touches is not known: {error.what}")
        return None
    return leases


def _show_plan(
    alias: str, steps: tuple[tuple[str, str, str], ...], leases: list[dict[str, Any]] | None, *, json: bool
) -> None:
    affected: dict[str, Any] | None = None
    if leases is not None:
        affected = {"leases": len(leases), "runs": sorted({lease["run_id"] for lease in leases})}
    if json:
        plan = [{"step": step, "at": at, "does": does, "done": False} for step, at, does in steps]
        terminal.out_json({"alias": alias, "use": "token", "dry_run": True, "steps": plan, "affected": affected})
        return
    terminal.table(("STEP", "WHEN", "WHAT"), steps)
    terminal.say("nothing was done")
    if affected is not None:
        leases_, runs = terminal.count(affected["leases"], "live lease"), terminal.count(len(affected["runs"]), "run")
        terminal.say(f"{leases_} of {runs} were asked for with it")


def _end_what_it_lent(kind: str, id_: str, config: Path) -> None:
    """Revoke every lease that was asked for with the old token, or say that it is still to be done."""
    try:
        ended = AdminClient(options.settings(config)).delete("/v1/leases", **{kind: id_})["leases"]
        terminal.say(f"{terminal.count(len(ended), 'live lease')} ended")
    except CommandError as error:
        terminal.say(f"still to do: end the live leases of {kind} {id_}, see minter leases list ({error.what})")
    if kind == "caller":
        terminal.say(f"still to do: broker runs end --caller {id_}: whoever had the token may have opened runs")
    terminal.say(f"still to do: give {id_} the new token, and find out how the old one leaked")
