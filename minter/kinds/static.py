"""``static``: a key that somebody else issued and that lasts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec

from config.errors import ConfigurationError, Fault
from config.problems import ProblemError
from config.secret import Secret
from minter.custody import Custody
from minter.held import is_sendable
from minter.kinds import Ending, HowEnded, LeaseView, Minted, MintRequest, alias_of, options


class _Reference(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    key: str | None = None
    env: str | None = None
    file: str | None = None
    keyring: str | None = None
    credential: str | None = None


class _Options(_Reference, forbid_unknown_fields=True, kw_only=True):
    type: str
    fields: dict[str, _Reference] | None = None


class StaticKind:
    """A long-lived key, lent as it is.

    The code never holds it, the broker does while it calls. Ending a lease stops its use here and does not end the
    key: only a rotation does. Name the key by ``key`` (an alias of minter.toml) or inline by ``env``, ``file``,
    ``keyring`` or ``credential``. An API that wants several keys gets them as ``fields``, each named likewise.
    """

    name: ClassVar[str] = "static"
    local: ClassVar[bool] = True
    how_ends: ClassVar[HowEnded] = "key_still_valid"
    example: ClassVar[Mapping[str, Any]] = {"type": "static", "env": "CLOUDFLARE_API_TOKEN"}

    def __init__(self, aliases: Mapping[str, str], custody: Custody) -> None:
        self._aliases = aliases
        self._custody = custody

    @classmethod
    def build(cls, token: Mapping[str, Any], custody: Custody, where: str) -> Self:
        """Make the kind of a token object."""
        given = options(_Options, token, where)
        if given.fields is None:
            aliases = {"value": alias_of(token, where)}
        elif any(name in token for name in _Reference.__struct_fields__):
            raise ConfigurationError([Fault(where, "has both fields and a secret of its own", "give one of both")])
        elif not given.fields:
            raise ConfigurationError([Fault(f"{where}.fields", "names no field")])
        else:
            aliases = {name: alias_of(token["fields"][name], f"{where}.fields.{name}") for name in given.fields}
        for alias in aliases.values():
            _check_alias(alias, custody, where)
        return cls(aliases, custody)

    async def mint(self, request: MintRequest) -> Minted:
        """Return the active version of each key."""
        credential: dict[str, Secret] = {}
        versions: dict[str, int] = {}
        for name, alias in self._aliases.items():
            value, version = self._custody.secret(alias, request.origin)
            if not is_sendable(value):
                raise ProblemError("secret-unavailable", f"custody key {alias} has characters that cannot be sent")
            credential[name] = value
            versions[alias] = version
        first, *others = (self._custody.fingerprint(value) for value in credential.values())
        return Minted(
            credential=credential,
            expires_at=None,
            fingerprint=".".join([first, *others]),
            key_versions=tuple(versions.items()),
            how_ends="key_still_valid",
        )

    async def revoke(self, lease: LeaseView, credential: Mapping[str, Secret] | None) -> Ending:
        """Say that the key goes on."""
        del lease, credential
        return Ending("key_still_valid")


def _check_alias(alias: str, custody: Custody, where: str) -> None:
    settings = custody.settings_of(alias)
    if settings is None:
        hint = f"minter keys import {alias} while the minter runs and before grants name it, or [keys] in minter.toml"
        raise ConfigurationError([Fault(f"{where}.key", f"there is no key {alias!r}", hint)])
    if settings.use != "static":
        raise ConfigurationError([Fault(f"{where}.key", f"key {alias!r} is a signing key and is never lent")])


KIND = StaticKind
