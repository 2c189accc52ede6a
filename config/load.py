"""The I/O of ``config/``: settings, grants and token files are read (and token files written) here, nowhere else.

Every reader raises :class:`config.errors.ConfigurationError` with all faults; nothing is half loaded.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import json
import os
import secrets
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from config import strictjson, tokenfiles
from config.clock import Clock, ShiftedClock, SystemClock
from config.compiling import CheckObject
from config.errors import ConfigurationError, Fault
from config.grants import Grants, parse_grants
from config.settings import BrokerSettings, MinterSettings
from config.validation import struct_faults

_S = TypeVar("_S", BrokerSettings, MinterSettings)
_T = TypeVar("_T", bound=msgspec.Struct)

#: A configuration file larger than this is a mistake (or an attack on memory).
MAX_FILE_BYTES: Final = 16 * 1024 * 1024


def load_settings(type_: type[_S], path: Path, environ: Mapping[str, str]) -> _S:
    """Read ``minter.toml`` or ``broker.toml``, apply the overrides of ``environ`` and anchor relative paths.

    An override is the upper-case name behind the prefix, nested names joined by two underscores; its text is a TOML
    value, or a plain text where a text is expected.
    """
    program = type_.PREFIX.removesuffix("_")
    hint = f"{program.lower()} init DIRECTORY writes one; name yours by --config or {program}_CONFIG"
    raw = read_file(path, when_missing=hint)
    try:
        document = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError([Fault(str(path), f"not TOML: {error}")]) from None
    given, faults = _override(type_, document, environ)
    try:
        settings = _converted(type_, document, faults, where=str(path))
    except ConfigurationError as error:
        raise ConfigurationError([_by_variable(fault, f"{path}: ", given) for fault in error.faults]) from None
    return settings.anchored(path.absolute().parent)


def _converted(type_: type[_T], document: Any, faults: list[Fault], *, where: str) -> _T:
    """Return the document as ``type_``. The schema, which finds every fault, is asked only when there is one."""
    try:
        converted = msgspec.convert(document, type=type_, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            faults + (struct_faults(type_, document, where=where) or [Fault(where, str(error))])
        ) from None
    if faults:
        raise ConfigurationError(faults)
    return converted


def _override(
    type_: type[_S], document: dict[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[Fault]]:
    """Put the values of the environment into the document; return the variable of each by its path, and the faults."""
    given, faults = {}, []
    for name, text in environ.items():
        if not name.startswith(type_.PREFIX) or name in _OTHER_VARIABLES:
            continue
        table: Any = document
        at: Any = type_
        *outer, last = name.removeprefix(type_.PREFIX).lower().split("__")
        for step in outer:
            at = _field_type(at, step)
            table = table.setdefault(step, {}) if isinstance(table, dict) else None
        expected = _field_type(at, last)
        if expected is None or not isinstance(table, dict):
            faults.append(Fault(name, "unknown setting in the environment", _meant(type_.PREFIX, outer, last, at)))
        else:
            table[last] = _toml_value(text, expected)
            given[".".join((*outer, last))] = name
    return given, faults


def _meant(prefix: str, outer: Sequence[str], last: str, at: Any) -> str:
    near = difflib.get_close_matches(last, getattr(at, "__struct_fields__", ()), n=1)
    return f"did you mean {prefix}{'__'.join((*outer, near[0])).upper()}?" if near else ""


def _by_variable(fault: Fault, start: str, given: Mapping[str, str]) -> Fault:
    """Name the variable that a faulty value came from, and not the file, which may be in order."""
    place = fault.where.removeprefix(start)
    for path, name in given.items():
        if place != fault.where and place.startswith(path) and place[len(path) :][:1] in ("", ".", "["):
            hint = fault.hint or 'the value is read as TOML: true, 5 or ["a", "b"]'
            return Fault(name + place[len(path) :], fault.what, hint)
    return fault


#: Variables with our prefix that are no settings.
_OTHER_VARIABLES: Final = frozenset(
    f"{program}_{name}" for program in ("MINTER", "BROKER") for name in ("CONFIG", "TEST_CLOCK", "TEST_FAILPOINT")
) | {"BROKER_URL", "BROKER_RUN_TOKEN", "BROKER_CALLER_TOKEN_FILE"}


def _field_type(at: Any, name: str) -> Any:
    if isinstance(at, type) and issubclass(at, msgspec.Struct):
        return typing.get_type_hints(at).get(name) if name in at.__struct_fields__ else None
    if typing.get_origin(at) is dict:
        return typing.get_args(at)[1]
    return None


def _toml_value(text: str, expected: Any) -> Any:
    if expected is str or typing.get_origin(expected) is typing.Literal:
        return text
    if expected is bool and text in ("0", "1"):
        return text == "1"
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def read_file(path: Path, *, when_missing: str = "") -> bytes:
    """Read a configuration file; one that is missing (then with this hint), unreadable or far too large is a fault."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        hint = when_missing if isinstance(error, FileNotFoundError) else ""
        raise ConfigurationError([Fault(str(path), f"cannot be read: {error.strerror}", hint)]) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError([Fault(str(path), f"larger than {MAX_FILE_BYTES} bytes")])
    return data


