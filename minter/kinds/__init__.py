"""How a credential is made: one file for each token kind, found by being there.

A kind is made at load from the ``token`` object of a profile; what is wrong with the object is a fault then, not at
the first call. Its mint returns a credential with an honest end and its revocation says honestly how it ended.

A new kind is a new file here with a class ``KIND``. One from another distribution (entry point group
``minter.kinds``) loads only when the settings name it: installed is not trusted.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ClassVar, Final, Literal, Protocol, Self, TypeVar, get_args, runtime_checkable

import msgspec

from config.durations import parse_duration
from config.errors import ConfigurationError, Fault
from config.profiles import SECRET_FIELDS
from config.secret import Secret
from config.validation import struct_faults
from minter.custody import Custody

GROUP: Final = "minter.kinds"

#: Nothing ends it but its own end; a key that goes on; the issuer deleted it; the issuer said that it will.
HowEnded = Literal["expired_only", "key_still_valid", "upstream_deleted", "accepted_async"]
#: Statuses of an answer to a revocation: the credential is gone (or never was), will be, or will not be revoked.
_GONE: Final = (200, 204, 404, 410)
_ACCEPTED: Final = 202
_NEVER: Final = (400, 401, 403, 405, 422, 501)
_UNAUTHORIZED: Final = 401
#: However long an issuer asks for, it is asked again after a day.
MAX_PAUSE_S: Final = 86400.0
O = TypeVar("O", bound=msgspec.Struct)  # noqa: E741


@dataclass(frozen=True, slots=True, kw_only=True)
class MintRequest:
    """What a credential is wanted for.

    ``routes`` are the granted routes as written, ``origin`` the profile's. ``not_after`` is when the lease ends at the
    latest: by the run's end or the grant's lifetime.
    """

    lease_id: str
    run_id: str
    caller: str
    profile: str
    params: Mapping[str, str]
    origin: str
    routes: tuple[str, ...]
    scopes: tuple[str, ...]
    now: float
    not_after: float
    broker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minted:
    """A credential, by field; the only field of most kinds is ``value``.

    ``expires_at`` is when it ends by itself, None when it does not. ``fingerprint`` tells two credentials apart and
    shows neither. ``key_versions``: the custody keys that it was made with. ``how_ends``: what a revocation will say.
    """

    credential: Mapping[str, Secret]
    expires_at: float | None
    fingerprint: str
    key_versions: tuple[tuple[str, int], ...]
    how_ends: HowEnded


@dataclass(frozen=True, slots=True)
class Ending:
    """How a credential ended."""

    how: HowEnded


class RevocationError(Exception):
    """A revocation that failed. ``permanent``: trying again cannot help. ``retry_after`` is in seconds.

    A pause that is longer than :data:`MAX_PAUSE_S` is cut to it, and one that is none (NaN, below zero) is left out.

    >>> RevocationError(retry_after=float("inf")).retry_after
    86400.0
    """

    def __init__(self, *, retry_after: float | None = None, permanent: bool = False) -> None:
        if retry_after is not None:
            retry_after = min(retry_after, MAX_PAUSE_S) if retry_after >= 0 else None
        self.retry_after = retry_after
        self.permanent = permanent
        super().__init__("permanent" if permanent else "to be tried again")


class LeaseView(Protocol):
    """What a revocation may know of its lease; a row of the lease table is one."""

    @property
    def id(self) -> str:
        """The lease's id."""
        ...

    @property
    def token(self) -> str:
        """The token object as it was granted, in JSON."""
        ...


class Kind(Protocol):
    """A token kind, made for one token object. The class's docstring explains it to operators.

    ``local``: a mint leaves no trace anywhere else. ``example`` is a token object that builds. A class variable
    ``how_ends``, which one of another distribution may lack, is the best that a revocation of it can say.
    """

    name: ClassVar[str]
    local: ClassVar[bool]
    example: ClassVar[Mapping[str, Any]]

    @classmethod
    def build(cls, token: Mapping[str, Any], custody: Custody, where: str) -> Self:
        """Make the kind of a token object. Errors: ``ConfigurationError`` with every fault."""
        ...

    async def mint(self, request: MintRequest) -> Minted:
        """Make a credential. Errors: ``ProblemError``, with no word of an issuer's or of the secret."""
        ...

    async def revoke(self, lease: LeaseView, credential: Mapping[str, Secret] | None) -> Ending:
        """End a credential; ending one that is gone is no error. Errors: :class:`RevocationError`.

        A ``local`` kind gets none, and others get None for a value that was lost: an issuer may know the lease's id.
        """
        ...


@runtime_checkable
class FindsOrphans(Protocol):
    """A kind that can find at its issuer, by the lease's id, what a mint left there whose answer was lost.

    An option of a :class:`Kind`. It makes credentials under a name that carries the lease's id.
    """

    async def end_orphan(self, lease: LeaseView) -> Ending | None:
        """End what was made for a lease that nobody holds; return None when there is nothing of that name.

        Errors: :class:`RevocationError` when the issuer did not say.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A version of a root secret at its issuer.

    ``name`` is what the minter called it there: it carries installation, alias and version and is the issuer's only
    one of that name. A version that a person made was given no such name; only its ``value`` tells which it is. The
    value is None when nobody has it: a minter that was killed between making it and keeping it.
    """

    name: str
    value: Secret | None


