"""Where secrets live: the contract over every source, then what each refuses."""

import asyncio
import contextlib
import os
import sys
import textwrap
import threading

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends import chainer, fail, null

from config.errors import ConfigurationError
from config.secret import Secret
from minter import sources
from minter.held import key_fault
from minter.sealed_values import SealedValues
from minter.sealing import Sealer, new_data_key
from minter.sources import Context, MissingError, SourceError, Sources, versioned
from minter.sources import keyring as keyring_source
from minter.store import engine_for
from minter.tables import metadata

CANARY = "canary-of-the-sources"


class MemoryKeyring(KeyringBackend):
    """A keyring in memory, which a test adds to the allowed classes."""

    priority = 1

    def __init__(self):
        super().__init__()
        self.entries = {}

    def get_password(self, service, username):
        return self.entries.get((service, username))

    def set_password(self, service, username, password):
        self.entries[service, username] = password

    def delete_password(self, service, username):
        del self.entries[service, username]


@pytest.fixture
def use_keyring(monkeypatch):
    monkeypatch.delenv(keyring_source.OVERRIDE, raising=False)

    def use(backend, *, allow=True):
        monkeypatch.setattr(keyring.core, "_keyring_backend", backend)
        if allow:
            names = {keyring_source._class_of(backend)}
            monkeypatch.setattr(keyring_source, "ALLOWED", keyring_source.ALLOWED | names)
        return backend

    return use


class SmallStore:
    """The one table, on a loop of its own."""

    def __init__(self, directory):
        self.engine = engine_for(directory / "minter.db")
        metadata.tables["sealed_values"].create(self.engine)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    async def write(self, work):
        with self.engine.connect() as connection, connection.begin():
            return work(connection)[0]

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()
        self.engine.dispose()


@pytest.fixture
def sealed_values(tmp_path_factory):
    stores = []

    def make():
        store = SmallStore(tmp_path_factory.mktemp("state"))
        stores.append(store)
        values, sealer = SealedValues(), Sealer()
        sealer.use(1, new_data_key(), current=True)

        async def attach():
            values.attach(store, sealer)

        asyncio.run_coroutine_threadsafe(attach(), store.loop).result(5)
        return values

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def world(tmp_path, use_keyring, sealed_values):
    """Every place exists; ``put`` puts a value into the example place of a source."""
    backend = use_keyring(MemoryKeyring())
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    environ = {"CREDENTIALS_DIRECTORY": str(credentials)}
    pipes = []

    def put_fd(value):
        read, write = os.pipe()
        pipes.append(read)
        os.write(write, value.encode())
        os.close(write)
        return f"fd:{read}"

    def put_file(path):
        def put(value):
            path.write_text(value, newline="")
            path.chmod(0o600)

        return put

    values = sealed_values()
    places = {
        "env": ("env:THE_KEY", lambda value: environ.update(THE_KEY=value)),
        "file": ("file:the-key", put_file(tmp_path / "the-key")),
        "credential": ("credential:the-key", put_file(credentials / "the-key")),
        "keyring": ("keyring:minter/the-key", lambda value: backend.set_password("minter", "the-key", value)),
        "fd": ("fd:999", put_fd),
        "sealed": ("sealed:the-key", lambda value: values.write("the-key", 1, value.encode())),
    }

    class World:
        base = tmp_path
        env = environ

        def sources(self):
            return Sources(Context(environ=environ, base=tmp_path, keyring_timeout_s=2, sealed=values))

        def put(self, name, value):
            ref, put = places[name]
            return put(value) or ref

        def empty(self, name):
            return places[name][0]

    yield World()
    for fd in pipes:
        with contextlib.suppress(OSError):
            os.close(fd)


every = pytest.mark.parametrize("name", sorted(sources.classes()))
writable = pytest.mark.parametrize(
    "name", sorted(n for n, c in sources.classes().items() if hasattr(c, "write") and hasattr(c, "delete"))
)