def load_grants(
    path: Path, *, check_placement: CheckObject | None = None, check_token: CheckObject | None = None
) -> Grants:
    """Read and compile the grants file; a ``preamble_file`` counts from its folder and stays inside it."""
    folder = path.absolute().parent

    def read_preamble(name: str) -> bytes:
        preamble = (folder / name).resolve()
        if not preamble.is_relative_to(folder.resolve()):
            raise OSError(errno.EACCES, "it lies outside the folder of the grants file")
        return preamble.read_bytes()

    return parse_grants(
        read_file(path),
        name=str(path),
        read_preamble=read_preamble,
        check_placement=check_placement,
        check_token=check_token,
    )


def read_token_file(path: Path) -> tokenfiles.TokenFile:
    """Read ``callers.json`` or ``brokers.json``. A missing file is a fault: it must be there, if only empty."""
    return _token_file(read_file(path), str(path))


def _token_file(data: bytes, where: str) -> tokenfiles.TokenFile:
    document, faults = strictjson.parse(data, where=where)
    file = _converted(tokenfiles.TokenFile, document, faults, where=where)
    tokenfiles.check(file, where=where)
    return file


def edit_token_file(path: Path, change: Callable[[tokenfiles.TokenFile], tokenfiles.TokenFile]) -> None:
    """Change a token file under its lock, atomically; a missing file starts empty and is made 0600.

    Whatever ``change`` raises leaves the file as it was.
    """
    with _locked(path):
        file = read_token_file(path) if path.exists() else tokenfiles.TokenFile()
        changed = change(file)
        tokenfiles.check(changed, where=str(path))
        data = msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n"
        write_atomic(path, data, mode=path.stat().st_mode & 0o777 if path.exists() else 0o600)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock beside ``path``: the file itself is replaced, so a lock on it would not do."""
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace ``path`` so that a crash leaves the old file or the new one, on disk, never a part of one.

    The owner stays who it was. Errors: ``OSError``, also when this user may not give the file to its owner.
    """
    # Not by the process's id, which comes again in a container: what a killed one left would be in the way for ever.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            _keep_owner(path, file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _keep_owner(path: Path, fd: int) -> None:
    """Give the new file the old one's owner: an operator who is root must not lock the service out of its own file."""
    with contextlib.suppress(FileNotFoundError):
        old, new = path.lstat(), os.fstat(fd)
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.fchown(fd, old.st_uid, old.st_gid)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def boot_id() -> str:
    """Return the kernel's id of this boot.

    Where it cannot be read (macOS, a hidden ``/proc/sys``) every start counts as a boot of its own: then the wall
    clock alone decides about loans of an earlier start, which can end them early and never late.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "start-" + secrets.token_hex(16)


def system_clock() -> SystemClock:
    """Return the machine's clock."""
    return SystemClock(boot_id())


def program_clock(environ: Mapping[str, str], prefix: str) -> tuple[Clock, Path | None]:
    """Return the clock a served program goes by, and the test-clock file if one moves it.

    Only the variable ``MINTER_TEST_CLOCK``/``BROKER_TEST_CLOCK`` switches this on, never a settings file; the
    program says so loudly at every start, and ``doctor`` calls it a fault.
    """
    path = environ.get(f"{prefix}TEST_CLOCK")
    clock = system_clock()
    if not path:
        return clock, None
    return ShiftedClock(clock, _shift_reader(Path(path))), Path(path)


def _shift_reader(path: Path) -> Callable[[], tuple[float, float, str]]:
    """Read ``{"wall": seconds, "boot": seconds, "boot_id": ""}``, anew when the file was replaced."""
    seen: tuple[int, int] | None = None
    shift = (0.0, 0.0, "")

    def read() -> tuple[float, float, str]:
        nonlocal seen, shift
        stat = path.stat()
        if (stat.st_mtime_ns, stat.st_ino) != seen:
            seen = (stat.st_mtime_ns, stat.st_ino)
            document = json.loads(path.read_bytes())
            shift = (float(document["wall"]), float(document["boot"]), str(document.get("boot_id", "")))
        return shift

    return read
