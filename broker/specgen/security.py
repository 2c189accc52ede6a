"""How the API wants to be sent its credential: one placement for a profile, and which operations do without.

It is that of the first alternative that one placement can do, of the document's security or else of the first operation
that has its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broker.specgen.alternatives import MOST_SCOPES, ROOT, Schemes, Wanted, Way, listed
from broker.specgen.model import Note, Security

_SAY: Final = "say it with --placement"


@dataclass(frozen=True, slots=True)
class Policy:
    """The security of the profile, and the alternative that it is; None when there is none, or the operator chose."""

    security: Security
    way: Way | None = None

    def sends(self, wanted: Wanted | None) -> tuple[bool, Note | None]:
        """Say whether an operation is sent the credential, and what the operator should know about it.

        ``wanted`` is None when neither the operation nor the document says what it asks for.
        """
        if wanted is None or (self.security.placement is None and not self.security.question):
            return True, None
        if wanted.nothing:
            return False, Note("warn", wanted.pointer, "no credential is sent: the operation asks for none")
        best = wanted.best
        if self.way is None or best is None or any(self._does(way) for way in wanted.ways):
            return True, None
        if best.placement is None:
            return True, Note("warn", wanted.pointer, best.question, "if it is sent in another way, a second profile")
        reason = f"asks for {listed(best.schemes)}; the profile sends its credential as {listed(self.way.schemes)}"
        return True, Note("limit", wanted.pointer, reason, "make a second profile with --placement")

    def _does(self, way: Way) -> bool:
        same = way.placement is not None and way.placement == self.security.placement
        return same or (self.way is not None and way.schemes == self.way.schemes)


def settled(schemes: Schemes, own: Iterable[Wanted]) -> Policy:
    """Settle the profile's placement. ``own`` is what operations ask for that do not leave it to the document.

    The scopes are those that the document names with the chosen alternative.
    """
    root = schemes.root
    everywhere = [wanted for wanted in (root, *own) if wanted is not None]
    asking = next((wanted for wanted in everywhere if wanted.best is not None), None)
    best = asking.best if asking is not None else None
    names, notes = frozenset(schemes.names), list(schemes.notes)
    scopes = _scopes(everywhere, best)
    chosen = schemes.choices.placement
    if chosen is not None:
        return Policy(Security(placement=chosen, scopes=scopes, names=names, notes=tuple(notes)))
    if asking is not None and best is not None:
        others = [listed(way.schemes) for way in asking.ways if way.schemes and way is not best]
        if others:
            reason = f"{listed(best.schemes)} is used; the other alternatives: {'; '.join(others)}"
            notes.append(Note("warn", asking.pointer, reason, _SAY))
        if best.placement is not None and "headers" in best.placement:
            fields = listed(best.placement["headers"].values())
            reason = f"the credential has a field for each header: {fields}; a static key has one value"
            notes.append(Note("warn", asking.pointer, reason, "choose a kind of token that has these fields"))
        security = Security(
            placement=best.placement, question=best.question, scopes=scopes, names=names, notes=tuple(notes)
        )
        return Policy(security, best)
    if root is None and schemes.declared:
        declared = listed(schemes.declared)
        question = f"the document defines {declared} and does not say what needs it: how is the credential sent?"
        return Policy(Security(placement=None, question=question, names=names, notes=tuple(notes)))
    notes.append(Note("warn", ROOT, "the document asks for no credential; the profile sends none", _SAY))
    return Policy(Security(placement=None, names=names, notes=tuple(notes)))


def _scopes(everywhere: Iterable[Wanted], best: Way | None) -> tuple[str, ...]:
    if best is None:
        return ()
    ways = [way for wanted in everywhere for way in wanted.ways if way.schemes == best.schemes]
    return tuple(sorted({scope for way in ways for scope in way.scopes}))[:MOST_SCOPES]
