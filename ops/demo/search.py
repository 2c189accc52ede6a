"""The code of run 5: looks for the key, and for a way to get it, in everything that it can reach.

It is told what an attacker who read the sources would know: where sockets and folders are, what the programs' processes
are, what a request for a lease looks like, and the digests of the secrets. It is told no secret. What it finds it
names; its last line is a summary for the demo. Python's standard library only, because that is what the code has.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import reach
from needle import KEY, RESULT, Needle, Needles

_FILE_BYTES = 4 << 20
#: Folders of other programs, looked through after the demo's own until the time is up.
_OTHER_ROOTS = "/run /dev/shm /etc /root /home /tmp /var/tmp /var/log /var/lib /opt /srv"
_CREDENTIAL_FILES = (
    ".netrc .pgpass .git-credentials .aws/credentials .config/gh/hosts.yml .config/gcloud/credentials.db "
    ".docker/config.json .kube/config .ssh/id_ed25519 .ssh/id_rsa .local/share/keyrings/login.keyring"
)
_CREDENTIAL_PLACES = ("/run/secrets", "/run/credentials", "/etc/credstore", "/etc/credstore.encrypted")


class Search:
    """What was looked at and what was found.

    ``places`` are where the key was, ``ways`` are how it could be obtained, ``notes`` are what the reader should know.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        """Take what the attacker knows."""
        self.told = told
        self.needles = Needles([Needle(**needle) for needle in told["needles"]])
        self.places: list[str] = []
        self.ways: list[str] = []
        self.notes: list[str] = []
        self.credentials: dict[str, str] = {}
        self.deadline: float = time.monotonic() + told["budget_s"]

    def look(self, data: bytes, place: str) -> None:
        """Look for every secret in ``data``."""
        for name, value in self.needles.found_in(data).items():
            if name == KEY:
                self._once(self.places, place)
            else:
                self.credentials[name] = value.decode()
                self._once(self.ways, f"{name} lies in {place}")

    def way(self, what: str) -> None:
        """Note a way to obtain the key."""
        self._once(self.ways, what)

    def stream(self, chunks: Iterator[bytes], place: str) -> int:
        """Look through a stream of pieces, and return how many bytes it had."""
        size, tail = 0, b""
        for chunk in chunks:
            size += len(chunk)
            self.look(tail + chunk, place)
            tail = chunk[-self.needles.reach :]
        return size

    def late(self) -> bool:
        """Say whether the time for large places is used up."""
        return time.monotonic() > self.deadline

    @staticmethod
    def _once(listed: list[str], what: str) -> None:
        if what not in listed:
            listed.append(what)


def run(told: dict[str, Any], client: ModuleType) -> None:
    """Look everywhere, say what was looked at, and end with a line for the demo."""
    search = Search(told)
    print("environment:", _environment(search))
    print("arguments and inherited files:", _arguments(search))
    print("the client:", _client(search, client))
    print("its own memory:", _own_memory(search))
    print("files:", _files(search))
    print("credential files:", _credential_files(search))
    print("files it could change:", _changeable(search))
    print("other processes:", reach.processes(search))
    print("sockets:", reach.sockets(search))
    print("services:", reach.services(search))
    print("the keyring:", reach.keyring(search))
    for note in search.notes:
        print("note:", note)
    print("the key was found in:", _listed(search.places) or "nothing")
    print("ways to obtain it:", _listed(search.ways) or "none")
    print(RESULT + json.dumps({"places": search.places, "ways": search.ways, "notes": search.notes}))


def _listed(found: list[str]) -> str:
    return "".join(f"\n- {one}" for one in found)


def _environment(search: Search) -> str:
    for name, value in os.environ.items():
        search.look(f"{name}={value}".encode(), f"the environment ({name})")
    given = _content(Path("/proc/self/environ")) or b""
    search.look(given, "the environment")
    # As it was given: Python itself may have added LC_CTYPE since.
    names = sorted(entry.partition(b"=")[0].decode(errors="replace") for entry in given.split(b"\0") if entry)
    return ", ".join(names or sorted(os.environ)) or "empty"


def _arguments(search: Search) -> str:
    search.look(_content(Path("/proc/self/cmdline")) or b"", "the arguments")
    search.look("\0".join(sys.orig_argv).encode(), "the arguments")
    inherited = 0
    for number in sorted(int(path.name) for path in Path("/dev/fd").iterdir()):
        try:
            mode = os.fstat(number).st_mode
        except OSError:
            continue  # the directory listing itself
        inherited += number > 2
        if number > 2 and stat.S_ISREG(mode):
            search.look(os.pread(number, _FILE_BYTES, 0), f"an inherited file (descriptor {number})")
    return f"{len(sys.orig_argv)} arguments, {inherited} files besides input and output"


