"""The walls of the house, read from the imports (DESIGN section 2)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from config.problems import PROBLEMS
from minter.audit_events import EVENTS

ROOT = Path(__file__).parent.parent
PACKAGES = ("config", "minter", "broker")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

#: module -> the only files that may import it.
ONLY = {
    "keyring": {"minter/sources/keyring.py"},
    "apscheduler": {"minter/expiry.py"},
    "aiohttp": {"minter/egress.py", "broker/egress.py"},
    "jinja2": {"minter/cli/custody_html.py"},
    "alembic": {"minter/migrations", "broker/migrations", "minter/store.py", "broker/store.py"},
    "requests": set(),
    "httpx": set(),
    "urllib3": set(),
    # A text of ours that runs where the code does; the broker never imports it.
    "http.client": {"broker/specgen/runtime/client.py"},
    "urllib.request": set(),
    "pickle": set(),
    "shelve": set(),
    "marshal": set(),
}

#: The files that may take a value out of a Secret: where it is placed, stored, digested or handed over.
REVEALS = {
    "broker/caller_client.py",  # the caller's token, sent to the broker
    "broker/minter_link.py",  # the broker's credential, sent to the minter
    "broker/opening.py",  # a new run token, digested
    "broker/placements/_value.py",  # the credential, placed
    "broker/scrub/needles.py",  # the credential, looked for in answers
    "broker/views.py",  # a new run token, handed to the caller once
    "config/console/terminal.py",  # a new token, printed once
    "config/console/tokenedit.py",  # a new token, stored where the operator says
    "config/tokenfiles.py",  # a new token, digested
    "minter/admin_client.py",  # a new static value, sent to the running minter
    "minter/egress.py",  # an issuer's root secret, sent to the issuer
    "minter/held.py",  # keyed digests of values, and whether one can be sent
    "minter/lease_endpoint.py",  # the credential, handed to the broker
    "minter/rotation.py",  # a line break taken off a new value
    "minter/sealing.py",  # sealed into the state
    "minter/signing.py",  # key material, given to the library
    "minter/sources/__init__.py",  # read and checked
    "minter/sources/file.py",  # stored
    "minter/sources/keyring.py",  # stored
    "minter/sources/sealed.py",  # sealed into the state
}

#: The only files of config that open, bind or run anything. The server is in parts; the console is the half of both
#: command lines that is the same.
CONFIG_IO = {
    "config/load.py",
    "config/tls.py",  # the system's certificate authorities
    "config/server.py",
    "config/http_server.py",
    "config/http_protocol.py",
    "config/http_cycle.py",
    "config/http_exchange.py",
}
CONSOLE = "config/console/"

#: Who may use the console: the command lines and what they alone need.
CONSOLE_USERS = re.compile(
    r"config/console/|(minter|broker)/(cli/|doctor|initdir|admin_client)"
    r"|broker/(exec|explain|reach|supervise|caller_client)\.py"
    r"|broker/specgen/(outdir|report|summary)\.py"
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_imports_only_what_its_place_allows(path):
    package = name(path).split("/")[0]
    forbidden = {"config": ("minter", "broker", "ops"), "minter": ("broker", "ops"), "broker": ("minter", "ops")}
    for module in imports(path):
        assert not any(within(module, other) for other in (*forbidden[package], "tests")), module
        for library, places in ONLY.items():
            if within(module, library):
                assert any(name(path) == place or name(path).startswith(place + "/") for place in places), module


def test_the_database_library_is_imported_only_by_the_stores_and_their_tables():
    users = {name(path) for path in FILES if any(within(module, "sqlalchemy") for module in imports(path))}
    allowed = {"minter/store.py", "minter/tables.py", "broker/store.py", "broker/tables.py"}
    assert {user for user in users if "/migrations/" not in user} <= allowed


def calls(path: Path, attribute: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == attribute for node in ast.walk(ast.parse(path.read_text()))
    )


def test_a_secret_is_revealed_only_in_the_listed_files():
    assert {name(path) for path in FILES if calls(path, "reveal")} - {"config/secret.py"} == REVEALS


@pytest.mark.parametrize("path", [path for path in FILES if name(path).startswith("config/")], ids=name)
def test_config_does_io_only_in_load_and_server(path):
    if name(path) in CONFIG_IO or name(path).startswith(CONSOLE):
        return
    tree = ast.parse(path.read_text())
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert "open" not in called
    assert not {"socket", "subprocess", "asyncio.subprocess", "pathlib", "tempfile"} & imports(path) or name(path) in {
        "config/settings.py",  # Path only to join texts
        "config/process.py",
    }
    methods = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not {"read_text", "read_bytes", "write_text", "write_bytes", "bind", "listen"} & methods


def test_the_services_do_not_use_the_console():
    users = {name(path) for path in FILES if any(within(module, "config.console") for module in imports(path))}
    assert users
    assert [user for user in users if not CONSOLE_USERS.match(user)] == []


def test_importing_config_does_nothing_that_can_be_seen():
    files = sorted((ROOT / "config").rglob("*.py"))
    modules = [name(path).removesuffix(".py").replace("/", ".") for path in files if path.stem != "__init__"]
    code = (
        "import os, sys, threading, importlib\n"
        "before = dict(os.environ), os.umask(0o022)\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        "assert dict(os.environ) == before[0] and threading.active_count() == 1\n"
        "assert os.umask(0o022) == 0o022\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", FILES, ids=name)
def test_the_loop_is_given_no_pipe(path):
    """uvloop closes such a pipe twice: the second close hits what another thread opened under its number meanwhile."""
    assert not calls(path, "connect_read_pipe")
    assert not calls(path, "connect_write_pipe")


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_dangerous_is_written_anywhere(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            assert (node.arg, node.value.value) not in {("shell", True), ("verify", False), ("trust_env", True)}
            assert not (node.arg == "ssl" and node.value.value is False)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec", "print"} or name(path).split("/")[1] in {"cli", "schema.py"}


@pytest.mark.parametrize(
    ("table", "names"), [("config/problems.py", sorted(PROBLEMS)), ("minter/audit_events.py", sorted(EVENTS))]
)
def test_what_a_table_lists_is_used_somewhere(table, names):
    elsewhere = "".join(path.read_text() for path in FILES if name(path) != table)
    assert [one for one in names if f'"{one}"' not in elsewhere] == []
