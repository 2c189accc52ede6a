"""How the demo shows what happened: in colour on a terminal, plain when piped."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from ops.demo import settings
from ops.demo.claims import Claim
from ops.demo.runs import Ran, code_of
from ops.demo.users import ROOT

_PREFIX = f"/client/v4/accounts/{settings.ACCOUNT}/agent-memory/namespaces/{settings.NAMESPACE}"
_SHOWN = "…"
_LONG = 20


class Report:
    """Writes to stdout. Text of the code's making is never read as markup, and its control characters are shown."""

    def __init__(self) -> None:
        """Draw in colour when stdout is a terminal."""
        self._console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)

    def line(self, text: str = "", style: str = "", indent: int = 0) -> None:
        """Write a line."""
        shown = "".join(char if char.isprintable() else "�" for char in text)
        self._console.print(Text((" " * indent + shown).rstrip(), style=style))
        sys.stdout.flush()

    def title(self) -> None:
        """Say what this is."""
        self.line("minter & broker: the main job, with a key that the code never holds", "bold")
        self.line()

    def progress(self, text: str) -> None:
        """Say what was started."""
        self.line(text, "dim")

    def grant(self) -> None:
        """Show what is granted."""
        self.line()
        self.line(f"The grant ({_SHOWN} stands for {_PREFIX})", "bold")
        for route in settings.ALLOW:
            self.line(_shortened(route), indent=2)

    def run(self, ran: Ran) -> None:
        """Show a run: its code, what it printed, the broker's trace, what reached the API."""
        self.line()
        self.line(f"{ran.number}. {ran.title}.", "bold")
        code = code_of(ran.source)
        self._heading(f"the code ({ran.source.relative_to(ROOT)})")
        if self._console.is_terminal:
            shown = Syntax(code, "python", theme="ansi_dark", background_color="default", word_wrap=True)
            self._console.print(Padding(shown, (0, 0, 0, 4)))
        else:
            for line in code.splitlines():
                self.line(line, indent=4)
        self._heading("what it printed")
        for line in ran.printed.splitlines() or ["nothing"]:
            self.line(_shortened(line), "cyan", indent=4)
        self._heading("the broker's trace")
        for row in ran.rows:
            text = f"{row['n']}  {_shortened(row['route'])}  {row['status']}"
            self.line(f"{text}  {row['bytes_sent']} bytes sent, {row['bytes_back']} back", indent=4)
        for refusal in ran.trace["trace"]["denied_by"]:
            template = f" (the catalog has {refusal['template']})" if refusal["template"] else ""
            self.line(f"{refusal['count']} refused: {refusal['code']}{template}; nothing was sent", "yellow", indent=4)
        if not ran.rows and not ran.denied:
            self.line("no call", indent=4)
        self._heading("what reached the API")
        for request in ran.received:
            how = {"key": "with the key", "jwt": "with a token of the run"}.get(request.authenticated, "with neither")
            self.line(f"{request.method} {_shortened(request.target)}  {how}  {request.status}", indent=4)
        if not ran.received:
            self.line("nothing", indent=4)

    def totals(self, claims: Sequence[Claim]) -> None:
        """Show the totals."""
        self.line()
        self.line("Totals, counted from what happened", "bold")
        for claim in claims:
            self.claim(claim)

    def claim(self, claim: Claim) -> None:
        """Show a claim, and why it is not as it should be."""
        self.line(claim.text, "green" if claim.holds else "bold red", indent=2)
        if not claim.holds:
            for line in ["not as it should be", *claim.why]:
                self.line(line, "red", indent=4)

    def verdict(self, claims: Sequence[Claim]) -> None:
        """End with what it all comes to."""
        failed = [claim for claim in claims if not claim.holds]
        self.line()
        if failed:
            self.line(f"{len(failed)} of {len(claims)} claims do not hold", "bold red")
        else:
            self.line(f"All {len(claims)} claims hold. Nothing is left running.", "bold green")

    def _heading(self, text: str) -> None:
        self.line(text, "dim", indent=2)


def _shortened(text: str) -> str:
    return text.replace(_PREFIX, _SHOWN)
