"""Where a credential goes on the wire: one scheme a file.

A scheme's file defines ``scheme`` (its name), ``Options`` (a msgspec Struct of what stands beside ``scheme`` in the
grants file) and ``build(options) -> Placement``. Adding a scheme is adding a file here; the contract suite runs over
the registry. Other distributions offer schemes as entry points of the group ``broker.placements``, which load only if
the settings name them.

The contract: the value occurs exactly once, only where declared; what the code sent there is gone first; CR, LF, NUL
and non-ASCII are refused before a byte leaves; the input is not changed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Final, Protocol

import msgspec

from config.errors import ConfigurationError, Fault
from config.secret import Secret

Headers = Sequence[tuple[bytes, bytes]]

GROUP: Final = "broker.placements"
#: Stands for a scheme that whoever wrote the grants file could not know (`broker specgen`). It never loads.
QUESTION: Final = "?"


class Placement(Protocol):
    """One scheme with its options: pure, without state.

    The three attributes say where the code may put its run token (beside ``Authorization``, which always may):
    lower-case header names with the texts that may stand before the token there, a query name, a cookie name.

    A scheme whose headers depend on the credential alone, and that leaves targets as they are, may say so with an
    attribute ``constant`` that is true: then it is asked once for each lease instead of once for each call.
    """

    token_headers: Mapping[bytes, tuple[bytes, ...]]
    token_query: bytes | None
    token_cookie: bytes | None

    def place(
        self, headers: Headers, target: bytes, credential: Mapping[str, Secret]
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Return headers and target with the credential attached.

        Errors: ``ProblemError("credential-unusable")`` when a field is missing, empty or cannot be written there.
        """
        ...


class Registry:
    """The schemes that may be used. ``allowed`` names third-party ones that the settings trust."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        """Load our own schemes and the named others.

        Errors: ``ConfigurationError`` for a name that no distribution offers, or that one of ours has.
        """
        self._modules: dict[str, ModuleType] = {}
        for info in pkgutil.iter_modules(__path__):
            if not info.name.startswith("_"):
                module = importlib.import_module(f"{__name__}.{info.name}")
                self._modules[module.scheme] = module
        for name in allowed:
            offered = [point for point in entry_points(group=GROUP) if point.name == name]
            if len(offered) != 1 or name in self._modules:
                raise ConfigurationError([Fault(f"placements: {name}", "no such placement, or more than one")])
            self._modules[name] = offered[0].load()

    def schemes(self) -> list[str]:
        """Return the names of all schemes, sorted."""
        return sorted(self._modules)

    def build(self, placement: Mapping[str, Any]) -> Placement:
        """Return the placement that the grants file writes down.

        Errors: ``msgspec.ValidationError`` or ``ValueError`` when it is not one; see :meth:`check`.
        """
        options = dict(placement)
        scheme = options.pop("scheme", "")
        module = self._modules.get(scheme)
        if scheme == QUESTION:
            raise ValueError(f"a question that is still to be answered; there are {', '.join(self.schemes())}")
        if module is None:
            raise ValueError(f"no such scheme; there are {', '.join(self.schemes())}")
        built: Placement = module.build(msgspec.convert(options, module.Options, strict=True))
        return built

    def check(self, where: str, placement: Mapping[str, Any]) -> list[Fault]:
        """Return what is wrong with a placement of the grants file."""
        try:
            self.build(placement)
        except (msgspec.ValidationError, ValueError) as error:
            return [Fault(where, str(error))]
        return []
