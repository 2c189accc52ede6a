"""The settings of both programs: every name of ``minter.toml`` and ``broker.toml``, its default and its meaning.

Pure types: ``config/load.py`` reads the files. Unknown names are faults; relative paths count from the file's own
folder; each value can be overridden from the environment (``BROKER_STATE``, ``MINTER_LIMITS__MINT_RATE``).
Durations are seconds or a text such as ``15m`` and are seconds once loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import msgspec

from config.durations import parse_duration

#: From this version on SQLite's write-ahead log is used for ``state``. Before (3.7.0 to 3.51.2) a checkpoint that races
#: a reset of the log could lose a commit or corrupt the database.
SQLITE_WAL_FROM: Final = (3, 51, 3)

#: The custody keys that every minter has, whether its settings describe them or not.
SEALING_KEY: Final = "sealing-key"
AUDIT_SIGNER: Final = "audit-signer"

Duration = float | str
Positive = Annotated[int, msgspec.Meta(ge=1)]


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all tables of settings share: durations become seconds, relative paths are anchored.

    ``DURATIONS``, ``PATHS`` (plain paths) and ``REFERENCES`` (``scheme:path``, or a list of them) name the fields;
    ``NEVER_ZERO`` are durations of which none at all would mean no limit, or that nothing is ever in time.
    """

    DURATIONS: ClassVar[tuple[str, ...]] = ()
    NEVER_ZERO: ClassVar[tuple[str, ...]] = ()
    PATHS: ClassVar[tuple[str, ...]] = ()
    REFERENCES: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in self.DURATIONS:
            value = getattr(self, name)
            if value is not None:
                try:
                    seconds = parse_duration(value)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
                if not seconds and name in self.NEVER_ZERO:
                    raise ValueError(f"{name}: expected more than zero seconds")
                msgspec.structs.force_setattr(self, name, seconds)

    def anchored(self, base: Path) -> Self:
        """Return the same settings with every relative path made absolute from ``base``."""
        changes: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, _Settings):
                changes[name] = value.anchored(base)
            elif isinstance(value, dict):
                changes[name] = {k: v.anchored(base) if isinstance(v, _Settings) else v for k, v in value.items()}
            elif name in self.PATHS and value:
                changes[name] = str(base / value)
            elif name in self.REFERENCES and value:
                one = isinstance(value, str)
                anchored = [_anchor(reference, base) for reference in ([value] if one else value)]
                changes[name] = anchored[0] if one else anchored
        return msgspec.structs.replace(self, **changes)


def _anchor(reference: str, base: Path) -> str:
    scheme, colon, path = reference.partition(":")
    if colon and scheme in ("unix", "file", "sqlite") and path:
        return f"{scheme}:{base / path}"
    return reference


def _listed(values: list[str]) -> Any:
    """Give each object a list of its own as the default."""
    return msgspec.field(default_factory=lambda: list(values))


class TlsSettings(_Settings, frozen=True, kw_only=True):
    """PEM files. ``tls``: ``certificate`` and ``key`` of the ``tls:`` listeners; ``client_ca`` asks callers for theirs.

    ``minter_tls``: the ``certificate`` and ``key`` that the broker shows to a minter on ``tls:``; ``client_ca`` is the
    authority that the minter's own certificate must come from, else the system's.
    """

    PATHS: ClassVar = ("certificate", "key", "client_ca")

    certificate: str = ""
    key: str = ""
    client_ca: str = ""


class ListenSettings(_Settings, frozen=True, kw_only=True):
    """Limits of how a program listens. They hold before a request reaches the program's own code.

    ``max_connections`` is a listener group's: beyond it, whoever waits longest without an active request makes room,
    and when nobody does, the new connection is answered 429. ``max_header_bytes`` counts the whole head,
    ``max_headers`` its lines, ``max_target_bytes`` the path with its query. ``header_deadline`` is for the whole head
    of a request, ``body_deadline`` for a pause within its body, ``keep_alive`` for an idle connection.
    """

    DURATIONS: ClassVar = ("header_deadline", "body_deadline", "keep_alive")
    NEVER_ZERO: ClassVar = ("header_deadline", "body_deadline")

    max_connections: Positive = 2048
    max_header_bytes: Positive = 32768
    max_headers: Positive = 100
    max_target_bytes: Positive = 8192
    header_deadline: Duration = 10.0
    body_deadline: Duration = 30.0
    keep_alive: Duration = 75.0


class BrokerLimits(ListenSettings, frozen=True, kw_only=True):
    """``[limits]`` of the broker: those of how it listens, and its own.

    ``max_host_call_bytes``: what the bodies and answers of all host calls (``POST /v1/call``) may hold in memory at
    once. What goes beyond it is answered 429; a host call that alone is larger is never taken.
    """

    max_host_call_bytes: Positive = 128 * 1024 * 1024


