"""The options that several commands share, and the settings behind ``--config``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from config.clock import Clock
from config.load import load_settings, program_clock
from config.settings import MinterSettings

Config = Annotated[
    Path, typer.Option("--config", "-c", envvar="MINTER_CONFIG", help="The settings file.", show_default=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: its names are stable.")]
DEFAULT = Path("minter.toml")


def settings(config: Path) -> MinterSettings:
    """Load the settings. Errors: ``ConfigurationError`` with every fault."""
    return load_settings(MinterSettings, config, os.environ)


def clock() -> Clock:
    """Return the clock that the served program goes by."""
    return program_clock(os.environ, "MINTER_")[0]


def now() -> float:
    """Return the time that the served program goes by."""
    return clock().now()
