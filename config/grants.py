"""Grants files: the way in. Pure: what a grants file refers to is read by the callbacks handed in.

Order: strict JSON, the schema of ``config/grantsfile.py`` (every fault with its full path), the rules of
``config/compiling.py``; all that is wrong is raised at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from config import strictjson
from config.compiling import PROFILE_NAME, CheckObject, Compiler, ReadPreamble, within
from config.errors import ConfigurationError, Fault
from config.grantsfile import ProfileSource
from config.profiles import Grants, Profile, RouteRule
from config.schema import grants_faults

__all__ = ["Grants", "Profile", "RouteRule", "compile_profile", "parse_grants"]

_LEAST: Mapping[str, Any] = {"base_url": "https://invalid", "allowed_callers": []}


def parse_grants(
    data: bytes,
    *,
    name: str,
    read_preamble: ReadPreamble | None = None,
    check_placement: CheckObject | None = None,
    check_token: CheckObject | None = None,
) -> Grants:
    """Parse and compile a grants file.

    ``name`` stands before every place. ``read_preamble`` returns the bytes of a ``preamble_file``; ``check_placement``
    and ``check_token`` get the place and the object, and return what is wrong with it. Without one of them that part
    is not checked, because another program checks it.

    Errors: ``ConfigurationError`` with every fault.
    """
    document, faults = strictjson.parse(data, where=name)
    unreadable = {fault.where for fault in faults}
    faults += [fault for fault in grants_faults(document, where=name) if fault.where not in unreadable]
    known = {fault.where for fault in faults}
    profiles = document.get("profiles") if isinstance(document, dict) else None
    compiled = {}
    for profile_name, written in profiles.items() if isinstance(profiles, dict) else ():
        where = f"{name}: profiles.{profile_name}"
        if not PROFILE_NAME.fullmatch(profile_name):
            faults.append(Fault(where, "a profile's name is letters, digits and . _ -, at most 64, no mark first"))
        if not isinstance(written, dict):
            continue
        compiler = Compiler(profile_name, where, known_faulty=known, read_preamble=read_preamble)
        profile = compiler.compile(_source(written, where, known), written)
        faults += compiler.faults
        for field, check, value in (
            ("placement", check_placement, profile.placement),
            ("token", check_token, profile.token),
        ):
            place = f"{where}.{field}"
            if check is not None and value is not None and not any(within(fault.where, place) for fault in faults):
                faults += check(place, value)
        compiled[profile_name] = profile
    if faults:
        raise ConfigurationError(list(dict.fromkeys(faults)))
    digest = hashlib.sha256(strictjson.canonical(profiles)).hexdigest()
    return Grants(MappingProxyType(compiled), f"sha256:{digest}")


def compile_profile(name: str, source: bytes) -> Profile:
    """Compile a profile again from :attr:`config.profiles.Profile.source`, as a run that was stored needs it.

    Errors: ``ConfigurationError`` when it is none (any more).
    """
    grants = parse_grants(b'{"profiles":{' + strictjson.canonical(name) + b":" + source + b"}}", name="stored grant")
    return grants.profiles[name]


def _source(written: dict[str, Any], where: str, faulty: set[str]) -> ProfileSource:
    """Convert what the schema has nothing against, so that the rules can be held against all the rest."""
    usable = {}
    for field, value in written.items():
        place = f"{where}.{field}"
        wrong = {fault for fault in faulty if within(fault, place)}
        if not wrong:
            usable[field] = value
        elif place in wrong:
            continue
        elif isinstance(value, list):
            # The places of the others must stay: the compiler passes over what the schema has named.
            usable[field] = [
                "" if any(within(fault, f"{place}[{index}]") for fault in wrong) else entry
                for index, entry in enumerate(value)
            ]
        elif field in ("params", "fixed_headers", "env"):
            usable[field] = {name: text for name, text in value.items() if f"{place}.{name}" not in wrong}
    return msgspec.convert({**_LEAST, **usable}, type=ProfileSource)