class UpstreamSettings(_Settings, frozen=True, kw_only=True):
    """How the broker calls APIs.

    ``connect_timeout`` is for a connection, ``header_timeout`` for the first byte of an answer after the call was
    sent, ``idle_timeout`` for a pause within it; ``keep_alive`` is how long an idle connection is kept. ``ca_file``
    replaces the system's certificate authorities. ``max_connections`` is per origin.
    """

    DURATIONS: ClassVar = ("connect_timeout", "header_timeout", "idle_timeout", "keep_alive")
    NEVER_ZERO: ClassVar = ("connect_timeout", "header_timeout", "idle_timeout")
    PATHS: ClassVar = ("ca_file",)

    connect_timeout: Duration = 5.0
    header_timeout: Duration = 60.0
    idle_timeout: Duration = 300.0
    keep_alive: Duration = 30.0
    max_connections: Positive = 256
    ca_file: str = ""


class BrokerSettings(_Settings, frozen=True, kw_only=True):
    """``broker.toml``.

    ``listen``: ``HOST:PORT``, ``unix:PATH`` or ``tls:HOST:PORT``. ``public_url`` forms the base URLs that runs get,
    for containers and other hosts; empty: the first listener's. ``hosts``: further Host names that are answered,
    without a port. ``grants`` and ``callers`` are files that a reload reads again; ``state`` is ``sqlite:PATH``,
    ``learned`` the file for what profiles with ``"learn": true`` learn (default ``learned.json`` beside the state).
    ``minter``: ``unix:PATH`` or ``tls:HOST:PORT``; ``minter_credential``: ``file:``, ``credential:`` (systemd) or
    ``fd:N`` (an inherited pipe, read once). ``operator_uids``: who may use ``admin_listen`` (``unix:`` only); default
    root and the broker's own user. ``max_runs`` is per caller. ``drain``: how long open calls may go on after SIGTERM.
    ``allow_root`` lets it run as root. ``log_level``: lines below it are not written. ``placements`` names the
    third-party plugins that may load: installed is not trusted. ``limits``, ``upstream``, ``tls`` and ``minter_tls``
    are tables.
    """

    PREFIX: ClassVar = "BROKER_"
    DURATIONS: ClassVar = ("drain",)
    PATHS: ClassVar = ("grants", "callers", "learned")
    REFERENCES: ClassVar = ("listen", "admin_listen", "minter", "minter_credential", "state")

    listen: list[str] = _listed(["127.0.0.1:8090"])
    public_url: str = ""
    hosts: list[str] = []
    grants: str = "grants.json"
    callers: str = "callers.json"
    minter: str = "unix:run/minter.sock"
    minter_credential: str = "file:run/broker.credential"
    state: str = "sqlite:state/broker.db"
    learned: str = ""
    admin_listen: list[str] = _listed(["unix:run/broker-admin.sock"])
    operator_uids: list[int] | None = None
    max_runs: Positive = 100
    drain: Duration = 10.0
    allow_root: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    placements: list[str] = []
    limits: BrokerLimits = BrokerLimits()
    upstream: UpstreamSettings = UpstreamSettings()
    tls: TlsSettings = TlsSettings()
    minter_tls: TlsSettings = TlsSettings()

    def learned_file(self) -> Path:
        """Return where what was learnt is kept."""
        return Path(self.learned or Path(self.state.removeprefix("sqlite:")).with_name("learned.json"))


class KeySettings(_Settings, frozen=True, kw_only=True):
    """``[keys.ALIAS]``: one custody key.

    ``source``: where version 1 lives: ``env:NAME``, ``keyring:SERVICE/USER``, ``file:PATH``, ``credential:NAME``,
    ``fd:N`` or ``sealed:NAME`` (in the state, sealed); later versions have the same place with ``.vN`` behind it.
    ``use`` is ``static`` for a secret that somebody else issued and ``signing`` for a key of ours, which the minter
    makes when it is missing. Two keys are always there and may be described in the same way: ``sealing-key`` (use
    ``sealing``: ``file:``, ``keyring:`` or ``credential:``; else a file beside the state), which wraps the keys that
    seal the state, and ``audit-signer`` (use ``checkpoints``; else ``sealed:audit-signer``), which signs the audit
    log's checkpoints. ``algorithm`` is for signing keys. ``owner`` and ``purpose`` are words for the custody report,
    ``second_copy`` says where another copy of it is kept. ``origins`` pins the key; empty: pinned at first use.
    ``rotate_every`` is the period that its age is compared with.
    """

    DURATIONS: ClassVar = ("rotate_every",)
    NEVER_ZERO: ClassVar = ("rotate_every",)
    REFERENCES: ClassVar = ("source",)

    source: str
    use: Literal["static", "signing", "sealing", "checkpoints"] = "static"
    algorithm: Literal["EdDSA", "ES256", "RS256", "HS256"] = "EdDSA"
    owner: str = ""
    purpose: str = ""
    second_copy: str = ""
    origins: list[str] = []
    rotate_every: Duration | None = None


