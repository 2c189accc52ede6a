"""``broker reload``."""

from __future__ import annotations

from broker.admin_client import AdminClient
from broker.cli import options
from config.console import commands, terminal

app = commands.group("Let the running broker read grants and callers again.")


@app.command()
def reload(*, json: options.Json = False, config: options.Config = options.DEFAULT) -> None:
    """Let the running broker read grants and callers again.

    What does not load is refused with every fault named, and the broker goes on with what it has.
    """
    answer = AdminClient(options.settings(config)).post("/v1/admin/reload")
    if json:
        terminal.out_json(answer)
    else:
        terminal.say("reloaded")
