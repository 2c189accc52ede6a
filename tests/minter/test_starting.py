"""Starting: what does not load is all named, and leaves nothing behind; where the minter may listen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import ssl
import subprocess

import pytest
import structlog
import trustme

from config import server
from config.errors import ConfigurationError
from config.settings import MinterSettings, TlsSettings
from minter.listening import Listening
from tests.minter.lease_world import World
from tests.worlds.console import BIN, Console
from tests.worlds.service import Service

TLS_FILES = {"certificate": "cert", "key": "key", "client_ca": "ca"}


async def test_what_does_not_load_is_all_named_and_a_start_after_it_finds_nothing_in_its_way(tmp_path, clock):
    world = World(tmp_path / "minter", clock)
    (world.folder / "grants.json").write_text('{"profiles": {"a": {"base_url": 1}}}')
    (world.folder / "brokers.json").write_text('{"brokers": [{"id": "b1", "colour": "red"}]}')
    with pytest.raises(ConfigurationError) as refused:
        await world.start()
    text = str(refused.value)
    assert "profiles.a.base_url" in text
    assert "colour" in text
    world.write_grants()
    world.write_brokers(b1={})
    await world.start()
    await world.lease()
    await world.stop()


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("minter.toml", 0o666),
        ("minter.toml", 0o620),
        ("grants.json", 0o646),
        ("brokers.json", 0o666),
        ("state/minter.db", 0o644),
        ("state/minter.db", 0o660),
        ("state/audit.jsonl.checkpoints", 0o604),
    ],
)
def test_a_file_that_decides_or_keeps_something_and_that_others_may_touch_stops_the_start(own, name, mode):
    own("minter", "init", ".")
    (own.root / name).touch()
    (own.root / name).chmod(mode)
    done = own("minter", "serve")
    assert done.status == 3
    assert f"{name} " in done.err
    assert f"({mode:04o})" in done.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["minter.toml", "grants.json", "brokers.json", "state/minter.db"])
def test_a_file_of_another_user_stops_the_start(own, name):
    own("minter", "init", ".")
    (own.root / name).touch(0o600)
    os.chown(own.root / name, 64909, 64909)
    done = own("minter", "serve")
    assert done.status == 3
    assert f"{name} belongs to user 64909" in done.err


@pytest.fixture
def own(tmp_path):
    return Console(tmp_path, {"MINTER_ALLOW_ROOT": "1"})


async def test_a_missing_secret_is_a_fault_that_names_the_reference_and_no_value(tmp_path, clock):
    world = World(tmp_path / "minter", clock)
    (world.folder / "secrets" / "api-key").unlink()
    world.secret("other-key", "")
    with pytest.raises(ConfigurationError) as refused:
        await world.start()
    assert "api-key" in str(refused.value)
    assert "other-key" in str(refused.value)


@pytest.mark.parametrize("value", ["two\nlines", "ümlaut"])
async def test_a_secret_that_no_call_can_carry_is_a_fault_at_the_start_and_not_at_each_call(tmp_path, clock, value):
    world = World(tmp_path / "minter", clock)
    world.secret("api-key", value)
    with pytest.raises(ConfigurationError) as refused:
        await world.start()
    assert "api-key" in str(refused.value)
    assert "one line of printable ASCII" in str(refused.value)
    assert value not in str(refused.value)


async def test_an_audit_log_that_was_cut_is_not_gone_on_with(world):
    for _ in range(3):
        await world.lease()
    await world.stop()
    log = world.folder / "state" / "audit.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-2]))
    with pytest.raises(ConfigurationError, match="audit"):
        await world.start()
    world.minter = None


async def test_a_reload_is_in_the_audit_log_with_what_is_in_force_and_who_asked(served):
    world = served.world
    world.write_grants(open=None)
    await world.minter.reloader.reload(uid=0)
    event = world.audit()[-1]
    assert (event["code"], event["profiles"], event["brokers"], event["uid"]) == ("service.reloaded", 3, 2, 0)


def settings(**changes):
    return MinterSettings(**{"listen": ["unix:run/a.sock"], "admin_listen": ["unix:run/b.sock"], **changes})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"listen": ["127.0.0.1:8091"]}, "listen[0]"),
        ({"listen": ["unix:a", "tls:0.0.0.0:8443"]}, "listen[1]"),
        ({"listen": ["nonsense"]}, "listen[0]"),
        ({"admin_listen": ["127.0.0.1:8092"]}, "admin_listen[0]"),
        ({"admin_listen": ["tls:127.0.0.1:8092"], "tls": TlsSettings(client_ca="ca.pem")}, "admin_listen[0]"),
        ({"public_listen": ["0.0.0.0:8093"]}, "public_listen[0]"),
        ({"socket_group": "no-such-group-here"}, "socket_group"),
        ({"admin_socket_group": "no-such-group-here"}, "admin_socket_group"),
    ],
)
def test_a_listener_that_lets_in_whom_nobody_vouches_for_is_a_fault(changes, fault):
    with pytest.raises(ConfigurationError) as refused:
        Listening.of(settings(**changes))
    assert [one.where for one in refused.value.faults] == [fault]


def test_every_fault_of_the_listeners_is_named_at_once():
    with pytest.raises(ConfigurationError) as refused:
        Listening.of(settings(listen=["x", "127.0.0.1:1"], admin_listen=["127.0.0.1:2"], socket_group="no-such-group"))
    assert len(refused.value.faults) == 4


def test_mutual_tls_for_brokers_and_loopback_for_public_keys_are_fine():
    found = Listening.of(
        settings(
            listen=["tls:0.0.0.0:8443"],
            tls=TlsSettings(certificate="c.pem", key="k.pem", client_ca="ca.pem"),
            public_listen=["127.0.0.1:8093", "tls:0.0.0.0:8444"],
            socket_group="4711",
        )
    )
    assert (found.brokers_group, found.admin_group) == (4711, None)


async def test_public_keys_are_served_without_a_client_certificate_and_brokers_are_not(tmp_path, clock):
    tls = TlsSettings(certificate="c.pem", key="k.pem", client_ca="ca.pem")
    world = await World(
        tmp_path / "minter",
        clock,
        listen=["tls:127.0.0.1:0"],
        admin_listen=[],
        public_listen=["tls:127.0.0.1:0"],
        tls=tls,
    ).start()
    brokers, public = Listening.of(world.settings).groups(world.minter)
    assert (brokers.tls.client_ca, public.tls.client_ca) == ("ca.pem", "")
    await world.stop()


async def test_brokers_on_other_machines_reach_the_minter_by_its_name(tmp_path, clock):
    ca = trustme.CA()
    theirs, ours = ca.issue_cert("minter.internal"), ca.issue_cert("broker.internal")
    for name, data in (("ca", ca.cert_pem), ("cert", theirs.cert_chain_pems[0]), ("key", theirs.private_key_pem)):
        data.write_to_path(str(tmp_path / f"{name}.pem"))
        (tmp_path / f"{name}.pem").chmod(0o600)
    tls = TlsSettings(**{name: str(tmp_path / f"{file}.pem") for name, file in TLS_FILES.items()})
    world = await World(
        tmp_path / "minter", clock, listen=["tls:127.0.0.1:0"], admin_listen=[], public_listen=[], tls=tls
    ).start()
    client = ssl.create_default_context()
    ca.configure_trust(client)
    ours.configure_cert(client)
    stop, bound = asyncio.Event(), asyncio.Queue()
    serving = asyncio.create_task(
        server.serve(Listening.of(world.settings).groups(world.minter), on_ready=bound.put, stop=stop, drain_s=1.0)
    )
    port = (await bound.get())[0].listener.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="minter.internal")
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: minter.internal:8443\r\nConnection: close\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()
    stop.set()
    await serving
    await world.stop()


async def test_a_broker_over_tcp_needs_a_verified_certificate_besides_its_token(world):
    from config.problems import ProblemError

    headers = [(b"authorization", b"Bearer " + world.tokens["b1"].reveal().encode())]
    scope = {"headers": headers, "peer": None, "tls_subject": "CN=broker-1"}
    assert world.minter.brokers.authenticate(scope, operation="x").id == "b1"
    with pytest.raises(ProblemError, match="broker-token-invalid"):
        world.minter.brokers.authenticate({**scope, "tls_subject": None}, operation="x")


def test_whoever_connects_cannot_take_the_minters_last_open_file(tmp_path):
    console = Console(tmp_path, {"MINTER_ALLOW_ROOT": "1"})
    console("minter", "init", ".")
    few = ["sh", "-c", 'ulimit -n 150; exec "$0" "$@"', str(BIN / "minter"), "serve"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(few, cwd=tmp_path, env={**console.env(), "MINTER_PUBLIC_LISTEN": "[]"}, stderr=log)
    try:
        Service.until(lambda: '"ready"' in (tmp_path / "log").read_text(), "the minter is ready")
        assert '"few-open-files"' in (tmp_path / "log").read_text()
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(200)]
        for one in crowd:
            one.settimeout(20)
            one.connect(str(tmp_path / "run/minter.sock"))
        # None of them asks anything: they make room for each other.
        assert [one.recv(100) for one in crowd[:100]] == [b""] * 100
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 100
        assert console("minter", "leases", "list").status == 0
        for one in crowd:
            one.close()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_the_state_is_sqlite_and_nothing_else():
    from minter.state_lock import state_path

    for state in ("postgresql://db", "sqlite:", "state.db"):
        with pytest.raises(ConfigurationError, match="sqlite:PATH"):
            state_path(state)


async def test_a_state_that_is_no_database_is_a_fault(tmp_path, clock):
    world = World(tmp_path / "minter", clock)
    (world.folder / "state").mkdir(mode=0o700)
    (world.folder / "state" / "minter.db").write_text(json.dumps({"not": "a database"}) * 100)
    with pytest.raises(ConfigurationError, match="state: cannot be opened"):
        await world.start()


@pytest.mark.parametrize("table", ["meta", "audit_head", "custody_keys", "key_versions", "leases"])
async def test_a_state_with_a_damaged_table_is_a_fault_and_no_traceback(world, table):
    await world.lease()
    path = world.minter.store.path
    await world.stop()
    with contextlib.closing(sqlite3.connect(path)) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        page = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(ConfigurationError, match="state"):
        await world.start()


async def test_a_rotation_that_fails_in_a_way_of_its_own_is_said_and_holds_up_no_other(world, monkeypatch):
    async def fails(_now):
        raise RuntimeError("canary of a plug-in")

    ticked = []

    async def ticks(now):
        ticked.append(now)

    monkeypatch.setattr(world.minter.making, "tick", fails)
    monkeypatch.setattr(world.minter.sealing, "tick", ticks)
    with structlog.testing.capture_logs() as logs:
        await world.minter._rotate()
    assert len(ticked) == 1
    assert [line["event"] for line in logs] == ["rotation-failed"]
