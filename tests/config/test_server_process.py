"""A real process: ready, signals, drain, exit status."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.config.serving import GET, Client

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
    import asyncio, sys
    from config.server import Listener, ListenerGroup, run, serve

    drain_s = float(sys.argv[2])
    ending = None

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        if scope["path"] == "/slow":
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        if scope["path"] == "/stream":
            await ending.wait()
        if scope["path"] == "/endless":
            try:
                await asyncio.Event().wait()
            finally:
                print("cut", flush=True)
        await send({"type": "http.response.body", "body": b"done"})

    async def main():
        global ending
        ending = asyncio.Event()
        reloads = 0

        async def hup():
            nonlocal reloads
            reloads += 1
            print("reload", reloads, flush=True)
            if reloads == 1:
                raise ValueError("it does not load")

        groups = [
            ListenerGroup(app=app, listeners=(Listener.parse("127.0.0.1:0"),), by="broker"),
            ListenerGroup(app=app, listeners=(Listener.parse("unix:" + sys.argv[1]),), by="broker"),
        ]
        await serve(
            groups,
            on_ready=lambda bound: print("ready", bound[0].listener.port, flush=True),
            on_hup=hup,
            on_drain=ending.set,
            drain_s=drain_s,
        )

    run(main())
    print("over", flush=True)
"""


@pytest.fixture
def connect():
    """Connect to a port; what was connected is closed at the end."""
    with contextlib.ExitStack() as stack:

        def connected(port) -> Client:
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            sock.settimeout(5)
            return Client(sock)

        yield connected


@contextlib.contextmanager
def program(path, drain_s=600.0):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path), str(drain_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        word, port = process.stdout.readline().split()
        assert word == "ready"
        yield process, int(port)
    finally:
        process.kill()
        process.communicate()


def ask(client, path) -> Client:
    client.send(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
    client.line_block()
    client.take(len(b"5\r\nbegun\r\n"))
    return client


def ended(process) -> tuple[int, str]:
    out, err = process.communicate(timeout=10)
    assert err == ""
    return process.returncode, out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0_and_leaves_no_socket(connect, tmp_path, number):
    with program(tmp_path / "s.sock") as (process, port):
        idle = connect(port)
        process.send_signal(number)
        idle.assert_closed()
        assert ended(process) == (0, "over\n")
        assert not (tmp_path / "s.sock").exists()
        with pytest.raises(OSError):
            connect(port)


def test_an_answer_under_way_is_finished_while_nobody_new_is_let_in(connect, tmp_path):
    with program(tmp_path / "s.sock") as (process, port):
        slow = ask(connect(port), b"/slow")
        idle = connect(port)
        process.send_signal(signal.SIGTERM)
        idle.assert_closed()
        with pytest.raises(OSError):
            connect(port)
        process.stdin.write("\n")
        process.stdin.flush()
        assert slow.rest() == b"4\r\ndone\r\n0\r\n\r\n"
        assert ended(process) == (0, "over\n")


def test_a_stream_is_told_of_the_drain_and_ends_in_order(connect, tmp_path):
    with program(tmp_path / "s.sock") as (process, port):
        stream = ask(connect(port), b"/stream")
        process.send_signal(signal.SIGTERM)
        assert stream.rest() == b"4\r\ndone\r\n0\r\n\r\n"
        assert ended(process) == (0, "over\n")


def test_what_does_not_end_is_cut_after_the_drain_and_the_client_notices(connect, tmp_path):
    with program(tmp_path / "s.sock", drain_s=0.2) as (process, port):
        endless = ask(connect(port), b"/endless")
        process.send_signal(signal.SIGTERM)
        endless.assert_closed()
        assert ended(process) == (0, "cut\nover\n")


def test_a_second_signal_cuts_at_once(connect, tmp_path):
    with program(tmp_path / "s.sock", drain_s=600.0) as (process, port):
        endless = ask(connect(port), b"/endless")
        idle = connect(port)
        process.send_signal(signal.SIGTERM)
        idle.assert_closed()
        process.send_signal(signal.SIGTERM)
        endless.assert_closed()
        assert ended(process) == (0, "cut\nover\n")


def test_sighup_calls_back_again_even_after_it_failed_and_serving_goes_on(connect, tmp_path):
    with program(tmp_path / "s.sock") as (process, port):
        for number in (1, 2):
            process.send_signal(signal.SIGHUP)
            # The failed reload is logged; without a set-up of logs structlog writes it to stdout.
            while (line := process.stdout.readline()) != f"reload {number}\n":
                assert "reload-failed" in line
                assert "does not load" not in line
        client = connect(port)
        client.send(GET)
        assert client.reply().body == b"begundone"
        process.send_signal(signal.SIGTERM)
        status, _ = ended(process)
        assert status == 0
