"""Short ways to a compiled profile, for tests."""

from __future__ import annotations

import json
from typing import Any

from config.errors import ConfigurationError
from config.grants import Profile, parse_grants
from config.match import Matcher

LEAST: dict[str, Any] = {"base_url": "https://api.test", "allowed_callers": ["caller"]}


def profile(**fields: Any) -> Profile:
    return parse_grants(document(**fields), name="grants.json").profiles["p"]


def matcher(**fields: Any) -> Matcher:
    return Matcher(profile(**fields))


def document(**fields: Any) -> bytes:
    return json.dumps({"profiles": {"p": {**LEAST, **fields}}}).encode()


def faults(data: bytes, **callbacks: Any) -> list[str]:
    try:
        parse_grants(data, name="grants.json", **callbacks)
    except ConfigurationError as error:
        return [str(fault).removeprefix("grants.json: profiles.") for fault in error.faults]
    return []


def faults_of(**fields: Any) -> list[str]:
    return [fault.removeprefix("p.") for fault in faults(document(**fields))]
