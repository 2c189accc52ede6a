"""``minter reload``."""

from __future__ import annotations

from config.console import commands, terminal
from minter.admin_client import AdminClient
from minter.cli import options

app = commands.group("Let the running minter read grants, brokers and keys again.")


@app.command()
def reload(*, json: options.Json = False, config: options.Config = options.DEFAULT) -> None:
    """Let the running minter read grants, brokers and keys again.

    What does not load is refused with every fault named, and the minter goes on with what it has.
    minter.toml is read when the minter starts.
    """
    answer = AdminClient(options.settings(config)).post("/v1/reload", {})
    if json:
        terminal.out_json(answer)
    else:
        terminal.say("reloaded")
