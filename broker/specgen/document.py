"""An OpenAPI document: read whole and strictly, checked only where everything that follows depends on it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from broker.specgen.jsontext import read_json
from broker.specgen.limits import MAX_BYTES, MAX_FILES, MAX_SHOWN
from broker.specgen.model import DocumentError
from broker.specgen.references import References
from broker.specgen.texts import quoted
from broker.specgen.yamltext import read_yaml

_VERSION: Final = re.compile(r"3\.([012])(?:\.[0-9]{1,9}(?:-[A-Za-z0-9.-]{1,64})?)?", re.ASCII)


class Document:
    """A document and the files that it refers to.

    ``name`` is the file's own name, ``minor`` the 0 of 3.0, ``sha256`` that of the document's bytes, the files that it
    refers to not included. ``root`` has ``paths`` with at least one path; every other member may be of any type,
    but names are text everywhere.
    """

    def __init__(self, files: _Files, root: Mapping[str, Any], version: str, minor: int) -> None:
        self.name = files.name
        self.version = version
        self.minor = minor
        self.sha256 = files.sha256
        self.root = root
        info = root.get("info")
        title = info.get("title") if isinstance(info, Mapping) else None
        self.title = title if isinstance(title, str) else ""
        # From 3.1 on, what stands beside a reference counts.
        self._references = References(files.load, files.locate, siblings_count=minor > 0)

    def resolve(self, node: Any, pointer: str) -> tuple[Any, str]:
        """Follow ``$ref`` until none is left; return what it leads to and where that stands.

        ``pointer`` is where the node stands. A node without ``$ref`` comes back as it is. Members beside ``$ref``
        override the target's on a path item, and on anything from 3.1 on.

        Errors: ``UnresolvedError``.
        """
        if not isinstance(node, Mapping) or "$ref" not in node:
            return node, pointer
        return self._references.follow(node, pointer)


def read_document(path: Path) -> Document:
    """Read a document of OpenAPI 3.0, 3.1 or 3.2, JSON or YAML.

    Errors: ``DocumentError``, one line that names the file.
    """
    try:
        files = _Files(path)
        root = files.load("")
        version, minor = _version(root)
        _check_paths(root)
    except DocumentError as error:
        raise DocumentError(f"{path.name}: {error}") from None
    return Document(files, root, version, minor)


def _version(root: Any) -> tuple[str, int]:
    if not isinstance(root, Mapping):
        raise DocumentError("not an OpenAPI document: an object is expected")
    if "openapi" not in root:
        if "swagger" in root:
            raise DocumentError(f"Swagger {_shown(root['swagger'])} is not supported; convert it to OpenAPI 3")
        raise DocumentError("not an OpenAPI document: it has no member `openapi`")
    written = root["openapi"]
    # YAML reads `openapi: 3.1` as a number.
    version = str(written) if isinstance(written, str | float) else ""
    match = _VERSION.fullmatch(version)
    if match is None:
        raise DocumentError(f"OpenAPI {_shown(written)} is not supported; 3.0, 3.1 and 3.2 are")
    return version, int(match[1])


def _check_paths(root: Mapping[str, Any]) -> None:
    paths = root.get("paths")
    if isinstance(paths, Mapping) and "$ref" in paths:
        raise DocumentError("#/paths is a reference, where none can stand; bundle the document into one file")
    if isinstance(paths, Mapping) and any(name.startswith("/") for name in paths):
        return
    if paths is not None and not isinstance(paths, Mapping):
        raise DocumentError("#/paths is not an object")
    only = ", only webhooks, which the API calls and nobody else" if root.get("webhooks") else ""
    raise DocumentError("has no paths" + only)


def _shown(value: Any) -> str:
    return (
        quoted(value, MAX_SHOWN) if isinstance(value, str) else str(value) if isinstance(value, float) else "(no text)"
    )


class _Files:
    """The document and the files inside its directory, each read once.

    A file's name is its path from there, escaped as in a URI so that it can stand in a pointer; "" is the document.
    """

    def __init__(self, path: Path) -> None:
        self._path = _real(path)
        self._directory = self._path.parent
        self._bytes_left = MAX_BYTES
        self._read: dict[str, Any | DocumentError] = {}
        self.name = path.name
        self.sha256 = ""

    def load(self, name: str) -> Any:
        """Return the root of a file; whoever asks has its name from :meth:`locate`."""
        if name not in self._read:
            if len(self._read) == MAX_FILES:
                raise DocumentError(f"is one of more than {MAX_FILES}")
            try:
                self._read[name] = self._parse(name)
            except DocumentError as error:
                self._read[name] = error
        found = self._read[name]
        if isinstance(found, DocumentError):
            raise DocumentError(str(found))
        return found

    def locate(self, file: str, address: str) -> str:
        """Return the name of the file that an address, written in ``file``, leads to."""
        outside = DocumentError("is outside the document's directory")
        if PurePosixPath(address).is_absolute():
            raise outside
        path = _real(self._place(file).parent / address)
        if not path.is_relative_to(self._directory):
            raise outside
        return "" if path == self._path else quote(bytes(path.relative_to(self._directory)))

    def _place(self, name: str) -> Path:
        return self._directory / os.fsdecode(unquote_to_bytes(name)) if name else self._path

    def _parse(self, name: str) -> Any:
        path = self._place(name)
        data = _bytes(path, self._bytes_left)
        self._bytes_left -= len(data)
        if not name:
            self.sha256 = hashlib.sha256(data).hexdigest()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DocumentError(f"not UTF-8, at byte {error.start}") from None
        suffix = path.suffix.lower()
        if suffix == ".json" or (suffix not in {".yaml", ".yml"} and text.lstrip()[:1] == "{"):
            return read_json(text)
        return read_yaml(text)


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL, a name that is too long
        raise DocumentError("cannot be found") from None


def _bytes(path: Path, limit: int) -> bytes:
    try:
        with open(path, "rb", opener=without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DocumentError("cannot be read: not a regular file")
            data = file.read(limit + 1)
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise DocumentError(f"larger than {MAX_BYTES >> 20} MiB, with the files that it refers to")
    return data


def without_waiting(path: str, flags: int) -> int:
    """Open a named pipe without waiting for its other end."""
    return os.open(path, flags | os.O_NONBLOCK)
