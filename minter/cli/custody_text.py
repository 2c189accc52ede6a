"""The custody report as text: in colour on a terminal, as wide as that is; plain and 100 columns wide elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from config.console.terminal import count, plain
from minter.cli import custody_words as words

_WIDTH: Final = 100
_BAR: Final = 10
#: Leases and users that are listed one by one; ``--json`` has more.
_LISTED: Final = 10
_STYLES: Final[Mapping[str, str]] = {
    "overdue": "bold red",
    "soon": "yellow",
    "alarm": "bold red",
    "warning": "yellow",
    "note": "dim",
}

Row = Mapping[str, Any]


def show(report: Row) -> None:
    """Write the report to stdout."""
    if sys.stdout.isatty():
        _Writer(Console(highlight=False)).report(report)
        return
    written = io.StringIO()
    _Writer(Console(file=written, width=_WIDTH, highlight=False)).report(report)
    # What draws fills its lines with blanks.
    sys.stdout.write("".join(line.rstrip() + "\n" for line in written.getvalue().splitlines()))


class _Writer:
    def __init__(self, console: Console) -> None:
        self._console = console

    def report(self, report: Row) -> None:
        self._head(report)
        self._leases(report)
        self._keys(report)
        self._findings(report["findings"])
        self._title("What this does not prove")
        for sentence in report["does_not_prove"]:
            self._item(sentence)

    # --- parts ---

    def _head(self, report: Row) -> None:
        self._line("Custody report", "bold")
        if report["quarantined_since"]:
            since = words.instant(report["quarantined_since"])
            self._line(f"QUARANTINE: the state was restored ({since}) and nobody has confirmed it yet.", "bold red")
        audit = report["audit"]
        checkpoint = audit["checkpoint"]
        self._pairs(
            [
                ("installation", report["installation"]),
                ("as of", words.instant(report["generated_at"])),
                ("program", report["program"]),
                ("grants", report["grants_digest"]),
                ("audit log", words.chain_head(audit)),
                ("", audit["hash"]),
                (
                    "checkpoint",
                    f"line {checkpoint['seq']}, {words.instant(checkpoint['at'])}" if checkpoint else "none",
                ),
                *([("", checkpoint["hash"])] if checkpoint else []),
            ]
        )
        self._line(
            "To compare: minter audit verify recomputes the chain; it must meet that line with that hash.", "dim"
        )

    def _leases(self, report: Row) -> None:
        leases, totals = report["leases"], report["leases"]["totals"]
        self._title("Open leases")
        if not totals["orphan_suspect"] + totals["irrevocable"]:
            self._line("No orphan, and nothing whose revocation keeps failing.")
        for name, total, title in (
            ("orphans", totals["orphan_suspect"], "Orphans: may exist upstream, nobody holds them"),
            ("irrevocable", totals["irrevocable"], "Irrevocable: revocation kept failing"),
            ("revoking", totals["revoking"], "Being revoked"),
            ("being_made", totals["intent"], "Being made at this moment"),
        ):
            self._one_by_one(
                title, leases[name], total, style="bold" if name in ("revoking", "being_made") else "bold red"
            )
        held = totals["active"] + totals["intent"] + totals["revoking"]
        self._groups(f"On loan: {count(held, 'lease')}", leases["groups"], leases["groups_total"])
        if held > leases["looked_through"]:
            self._line(
                f"Groups, and the leases of each key, are of the first {leases['looked_through']} of {held}.", "dim"
            )
        self._groups(
            "Ended here, still accepted by an API that does not ask the minter",
            *(leases["over_but_valid"], leases["over_but_valid_total"]),
        )
        if report["valid_until_rotated"]:
            self._subtitle("Lent as they are: valid for whoever had them, until they are rotated")
            self._table(
                ("KEY", "VERSIONS", "LENT", "LEASES", "LAST LENT"),
                (
                    (
                        one["alias"],
                        ", ".join(map(str, one["versions"])) or "none here",
                        one["uses"],
                        one["live_leases"],
                        words.instant(one["last_used_at"]),
                    )
                    for one in report["valid_until_rotated"]
                ),
                right=(2, 3),
            )

    def _one_by_one(self, title: str, rows: Sequence[Row], total: int, *, style: str) -> None:
        if not rows:
            return
        shown = rows[:_LISTED]
        self._subtitle(title + (f" ({len(shown)} of {total})" if total > len(shown) else ""), style)
        for one in shown:
            self._item(f"{one['lease_id']}  {one['run_id']}")
            reason = f" ({one['reason']})" if one["reason"] else ""
            again = f"; next attempt {words.instant(one['next_attempt_at'])}" if one["next_attempt_at"] else ""
            self._pairs(
                [
                    ("for", f"{one['profile']} ({one['kind']}), {one['caller']} via {one['broker']}"),
                    ("keys", words.names(one["keys"])),
                    ("state", f"{words.state(one['state'])}{reason}{again}"),
                    ("lives until", words.until(one)),
                    ("end upstream", words.upstream(one)),
                ],
                indent=4,
            )

    def _groups(self, title: str, rows: Sequence[Row], total: int) -> None:
        if not rows:
            return
        self._subtitle(title + (f" ({len(rows)} of {total} groups)" if total > len(rows) else ""))
        self._table(
            ("PROFILE", "KIND", "KEYS", "LEASES", "CALLERS", "CAN LIVE UNTIL", "END UPSTREAM"),
            (
                (
                    *(one["profile"], one["kind"], words.names(one["keys"]), one["leases"], one["callers"]),
                    *(words.until(one), words.upstream(one).partition(":")[0]),
                )
                for one in rows
            ),
            right=(3, 4),
        )

    def _keys(self, report: Row) -> None:
        self._title("Keys")
        columns = ("KEY", "AGE", "NEXT", "LEASES", "USE", "WHERE", "LAST USE")
        # Of a narrow terminal the last ones would take what the key's name needs; each key says them below.
        shown = len(columns) if self._console.width >= _WIDTH else 4
        self._table(
            columns[:shown],
            (
                (
                    *(key["alias"], _age(key), (key["next_due_at"] or "-")[:10], key["live_leases"]),
                    *(words.short_use(key), key["source"] or "nowhere", words.last_use(key).split(" ")[0]),
                )[:shown]
                for key in report["keys"]
            ),
            right=(3,),
            whole=(1, 2, 6),
        )
        for key in report["keys"]:
            self._key(key)
        if report["without_key"]:
            self._subtitle("Profiles that no custody key is behind")
            for one in report["without_key"]:
                kind = one["kind"] or "no credential"
                self._item(f"{one['profile']} ({kind}), {one['origin']}: {words.names(one['callers'], none='nobody')}")
        self._subtitle("Brokers' own tokens: keys to this minter, of which only digests are kept")
        for one in report["broker_tokens"]:
            ends = (
                f"{t['digest']} until {words.instant(t['not_after'])}" if t["not_after"] else t["digest"]
                for t in one["tokens"]
            )
            user = "any user with a certificate" if one["uid"] is None else f"user {one['uid']}"
            profiles = "all profiles" if one["profiles"] is None else words.names(one["profiles"], none="no profile")
            self._item(f"{one['broker']}: {user}; {profiles}; {', '.join(ends) or 'no token'}")

    def _key(self, key: Row) -> None:
        self._subtitle(key["alias"])
        age = _age(key)
        if key["rotate_every_s"]:
            age.append(f" of {words.duration(key['rotate_every_s'])}")
        more = f" and {len(key['who_did']) - _LISTED} more" if len(key["who_did"]) > _LISTED else ""
        rows: list[tuple[str, str | Text]] = [
            ("what it is", words.use(key)),
            ("purpose", key["purpose"] or "not said"),
            ("owner", key["owner"] or "not said"),
            ("where", key["source_ref"] or "nowhere"),
            ("protection", key["protection"] or "it is nowhere"),
            ("second copy", key["second_copy"] or "not said"),
            ("fingerprint", key["fingerprint"] or "none"),
            ("phase", key["phase"] + ("" if key["loaded"] else ", not loaded")),
            ("versions", ", ".join(map(words.version, key["versions"])) or "none"),
            ("age", age),
            ("created", words.instant(key["created_at"])),
            ("activated", words.instant(key["activated_at"])),
            ("rotated", words.instant(key["last_rotated_at"])),
            ("next", words.instant(key["next_due_at"]) if key["next_due_at"] else "none is set"),
            ("may go to", words.origins(key)),
            *(("may use it", _may(one)) for one in key["who_may"]),
            *(("used it", _did(one)) for one in key["who_did"][:_LISTED]),
            *([("", more.strip())] if more else []),
            ("lent now", count(key["live_leases"], "lease")),
            ("last use", words.last_use(key)),
        ]
        self._pairs(rows)

    def _findings(self, findings: Sequence[Row]) -> None:
        self._title("Findings: unused, too wide, too old")
        if not findings:
            self._line("None.")
        for one in findings:
            text = Text()
            text.append(one["severity"].upper(), style=_STYLES[one["severity"]])
            text.append(f"  {plain(one['about'])}: {plain(one['what'])}")
            self._console.print(Padding(text, (0, 0, 0, 2)), soft_wrap=False)
            self._console.print(Padding(Text(f"to do: {plain(one['do'])}", style="dim"), (0, 0, 0, 8)))

    # --- shapes ---

    def _title(self, text: str) -> None:
        self._console.print()
        self._line(text.upper(), "bold")
        self._line("=" * len(text), "dim")

    def _subtitle(self, text: str, style: str = "bold") -> None:
        self._console.print()
        self._line(text, style)

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(plain(text), style=style))

    def _item(self, text: str) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(Text("-"), Text(plain(text), overflow="fold"))
        self._console.print(Padding(grid, (0, 0, 0, 2)))

    def _pairs(self, rows: Iterable[tuple[str, str | Text]], *, indent: int = 2) -> None:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True, min_width=12)
        grid.add_column(overflow="fold")
        for name, value in rows:
            grid.add_row(name, value if isinstance(value, Text) else Text(plain(value)))
        self._console.print(Padding(grid, (0, 0, 0, indent)))

    def _table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        right: Sequence[int] = (),
        whole: Sequence[int] = (),
    ) -> None:
        """Write a table; columns in ``right`` hold numbers, those in ``whole`` are not broken into lines."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for number, column in enumerate(columns):
            side: Literal["left", "right"] = "right" if number in right else "left"
            table.add_column(column, overflow="fold", justify=side, no_wrap=number in whole)
        for row in rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(plain(str(cell))) for cell in row))
        self._console.print(Padding(table, (0, 0, 0, 2)))


def _age(key: Row) -> Text:
    """Draw the age bar: 80 % warns, 100 % alarms, and words say which."""
    if key["age_percent"] is None:
        return Text(words.due(key))
    full = min(_BAR, key["age_percent"] * _BAR // 100)
    text = Text(f"[{'#' * full}{'-' * (_BAR - full)}] {key['age_percent']} %", style=_STYLES.get(key["due"], ""))
    if key["due"] != "no":
        text.append(f" {words.due(key).removeprefix('due ')}")
    return text


def _may(one: Row) -> str:
    wild = f", {one['wildcard_routes']} with *" if one["wildcard_routes"] else ""
    routes = f"{count(one['routes'], 'route')}{wild}"
    return f"{one['profile']} ({one['kind']}, {routes}): {words.names(one['callers'], none='nobody')}"


def _did(one: Row) -> str:
    via = f" via {one['broker']}" if one["broker"] else ""
    return f"{one['caller']}{via}: {count(one['uses'], 'use')}, last {words.instant(one['last_used_at'])}"
