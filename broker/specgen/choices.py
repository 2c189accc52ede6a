"""What the operator writes on the command line, read: ``NAME=VALUE`` pairs, placements, methods, names.

Every function raises ``ValueError`` with one line for what cannot be meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from broker.placements import Registry
from broker.specgen.model import Api, Choices
from broker.specgen.naming import GLOBALS, identifier
from config.compiling import PROFILE_NAME
from config.params import compile_pattern
from config.routes import METHODS, PARAM_NAME, parse_route
from config.tokenfiles import ID

#: What a run parameter takes unless the operator says less: no text that could end or open another segment.
DEFAULT_PATTERN: Final = "[A-Za-z0-9._~@+=:-]{1,256}"

_PARAM: Final = re.compile(PARAM_NAME, re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_LONGEST_SLUG: Final = 48
#: A title that is longer is a sentence; a name that is typed often is shorter.
_LONGEST_TITLE: Final = 24
#: Second levels of domains that are nobody's name (co.uk) are not longer.
_SHORT_LABEL: Final = 3


def bindings(written: Iterable[str]) -> dict[str, str]:
    """Read ``--bind NAME=VALUE``."""
    bound: dict[str, str] = {}
    for text in written:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError("--bind is NAME=VALUE")
        if name in bound:
            raise ValueError(f"--bind {name} stands twice")
        bound[name] = value
    return bound


def run_parameters(written: Iterable[str]) -> dict[str, str]:
    """Read ``--param NAME`` and ``--param NAME=PATTERN``."""
    params: dict[str, str] = {}
    for text in written:
        name, equals, pattern = text.partition("=")
        if not _PARAM.fullmatch(name):
            raise ValueError("--param is NAME or NAME=PATTERN; a name is letters, digits and _ . -, not a digit first")
        if name in params:
            raise ValueError(f"--param {name} stands twice")
        params[name] = pattern if equals else DEFAULT_PATTERN
        try:
            compile_pattern(params[name])
        except ValueError as error:
            raise ValueError(f"--param {name}: {error}") from None
    return params


def methods(written: Iterable[str]) -> frozenset[str]:
    """Read ``--method``, in any case."""
    named = frozenset(text.upper() for text in written)
    if not named <= frozenset(METHODS):
        raise ValueError("--method is one of " + ", ".join(METHODS))
    return named


def placement(written: str) -> dict[str, Any]:
    """Read ``--placement``: a scheme and what it needs, between colons, or the object of the grants file as JSON."""
    scheme, _, rest = written.partition(":")
    if written.startswith("{"):
        try:
            read = json.loads(written)
        except ValueError:
            raise ValueError("--placement starts as an object and is no JSON") from None
    elif scheme == "header":
        name, colon, prefix = rest.partition(":")
        read = {"scheme": scheme, "name": name, **({"prefix": prefix} if colon else {})}
    elif scheme in ("query", "cookie"):
        read = {"scheme": scheme, "name": rest}
    elif scheme == "basic" and rest:
        side, _, constant = rest.partition(":")
        read = {"scheme": scheme, side: constant}
    else:
        read = {"scheme": written, **({"user": ""} if written == "basic" else {})}
    for fault in Registry().check("--placement", read):
        raise ValueError(str(fault))
    return dict(read)


def _is_segment(value: str) -> bool:
    """Say whether a route can hold the value as literal text, in one segment."""
    try:
        return len(parse_route(f"GET /{value}").segments) == 1 and not set(value) & set("*{}/")
    except ValueError:
        return False


def callers(written: Iterable[str]) -> tuple[str, ...]:
    """Read ``--caller``, each once."""
    named = tuple(dict.fromkeys(written))
    if named != ("*",) and not all(ID.fullmatch(one) for one in named):
        raise ValueError('--caller is an id of letters, digits and . _ @ -, or "*" alone for every caller')
    return named


def profile_name(written: str | None, title: str, origin: str) -> str:
    """Return the profile's name: the given one, or one made of the document's title or, if that is long, its host."""
    if written is not None:
        if not PROFILE_NAME.fullmatch(written):
            raise ValueError("--profile is letters, digits and . _ -, at most 64, no mark first")
        return written
    slug = _slug(title)
    if len(slug) > _LONGEST_TITLE:
        slug = _slug(_domain(urlsplit(origin).hostname or "")) or slug
    return slug[:_LONGEST_SLUG].strip("-") or "api"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower(), flags=re.ASCII).strip("-")


def _domain(host: str) -> str:
    """Return the part of a host's name that people call it by: ``github`` of ``api.github.com``."""
    labels = host.split(".")
    if len(labels) < 2 or not labels[-1].isalpha():  # noqa: PLR2004 - a name and its domain
        return ""
    named = [label for label in labels[:-1] if len(label) > _SHORT_LABEL]
    return named[-1] if named else labels[-2]


def global_name(written: str | None, profile: str) -> str:
    """Return the client's name in the code, which both languages take: the given one, or one made of the profile's."""
    if written is None:
        made = identifier(profile[:_LONGEST_SLUG], set())
        return made + "_api" if made in GLOBALS else made
    if written in GLOBALS or not _NAME.fullmatch(written) or identifier(written, set()) != written:
        raise ValueError(
            "--global is a name of letters, digits and _ that Python and JavaScript both take and have not"
        )
    return written


def check_found(choices: Choices, api: Api) -> None:
    """Refuse what has no effect on this document: a slip in a name would leave a wildcard, or a client of nothing."""
    both = sorted(choices.bind.keys() & choices.params.keys())
    if both:
        raise ValueError(f"{both[0]} cannot be bound and be a run parameter at once")
    in_query = {name for operation in api.operations for name, _ in operation.fixed_query}
    options: tuple[tuple[str, Iterable[str]], ...] = (
        ("--bind", choices.bind),
        ("--param", choices.params),
        ("--slashes", sorted(choices.slashes)),
    )
    for option, names in options:
        for name in names:
            in_path = any("{" + name + "}" in told.label for told in api.told)
            if not in_path and not (option == "--bind" and name in in_query):
                raise ValueError(f"{option} {name}: no operation that is carried has a parameter of that name")
            if in_path and option == "--bind" and not _is_segment(choices.bind[name]):
                raise ValueError(f"--bind {name}: a path takes one segment of letters, digits and -._~@+=:!$&'(),")
    if not api.operations and any(told.status == "left-out" for told in api.told):
        raise ValueError("no operation that is carried passes --allow, --tag, --method and --deprecated together")
