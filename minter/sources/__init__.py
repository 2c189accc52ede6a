"""Where secrets live: one file for each kind of place, found by being there.

A reference is ``NAME:PLACE``: ``env:API_KEY``, ``keyring:minter/cf-parent``, ``file:/etc/minter/key``,
``credential:cf-parent`` (systemd), ``fd:3`` (an inherited pipe), ``sealed:run-signer`` (in the state). Version 2 of a
secret lives behind ``.v2`` of the reference of version 1, and so on.

What a source returns loses one line break at its end; empty is a fault. Every write is read back. A fault names the
reference and never what was found there. Reading may block: call it off the event loop.

A new source is a new file here with a class ``SOURCE``. One from another distribution (entry point group
``minter.sources``) loads only when the settings name it: installed is not trusted.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import ClassVar, Final, Protocol, runtime_checkable

import structlog

from config.errors import ConfigurationError, Fault
from config.secret import Secret
from config.settings import MinterSettings
from minter.sealed_values import SealedValues

#: No secret is longer; a place that holds more is not the one that was meant.
MAX_BYTES: Final = 65536
GROUP: Final = "minter.sources"
#: What :func:`versioned` writes behind a place, once or more.
_VERSIONS: Final = re.compile(r"(?:\.v[0-9]+)+\Z", re.ASCII)

_log = structlog.get_logger()


class SourceError(Exception):
    """A source that does not give, take or delete a secret. ``what`` never holds a value; ``hint`` says what to do."""

    def __init__(self, what: str, hint: str = "") -> None:
        self.what = what
        self.hint = hint
        super().__init__(what)

    def told(self) -> str:
        """Return both in one."""
        return f"{self.what} ({self.hint})" if self.hint else self.what


class MissingError(SourceError):
    """There is nothing at the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What sources are made with.

    ``environ``: secrets that it names are read once and removed from it. ``base``: what relative paths count from.
    ``sealed``: what the state keeps, once it is open.
    """

    environ: MutableMapping[str, str]
    base: Path
    keyring_timeout_s: float = 5.0
    sealed: SealedValues = field(default_factory=SealedValues)

    @classmethod
    def of(cls, settings: MinterSettings, environ: MutableMapping[str, str]) -> Context:
        """Return what the settings give. Relative paths are the grants file's: those of the settings are absolute."""
        return cls(
            environ=environ,
            base=Path(settings.grants).parent,
            keyring_timeout_s=float(settings.keyring_timeout),
        )


class Source(Protocol):
    """A kind of place. Its errors are :class:`SourceError`; any other exception is a mistake in it and becomes one.

    ``hint`` says how a secret there is rotated when the minter cannot write it. A text ``protection``, which one of
    another distribution may lack, says in a sentence how such a place protects a secret.
    """

    name: ClassVar[str]
    example: ClassVar[str]
    hint: ClassVar[str]

    def __init__(self, context: Context) -> None: ...

    def check(self, place: str) -> None:
        """Raise when ``place`` cannot be one of this kind; touch nothing."""
        ...

    def read(self, place: str) -> Secret:
        """Return what is there, as it is. Errors: :class:`MissingError` when there is nothing."""
        ...


@runtime_checkable
class WritableSource(Source, Protocol):
    """A kind of place that the minter can rotate secrets in."""

    def write(self, place: str, value: Secret) -> None:
        """Put ``value`` there durably, in place of what is there."""
        ...

    def delete(self, place: str) -> None:
        """Remove what is there durably; nothing there is no error."""
        ...


@runtime_checkable
class FilingSource(Source, Protocol):
    """A kind of place that is a file: another reference may name the same one."""

    def path(self, place: str) -> Path:
        """Return the file behind ``place``; touch nothing."""
        ...


