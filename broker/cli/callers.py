"""``broker callers``: who may open runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker.cli import options
from config.clock import rfc3339
from config.console import commands, terminal, tokenedit
from config.console.tokenedit import TokensOf
from config.tokenfiles import Principal

app = commands.group("Create, list, rotate and revoke the tokens of callers: the programs that may open runs.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The caller, as allowed_callers in grants.json names it.")]
File = Annotated[Path | None, typer.Option("--file", help="The callers file; default: the one that the settings name.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="Write the token into this file (0600) and not to stdout.")
]


def _callers(file: Path | None, config: Path) -> TokensOf:
    return TokensOf(file or Path(options.settings(config).callers), "callers")


@app.command()
def create(id_: Id, file: File = None, token_file: TokenFile = None, config: options.Config = options.DEFAULT) -> None:
    """Create a caller and print its token, alone, on stdout. It is shown this once.

    Works with the broker running, which picks the change up, and without it. An id that is taken ends with status 6.
    """
    callers = _callers(file, config)
    tokenedit.hand_over(callers.create(Principal(id=id_)), token_file)
    terminal.say(f"caller {id_} is in {callers.path}; profiles let it in by allowed_callers")


@app.command(name="list")
def list_(file: File = None, *, json: options.Json = False, config: options.Config = options.DEFAULT) -> None:
    """List the callers."""
    now = options.now()
    listed = [tokenedit.described(caller, now=now) for caller in _callers(file, config).listed()]
    if json:
        terminal.out_json({"callers": listed})
        return
    terminal.table(
        ("CALLER", "TOKENS", "OVERLAP ENDS"),
        ((caller["id"], caller["tokens"], caller["overlap_ends_at"]) for caller in listed),
    )


@app.command()
def rotate(
    id_: Id,
    overlap: Annotated[str, typer.Option(help="How long the old token stays valid: 0s ends it at once.")] = "24h",
    file: File = None,
    token_file: TokenFile = None,
    config: options.Config = options.DEFAULT,
) -> None:
    """Give a caller a new token. It is printed, alone, on stdout; the old one ends after the overlap."""
    overlap_s = tokenedit.overlap(overlap)
    now = options.now()
    tokenedit.hand_over(_callers(file, config).rotate(id_, now=now, overlap_s=overlap_s), token_file)
    terminal.say(f"caller {id_} has a new token; the old one ends at {rfc3339(now + overlap_s)}")


@app.command()
def revoke(id_: Id, file: File = None, config: options.Config = options.DEFAULT) -> None:
    """Remove a caller with all its tokens. Runs that it opened go on until they are ended."""
    callers = _callers(file, config)
    callers.revoke(id_)
    terminal.say(f"caller {id_} is gone from {callers.path}")
    terminal.say(f"its open runs go on; to end them: broker runs end --caller {id_}")