def _client(search: Search, client: ModuleType) -> str:
    seen: set[int] = set()
    names = [name for name in vars(client) if name != "__builtins__"]
    for name in names:
        _value(search, vars(client)[name], f"the client ({name})", seen, 4)
    return f"{len(names)} names and what they hold"


def _value(search: Search, value: Any, place: str, seen: set[int], depth: int) -> None:
    if id(value) in seen or isinstance(value, ModuleType):
        return
    seen.add(id(value))
    if isinstance(value, (str, bytes, bytearray)):
        search.look(value.encode(errors="replace") if isinstance(value, str) else bytes(value), place)
        return
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        inner = list(value)
    elif hasattr(value, "__code__"):
        inner = [value.__code__.co_consts, value.__defaults__, value.__doc__]
        inner += [cell.cell_contents for cell in value.__closure__ or ()]
    elif hasattr(value, "__dict__"):
        inner = list(vars(value).values())
    for item in inner if depth else ():
        _value(search, item, place, seen, depth - 1)


def _own_memory(search: Search) -> str:
    regions = size = 0
    try:
        # One region at a time, and each found place is named once.
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            for start, end, name in reach.regions(Path("/proc/self/maps").read_text()):
                size += search.stream(reach.pieces(memory, start, end), f"its own memory ({name or 'anonymous'})")
                regions += 1
    except OSError as error:
        search.notes.append(f"its own memory could not be read: {error.strerror}")
    return f"{size >> 20} MB in {regions} regions"


def _files(search: Search) -> str:
    read = refused = 0
    stopped: list[str] = []
    own = Path(search.told["own_directory"])
    for root in (search.told["directory"], str(own), *_OTHER_ROOTS.split()):
        for path in _walk(root, search.told["skip"]):
            # The demo's own folder is searched whole, whatever time it takes.
            if search.late() and root in _OTHER_ROOTS.split():
                stopped.append(root)
                break
            content = _content(path)
            if content is None:
                refused += 1
                continue
            read += 1
            place = f"the file {path.name} of the code" if path.parent == own else f"the file {path}"
            search.look(content, place)
    limit = f"; time was up in {', '.join(stopped)}" if stopped else ""
    return f"{read} read, {refused} refused{limit}"


def _walk(root: str, skip: list[str]) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if str(Path(folder, name)) not in skip)
        for name in sorted(files):
            yield Path(folder, name)


def _content(path: Path) -> bytes | None:
    """Return the beginning of a regular file, or None when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            return file.read(_FILE_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        except OSError:
            return None


def _credential_files(search: Search) -> str:
    places = [Path(place) for place in _CREDENTIAL_PLACES]
    if "CREDENTIALS_DIRECTORY" in os.environ:
        places.append(Path(os.environ["CREDENTIALS_DIRECTORY"]))
    homes = [Path("/root"), *(Path("/home").iterdir() if Path("/home").is_dir() else [])]
    places += [home / name for home in homes for name in _CREDENTIAL_FILES.split()]
    places += [Path(place) for place in search.told["credential_files"]]
    read = 0
    for place in places:
        for path in [place, *_walk(str(place), [])]:
            content = _content(path)
            if content is not None:
                read += 1
                search.look(content, f"the file {path}")
    return f"{len(places)} places tried, {read} files read"


def _changeable(search: Search) -> str:
    """Look for a file of the programs that the code could rewrite: a broker of its own in brokers.json is a way in."""
    own = Path(search.told["own_directory"])
    found = []
    for folder, folders, files in os.walk(search.told["directory"]):
        folders[:] = [name for name in folders if Path(folder, name) != own]
        # A socket is not changed by writing to it; whether it lets the code in is tried elsewhere.
        paths = [Path(folder), *(Path(folder, name) for name in files)]
        found += [path for path in paths if os.access(path, os.W_OK) and not path.is_socket()]
    if os.getuid() in search.told["uids"].values():
        search.notes.append(
            "the code runs as the same user as the programs, which is no boundary: it could change them and their "
            "files. Started as root, the demo gives each a user of its own"
        )
    else:
        for path in found:
            search.way(f"{path} can be changed")
    return str(len(found))
