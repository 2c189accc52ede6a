"""The search of the demo's fifth run can fail: whatever is planted in reach of the code is found and named."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ops.demo.maker import KEY_MARK
from ops.demo.needle import KEY, RESULT, Needle, Needles

DEMO = Path(__file__).parents[2] / "ops" / "demo"
SECRET = KEY_MARK + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ"
CREDENTIAL = "mbk_" + "c" * 49
EMPTY = "import json, pathlib, client, search; search.run(json.loads(pathlib.Path('told.json').read_text()), client)"


def needle(name: str, mark: str, secret: str) -> Needle:
    return Needle(name, mark, len(secret), hashlib.sha256(secret.encode()).hexdigest())


class Code:
    """A folder as the demo lays it out, and the search in a fresh process there."""

    def __init__(self, folder: Path) -> None:
        self.world = folder
        self.folder = folder / "code"
        self.folder.mkdir()
        for name in ("search.py", "reach.py", "needle.py", "agent-memory/client.py"):
            shutil.copy(DEMO / name, self.folder)
        self.told = {
            "needles": [
                needle(KEY, KEY_MARK, SECRET).as_dict(),
                needle("the broker's credential", "mbk_", CREDENTIAL).as_dict(),
            ],
            "budget_s": 0,
            "directory": str(folder),
            "own_directory": str(self.folder),
            "skip": [],
            "sockets": [],
            "urls": [],
            "programs": {},
            "uids": {"minter": os.getuid()},
            "credential_files": [],
            "keyring_entries": ["minter/x"],
            "site_packages": str(folder / "none"),
            "lease": {"run_id": "run_x"},
        }

    def client(self, text: str) -> None:
        with (self.folder / "client.py").open("a") as file:
            file.write("\n" + text + "\n")

    def search(self, *, environ=None, arguments=(), code=EMPTY, pass_fds=()) -> dict[str, list[str]]:
        (self.folder / "told.json").write_text(json.dumps(self.told))
        done = subprocess.run(
            [sys.executable, "-S", "-B", "-c", code, *arguments],
            cwd=self.folder,
            env=environ or {},
            pass_fds=pass_fds,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        self.said = done.stdout
        assert SECRET not in done.stdout
        return json.loads(done.stdout.partition(RESULT)[2])


@pytest.fixture
def code(tmp_path):
    return Code(tmp_path)


def test_where_nothing_is_planted_nothing_is_found(code):
    assert code.search()["places"] == []
    assert code.search()["ways"] == []
    assert "the key was found in: nothing\nways to obtain it: none\n" in code.said


def test_the_searching_code_does_not_hold_what_it_looks_for():
    clients = ("agent-memory/client.py", "agent-memory/client.js")
    code = ("code/5_search_for_the_key.py", "code/5_search_for_the_key.js")
    for name in ("search.py", "reach.py", "needle.py", *clients, *code):
        assert KEY_MARK not in (DEMO / name).read_text()


@pytest.mark.parametrize(
    ("planted", "name"),
    [
        (f"PLANTED = '{SECRET}'", "the client (PLANTED)"),
        (f"def planted(key='{SECRET}'): pass", "the client (planted)"),
        (f"def planted(): return '{SECRET}'", "the client (planted)"),
        (f"PLANTED = [{{'deep': ('{SECRET}',)}}]", "the client (PLANTED)"),
        (f"class Planted: key = b'{SECRET}'", "the client (Planted)"),
        (f"PLANTED = (lambda key: lambda: key)('{SECRET}')", "the client (PLANTED)"),
        (f"Client.agent_memory_recall.__doc__ = '{SECRET}'", "the client (Client)"),
        (f"PLANTED = '{base64.b64encode(b'user:' + SECRET.encode()).decode()}'", "the client (PLANTED)"),
        (f"PLANTED = '{SECRET[::-1]}'", "the client (PLANTED)"),
        (f"PLANTED = '{SECRET.encode().hex()}'", "the client (PLANTED)"),
    ],
)
def test_a_key_in_the_client_is_named(code, planted, name):
    code.client(planted)
    places = code.search()["places"]
    assert name in places
    assert "the file client.py of the code" in places


def test_a_key_that_is_only_in_memory_is_found(code):
    hidden = [byte ^ 0x5A for byte in SECRET.encode()]
    code.client(f"_hide = lambda: bytes(byte ^ 0x5A for byte in {hidden})\nkeep = memoryview(_hide())")
    places = code.search()["places"]
    assert places
    assert all(place.startswith("its own memory") for place in places)


def test_a_key_in_the_environment_an_argument_or_an_inherited_file_is_found(code, tmp_path_factory):
    assert "the environment (API_KEY)" in code.search(environ={"API_KEY": SECRET})["places"]
    assert "the arguments" in code.search(arguments=[SECRET])["places"]
    file = tmp_path_factory.mktemp("elsewhere") / "inherited"
    file.write_text(SECRET)
    with file.open() as inherited:
        number = inherited.fileno()
        places = code.search(pass_fds=[number])["places"]
    assert f"an inherited file (descriptor {number})" in places


def test_a_key_in_a_file_and_a_credential_in_a_file_are_named(code):
    (code.world / "state.db").write_bytes(b"\0\1" + SECRET.encode() + b"\0")
    credential = code.world / "broker.credential"
    credential.write_text(CREDENTIAL + "\n")
    code.told["credential_files"] = [str(credential)]
    found = code.search()
    assert f"the file {code.world / 'state.db'}" in found["places"]
    assert f"the broker's credential lies in the file {credential}" in found["ways"]


def test_another_process_that_lets_itself_be_read_is_a_way(code):
    holder = f"import sys; key = '{SECRET}'; sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
    command = [sys.executable, "-c", holder]
    with subprocess.Popen(
        command, env={"THE_KEY": SECRET}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout.read(1) == b"x"
        code.told["programs"] = {"the minter": process.pid}
        found = code.search()
        process.stdin.close()
    assert "environ of the minter" in found["places"]
    assert "the memory of the minter" in found["places"]
    for part in ("environ", "fd", "mem"):
        assert f"the minter: /proc/{process.pid}/{part} can be read" in found["ways"]


def test_a_socket_that_gives_a_lease_is_a_way_and_its_answer_holds_the_key(code):
    path = code.world / "minter.sock"
    body = json.dumps({"credential": {"value": SECRET}}).encode()
    (code.world / "broker.credential").write_text(CREDENTIAL)

    class Minter(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            good = self.command == "POST" and self.headers.get("Authorization") == f"Bearer {CREDENTIAL}"
            self.send_response(200 if good else 401)
            self.end_headers()
            self.wfile.write(body if good else b"{}")

        do_GET = do_POST = answer  # noqa: N815 - how the library calls them

        def log_message(self, *arguments) -> None:
            pass

    with socketserver.ThreadingUnixStreamServer(str(path), Minter) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            code.told["sockets"] = [str(path)]
            found = code.search()
        finally:
            server.shutdown()
            thread.join()
    assert f"{path} gave a lease for the broker's credential" in found["ways"]
    assert f"{path} gave a lease for no credential" not in found["ways"]
    assert f"a lease that {path} gave" in found["places"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be another user than the programs")
def test_a_file_of_the_programs_that_the_code_could_change_is_a_way(code):
    code.told["uids"] = {"minter": 64901}
    (code.world / "brokers.json").write_text("{}")
    assert f"{code.world / 'brokers.json'} can be changed" in code.search()["ways"]


def test_as_the_same_user_it_says_that_this_is_no_boundary(code):
    [note] = code.search()["notes"]
    assert "no boundary" in note


def test_a_needle_is_found_across_the_seam_of_two_pieces():
    needles = Needles([needle(KEY, KEY_MARK, SECRET)])
    assert needles.reach > len(SECRET)
    data = b"." * 100 + SECRET.encode() + b"." * 100
    for cut in range(100, 100 + len(SECRET)):
        head, tail = data[:cut], data[cut:]
        assert needles.found_in(head[-needles.reach :] + tail) == {KEY: SECRET.encode()}