@every
def test_a_source_says_what_it_is(name):
    source = sources.classes()[name]
    assert source.name == name
    assert source.example.startswith(f"{name}:")
    assert source.__doc__
    assert sys.modules[source.__module__].__doc__
    assert bool(source.hint) is not (hasattr(source, "write") and hasattr(source, "delete"))


@every
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_one_line_break_at_the_end_is_no_part_of_the_secret(name, end, world):
    ref = world.put(name, CANARY + end)
    assert world.sources().read(ref).reveal() == CANARY


@every
def test_a_second_line_break_and_inner_ones_are(name, world):
    ref = world.put(name, "-----BEGIN\nEND-----\n\n")
    assert world.sources().read(ref).reveal() == "-----BEGIN\nEND-----\n"


@every
def test_a_secret_can_be_read_again(name, world):
    ref = world.put(name, CANARY)
    both = world.sources()
    assert both.read(ref).reveal() == both.read(ref).reveal() == CANARY


@every
def test_a_place_with_nothing_is_missing(name, world):
    with pytest.raises(MissingError):
        world.sources().read(world.empty(name))


@every
@pytest.mark.parametrize("value", ["", "\n", "\r\n"])
def test_an_empty_secret_is_a_fault(name, value, world):
    ref = world.put(name, value)
    with pytest.raises(SourceError, match="empty"):
        world.sources().read(ref)


@every
def test_a_value_that_is_far_too_long_is_a_fault_that_does_not_show_it(name, world):
    if name == "fd":
        # A pipe holds 64 KiB: its writer would wait for the reader.
        read, write = os.pipe()
        threading.Thread(target=lambda: (os.write(write, CANARY.encode() * 4000), os.close(write)), daemon=True).start()
        ref = f"fd:{read}"
    else:
        ref = world.put(name, CANARY * 4000)
    with pytest.raises(SourceError) as raised:
        world.sources().read(ref)
    assert CANARY not in f"{raised.value!s}{raised.value.hint}{raised.value!r}"


@every
def test_a_fault_names_the_reference_and_nothing_of_the_value(name, world):
    ref = world.put(name, CANARY)
    for bad in (f"{name}:", name, f"{name}:\0", f"{name}:a/../"):
        with pytest.raises(SourceError) as raised:
            world.sources().read(bad)
        assert bad in str(key_fault(bad, bad, raised.value))
    assert CANARY not in repr(world.sources().read(ref))


@writable
def test_what_is_written_comes_back_and_what_is_deleted_is_gone(name, world):
    ref = versioned(world.empty(name), 2)
    both = world.sources()
    assert both.writable(ref)
    both.write(ref, Secret(CANARY))
    assert both.read(ref).reveal() == CANARY
    both.write(ref, Secret("another"))
    assert both.read(ref).reveal() == "another"
    both.delete(ref)
    both.delete(ref)
    with pytest.raises(MissingError):
        both.read(ref)


@every
def test_a_source_that_cannot_be_written_says_how_to_rotate(name, world):
    ref = world.put(name, CANARY)
    both = world.sources()
    if both.writable(ref):
        return
    for act in (lambda: both.write(ref, Secret("x")), lambda: both.delete(ref)):
        with pytest.raises(SourceError) as raised:
            act()
        assert raised.value.hint == both.how_to_rotate(ref) != ""


@pytest.mark.parametrize("ref", ["", "key", "vault:a", "ENV:a", ":a", "env"])
def test_what_is_no_reference_is_refused(ref, world):
    with pytest.raises(SourceError, match="not a reference"):
        world.sources().read(ref)


def test_a_place_that_forgets_what_was_written_is_noticed(world, use_keyring):
    class Forgetful(MemoryKeyring):
        def set_password(self, service, username, password):
            pass

    use_keyring(Forgetful())
    with pytest.raises(SourceError, match="give back"):
        world.sources().write("keyring:minter/x", Secret(CANARY))


