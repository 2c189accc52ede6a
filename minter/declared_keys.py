"""Custody keys that operators declared while the minter ran: ``minter keys create`` and ``import``.

What minter.toml would say of such a key stands as JSON in its row (``custody_keys.settings``) and is in force without
a restart and after one. Where it may go stands in the row alone: ``minter keys rebind`` has one place to change. An
alias that minter.toml names is minter.toml's: what stands in the row does not count then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from config.settings import KeySettings
from minter.key_rows import KeyRow

#: An alias is part of places (``sealed:ALIAS``, ``SOURCE.v2``) and of names at issuers.
ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def settings_in(keys: Mapping[str, KeyRow]) -> dict[str, KeySettings]:
    """Return what stands in the rows, by alias."""
    return {alias: read(row.settings) for alias, row in keys.items() if row.settings}


def retired_in(keys: Mapping[str, KeyRow]) -> frozenset[str]:
    """Return the aliases that were taken out of use."""
    return frozenset(alias for alias, row in keys.items() if row.retired_at is not None)


def written(settings: KeySettings) -> str:
    """Return the settings as they stand in a row.

    >>> written(KeySettings(source="sealed:signer", use="signing"))
    '{"source":"sealed:signer","use":"signing"}'
    """
    plain = msgspec.to_builtins(settings)
    default = msgspec.to_builtins(KeySettings(source=""))
    return msgspec.json.encode({name: value for name, value in plain.items() if value != default[name]}).decode()


def read(text: str) -> KeySettings:
    """Return the settings of a row."""
    return msgspec.json.decode(text, type=KeySettings)
