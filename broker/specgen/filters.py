"""The operator's filters: which of the carried operations clients, texts and a grant are for."""

from __future__ import annotations

from fnmatch import fnmatchcase

from broker.specgen.model import Choices, Operation


def left_out(operation: Operation, choices: Choices) -> str:
    """Return which choice leaves an operation out, in words; nothing when none does."""
    if operation.deprecated and not choices.deprecated:
        return "it is deprecated, and --deprecated was not given"
    if choices.tags and choices.tags.isdisjoint(operation.tags):
        return "it has none of the tags of --tag"
    if choices.methods and operation.method not in choices.methods:
        return "it has none of the methods of --method"
    if choices.allow and not any(_matches(operation, pattern) for pattern in choices.allow):
        return "no pattern of --allow matches it"
    return ""


def _matches(operation: Operation, pattern: str) -> bool:
    return fnmatchcase(operation.route_text, pattern) or fnmatchcase(operation.id, pattern)
