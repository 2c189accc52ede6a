"""A backup: one tar file whose first member, ``manifest.json``, says what the others are, each with its SHA-256.

It holds the state, the audit log and the configuration. It never holds the sealing key, without which nothing in it
that is secret can be read, nor what lies in files, keyrings and environments: the manifest names what is left out.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec

from config.errors import ConfigurationError, Fault
from config.load import sync_directory

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
STATE: Final = "state.db"
LOG: Final = "audit/log"
CHECKPOINTS: Final = "audit/checkpoints"
CONFIGURATION: Final = ("minter.toml", "grants.json", "brokers.json")

_MAX_MANIFEST: Final = 16 * 1024 * 1024
_CHUNK: Final = 1 << 20
#: Every name that a member may have; nothing in it can lead out of a directory.
_NAME: Final = re.compile(
    r"state\.db|audit/log(\.\d{12,}-\d{12,})?|audit/checkpoints|minter\.toml|grants\.json|brokers\.json", re.ASCII
)


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the backup."""

    name: str
    size: int
    sha256: str


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of the audit log in the backup."""

    seq: int
    hash: str


class Sealing(msgspec.Struct, frozen=True, kw_only=True):
    """The sealing key that opens the state: never in the backup. ``source_ref`` is where it was."""

    version: int
    fingerprint: str
    source_ref: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup is."""

    format: int
    program: str
    created_at: str
    installation: str
    schema: str
    head: LogHead | None
    sealing: Sealing | None
    members: list[Member]
    left_out: list[str]


def digest(file: IO[bytes]) -> tuple[int, str]:
    """Return size and SHA-256 of what is left of a file."""
    size, sha256 = 0, hashlib.sha256()
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        sha256.update(chunk)
    return size, sha256.hexdigest()


def member(name: str, path: Path) -> Member:
    """Describe a file that goes into a backup as ``name``."""
    if not _NAME.fullmatch(name):
        raise ValueError("a backup has no such member")
    with path.open("rb") as file:
        size, sha256 = digest(file)
    return Member(name=name, size=size, sha256=sha256)


def write(target: Path, manifest: Manifest, paths: dict[str, Path]) -> None:
    """Write the backup, whole or not at all, for its owner only. What is there is not overwritten.

    Errors: ``FileExistsError``; ``OSError``.
    """
    with _new(target) as (_, file), tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
        tar.addfile(_entry(MANIFEST, len(text)), io.BytesIO(text))
        for one in manifest.members:
            with paths[one.name].open("rb") as content:
                tar.addfile(_entry(one.name, one.size), content)


@contextmanager
def _new(path: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Open a file that comes to its place when the block ends well; yield where it is until then, and the file."""
    half = path.with_name(f".{path.name}.{secrets.token_hex(8)}.half")
    fd = os.open(half, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            yield half, file
            file.flush()
            os.fsync(file.fileno())
        # A link, not a rename: it fails where something is.
        path.hardlink_to(half)
    finally:
        half.unlink()
    sync_directory(path.absolute().parent)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry


class Backup:
    """A backup that is open for reading. :func:`opened` makes one."""

    def __init__(self, source: Path, tar: tarfile.TarFile) -> None:
        self.source = source
        self._tar = tar
        self._entries: dict[str, tarfile.TarInfo] = {}
        for entry in tar:
            if not entry.isreg() or entry.name in self._entries:
                raise self.bad(f"member {entry.name!r} is no file of its own")
            self._entries[entry.name] = entry
        self.manifest = self._manifest()

    def bad(self, what: str) -> ConfigurationError:
        """Return the fault of a backup that is not to be believed."""
        return ConfigurationError([Fault(str(self.source), what, "take another backup; this one is not restored")])

    def extract(self, name: str, to: Path) -> None:
        """Write a member to a new file, once it is held against its digest: whole or not at all.

        Errors: ``ConfigurationError``; ``FileExistsError``.
        """
        with _new(to) as (half, target):
            for chunk in self._chunks(name):
                target.write(chunk)
            target.flush()
            if not self.same(name, half):
                raise self.bad(f"member {name} is not what the manifest says")

    def same(self, name: str, path: Path) -> bool:
        """Say whether a file has the content of a member."""
        known = next(one for one in self.manifest.members if one.name == name)
        with path.open("rb") as file:
            return digest(file) == (known.size, known.sha256)

    def names(self) -> Sequence[str]:
        """Return the names of the members, the manifest left out."""
        return [one.name for one in self.manifest.members]

    def _chunks(self, name: str) -> Iterator[bytes]:
        file = self._tar.extractfile(self._entries[name])
        if file is None:
            raise self.bad(f"member {name} cannot be read")
        while chunk := file.read(_CHUNK):
            yield chunk

    def _manifest(self) -> Manifest:
        entry = self._entries.get(MANIFEST)
        if entry is None or entry.size > _MAX_MANIFEST:
            raise self.bad("it has no manifest")
        try:
            manifest = msgspec.json.decode(b"".join(self._chunks(MANIFEST)), type=Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self.bad("its manifest does not read") from None
        if manifest.format != FORMAT:
            raise self.bad(f"it has format {manifest.format}, and this program reads {FORMAT}")
        names = [one.name for one in manifest.members]
        if len(set(names)) != len(names) or {*names, MANIFEST} != self._entries.keys():
            raise self.bad("its members are not those that its manifest names")
        if not all(_NAME.fullmatch(name) for name in names) or STATE not in names:
            raise self.bad("its members are not those of a backup")
        return manifest


@contextmanager
def opened(source: Path) -> Iterator[Backup]:
    """Open a backup. Errors: ``ConfigurationError`` when it is none, or names what none has."""
    try:
        file = source.open("rb")
    except OSError as error:
        raise ConfigurationError([Fault(str(source), f"cannot be read: {error.strerror}")]) from None
    with file:
        try:
            tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 - closed below
        except (tarfile.TarError, EOFError):
            raise ConfigurationError([Fault(str(source), "is no backup")]) from None
        with tar:
            try:
                yield Backup(source, tar)
            except (tarfile.TarError, EOFError):
                raise ConfigurationError([Fault(str(source), "is cut or damaged")]) from None
