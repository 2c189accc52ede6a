"""``minter custody``: the report for a security reviewer."""

from __future__ import annotations

from config.console import commands, terminal
from minter.admin_client import AdminClient
from minter.cli import options
from minter.cli.keys import active

app = commands.group("Report where every key is, how old it is and who used it.")


@app.command()
def custody(*, json: options.Json = False, config: options.Config = options.DEFAULT) -> None:
    """Report every custody key: where it is, whose it is, where it may go, its versions, its age and its last use.

    Names and fingerprints only; auditors may read this too (auditor_uids).
    """
    answer = AdminClient(options.settings(config)).get("/v1/custody")
    if json:
        terminal.out_json(answer)
        return
    terminal.table(
        (
            *("KEY", "OWNER", "PURPOSE", "WHERE", "ACTIVE", "FINGERPRINT", "ORIGINS"),
            *("ROTATED", "DUE", "LAST USED", "USES", "LIVE LEASES", "CALLERS"),
        ),
        (
            (
                *(key[name] for name in ("alias", "owner", "purpose", "source_ref")),
                active(key),
                key["fingerprint"],
                key["origins"],
                terminal.instant(key["last_rotated_at"]),
                key["due"],
                terminal.instant(key["last_used_at"]),
                key["uses"],
                key["live_leases"],
                key["callers"],
            )
            for key in answer["keys"]
        ),
    )