def test_a_plugin_that_no_setting_names_does_not_load_and_one_that_is_missing_is_a_fault():
    context = Context(environ={}, base=__import__("pathlib").Path("/"))
    with pytest.raises(ConfigurationError, match="not installed"):
        Sources(context, third_party=["vault"])
    with pytest.raises(ConfigurationError, match="minter's own"):
        Sources(context, third_party=["env"])


def test_an_installed_plugin_loads_only_when_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "vault_plugin.py").write_text(
        textwrap.dedent("""
        class Vault:
            name = "vault"
            example = "vault:a"
            hint = "ask the vault"
            def __init__(self, context): pass
            def check(self, place): pass
            def read(self, place):
                from config.secret import Secret
                return Secret("from the vault")
        """)
    )
    info = tmp_path / "vault_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vault-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[minter.sources]\nvault = vault_plugin:Vault\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    context = Context(environ={}, base=tmp_path)
    with pytest.raises(SourceError, match="not a reference"):
        Sources(context).read("vault:a")
    assert Sources(context, third_party=["vault"]).read("vault:a").reveal() == "from the vault"
    assert Sources(context, third_party=["vault"]).how_to_rotate("vault:a") == "ask the vault"


class Stray:
    """A source of somebody else that raises errors of its own, with a value in their text."""

    name = "stray"
    example = "stray:a"
    hint = ""

    def __init__(self, context):
        self.path = context.base / "kept"

    def check(self, place):
        if place == "bad":
            raise KeyError(CANARY)

    def read(self, place):
        raise RuntimeError(CANARY)

    def write(self, place, value):
        raise OSError(CANARY)

    def delete(self, place):
        raise ValueError(CANARY)


def test_whatever_a_source_raises_is_a_source_that_failed_without_a_word_of_its_own(tmp_path):
    sources = Sources(Context(environ={}, base=tmp_path))
    sources._sources["stray"] = Stray(Context(environ={}, base=tmp_path))
    for asked in (
        lambda: sources.check("stray:bad"),
        lambda: sources.read("stray:a"),
        lambda: sources.write("stray:a", Secret("new")),
        lambda: sources.delete("stray:a"),
    ):
        with pytest.raises(SourceError, match="failed") as raised:
            asked()
        assert CANARY not in str(raised.value) + raised.value.hint
        assert raised.value.__cause__ is None


# --- env ---


def test_a_variable_is_removed_from_the_environment_when_it_is_read(world):
    ref = world.put("env", CANARY)
    world.sources().read(ref)
    assert "THE_KEY" not in world.env


def test_a_variable_of_undecodable_bytes_is_refused(world):
    with pytest.raises(SourceError, match="UTF-8"):
        world.sources().read(world.put("env", "a\udcff"))


# --- file and credential ---


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o611])
def test_a_file_that_others_can_open_is_refused(world, mode):
    ref = world.put("file", CANARY)
    (world.base / "the-key").chmod(mode)
    with pytest.raises(SourceError, match="opened by others") as raised:
        world.sources().read(ref)
    assert "0600" in raised.value.hint


@pytest.mark.parametrize(("mode", "refused"), [(0o400, False), (0o440, False), (0o444, True), (0o460, True)])
def test_a_credential_may_be_readable_by_the_group_that_stands_for_an_access_list(world, mode, refused):
    ref = world.put("credential", CANARY)
    (world.base / "credentials" / "the-key").chmod(mode)
    if refused:
        with pytest.raises(SourceError, match="opened by others"):
            world.sources().read(ref)
    else:
        assert world.sources().read(ref).reveal() == CANARY


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(world):
    ref = world.put("file", CANARY)
    os.chown(world.base / "the-key", 12345, -1)
    with pytest.raises(SourceError, match="another user"):
        world.sources().read(ref)


def test_a_link_a_directory_and_a_fifo_are_no_secret_files(world):
    world.put("file", CANARY)
    (world.base / "link").symlink_to("the-key")
    (world.base / "directory").mkdir(mode=0o700)
    os.mkfifo(world.base / "fifo", 0o600)
    for name, why in (("link", "a link"), ("directory", "not a file"), ("fifo", "not a file"), ("the-key/x", "exist")):
        with pytest.raises(SourceError, match=why):
            world.sources().read(f"file:{name}")


