"""``keyring:SERVICE/USER``: the desktop's or system's keyring, through the keyring library.

The library takes what it finds: a plain file that an installed package offers, a backend that an environment
variable names, one that keeps nothing. Here only Secret Service, libsecret, KWallet, macOS and Windows serve, known
by class; anything else is refused by name. A keyring that is missing or locked answers within the time limit.
"""

from __future__ import annotations

import configparser
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, TypeVar

import keyring
import keyring.errors
from keyring.backend import KeyringBackend
from keyring.backends.chainer import ChainerBackend
from keyring.util import platform_

from config.secret import Secret
from minter.sources import Context, MissingError, SourceError

T = TypeVar("T")

ALLOWED: Final = frozenset(
    {
        "keyring.backends.SecretService.Keyring",
        "keyring.backends.libsecret.Keyring",
        "keyring.backends.kwallet.DBusKeyring",
        "keyring.backends.kwallet.DBusKeyringKWallet4",
        "keyring.backends.macOS.Keyring",
        "keyring.backends.Windows.WinVaultKeyring",
    }
)
OVERRIDE: Final = "PYTHON_KEYRING_BACKEND"
_ADVICE: Final = "use Secret Service, libsecret, KWallet, macOS or Windows, or another source (file:, credential:)"


class KeyringSource:
    """The keyring."""

    name: ClassVar[str] = "keyring"
    example: ClassVar[str] = "keyring:minter/cf-parent"
    hint: ClassVar[str] = ""

    def __init__(self, context: Context) -> None:
        self._timeout_s = context.keyring_timeout_s
        #: The class of the backend that answered last.
        self._used = ""

    @property
    def protection(self) -> str:
        """How a keyring protects a key. Asks nothing: it names the backend that answered last."""
        return (
            f"In the system's keyring ({self._used or 'which has not answered yet'}), encrypted on disk; while it is"
            " unlocked, other programs of the minter's user may ask it for the key."
        )

    def check(self, place: str) -> None:
        """Raise when ``place`` is not SERVICE/USER."""
        service, slash, user = place.rpartition("/")
        if not (service and slash and user):
            raise SourceError("is not a place in a keyring", "write keyring:SERVICE/USER")

    def read(self, place: str) -> Secret:
        """Return the entry's password."""
        service, _, user = place.rpartition("/")
        value = self._within_limit(lambda backend: backend.get_password(service, user))
        if value is None:
            raise MissingError("is not in the keyring", f"keyring set {service} {user}")
        return Secret(value)

    def write(self, place: str, value: Secret) -> None:
        """Set the entry's password."""
        service, _, user = place.rpartition("/")
        self._within_limit(lambda backend: backend.set_password(service, user, value.reveal()))

    def delete(self, place: str) -> None:
        """Remove the entry."""
        service, _, user = place.rpartition("/")

        def remove(backend: KeyringBackend) -> None:
            # Asked first: the error for a missing entry is also the one for an entry that cannot be removed.
            if backend.get_password(service, user) is not None:
                backend.delete_password(service, user)

        self._within_limit(remove)

    def backend(self) -> str:
        """Return the class of the backend in use. Errors: :class:`SourceError` when none may be used."""
        return self._within_limit(_class_of)

    def _within_limit(self, action: Callable[[KeyringBackend], T]) -> T:
        """Run ``action`` on the backend in a thread, and leave the thread behind when it takes too long."""
        answers: queue.SimpleQueue[tuple[T | None, SourceError | None]] = queue.SimpleQueue()
        seen: list[str] = []

        def work() -> None:
            try:
                backend = _choose()
                seen.append(_class_of(backend))
                answers.put((action(backend), None))
            except SourceError as error:
                answers.put((None, error))
            except Exception as error:  # noqa: BLE001 - backends raise RuntimeError, ImportError, D-Bus errors …
                # Its text is not repeated: a backend may put what it was given into it.
                answers.put((None, _refusal(error, seen)))

        threading.Thread(target=work, name="keyring", daemon=True).start()
        try:
            value, error = answers.get(timeout=self._timeout_s)
        except queue.Empty:
            where = seen[0] if seen else "the choice of a backend"
            raise SourceError(
                f"the keyring did not answer within {self._timeout_s:g} s ({where})",
                "unlock it in the minter's session, or use another source",
            ) from None
        if error is not None:
            raise error
        self._used = seen[0]
        return value  # type: ignore[return-value]


def _choose() -> KeyringBackend:
    if OVERRIDE in os.environ:
        raise SourceError(
            f"the environment names the keyring backend {os.environ[OVERRIDE]!r}", f"{OVERRIDE} must not be set"
        )
    _check_configuration()
    backend = keyring.get_keyring()
    # A chain reads on in weaker members when the first has nothing: whoever can write there could supply a value.
    members = list(backend.backends) if isinstance(backend, ChainerBackend) else [backend]
    for member in members:
        if _class_of(member) not in ALLOWED:
            raise SourceError(f"the keyring backend {_class_of(member)} is refused", _ADVICE)
    if not members:
        raise SourceError(f"the keyring backend {_class_of(backend)} is empty", _ADVICE)
    return members[0]


def _check_configuration() -> None:
    """Refuse a ``keyringrc.cfg`` that loads code from a folder or chooses a backend outside the list."""
    path = Path(platform_.config_root()) / "keyringrc.cfg"
    config = configparser.RawConfigParser()
    try:
        config.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        raise SourceError("the keyring library's configuration cannot be read", "see keyringrc.cfg") from None
    if config.has_option("backend", "keyring-path"):
        raise SourceError("keyringrc.cfg loads backends from a folder", "remove keyring-path")
    chosen = config.get("backend", "default-keyring", fallback="").strip()
    if chosen and chosen not in ALLOWED:
        raise SourceError(f"keyringrc.cfg names the keyring backend {chosen}", _ADVICE)


def _class_of(backend: KeyringBackend) -> str:
    return f"{type(backend).__module__}.{type(backend).__qualname__}"


def _refusal(error: Exception, seen: list[str]) -> SourceError:
    where = seen[0] if seen else "no backend"
    if isinstance(error, keyring.errors.KeyringLocked):
        return SourceError(f"the keyring is locked ({where})", "unlock it in the minter's session, then try again")
    return SourceError(f"the keyring failed with {type(error).__name__} ({where})", _ADVICE)


SOURCE = KeyringSource
