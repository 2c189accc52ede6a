"""The part of run 5's search that looks beyond its own process: other processes, sockets, services, the keyring."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from io import FileIO

    from search import Search

_CHUNK = 1 << 20
#: Of one foreign process; all but the demo's programs share the search's time.
_FOREIGN_BYTES = 64 << 20
_TIMEOUT_S = 3
_ANSWER_BYTES = 1 << 20
_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (r\S{3}) \S+ \S+ \S+ *(.*)")
_OPERATOR_CALLS = ("/v1/custody", "/v1/leases", "/v1/audit", "/v1/admin/runs", "/metrics")


def regions(maps: str) -> Iterator[tuple[int, int, str]]:
    """Return start, end and name of each readable region of a process's memory."""
    for line in maps.splitlines():
        match = _REGION.fullmatch(line)
        # The kernel's own pages cannot be read through mem.
        if match and match[4] not in ("[vvar]", "[vsyscall]", "[vvar_vclock]"):
            yield int(match[1], 16), int(match[2], 16), match[4]


def pieces(memory: FileIO, start: int, end: int) -> Iterator[bytes]:
    """Return a region of memory in pieces; one that is gone meanwhile ends early."""
    for at in range(start, end, _CHUNK):
        try:
            memory.seek(at)
            yield memory.read(min(_CHUNK, end - at)) or b""
        except (OSError, OverflowError):
            return


def processes(search: Search) -> str:
    """Look into every other process as far as the kernel lets the code."""
    programs = {pid: name for name, pid in search.told["programs"].items()}
    seen = opened = 0
    if not Path("/proc/self").exists():
        return "this system does not show them as files"
    others = sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    # The programs first: the time may be up before every process of the machine was looked at.
    for pid in [*programs, *(pid for pid in others if pid not in programs)]:
        if pid == os.getpid():
            continue
        seen += 1
        open_parts = [part for part in ("cmdline", "environ", "fd", "mem") if _part(search, pid, part, programs)]
        opened += any(part != "cmdline" for part in open_parts)
        for part in open_parts:
            if part != "cmdline" and pid in programs:
                search.way(f"{programs[pid]}: /proc/{pid}/{part} can be read")
    return f"{seen} seen, {opened} let themselves be read"


def _part(search: Search, pid: int, part: str, programs: dict[int, str]) -> bool:
    name = programs.get(pid, f"process {pid}")
    path = f"/proc/{pid}/{part}"
    try:
        if part == "fd":
            # Listing is enough to know; reading another process's pipe would take what is in it.
            return any(Path(path).iterdir())
        if part == "mem":
            return _memory(search, pid, name, always=pid in programs)
        content = Path(path).read_bytes()
    except OSError:
        return False
    search.look(content, f"{part} of {name}")
    return bool(content)


def _memory(search: Search, pid: int, name: str, *, always: bool) -> bool:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        left = _FOREIGN_BYTES
        for start, end, _ in regions(Path(f"/proc/{pid}/maps").read_text()):
            if left <= 0 or (search.late() and not always):
                break
            left -= search.stream(pieces(memory, start, min(end, start + left)), f"the memory of {name}")
        return left < _FOREIGN_BYTES


def sockets(search: Search) -> str:
    """Try the programs' Unix sockets, as a broker and as an operator, with every credential that was found."""
    paths = {str(path) for path in search.told["sockets"]}
    listed = Path("/proc/net/unix")
    for line in listed.read_text().splitlines()[1:] if listed.exists() else ():
        name = line.split(maxsplit=7)[7] if len(line.split(maxsplit=7)) == 8 else ""
        # Only the demo's own: knocking at those of a real service would raise its alarms.
        if name.lstrip("@").startswith(search.told["directory"]):
            paths.add(name)
    let_in = 0
    for path in sorted(paths):
        address = "\0" + path[1:] if path.startswith("@") else path
        try:
            with _connected(address):
                let_in += 1
        except OSError:
            continue
        _try_socket(search, address, path)
    return f"{len(paths)} tried, {let_in} let the code connect"


def _try_socket(search: Search, address: str, path: str) -> None:
    lease = json.dumps(search.told["lease"]).encode()
    for name, credential in [("no credential", ""), *search.credentials.items()]:
        status, answer = _unix_call(address, "POST", "/v1/leases", lease, credential)
        search.look(answer, f"a lease that {path} gave")
        if 200 <= status < 300:
            search.way(f"{path} gave a lease for {name}")
        for call in _OPERATOR_CALLS:
            status, answer = _unix_call(address, "GET", call, b"", credential)
            search.look(answer, f"an answer of {path}")
            if 200 <= status < 300:
                search.way(f"{path} takes the code for an operator ({call})")


def _connected(address: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(_TIMEOUT_S)
    try:
        client.connect(address)
    except BaseException:
        client.close()
        raise
    return client


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, address: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._address = address

    def connect(self) -> None:
        self.sock = _connected(self._address)


def _unix_call(address: str, method: str, target: str, body: bytes, credential: str) -> tuple[int, bytes]:
    return _call(_UnixConnection(address), method, target, body, credential)


def _call(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes, credential: str
) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json"} if body else {}
    if credential:
        headers["Authorization"] = f"Bearer {credential}"
    try:
        connection.request(method, target, body or None, headers)
        response = connection.getresponse()
        answer = b"\r\n".join(f"{name}: {value}".encode() for name, value in response.getheaders())
        return response.status, answer + b"\r\n" + response.read(_ANSWER_BYTES)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def services(search: Search) -> str:
    """Ask what listens on TCP: with the run's own token, without one, and with every credential that was found."""
    asked = 0
    for url in search.told["urls"]:
        for credential in ("", os.environ.get("BROKER_RUN_TOKEN", ""), *search.credentials.values()):
            for target in ("/v1/self", "/v1/runs", "/.well-known/jwks.json", *_OPERATOR_CALLS):
                connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S)
                status, answer = _call(connection, "GET", target, b"", credential)
                asked += 1
                search.look(answer, f"an answer of {url}{target}")
                if 200 <= status < 300 and target in _OPERATOR_CALLS:
                    search.way(f"{url} takes the code for an operator ({target})")
    return f"{asked} questions to {len(search.told['urls'])} addresses"


def keyring(search: Search) -> str:
    """Ask the system's keyring for the key, if the code can import the library and reach a backend."""
    sys.path.append(search.told["site_packages"])
    # The library wants a home; without one it would stop before it asked any backend.
    os.environ.setdefault("HOME", search.told["own_directory"])
    answers: list[Any] = []

    def ask() -> None:
        try:
            import keyring as library  # noqa: PLC0415 - the code may have none

            answers.append(type(library.get_keyring()).__module__)
            answers.extend(library.get_password(*entry.split("/", 1)) for entry in search.told["keyring_entries"])
        except Exception as error:  # noqa: BLE001 - whatever stands in the way, the key is not to be had here
            answers.append(f"refused ({type(error).__name__})")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    for answer in answers:
        search.look(str(answer).encode(), "the keyring")
    bus = "has" if "DBUS_SESSION_BUS_ADDRESS" in os.environ else "has no"
    described = str(answers[0]) if answers else f"no answer within {_TIMEOUT_S} s"
    return f"{described}; the environment {bus} session bus"