def test_a_file_is_written_for_its_owner_alone_and_what_a_killed_write_left_goes(world):
    stale = world.base / ".the-key.v2.4711.tmp"
    stale.write_text("a secret that a killed write left")
    world.sources().write("file:the-key.v2", Secret(CANARY))
    assert (world.base / "the-key.v2").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in world.base.iterdir()) == ["credentials", "the-key.v2"]


def test_what_a_killed_write_left_goes_with_a_version_that_is_given_up(world):
    for name in ("the-key", ".the-key.v2.4711.tmp", ".the-key[1].4711.tmp"):
        (world.base / name).write_text("a secret")
    world.sources().delete("file:the-key.v2")
    world.sources().delete("file:the-key[1]")
    assert sorted(path.name for path in world.base.iterdir()) == ["credentials", "the-key"]


def test_a_file_that_cannot_be_written_is_a_fault_without_its_path(world):
    with pytest.raises(SourceError) as raised:
        world.sources().write("file:missing/the-key", Secret(CANARY))
    assert "missing" not in str(raised.value)


def test_bytes_that_are_no_text_are_refused(world):
    (world.base / "the-key").write_bytes(b"\xff\xfe")
    (world.base / "the-key").chmod(0o600)
    with pytest.raises(SourceError, match="UTF-8"):
        world.sources().read("file:the-key")


def test_a_credential_without_a_service_manager_is_missing(world):
    for directory in ("", "relative"):
        world.env["CREDENTIALS_DIRECTORY"] = directory
        with pytest.raises(MissingError, match="service manager"):
            world.sources().read("credential:the-key")


@pytest.mark.parametrize("name", ["../the-key", "a/b", ".", "..", ".hidden"])
def test_a_credentials_name_leads_nowhere_else(world, name):
    with pytest.raises(SourceError, match="not the name"):
        world.sources().read(f"credential:{name}")


# --- fd ---


@pytest.mark.parametrize("place", ["0", "1", "2", "-3", "x", "99999", "٣"])
def test_standard_descriptors_and_nonsense_are_refused(world, place):
    with pytest.raises(SourceError, match="descriptor"):
        world.sources().read(f"fd:{place}")


def test_a_pipe_whose_writer_stays_is_not_waited_for_long(world, monkeypatch):
    from minter.sources import fd

    monkeypatch.setattr(fd, "_TIMEOUT_S", 0.05)
    read, write = os.pipe()
    os.write(write, b"half")
    with pytest.raises(SourceError, match="no end of data"):
        world.sources().read(f"fd:{read}")
    os.close(read)
    os.close(write)


def test_a_pipe_is_closed_once_it_was_read(world):
    ref = world.put("fd", CANARY)
    world.sources().read(ref)
    with pytest.raises(OSError):
        os.fstat(int(ref.removeprefix("fd:")))


# --- keyring ---


@pytest.mark.parametrize("backend", [null.Keyring(), fail.Keyring()])
def test_a_backend_that_keeps_nothing_is_refused_by_name(world, use_keyring, backend):
    use_keyring(backend, allow=False)
    with pytest.raises(SourceError, match=rf"{type(backend).__module__}.Keyring is refused"):
        world.sources().read("keyring:minter/the-key")


def test_an_installed_plain_file_backend_is_refused_by_name(world, use_keyring):
    """jaraco/keyring#370: merely installed, it was chosen without a word."""
    plain = type("PlaintextKeyring", (MemoryKeyring,), {"__module__": "keyrings.alt.file"})
    use_keyring(plain(), allow=False)
    with pytest.raises(SourceError, match=r"keyrings\.alt\.file\.PlaintextKeyring is refused"):
        world.sources().write("keyring:minter/the-key", Secret(CANARY))