@runtime_checkable
class RotatesRoot(Protocol):
    """A kind whose issuer can make a new one of the secret that credentials are made with: ``minter rotate ALIAS``.

    An option of a :class:`Kind`. The order is the minter's (minter/rotation.py): the version is written down, made at
    the issuer, kept in its source, proved, put in force; after the overlap the old one is deleted at the issuer and in
    its source. Each call may come again after a crash. Errors of all: :class:`RevocationError`, which says whether
    trying again can help, or ``ProblemError``, with no word of an issuer's or of a secret.
    """

    def root_alias(self) -> str:
        """Return the alias of the custody key that the issuer can renew."""
        ...

    def root_origin(self) -> str:
        """Return the origin of the issuer that these calls go to: the key's pins must allow it."""
        ...

    async def create_root(self, current: Secret, name: str) -> Secret:
        """Make a new one at the issuer, by right of ``current``, with the same powers and under ``name``."""
        ...

    async def prove_root(self, candidate: Secret) -> None:
        """Prove by a harmless call that ``candidate`` works. A permanent :class:`RevocationError` says it does not."""
        ...

    async def delete_root(self, using: Secret, old: Root) -> None:
        """Delete ``old`` at the issuer, by right of ``using``. One that is not there, or never was, is no error."""
        ...


def classes(third_party: Sequence[str] = ()) -> Mapping[str, type[Kind]]:
    """Return the kinds by name: those of this package, and those that the settings name.

    Errors: ``ConfigurationError`` for a name that is not installed or is taken.
    """
    return _classes(tuple(third_party))


def how_ends(name: str, third_party: Sequence[str] = ()) -> HowEnded | None:
    """Return the best that a revocation of a kind can say; None when it does not say, or is not there."""
    found = getattr(classes(third_party).get(name), "how_ends", None)
    return found if found in get_args(HowEnded) else None


@functools.cache
def _classes(third_party: tuple[str, ...]) -> Mapping[str, type[Kind]]:
    found: dict[str, type[Kind]] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            kind: type[Kind] = importlib.import_module(f"{__name__}.{module.name}").KIND
            found[kind.name] = kind
    installed = {entry.name: entry for entry in entry_points(group=GROUP)} if third_party else {}
    for name in third_party:
        if name in found or name not in installed:
            what = "is the name of a kind of the minter's own" if name in found else "is not installed"
            raise ConfigurationError([Fault(f"kinds: {name}", what)])
        found[name] = installed[name].load()
    return found


def names(third_party: Sequence[str] = ()) -> list[str]:
    """Return the names of the kinds."""
    return sorted(classes(third_party))


def describe(name: str, third_party: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a kind is, for operators. Errors: ``KeyError`` for an unknown name."""
    kind = classes(third_party)[name]
    return {"name": name, "doc": inspect.getdoc(kind) or "", "example": dict(kind.example), "local": kind.local}


def build(token: Mapping[str, Any], custody: Custody, where: str) -> Kind:
    """Make the kind of a token object. ``where`` is its place in the grants file.

    Errors: ``ConfigurationError`` with every fault.
    """
    known = classes(custody.settings.kinds)
    name = token.get("type")
    if not isinstance(name, str) or name not in known:
        what = f"unknown token kind {name!r}" if isinstance(name, str) else "the token has no type"
        raise ConfigurationError([Fault(f"{where}.type", what, f"known are {', '.join(sorted(known))}")])
    return known[name].build(token, custody, where)


def checker(custody: Custody) -> Callable[[str, dict[str, Any]], list[Fault]]:
    """Return the check of token objects that :func:`config.grants.parse_grants` takes."""

    def check(where: str, token: dict[str, Any]) -> list[Fault]:
        try:
            build(token, custody, where)
        except ConfigurationError as error:
            return list(error.faults)
        return []

    return check


# --- what kinds share ---


def ended_by(status: int, *, by_itself: bool, retry_after: float | None = None) -> Ending:
    """Return how a credential ended, by the status of an issuer's answer to its revocation.

    ``by_itself``: the credential itself asked for it, so that a refusal of who asked says that it is gone.
    Errors: :class:`RevocationError`; permanent when asking again cannot help.
    """
    if status in _GONE or (by_itself and status == _UNAUTHORIZED):
        return Ending("upstream_deleted")
    if status == _ACCEPTED:
        return Ending("accepted_async")
    # What is not known is not believed to be for ever.
    raise RevocationError(retry_after=retry_after, permanent=status in _NEVER)


def options(type_: type[O], token: Mapping[str, Any], where: str) -> O:
    """Read a token object strictly. Errors: ``ConfigurationError`` with every fault."""
    faults = struct_faults(type_, token, where=where)
    if faults:
        raise ConfigurationError([Fault(_joined(where, f.where), f.what, f.hint) for f in faults])
    try:
        return msgspec.convert(token, type=type_, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigurationError([Fault(where, str(error))]) from None


def lifetime(value: float | str | None, default_s: float, where: str) -> float:
    """Read a ``ttl``, in seconds."""
    if value is None:
        return default_s
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ConfigurationError([Fault(f"{where}.ttl", str(error))]) from None


def alias_of(given: Mapping[str, Any], where: str) -> str:
    """Return the custody alias of an object that names exactly one secret: by ``key``, or inline by its source."""
    named = [name for name in SECRET_FIELDS if given.get(name) is not None]
    if len(named) != 1:
        what = "names no secret" if not named else f"names {len(named)} secrets"
        raise ConfigurationError([Fault(where, what, f"give one of {', '.join(SECRET_FIELDS)}")])
    value = given[named[0]]
    if not isinstance(value, str):
        raise ConfigurationError([Fault(f"{where}.{named[0]}", "is not a text")])
    return value if named[0] == "key" else f"{named[0]}:{value}"


def _joined(where: str, place: str) -> str:
    inner = place.removeprefix(f"{where}: ")
    return where if inner == "the document" else f"{where}.{inner}"
