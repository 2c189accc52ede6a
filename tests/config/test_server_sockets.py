"""Where a program listens: exact modes, nobody else's place taken, nothing left behind."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from config.errors import ConfigurationError
from config.server import Bound, Listener, bind, release
from tests.config.serving import GET, hello, served

ROOT = os.getuid() == 0


def unix(path) -> Listener:
    return Listener.parse(f"unix:{path}")


def mode(path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def refused(path, **options) -> str:
    with pytest.raises(ConfigurationError) as caught:
        bind(unix(path), **options)
    (fault,) = caught.value.faults
    assert fault.where == f"listen unix:{path}"
    return f"{fault.what} {fault.hint}"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_socket_is_its_owners_only_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        bound = bind(unix(tmp_path / "run" / "s.sock"))
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert (mode(tmp_path / "run"), mode(tmp_path / "run" / "s.sock")) == (0o700, 0o600)
    release(bound)
    assert not (tmp_path / "run" / "s.sock").exists()


@pytest.mark.skipif(not ROOT, reason="needs root to give a directory to another group")
def test_a_socket_for_a_group_opens_to_that_group_and_tells_the_members_uid():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        with served(hello, f"unix:{name}/run/s.sock", socket_group=65534) as world:
            run, path = Path(name) / "run", Path(name) / "run" / "s.sock"
            assert (mode(run), mode(path), run.stat().st_gid, path.stat().st_gid) == (0o750, 0o660, 65534, 65534)
            sock = socket.socket(socket.AF_UNIX)
            os.seteuid(65534)
            try:
                with pytest.raises(PermissionError):
                    sock.connect(str(path))
                os.seteuid(0)
                os.setegid(65534)
                os.seteuid(65534)
                sock.connect(str(path))
            finally:
                os.seteuid(0)
                os.setegid(0)
            with sock:
                sock.sendall(GET)
                assert b"200 OK" in sock.recv(1000)
            assert world.seen[-1]["peer"].uid == 65534


def test_a_socket_left_over_by_us_is_replaced(tmp_path):
    first = bind(unix(tmp_path / "s.sock"))
    first.sock.close()
    second = bind(unix(tmp_path / "s.sock"))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s.sock"))
    release(second)


def test_a_socket_that_somebody_listens_on_is_left_alone(tmp_path):
    first = bind(unix(tmp_path / "s.sock"))
    assert "another process listens there" in refused(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s.sock"))
    release(first)


def test_a_socket_file_that_is_anothers_by_now_is_not_removed(tmp_path):
    first = bind(unix(tmp_path / "s.sock"))
    (tmp_path / "s.sock").unlink()
    second = bind(unix(tmp_path / "s.sock"))
    release(first)
    assert (tmp_path / "s.sock").exists()
    release(second)
    release(second)


def test_a_symbolic_link_in_its_place_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "s.sock").symlink_to(tmp_path / "elsewhere" / "s.sock")
    assert "no socket" in refused(tmp_path / "s.sock")
    assert not (tmp_path / "elsewhere" / "s.sock").exists()


def test_a_file_in_its_place_is_refused_and_kept(tmp_path):
    (tmp_path / "s.sock").write_text("precious")
    assert "no socket" in refused(tmp_path / "s.sock")
    assert (tmp_path / "s.sock").read_text() == "precious"


@pytest.mark.skipif(not ROOT, reason="needs root to make another user's file")
def test_a_socket_of_another_user_is_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s.sock"))
    os.chown(tmp_path / "s.sock", 65534, 65534)
    assert "another user" in refused(tmp_path / "s.sock")


@pytest.mark.skipif(not ROOT, reason="needs root to make another user's directory")
def test_a_directory_of_another_user_is_refused(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    os.chown(tmp_path / "run", 65534, 65534)
    assert "belongs to another user" in refused(tmp_path / "run" / "s.sock")


def test_a_directory_that_is_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    assert "symbolic link" in refused(tmp_path / "run" / "s.sock")


@pytest.mark.parametrize("open_mode", [0o755, 0o777, 0o750, 0o701, 0o1777])
def test_a_directory_that_is_open_to_others_is_refused_with_the_remedy(tmp_path, open_mode):
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(open_mode)
    assert "chmod 0700" in refused(tmp_path / "run" / "s.sock")


def test_a_directory_that_keeps_the_group_out_is_refused(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    assert "chmod 0750" in refused(tmp_path / "run" / "s.sock", group=os.getgid())


def test_a_directory_that_cannot_be_made_is_a_fault(tmp_path):
    (tmp_path / "file").write_text("")
    assert "directory" in refused(tmp_path / "file" / "run" / "s.sock")


def test_a_path_that_no_socket_can_have_is_a_fault(tmp_path):
    assert "shorter" in refused(tmp_path / ("x" * 120) / "s.sock")


def test_a_port_that_is_taken_is_a_fault_and_zero_takes_a_free_one():
    first = bind(Listener.parse("127.0.0.1:0"))
    assert first.listener.port > 0
    with pytest.raises(ConfigurationError, match="another process listens there"):
        bind(first.listener)
    release(first)


def has_ipv6():
    """Ask the system and not our own code, whose mistake would then look like a machine without IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ipv6_is_listened_on_as_written():
    bound = bind(Listener.parse("[::1]:0"))
    assert str(bound.listener).startswith("[::1]:")
    release(bound)


def test_when_one_listener_cannot_be_bound_none_listens(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigurationError), served(hello, f"unix:{tmp_path}/s.sock", f"unix:{tmp_path}/taken"):
        raise AssertionError("it was ready")
    assert not (tmp_path / "s.sock").exists()


def test_no_child_inherits_a_listening_socket(tmp_path):
    bound: Bound = bind(unix(tmp_path / "s.sock"))
    assert not bound.sock.get_inheritable()
    release(bound)


@pytest.mark.parametrize(
    ("text", "kind", "host", "port"),
    [
        ("127.0.0.1:8090", "tcp", "127.0.0.1", 8090),
        ("localhost:0", "tcp", "localhost", 0),
        ("[::1]:8090", "tcp", "::1", 8090),
        ("tls:0.0.0.0:8443", "tls", "0.0.0.0", 8443),
        ("tls:[::]:8443", "tls", "::", 8443),
        ("tls:Broker.Example:443", "tls", "broker.example", 443),
    ],
)
def test_a_listener_is_read(text, kind, host, port):
    listener = Listener.parse(text)
    assert (listener.kind, listener.host, listener.port) == (kind, host, port)
    assert str(listener) == text.lower()


@pytest.mark.parametrize(
    "text", ["", "8090", ":8090", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x", "[::1:80", "[zz]:80",
             "::1:80", "unix:", "unix:@abstract", "unix:a\0b", "http://127.0.0.1:80", "tls:", "127.0.0.1:٣"],
)  # fmt: skip
def test_a_listener_that_is_none_is_refused(text):
    with pytest.raises(ValueError):
        Listener.parse(text)


@pytest.mark.parametrize(
    ("text", "loopback"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("unix:a", True), ("0.0.0.0:1", False)],
)
def test_a_listener_knows_whether_others_can_reach_it(text, loopback):
    assert Listener.parse(text).is_loopback is loopback
