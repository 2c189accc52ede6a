"""``broker exec`` against a real broker, the command under a second user where the tests run as root."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from broker.caller_client import CallerClient, read_caller_token
from broker.exec import Order, judged
from broker.reach import Account, Way, reasons
from broker.supervise import Supervisor
from config.asgi import send_json
from config.console.commands import CommandError
from config.errors import ConfigurationError
from config.load import load_settings
from config.secret import Secret
from config.settings import BrokerSettings
from tests.config.serving import served
from tests.worlds.service import BIN, Service
from tests.worlds.users import as_user

OTHER = 65534
NOBODY = Account.named(str(OTHER)).name

needs_root = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="running a command as another user needs root"),
]

PROFILE = {
    "base_url": "http://127.0.0.1:9",
    "allowed_callers": ["support-agent"],
    "token": {"type": "static", "key": "api"},
    "allow": ["GET /v1/items", "GET /v1/customers/{customer}"],
    "params": {"customer": "[a-z]+"},
    "env": {"API_BASE": "{base_url}/v1", "API_KEY": "{run_token}"},
}


class World(Service):
    """A broker, a caller's token in a file, and the files where an operator has them."""

    def exec(self, *arguments, check=None, **options):
        """Run ``broker exec``; the profile is given, the command and its options are ``arguments``."""
        done = subprocess.run(
            self.line(*arguments), env=self.env(), cwd=self.root, capture_output=True, text=True, check=False,
            timeout=30, **options,
        )  # fmt: skip
        self.replies += [done.stdout.encode(), done.stderr.encode()]
        if check is not None:
            assert done.returncode == check, done.stderr
        return done

    def line(self, *arguments):
        return [
            str(BIN / "broker"), "exec", "--token-file", str(self.root / "caller.token"),
            "--param", "customer=acme", "--profile", "api", *arguments,
        ]  # fmt: skip

    def runs(self):
        return self.caller("GET", "/v1/runs").json["runs"]


@pytest.fixture(scope="module")
def served_world():
    with tempfile.TemporaryDirectory() as name:
        made = World(Path(name))
        made.prepare({"api": PROFILE})
        token = made.root / "caller.token"
        token.touch(0o600)
        token.write_text(made.caller_token + "\n")
        for other in ("minter", "other"):
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(made.root / f"run/{other}.sock"))
            (made.root / f"run/{other}.sock").chmod(0o600)
        # Others may come this far: what lies below is closed by its own mode.
        made.root.chmod(0o711)
        made.start("broker")
        try:
            yield made
            made.assert_canary_absent()
        finally:
            made.end()


@pytest.fixture
def world(served_world):
    """The broker, with every mode, owner and setting put back after the test."""
    paths = [served_world.root, *served_world.root.rglob("*")]
    before = {path: path.lstat() for path in paths if not path.is_symlink()}
    settings = (served_world.root / "broker.toml").read_bytes()
    yield served_world
    (served_world.root / "broker.toml").write_bytes(settings)
    for path, status in before.items():
        if path.exists():
            os.chown(path, status.st_uid, status.st_gid)
            path.chmod(stat.S_IMODE(status.st_mode))
    if "broker" not in served_world.processes:
        served_world.start("broker")


def lines(done):
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