class CommandSettings(_Settings, frozen=True, kw_only=True):
    """``[commands.NAME]``: a credential helper for kind ``exec``.

    ``argv`` starts with an absolute path; ``env`` is the helper's whole environment. A helper that takes longer than
    ``timeout`` or prints more than ``max_output`` bytes is killed.
    """

    DURATIONS: ClassVar = ("timeout",)
    NEVER_ZERO: ClassVar = ("timeout",)

    argv: Annotated[list[str], msgspec.Meta(min_length=1)]
    env: dict[str, str] = {}
    timeout: Duration = 10.0
    max_output: Positive = 65536


class LeaseLimits(_Settings, frozen=True, kw_only=True):
    """Caps per broker and profile: ``max_live`` leases, ``mint_rate`` new ones per second, ``mint_burst`` at once.

    ``revocation_rate``: attempts to end credentials upstream that are begun in a second, over all kinds.
    """

    revocation_rate: Positive = 200
    max_live: Positive = 100_000
    mint_rate: Positive = 5_000
    mint_burst: Positive = 5_000


class AuditSettings(_Settings, frozen=True, kw_only=True):
    """``[audit_log]``: what becomes of the audit log beside the file that ``audit`` names.

    ``second`` is another place that takes every line: ``file:PATH`` or ``syslog:``; ``policy`` says whether ``all``
    places must have taken a line before anything is released, or ``any`` of them. A place that takes longer than
    ``timeout`` counts as failed. At ``max_size`` bytes the log goes on in a new file; 0: only when it is asked for.
    A checkpoint is signed every ``checkpoint_records`` lines and every ``checkpoint_every``, whichever comes first,
    and written to ``checkpoint_file`` (empty: beside the log) and, with ``checkpoint_syslog``, to the system's log.
    """

    DURATIONS: ClassVar = ("timeout", "checkpoint_every")
    NEVER_ZERO: ClassVar = ("timeout", "checkpoint_every")
    PATHS: ClassVar = ("checkpoint_file",)
    REFERENCES: ClassVar = ("second",)

    second: str = ""
    policy: Literal["all", "any"] = "all"
    timeout: Duration = 2.0
    max_size: Annotated[int, msgspec.Meta(ge=0)] = 256 * 1024 * 1024
    checkpoint_records: Positive = 1000
    checkpoint_every: Duration = 60.0
    checkpoint_file: str = ""
    checkpoint_syslog: bool = False


class MinterSettings(_Settings, frozen=True, kw_only=True):
    """``minter.toml``.

    ``listen`` serves brokers (``unix:``, or ``tls:`` with ``client_ca``), ``admin_listen`` operators and auditors by
    their user (``unix:`` only), ``public_listen`` JWKS and introspection. With ``socket_group`` (a name or a number)
    the brokers' sockets are 0660 in a 0750 directory of that group; ``admin_socket_group`` lets auditors reach
    ``admin_listen`` in the same way. ``operator_uids``: default root and the minter's own user; ``auditor_uids`` may
    read. ``grants`` and ``brokers`` are files that a reload reads again; ``state`` is ``sqlite:PATH``, ``audit`` the
    audit log. ``issuer`` is the ``iss`` of our own tokens. ``safety_margin``: with less left a credential is not
    handed out again. ``keyring_timeout``: how long a keyring may take to answer. ``verifier_cache``: how long a signing
    key is published before it signs. ``rotation_overlap``: how long the previous value of a static secret is kept when
    no other time is given. ``drain``: how long mints and revocations may go on after SIGTERM. ``allow_root`` lets it
    run as root. ``log_level``: lines below it are not written. ``kinds`` and ``sources`` name the third-party plugins
    that may load: installed is not trusted. ``keys``, ``commands``, ``lease_limits``, ``audit_log``, ``limits`` and
    ``tls`` are tables.
    """

    PREFIX: ClassVar = "MINTER_"
    DURATIONS: ClassVar = ("drain", "safety_margin", "keyring_timeout", "verifier_cache", "rotation_overlap")
    NEVER_ZERO: ClassVar = ("keyring_timeout",)
    PATHS: ClassVar = ("grants", "brokers", "audit")
    REFERENCES: ClassVar = ("listen", "admin_listen", "public_listen", "state")

    listen: list[str] = _listed(["unix:run/minter.sock"])
    socket_group: str = ""
    admin_socket_group: str = ""
    grants: str = "grants.json"
    brokers: str = "brokers.json"
    state: str = "sqlite:state/minter.db"
    audit: str = "state/audit.jsonl"
    admin_listen: list[str] = _listed(["unix:run/minter-admin.sock"])
    public_listen: list[str] = []
    operator_uids: list[int] | None = None
    auditor_uids: list[int] = []
    issuer: str = "urn:minter-broker:minter"
    keys: dict[str, KeySettings] = {}
    commands: dict[str, CommandSettings] = {}
    lease_limits: LeaseLimits = LeaseLimits()
    audit_log: AuditSettings = AuditSettings()
    safety_margin: Duration = 30.0
    keyring_timeout: Duration = 5.0
    verifier_cache: Duration = 330.0
    rotation_overlap: Duration = 86400.0
    drain: Duration = 10.0
    allow_root: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    kinds: list[str] = []
    sources: list[str] = []
    limits: ListenSettings = ListenSettings()
    tls: TlsSettings = TlsSettings()
