"""``broker exec``: run a command with a run of its own, and without a way around the broker.

In order: who the command will be, whether that user is another side of a boundary, a run, the command, the run's end.
The end comes in every case, whatever the command or a signal did.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from broker import reach
from broker.caller_client import CallerClient, read_caller_token
from broker.reach import Account, Way
from broker.supervise import Supervisor
from config import process
from config.addresses import is_loopback_host
from config.console import terminal
from config.console.commands import AnswerError, CommandError
from config.errors import ConfigurationError, ExitCode
from config.listeners import Listener
from config.load import load_settings
from config.settings import BrokerSettings, MinterSettings

_OURS: Final = ("BROKER_", "MINTER_")
_ANY_ADDRESS: Final = ("0.0.0.0", "::")
#: What a run that is over already is answered with: no such run, or ended.
_OVER: Final = (ExitCode.USAGE, ExitCode.CONFLICT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the command line asked for. ``user`` None: as ourselves."""

    argv: Sequence[str]
    profiles: Sequence[str]
    params: Mapping[str, str]
    token_file: Path
    config: Path
    url: str = ""
    ca_file: str = ""
    user: str | None = None
    same_user: bool = False
    ttl: str | None = None
    trace_id: str | None = None
    passed: Sequence[str] = ()


def execute(order: Order, environ: Mapping[str, str]) -> int:
    """Carry the order out and return the exit status: the command's own, or ours when it was not started.

    Errors: ``CommandError``, ``ConfigurationError``.
    """
    umask = os.umask(0o077)
    process.harden()
    settings = _settings(order, environ)
    url = order.url or _own_url(settings)
    token = read_caller_token(order.token_file)
    account = _account(order)
    _refuse_without_boundary(order, account, settings, url)
    client = CallerClient(url, token, ca_file=order.ca_file)
    with Supervisor() as supervisor, _run(client, order) as run:
        status = supervisor.asked_to_end()
        if status is not None:
            return status
        env = process.child_environment(environ, extra=_environment(run, account, order, environ))
        return supervisor.run(order.argv, env, user=None if account.is_own() else account, umask=umask)


# --- who it will be, and whether that is a boundary ---


def _account(order: Order) -> Account:
    if order.user is None:
        return Account.own()
    account = Account.named(order.user)
    if not account.is_own() and os.geteuid() != 0:
        raise CommandError(
            ExitCode.REFUSED,
            f"only root can run a command as {account.name}",
            "Run broker exec as root (sudo broker exec ...): it gives root up for the command.",
        )
    return account


def _refuse_without_boundary(order: Order, account: Account, settings: BrokerSettings | None, url: str) -> None:
    found = judged(order, account, settings, url)
    if not found:
        return
    if order.same_user:
        terminal.say(f"--same-user: the broker is no boundary for this command. User {account.name}:")
    else:
        terminal.say(f"refused: for a command that runs as {account.name} the broker would be no boundary:")
    for reason in found:
        terminal.say(f"  {reason}")
    if not order.same_user:
        raise CommandError(
            ExitCode.REFUSED,
            "the command was not started",
            "Give a user of its own with --user NAME, or --same-user to go on without a boundary.",
        )


def judged(order: Order, account: Account, settings: BrokerSettings | None, url: str) -> list[str]:
    """Return why the broker would be no boundary for a command that runs as ``account``; empty when it is one."""
    found = reach.reasons(account, _ways(order, settings), settings)
    if settings is None and _is_local(url):
        found.append("what it could reach of the broker is not known without the broker's settings (--config)")
    return found


def _ways(order: Order, settings: BrokerSettings | None) -> list[Way]:
    ways = list(reach.ways_to_caller(order.token_file))
    if settings is None:
        return ways
    ways += reach.ways_to_broker(settings, order.config)
    minter = order.config.parent / "minter.toml"
    with contextlib.suppress(ConfigurationError):
        # Both programs may live in one directory; where they do not, the minter's files are not ours to know.
        ways += reach.ways_to_minter(load_settings(MinterSettings, minter, {}), minter)
    return [*ways, *reach.beside(ways)]


# --- where the broker is ---


def _settings(order: Order, environ: Mapping[str, str]) -> BrokerSettings | None:
    try:
        return load_settings(BrokerSettings, order.config, environ)
    except ConfigurationError:
        if not order.url:
            raise
        return None


def _own_url(settings: BrokerSettings | None) -> str:
    """Return how the broker is reached from its own machine."""
    for text in settings.listen if settings is not None else ():
        with contextlib.suppress(ValueError):
            listener = Listener.parse(text)
            if listener.kind == "unix":
                return text
            host = "127.0.0.1" if listener.host in _ANY_ADDRESS else listener.host_name
            return f"{'https' if listener.kind == 'tls' else 'http'}://{host}:{listener.port}"
    raise CommandError(ExitCode.CONFIGURATION, "the settings name no address of the broker", "Give it with --url.")


def _is_local(url: str) -> bool:
    return url.startswith("unix:") or is_loopback_host(urlsplit(url).hostname or "")


# --- the run ---


@contextlib.contextmanager
def _run(client: CallerClient, order: Order) -> Iterator[dict[str, Any]]:
    body: dict[str, Any] = {"profiles": list(order.profiles), "params": dict(order.params)}
    if order.ttl is not None:
        body["ttl"] = order.ttl
    if order.trace_id is not None:
        body["trace_id"] = order.trace_id
    run = client.open(body)
    try:
        yield run
    finally:
        _end(client, run)


def _end(client: CallerClient, run: dict[str, Any]) -> None:
    try:
        client.end(run["run_id"])
    except AnswerError as error:
        if error.status not in _OVER:
            terminal.say(f"run {run['run_id']} could not be ended: {error.what}")
    except CommandError as error:
        terminal.say(f"run {run['run_id']} could not be ended ({error.what}); it ends by itself at {run['expires_at']}")


def _environment(run: dict[str, Any], account: Account, order: Order, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the command has beyond the harmless: its user, the run, what its profiles' SDKs look for."""
    extra = {name: environ[name] for name in order.passed if name in environ and not name.startswith(_OURS)}
    extra |= {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
    for name, profile in run["profiles"].items():
        for variable, value in profile.get("env", {}).items():
            if extra.setdefault(variable, value) != value and variable not in order.passed:
                raise CommandError(ExitCode.CONFIGURATION, f"two profiles set {variable}", f"leave {name} out")
            extra[variable] = value
    first = order.profiles[0]
    extra["BROKER_URL"] = run["profiles"][first]["base_url"].removesuffix(f"/p/{first}")
    extra["BROKER_RUN_TOKEN"] = run["run_token"]
    return extra
