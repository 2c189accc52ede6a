"""What is left to a person when a key was in the wrong hands: the minter can end only what is its own."""

from __future__ import annotations

from config.clock import rfc3339
from config.settings import KeySettings
from minter.sources import kind_of

#: A broker that has lost the minter's stream of ended leases asks again after so long.
BROKER_BLIND_S = 5.0


def to_do(
    alias: str,
    settings: KeySettings | None,
    *,
    deleted_by_issuer: bool,
    cache_s: float,
    at: float,
    version: int | None,
) -> list[str]:
    """Return it as sentences, the most urgent first. ``at``: when the new version took over."""
    use = settings.use if settings is not None else "static"
    found = []
    if use == "static":
        if not deleted_by_issuer:
            found.append(f"delete the old value of {alias} at its issuer: only that ends it")
        found.append(
            f"a broker without the minter's stream may attach the old value until {rfc3339(at + BROKER_BLIND_S)}; "
            "calls that are open with it are cut when it knows"
        )
        found.append("look at the issuer for what was done with the old value, and for keys that were made with it")
    elif use == "signing" and settings is not None:
        if settings.algorithm == "HS256" and kind_of(settings.source) == "sealed":
            found.append("no verifier has it: those that ask the minter (introspection) take no token of the old key")
        elif settings.algorithm == "HS256":
            found.append(f"give every verifier the new secret of {alias} now, and have it drop the old one")
        else:
            found.append(
                f"verifiers that cache the key set may take tokens of the old key until {rfc3339(at + cache_s)}: "
                "restart those that must not"
            )
    elif use == "checkpoints":
        found.append(
            "checkpoints that the old key signed vouch for nothing any more: compare the log with a copy that is "
            "older than the leak, and keep the new checkpoints"
        )
    if settings is not None:
        if settings.second_copy:
            found.append(f"destroy the other copy of the old value: {settings.second_copy}")
        if kind_of(settings.source) == "sealed":
            found.append("backups of the state hold the old value, sealed: destroy those that you do not need")
    next_ = "the new version" if version is None else f"version {version}"
    found.append(f"find out how it leaked, before {next_} goes the same way")
    return found
