"""The tokens of callers and brokers as custody keys: of them only digests are kept, so there is no value anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from config.clock import parse_rfc3339, rfc3339
from config.tokenfiles import TokenFile

Which = Literal["callers", "brokers"]


def listed(file: TokenFile, which: Which, *, path: Path, now: float) -> list[dict[str, Any]]:
    """Return what a key list or report shows of each: its alias is what ``minter rotate`` takes.

    >>> from config.tokenfiles import Principal
    >>> listed(TokenFile(brokers=[Principal(id="b1")]), "brokers", path=Path("brokers.json"), now=0.0)[0]["alias"]
    'broker:b1'
    """
    found = []
    for principal in file.callers if which == "callers" else file.brokers:
        ends = [None if entry.not_after is None else parse_rfc3339(entry.not_after) for entry in principal.tokens]
        live = [end for end in ends if end is None or end > now]
        overlap_at = max((end for end in live if end is not None), default=None)
        found.append(
            {
                "alias": f"{which.removesuffix('s')}:{principal.id}",
                "use": "token",
                "source_ref": f"{path} (digest only)",
                "tokens": len(live),
                "overlap_ends_at": None if overlap_at is None else rfc3339(overlap_at),
                "profiles": principal.profiles,
            }
        )
    return found
