"""Where the minter listens, and for whom: who cannot be known there is not let in."""

from __future__ import annotations

import dataclasses
import grp
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from config.errors import ConfigurationError, Fault
from config.listeners import Limits, Listener, ListenerGroup, TLSFiles
from config.settings import MinterSettings
from minter.minter import Minter

#: Operators and auditors are few.
ADMIN_CONNECTIONS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Listeners for brokers, for operators and auditors, and for anyone; the groups (gids) of the first two."""

    brokers: tuple[Listener, ...]
    admin: tuple[Listener, ...] = ()
    public: tuple[Listener, ...] = ()
    brokers_group: int | None = None
    admin_group: int | None = None

    @classmethod
    def of(cls, settings: MinterSettings) -> Listening:
        """Read the settings. Errors: ``ConfigurationError`` with every fault."""
        faults: list[Fault] = []
        found = cls(
            brokers=_parsed("listen", settings.listen, settings, faults),
            admin=_parsed("admin_listen", settings.admin_listen, settings, faults),
            public=_parsed("public_listen", settings.public_listen, settings, faults),
            brokers_group=_group_id("socket_group", settings.socket_group, faults),
            admin_group=_group_id("admin_socket_group", settings.admin_socket_group, faults),
        )
        if faults:
            raise ConfigurationError(faults)
        return found

    def groups(self, minter: Minter) -> list[ListenerGroup]:
        """Return who is answered by what."""
        limits = Limits.of(minter.settings.limits)
        few = dataclasses.replace(limits, max_connections=min(ADMIN_CONNECTIONS, limits.max_connections))
        tls = TLSFiles.of(minter.settings.tls)
        # Public keys are for anyone: no client certificate is asked for.
        open_tls = None if tls is None else dataclasses.replace(tls, client_ca="")
        common: dict[str, Any] = {
            "by": "minter",
            "on_refused": minter.metrics.request_refused,
        }
        brokers = ListenerGroup(
            app=minter.broker_api,
            listeners=self.brokers,
            limits=limits,
            socket_group=self.brokers_group,
            tls=_if_any(self.brokers, tls),
            refuse_forwarded=True,
            # On TCP it is the client certificate that lets in; under which name a broker found its way says nothing.
            hosts=None,
            **common,
        )
        admin = ListenerGroup(
            app=minter.admin_app,
            listeners=self.admin,
            limits=few,
            socket_group=self.admin_group,
            refuse_forwarded=True,
            **common,
        )
        public = ListenerGroup(
            app=minter.public_app,
            listeners=self.public,
            limits=limits,
            tls=_if_any(self.public, open_tls),
            # Public keys may lie behind whatever brings them to verifiers: a proxy that says so is welcome here.
            hosts=None,
            **common,
        )
        return [group for group in (brokers, admin, public) if group.listeners]


def _parsed(name: str, texts: Iterable[str], settings: MinterSettings, faults: list[Fault]) -> tuple[Listener, ...]:
    found = []
    for number, text in enumerate(texts):
        where = f"{name}[{number}]"
        try:
            listener = Listener.parse(text)
        except ValueError as error:
            faults.append(Fault(where, str(error)))
            continue
        if name == "listen" and listener.kind != "unix" and not (listener.kind == "tls" and settings.tls.client_ca):
            faults.append(
                Fault(where, "brokers come by a Unix socket, or by tls: with a client certificate", "set tls.client_ca")
            )
        if name == "admin_listen" and listener.kind != "unix":
            faults.append(Fault(where, "operators are known by their user, which only a Unix socket tells"))
        if name == "public_listen" and listener.kind == "tcp" and not listener.is_loopback:
            faults.append(Fault(where, "a listener that other machines reach needs tls:"))
        found.append(listener)
    return tuple(found)


def _if_any(listeners: Iterable[Listener], tls: TLSFiles | None) -> TLSFiles | None:
    return tls if any(listener.kind == "tls" for listener in listeners) else None


def _group_id(setting: str, name: str, faults: list[Fault]) -> int | None:
    if not name:
        return None
    if name.isdecimal():
        return int(name)  # a group needs no entry in the system's list
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        faults.append(Fault(setting, f"there is no group {name}"))
        return None
