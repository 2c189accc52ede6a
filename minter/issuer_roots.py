"""Root secrets that their issuer makes anew: the calls of a kind's hook (:class:`minter.kinds.RotatesRoot`).

A hook is somebody else's code that speaks with somebody else's service: every call has a deadline, and whatever it
raises becomes a :class:`RootError`, whose text is our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import structlog

from config.problems import ProblemError
from config.secret import Secret
from minter.custody import Custody
from minter.key_rows import VersionRow
from minter.kinds import Kind, RevocationError, Root, RotatesRoot
from minter.sources import SourceError

T = TypeVar("T")

#: An issuer that takes longer is asked again later. Three calls stay below what the command line waits for.
TIMEOUT_S: Final = 9.0
#: What :attr:`minter.key_rows.VersionRow.made_by` says of a version that its issuer made.
ISSUER: Final = "issuer"

_log = structlog.get_logger()


class RootError(Exception):
    """An issuer that did not do what it was asked for. ``permanent``: it refuses, and asking again cannot help."""

    def __init__(self, *, permanent: bool = False, retry_after: float | None = None) -> None:
        self.permanent = permanent
        self.retry_after = retry_after
        super().__init__("the issuer refuses" if permanent else "the issuer failed")


class IssuerRoots:
    """Root secrets at their issuers. ``kinds`` are those of the grants in force, by profile."""

    def __init__(self, custody: Custody, *, kinds: Callable[[], Iterable[Kind]], installation: str) -> None:
        self._custody = custody
        self._kinds = kinds
        self._installation = installation

    def offers(self, alias: str) -> bool:
        """Say whether the issuer of a key can make a new one."""
        return self._kind(alias) is not None

    def name(self, alias: str, version: int) -> str:
        """Return what a version is called at its issuer: nobody else's, and the same again after a crash."""
        return f"minter-{self._installation[:12]}-{alias}-v{version}"

    async def create(self, row: VersionRow) -> Secret:
        """Have the issuer make a version, by right of the active one. Errors: :class:`RootError`."""
        kind = self._hook(row.alias)
        made = await _asked(
            row.alias, "create", lambda: kind.create_root(self._current(kind), self.name(row.alias, row.version))
        )
        if not isinstance(made, Secret) or not len(made):
            raise RootError
        return made

    async def prove(self, alias: str, candidate: Secret) -> None:
        """Prove by a harmless call that a value works. Errors: :class:`RootError`."""
        kind = self._hook(alias)
        self._current(kind)
        await _asked(alias, "prove", lambda: kind.prove_root(candidate))

    async def delete(self, row: VersionRow) -> None:
        """Have the issuer delete a version, by right of the active one. Errors: :class:`RootError`."""
        kind = self._hook(row.alias)
        old = Root(name=self.name(row.alias, row.version), value=await asyncio.to_thread(self._value, row))
        await _asked(row.alias, "delete", lambda: kind.delete_root(self._current(kind), old))

    def _current(self, kind: RotatesRoot) -> Secret:
        """Return the active value for a call to the issuer, which the key's pins must allow."""
        return self._custody.secret(kind.root_alias(), kind.root_origin())[0]

    def _value(self, row: VersionRow) -> Secret | None:
        try:
            return self._custody.reader.sources.read(row.source_ref)
        except SourceError:
            return None

    def _hook(self, alias: str) -> RotatesRoot:
        kind = self._kind(alias)
        if kind is None:
            # Its profile is gone from the grants since: nobody knows how to ask.
            raise RootError
        return kind

    def _kind(self, alias: str) -> RotatesRoot | None:
        return next(
            (kind for kind in self._kinds() if isinstance(kind, RotatesRoot) and kind.root_alias() == alias), None
        )


async def _asked(alias: str, what: str, call: Callable[[], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await call()
    except RevocationError as error:
        raise RootError(permanent=error.permanent, retry_after=error.retry_after) from None
    except ProblemError as error:
        if error.code == "origin-not-pinned":
            raise
        raise RootError(retry_after=error.retry_after) from None
    except Exception as error:  # noqa: BLE001 - a plugin's; its text may hold anything
        _log.warning("root-call-failed", alias=alias, what=what, error=type(error).__name__)
        raise RootError from None