class Sources:
    """All sources of one minter.

    >>> Sources(Context(environ={"KEY": "a value"}, base=Path("/"))).read("env:KEY")
    <secret>
    """

    def __init__(self, context: Context, *, third_party: Sequence[str] = ()) -> None:
        self.sealed = context.sealed
        self._sources = {name: source(context) for name, source in classes(third_party).items()}

    def check(self, ref: str) -> None:
        """Raise :class:`SourceError` when ``ref`` is not a reference; touch nothing."""
        source, place = self._find(ref)
        with _ours():
            source.check(place)

    def place(self, ref: str) -> str:
        """Return one name for the place behind ``ref``, however it is spelled."""
        try:
            source, place = self._find(ref)
        except SourceError:
            return ref
        return f"file:{os.path.realpath(source.path(place))}" if isinstance(source, FilingSource) else ref

    def family(self, ref: str) -> str:
        """Return one name for the place behind ``ref`` and behind every version of the secret there."""
        return _VERSIONS.sub("", self.place(_VERSIONS.sub("", ref)))

    def file(self, ref: str) -> Path | None:
        """Return the file behind ``ref``, links followed; None when it names another kind of place."""
        source, place = self._find(ref)
        return Path(os.path.realpath(source.path(place))) if isinstance(source, FilingSource) else None

    def writable(self, ref: str) -> bool:
        """Say whether the minter may write and delete at ``ref``."""
        return isinstance(self._find(ref)[0], WritableSource)

    def how_to_rotate(self, ref: str) -> str:
        """Return how a secret at ``ref`` is rotated when the minter cannot write it."""
        return self._find(ref)[0].hint

    def protection(self, ref: str) -> str:
        """Return in a sentence how the place behind ``ref`` protects a secret."""
        try:
            source, _ = self._find(ref)
        except SourceError:
            return "Nobody can say: the settings know no such source."
        return str(getattr(source, "protection", "The source does not say: it is of another distribution."))

    def read(self, ref: str) -> Secret:
        """Return the secret at ``ref``, without one line break at its end.

        Errors: :class:`MissingError` when nothing is there; :class:`SourceError` when it cannot be read or is no
        text that a secret could be.
        """
        source, place = self._find(ref)
        with _ours():
            source.check(place)
            text = _without_line_break(source.read(place).reveal())
        if not text:
            raise SourceError("is empty")
        value = Secret(text)
        check_text(value)
        return value

    def write(self, ref: str, value: Secret) -> None:
        """Put ``value`` at ``ref`` durably and read it back.

        Errors: :class:`SourceError`, also when another value comes back than was written.
        """
        source, place = self._find(ref)
        with _ours():
            source.check(place)
            if not isinstance(source, WritableSource):
                raise SourceError("cannot be written by the minter", source.hint)
            source.write(place, value)
        try:
            # A key in PEM ends with a line break, which reading takes off: the two are the same secret.
            same = self.read(ref).matches(Secret(_without_line_break(value.reveal())))
        except SourceError:
            same = False
        if not same:
            raise SourceError("does not give back what was written", "the place keeps nothing, or something else")

    def delete(self, ref: str) -> None:
        """Remove what is at ``ref``; nothing there is no error."""
        source, place = self._find(ref)
        with _ours():
            source.check(place)
            if not isinstance(source, WritableSource):
                raise SourceError("cannot be deleted by the minter", source.hint)
            source.delete(place)

    def _find(self, ref: str) -> tuple[Source, str]:
        name, colon, place = ref.partition(":")
        source = self._sources.get(name)
        if source is None or not colon or not place:
            raise SourceError("is not a reference", f"one starts with {', '.join(f'{n}:' for n in self._sources)}")
        return source, place


def versioned(ref: str, version: int) -> str:
    """Return where a version of the secret at ``ref`` lives."""
    return ref if version == 1 else f"{ref}.v{version}"


def kind_of(ref: str) -> str:
    """Return the source's name, which unlike the place may be logged."""
    return ref.partition(":")[0]


def check_text(value: Secret) -> None:
    """Raise :class:`SourceError` when ``value`` is no text that a source may give."""
    text = value.reveal()
    if len(text) > MAX_BYTES or "\0" in text:
        raise SourceError("is not a secret", f"a text of at most {MAX_BYTES} bytes without NUL is")


def classes(third_party: Sequence[str] = ()) -> dict[str, type[Source]]:
    """Return the sources by name: those of this package, and those that the settings name.

    Errors: ``ConfigurationError`` for a name that is not installed or is taken.
    """
    found: dict[str, type[Source]] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            source: type[Source] = importlib.import_module(f"{__name__}.{module.name}").SOURCE
            found[source.name] = source
    installed = {entry.name: entry for entry in entry_points(group=GROUP)} if third_party else {}
    for name in third_party:
        if name in found or name not in installed:
            what = "is the name of a source of the minter's own" if name in found else "is not installed"
            raise ConfigurationError([Fault(f"sources: {name}", what)])
        found[name] = installed[name].load()
    return found


@contextmanager
def _ours() -> Iterator[None]:
    """Let no error out of a source but our own: the text of another may hold anything, and nobody expects it."""
    try:
        yield
    except (SourceError, AssertionError):
        raise
    except Exception as error:  # noqa: BLE001 - a plug-in's own; its text stays out
        _log.error("source-failed", exc_info=error)
        raise SourceError(f"failed ({type(error).__name__})") from None


def _without_line_break(text: str) -> str:
    if text.endswith("\n"):
        text = text[:-1]
        return text.removesuffix("\r")
    return text