def test_a_chain_with_an_unknown_member_is_refused_by_the_members_name(world, use_keyring):
    class Chain(chainer.ChainerBackend):
        backends = (MemoryKeyring(), null.Keyring())

    use_keyring(Chain(), allow=False)
    use_keyring(MemoryKeyring())
    use_keyring(Chain(), allow=False)
    with pytest.raises(SourceError, match=r"null\.Keyring is refused"):
        world.sources().read("keyring:minter/the-key")


def test_a_chain_of_known_members_is_read_from_its_first_alone(world, use_keyring):
    first, second = MemoryKeyring(), MemoryKeyring()
    second.set_password("minter", "the-key", "from a weaker place")

    class Chain(chainer.ChainerBackend):
        backends = (first, second)

    use_keyring(MemoryKeyring())
    use_keyring(Chain(), allow=False)
    with pytest.raises(MissingError):
        world.sources().read("keyring:minter/the-key")


@pytest.mark.parametrize("value", ["keyring.backends.null.Keyring", "keyrings.alt.file.PlaintextKeyring", ""])
def test_a_backend_that_the_environment_names_is_refused(world, monkeypatch, value):
    monkeypatch.setenv(keyring_source.OVERRIDE, value)
    with pytest.raises(SourceError, match="environment names") as raised:
        world.sources().read("keyring:minter/the-key")
    assert value in str(raised.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[backend]\nkeyring-path=/tmp/evil\n", "from a folder"),
        ("[backend]\ndefault-keyring=keyring.backends.null.Keyring\n", "null.Keyring"),
        ("[backend\n", "cannot be read"),
    ],
)
def test_a_configuration_of_the_library_that_overrides_the_choice_is_refused(world, monkeypatch, tmp_path, text, why):
    (tmp_path / "keyringrc.cfg").write_text(text)
    monkeypatch.setattr(keyring_source.platform_, "config_root", lambda: str(tmp_path))
    with pytest.raises(SourceError, match=why):
        world.sources().read("keyring:minter/the-key")


def test_a_locked_keyring_says_so_with_its_class_and_what_to_do(world, use_keyring):
    class Locked(MemoryKeyring):
        def get_password(self, service, username):
            raise keyring.errors.KeyringLocked(f"Failed to unlock the collection! {CANARY}")

    use_keyring(Locked())
    with pytest.raises(SourceError, match=r"locked .*Locked") as raised:
        world.sources().read("keyring:minter/the-key")
    assert "unlock it" in raised.value.hint
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize("error", [RuntimeError, ModuleNotFoundError, ValueError, keyring.errors.InitError, OSError])
def test_whatever_a_backend_raises_becomes_a_fault_without_its_text(world, use_keyring, error):
    class Broken(MemoryKeyring):
        def get_password(self, service, username):
            raise error(CANARY)

    use_keyring(Broken())
    with pytest.raises(SourceError, match=error.__name__) as raised:
        world.sources().read("keyring:minter/the-key")
    assert CANARY not in str(raised.value)
    assert "Broken" in str(raised.value)


def test_a_keyring_that_asks_a_person_is_not_waited_for(world, use_keyring):
    leave = threading.Event()

    class Asking(MemoryKeyring):
        def get_password(self, service, username):
            leave.wait(30)

    use_keyring(Asking())
    waiting = Sources(Context(environ={}, base=world.base, keyring_timeout_s=0.05))
    with pytest.raises(SourceError, match=r"did not answer within 0.05 s .*Asking"):
        waiting.read("keyring:minter/the-key")
    leave.set()


def test_the_doctor_is_told_the_backends_class(use_keyring, tmp_path):
    use_keyring(MemoryKeyring())
    source = keyring_source.KeyringSource(Context(environ={}, base=tmp_path))
    assert source.backend().endswith("MemoryKeyring")


@pytest.mark.parametrize("place", ["alone", "/user", "service/"])
def test_a_keyring_place_is_service_and_user(world, place):
    with pytest.raises(SourceError, match="place in a keyring"):
        world.sources().read(f"keyring:{place}")
