"""A key that the grants name inline (``env:NAME``): what moves it to minter.toml, where keys can be rotated."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

_OTHER: Final = re.compile(r"[^a-z0-9]+")


def is_inline(alias: str) -> bool:
    """Say whether an alias is a place in the grants file. No other alias has a colon."""
    return ":" in alias


def alias_for(alias: str) -> str:
    """Return an alias of its own.

    >>> alias_for("env:CLOUDFLARE_API_TOKEN"), alias_for("keyring:minter/cf-parent"), alias_for("file:keys/api.key")
    ('cloudflare-api-token', 'cf-parent', 'api-key')
    """
    place = alias.partition(":")[2].rpartition("/")[2]
    return _OTHER.sub("-", place.lower()).strip("-") or "key"


def move(alias: str, profiles: Sequence[str]) -> dict[str, Any]:
    """Return the lines for minter.toml and the change of the grants file.

    >>> move("env:API_TOKEN", ["mem"])["minter_toml"]
    ['[keys.api-token]', 'source = "env:API_TOKEN"']
    """
    source, _, place = alias.partition(":")
    own = alias_for(alias)
    before, after = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in ((source, place), ("key", own)))
    return {
        "alias": own,
        "minter_toml": [f"[keys.{own}]", f"source = {json.dumps(alias)}"],
        "grants": [f"profiles.{name}.token: {before} becomes {after}" for name in profiles],
    }


def lines(alias: str, profiles: Sequence[str], by_hand: str) -> list[str]:
    """Return the same as lines of text for a person.

    ``by_hand`` says how a secret changes at a place where the minter cannot write, and is empty where it can.

    >>> [line for line in lines("env:API_TOKEN", ["mem"], "set the variable") if "restart the" in line]
    ['then restart the minter, which cannot write there: set the variable']
    """
    how = move(alias, profiles)
    then = f", which cannot write there: {by_hand}" if by_hand else f" and: minter rotate {how['alias']}"
    return [
        "in minter.toml:",
        *(f"  {line}" for line in how["minter_toml"]),
        "in the grants file:",
        *(f"  {line}" for line in how["grants"]),
        f"then restart the minter{then}",
        f"or keep it in the minter's state and rotate it there, without a restart: minter keys import {how['alias']}",
    ]
