"""The custody report as one HTML file: no script, nothing from elsewhere, and a policy in it that forbids both.

Every text is escaped by the template engine, and control characters and those that change the direction of writing
are spelt out before: what a name looks like is what it is.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from config.console.terminal import count, plain
from minter.cli import custody_picture, custody_words

_TEMPLATES: Final = Path(__file__).parent.parent / "templates"
#: Users of one key that are listed; ``--json`` has all.
USERS: Final = 10
#: Leases on loan that are listed one by one; their groups are there in any case.
LISTED: Final = 10


def render(report: Mapping[str, Any]) -> str:
    """Return the document."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_spelt_out,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (_TEMPLATES / "custody_report.css").read_text("utf-8")
    made = environment.get_template("custody_report.html").render(
        report=report,
        style=Markup(style),  # noqa: S704 - a file of ours
        style_digest="sha256-" + base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        picture=custody_picture.picture(report),
        columns=custody_picture.COLUMNS,
        box_height=custody_picture.BOX,
        width=custody_picture.WIDTH,
        words=custody_words,
        count=count,
        users=USERS,
        listed=LISTED,
    )
    return made.lstrip()


def _spelt_out(value: Any) -> Any:
    """Return a text with what cannot be seen spelt out; markup is only what this module made."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value