class TestAsAnotherUser:
    pytestmark = needs_root

    def test_the_command_is_that_user_and_gains_no_rights_and_has_our_stdin_our_umask_and_no_descriptor(self, world):
        reading, writing = os.pipe()
        script = "id -u; id -g; grep NoNewPrivs /proc/self/status; umask; cat; ls /proc/self/fd"
        try:
            done = world.exec(
                "--user", NOBODY, "--", "sh", "-c", script, check=0, input="hello\n", pass_fds=[reading], umask=0o022
            )
        finally:
            os.close(reading)
            os.close(writing)
        # 3 is the directory that ls looks at.
        assert done.stdout.split() == [*[str(OTHER)] * 2, "NoNewPrivs:", "1", "0022", "hello", "0", "1", "2", "3"]

    def test_the_environment_is_the_run_the_profiles_map_and_nothing_of_ours(self, world):
        world.environ = {
            "AWS_SECRET": "x",
            "HTTP_PROXY": "y",
            "LANG": "C.UTF-8",
            "EXTRA": "z",
            "BROKER_LOG_LEVEL": "info",
        }
        try:
            done = world.exec(
                "--user", NOBODY, "--pass-env", "EXTRA", "--pass-env", "BROKER_LOG_LEVEL", "--", "env", check=0
            )
        finally:
            world.environ = {}
        got = lines(done)
        token = got["BROKER_RUN_TOKEN"]
        home = Account.named(NOBODY)
        assert token.startswith("brk_")
        assert got == {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "EXTRA": "z",
            "HOME": home.home,
            "SHELL": home.shell,
            "USER": NOBODY,
            "LOGNAME": NOBODY,
            "BROKER_URL": f"http://127.0.0.1:{world.port}",
            "BROKER_RUN_TOKEN": token,
            "API_BASE": f"http://127.0.0.1:{world.port}/p/api/v1",
            "API_KEY": token,
        }

    @pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137)])
    def test_the_exit_status_is_passed_on_and_the_run_is_over(self, world, script, status):
        world.exec("--user", NOBODY, "--", "sh", "-c", script, check=status)
        assert {run["state"] for run in world.runs()} == {"ended"}

    def test_a_command_that_cannot_be_run_ends_the_run_too(self, world):
        assert "not found" in world.exec("--user", NOBODY, "--", "no-such-command", check=127).stderr
        world.exec("--user", NOBODY, "--", "/etc/passwd", check=126)
        assert {run["state"] for run in world.runs()} == {"ended"}

    def test_everything_after_the_command_is_the_commands(self, world):
        done = world.exec("--user", NOBODY, "printf", "%s\n", "--user", "-c", "--", "x", check=0)
        assert done.stdout.split() == ["--user", "-c", "--", "x"]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_signals_go_to_the_command_and_its_status_comes_back(self, world, number):
        script = f"trap 'echo got; exit 7' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.02; done"
        process = subprocess.Popen(
            world.line("--user", NOBODY, "--", "sh", "-c", script),
            env=world.env(), cwd=world.root, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, _ = process.communicate(timeout=20)
        assert (out, process.returncode) == ("got\n", 7)
        assert {run["state"] for run in world.runs()} == {"ended"}

    def test_neither_the_callers_token_nor_our_memory_is_within_the_commands_reach(self, world):
        script = f"cat {world.root}/caller.token; cat /proc/$PPID/environ; cat /proc/$PPID/maps; true"
        done = world.exec("--user", NOBODY, "--", "sh", "-c", script, check=0)
        assert done.stdout == ""
        assert done.stderr.count("Permission denied") == 3

    def test_a_run_that_its_own_code_ended_is_no_fault(self, world):
        done = world.exec("--same-user", "--", sys.executable, "-c", END_ONESELF, check=0)
        assert "could not be ended" not in done.stderr
        assert {run["state"] for run in world.runs()} == {"ended"}


END_ONESELF = """
import os, urllib.request
request = urllib.request.Request(
    os.environ["BROKER_URL"] + "/v1/self",
    method="DELETE",
    headers={"Authorization": "Bearer " + os.environ["BROKER_RUN_TOKEN"]},
)
with urllib.request.urlopen(request, timeout=10) as answer:
    assert answer.status == 200
"""


class TestRefusals:
    pytestmark = needs_root

    def reasons(self, world) -> list[str]:
        """Return why the broker would be no boundary for the other user."""
        config = world.root / "broker.toml"
        order = Order(argv=(), profiles=(), params={}, token_file=world.root / "caller.token", config=config)
        settings = load_settings(BrokerSettings, config, {})
        return judged(order, Account.named(NOBODY), settings, "http://127.0.0.1:1")

    def test_what_is_closed_is_not_refused(self, world):
        assert self.reasons(world) == []

    def test_a_reason_keeps_the_command_from_starting_and_a_run_from_being_opened(self, world):
        (world.root / "grants.json").chmod(0o666)
        before = len(world.runs())
        done = world.exec("--user", NOBODY, "--", "echo", "ran", check=5)
        assert (done.stdout, len(world.runs())) == ("", before)
        assert "it could change the grants" in done.stderr

    @pytest.mark.parametrize(
        ("opened", "reason"),
        [
            ({"run": 0o711, "run/broker.credential": 0o644}, "read the broker's credential to the minter"),
            ({"run": 0o711, "run/broker-admin.sock": 0o666}, "reach the broker's admin socket"),
            ({"run": 0o711, "run/minter.sock": 0o666}, "reach the minter's socket"),
            ({"run": 0o711, "run/other.sock": 0o666}, "reach the socket other.sock"),
            ({"state": 0o711, "state/broker.db": 0o644}, "read the broker's state"),
            ({"state": 0o711, "state/broker.db": 0o622}, "change the broker's state"),
            ({"state": 0o733}, "change the broker's state"),
            ({"secrets": 0o711, "secrets/api.key": 0o644}, "read custody key api"),
            ({"grants.json": 0o666}, "change the grants"),
            ({"callers.json": 0o622}, "make itself a caller"),
            ({"brokers.json": 0o622}, "make itself a broker"),
            ({"broker.toml": 0o666}, "change the broker's settings"),
            ({".": 0o777}, "make itself a caller"),
        ],
        ids=str,
    )
    def test_each_way_around_the_broker_is_named(self, world, opened, reason):
        for name, mode in opened.items():
            (world.root / name).chmod(mode)
        found = self.reasons(world)
        assert [text for text in found if reason in text]
        # One thing was opened: nothing else is claimed. (A writable directory opens all that lies in it.)
        if "." not in opened:
            assert len(found) == 1

    def test_a_token_that_the_commands_user_can_read_is_a_reason(self, world):
        os.chown(world.root / "caller.token", OTHER, OTHER)
        assert self.reasons(world) == [f"it could read the caller's token ({world.root}/caller.token)"]

    def test_an_operator_is_refused_for_being_one(self, world):
        with (world.root / "broker.toml").open("a") as file:
            file.write(f"operator_uids = [0, {OTHER}]\n")
        assert self.reasons(world) == ["it is an operator of the broker (operator_uids)"]

    def test_the_brokers_own_user_is_refused_for_being_it(self, world):
        os.chown(world.root / "state/broker.db", OTHER, OTHER)
        assert self.reasons(world) == ["it is the broker's own user"]

    def test_root_is_refused_unless_it_insists_and_then_is_told_that_this_is_no_boundary(self, world):
        before = len(world.runs())
        done = world.exec("--", "echo", "ran", check=5)
        assert (done.stdout, len(world.runs())) == ("", before)
        assert "it is root" in done.stderr
        assert "--same-user" in done.stderr
        done = world.exec("--same-user", "--", "echo", "ran", check=0)
        assert done.stdout == "ran\n"
        assert "no boundary" in done.stderr

    def test_without_settings_a_local_broker_cannot_be_judged_and_that_is_a_reason(self, world):
        url = f"http://127.0.0.1:{world.port}"
        done = world.exec("--url", url, "-c", "none.toml", "--user", NOBODY, "--", "echo", "ran", check=5)
        assert "not known" in done.stderr
        done = world.exec("--url", url, "-c", "none.toml", "--same-user", "--", "echo", "ran", check=0)
        assert done.stdout == "ran\n"

    def test_another_user_than_root_is_told_what_it_takes_to_change_users(self, world):
        for path in (world.root / "caller.token", world.root / "broker.toml", world.root / "grants.json"):
            os.chown(path, OTHER, OTHER)
        argv = as_user(OTHER, world.line("-c", str(world.root / "broker.toml"), "--user", "daemon", "--", "true"))
        done = subprocess.run(argv, env=world.env(), cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 5
        assert "sudo broker exec" in done.stderr

    def test_a_run_that_cannot_be_ended_is_reported_and_the_commands_status_stands(self, world):
        process = subprocess.Popen(
            world.line("--user", NOBODY, "--", "sh", "-c", "echo ready; read x; exit 3"),
            env=world.env(), cwd=world.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        assert world.stop("broker") == 0
        _, err = process.communicate("\n", timeout=20)
        assert process.returncode == 3
        assert "it ends by itself at" in err


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "status", "message"),
        [
            (["--profile", "nowhere", "--same-user", "--", "true"], 5, "profile-unknown"),
            (["--user", "root", "--same-user", "--", "true"], 2, "exclude each other"),
            (["-c", "none.toml", "--same-user", "--", "true"], 3, "none.toml"),
            (
                ["--url", "http://127.0.0.1:1", "--same-user", "--", "true"],
                75,
                "no broker answers at http://127.0.0.1:1 (Connection refused)",
            ),
        ],
    )
    def test_mistakes_are_named_and_nothing_is_run(self, world, arguments, status, message):
        before = len(world.runs())
        done = world.exec(*arguments, check=status)
        assert done.stdout == ""
        assert message in done.stderr
        assert world.caller_token not in done.stderr
        assert len(world.runs()) == before

    def test_without_a_token_file_it_says_how_to_give_one(self, world):
        done = subprocess.run(
            [str(BIN / "broker"), "exec", "--profile", "api", "--", "true"],
            env=world.env(), cwd=world.root, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "BROKER_CALLER_TOKEN_FILE" in done.stderr

    @pytest.mark.parametrize(
        ("content", "mode", "what"),
        [
            ("", 0o600, "holds no caller token"),
            ("brk_" + "a" * 49, 0o600, "holds no caller token"),
            (None, 0o640, "can be read by others"),
            (None, 0o604, "chmod 600"),
        ],
    )
    def test_a_token_file_that_is_none_is_refused_without_its_content(self, world, tmp_path, content, mode, what):
        path = tmp_path / "token"
        path.write_text(world.caller_token if content is None else content)
        path.chmod(mode)
        with pytest.raises(ConfigurationError, match=what) as caught:
            read_caller_token(path)
        assert world.caller_token not in str(caught.value)

    @pytest.mark.parametrize(
        ("path", "what"),
        [("/dev/null", "not a regular file"), ("/", "not a regular file"), ("/none", "cannot be read")],
    )
    def test_a_token_file_is_a_regular_file_that_is_there(self, path, what):
        with pytest.raises(ConfigurationError, match=what):
            read_caller_token(Path(path))

    @pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
    def test_one_line_break_at_the_end_of_a_token_file_is_not_the_tokens(self, world, tmp_path, ending):
        path = tmp_path / "token"
        path.touch(0o600)
        path.write_bytes((world.caller_token + ending).encode())
        assert read_caller_token(path).reveal() == world.caller_token

    @pytest.mark.parametrize(
        "url", ["", "127.0.0.1:1", "ftp://a", "http://", "http://a/p", "http://a?b", "http://u@a", "http://a:x"]
    )
    def test_an_address_that_is_none_is_a_usage_error(self, url):
        with pytest.raises(CommandError) as caught:
            CallerClient(url, Secret("x"))
        assert caught.value.status == 2

    @pytest.mark.parametrize("name", ["no-such-user", "4294967000", "٣", "99999999999999999999"])
    def test_a_user_that_is_not_there_is_a_usage_error(self, name):
        with pytest.raises(CommandError, match="no user") as caught:
            Account.named(name)
        assert caught.value.status == 2

    def test_a_broker_on_a_unix_socket_is_spoken_to(self, tmp_path):
        async def app(scope, receive, send):
            await send_json(send, 200, {"run_id": dict(scope["headers"])[b"authorization"].decode()})

        with served(app, f"unix:{tmp_path}/run/s.sock"):
            opened = CallerClient(f"unix:{tmp_path}/run/s.sock", Secret("token")).open({"profile": "x"})
        assert opened == {"run_id": "Bearer token"}


def test_a_signal_before_the_command_is_started_keeps_it_from_starting():
    with Supervisor() as supervisor:
        assert supervisor.asked_to_end() is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert supervisor.asked_to_end() is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert supervisor.asked_to_end() == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.skipif(os.geteuid() != 0, reason="asking as another user needs root")
def test_when_the_kernel_cannot_be_asked_every_way_counts_as_open(tmp_path):
    closed = tmp_path / "closed"
    closed.touch(0o600)
    way = Way(str(closed), os.R_OK, "read it")
    account = Account("x", OTHER, OTHER, (), "/", "/bin/sh")
    assert reasons(account, [way], None) == []
    impossible = Account("x", -5, OTHER, (), "/", "/bin/sh")
    assert reasons(impossible, [way], None) == [f"it could read it ({closed})"]


@pytest.mark.skipif(os.geteuid() != 0, reason="asking as another user needs root")
def test_the_users_own_groups_count_and_ours_do_not():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        theirs, ours = Path(name) / "theirs", Path(name) / "ours"
        for path, group in ((theirs, 64999), (ours, os.getegid())):
            path.touch()
            os.chown(path, 0, group)
            path.chmod(0o640)
        ways = [Way(str(path), os.R_OK, f"read {path.name}") for path in (theirs, ours)]
        assert reasons(Account("x", OTHER, OTHER, (), "/", "/bin/sh"), ways, None) == []
        found = reasons(Account("x", OTHER, OTHER, (64999,), "/", "/bin/sh"), ways, None)
        assert found == [f"it could read theirs ({theirs})"]


def test_root_is_no_other_side_of_a_boundary_whatever_is_closed():
    assert reasons(Account("root", 0, 0, (), "/", "/bin/sh"), [], None) == ["it is root"]
