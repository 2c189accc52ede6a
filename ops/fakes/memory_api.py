"""The 14 operations of the fake Agent Memory API: what each takes, checks and answers.

An operation is a function of a :class:`Call` that returns a :class:`Reply` or raises an ``ApiError``. Names, bounds and
defaults are those of the API's OpenAPI document and its page of limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from ops.fakes.memory_checks import (
    NAMESPACE_LENGTH,
    PROFILE_LENGTH,
    account_of,
    choice,
    instant,
    memory_id_of,
    name_of,
    opened_cursor,
    optional_session,
    page_of,
    per_page_of,
    sealed_cursor,
    session_id_of,
    text_field,
)
from ops.fakes.memory_store import (
    INVALID,
    MEMORY_TYPES,
    ApiError,
    MemoryStore,
    Message,
    candidate_json,
    memory_json,
    namespace_json,
    profile_json,
)

_MESSAGES: Final = 500
_MESSAGE_BYTES: Final = 32_768
_QUERY_BYTES: Final = 1_024
_NAMESPACE_PAGE: Final = 1_000
_PAGE: Final = 500
_ROLES: Final = ("system", "user", "assistant")
_CANDIDATES: Final = {"low": 5, "medium": 10, "high": 20}
_ANSWERS: Final = {"short": 1, "medium": 3, "long": 10}


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """A request: the variable parts of its path, its query and its parsed body."""

    store: MemoryStore
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def account(self) -> str:
        """Return the account id."""
        return account_of(self.path["account_id"])

    @property
    def namespace(self) -> tuple[str, str]:
        """Return account and namespace name."""
        return self.account, name_of(self.path["namespace_name"], "namespace", NAMESPACE_LENGTH)

    @property
    def profile(self) -> tuple[str, str, str]:
        """Return account, namespace name and profile name."""
        return *self.namespace, name_of(self.path["profile_name"], "profile", PROFILE_LENGTH)

    @property
    def memory_id(self) -> str:
        """Return the memory id."""
        return memory_id_of(self.path["memory_id"])


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: the result and, for a list, what is known of the page."""

    result: Any
    status: int = 200
    info: Mapping[str, object] | None = None


Operation = Callable[[Call], Reply]


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the document. ``query`` names the parameters it takes."""

    operation: str
    method: str
    template: str
    run: Operation
    query: frozenset[str] = frozenset()
    has_body: bool = False

    def match(self, method: str, segments: Sequence[str]) -> dict[str, str] | None:
        """Return the variable parts of the path, or None. ``segments`` are percent-encoded."""
        expected = self.template.split("/")
        if method != self.method or len(segments) != len(expected):
            return None
        found = {}
        for want, have in zip(expected, segments, strict=True):
            if want.startswith("{") and have:
                found[want[1:-1]] = unquote(have)
            elif want != have:
                return None
        return found


# --- namespaces ---


def list_namespaces(call: Call) -> Reply:
    """List an account's namespaces."""
    order = choice(call.query.get("order", "id"), "order", ("id", "name"))
    direction = choice(call.query.get("direction", "asc"), "direction", ("asc", "desc"))
    rows = [namespace_json(namespace) for namespace in call.store.namespaces(call.account)]
    rows.sort(key=lambda row: str(row[order]), reverse=direction == "desc")
    after = opened_cursor(call.query.get("cursor"), order=order, direction=direction)
    if after is not None:
        rows = [row for row in rows if (str(row[order]) < after if direction == "desc" else str(row[order]) > after)]
    per_page = per_page_of(call.query, _NAMESPACE_PAGE)
    return _listed(rows, per_page, lambda row: sealed_cursor(str(row[order]), order=order, direction=direction))


def create_namespace(call: Call) -> Reply:
    """Make a namespace."""
    name = name_of(text_field(call.body, "name"), "namespace", NAMESPACE_LENGTH)
    return Reply(namespace_json(call.store.create_namespace(call.account, name)), status=201)


def get_namespace(call: Call) -> Reply:
    """Return a namespace."""
    return Reply(namespace_json(call.store.namespace(*call.namespace)))


def delete_namespace(call: Call) -> Reply:
    """Delete a namespace."""
    call.store.delete_namespace(*call.namespace)
    return Reply(None)


# --- profiles ---


def list_profiles(call: Call) -> Reply:
    """List a namespace's profiles by name."""
    profiles = call.store.namespace(*call.namespace).profiles.values()
    rows = sorted((profile_json(profile) for profile in profiles), key=lambda row: str(row["name"]))
    after = opened_cursor(call.query.get("cursor"))
    if after is not None:
        rows = [row for row in rows if str(row["name"]) > after]
    return _listed(rows, per_page_of(call.query, _PAGE), lambda row: sealed_cursor(str(row["name"])))


def delete_profile(call: Call) -> Reply:
    """Delete a profile."""
    call.store.delete_profile(*call.profile)
    return Reply(None)


def delete_session(call: Call) -> Reply:
    """Delete what one session left in a profile."""
    call.store.delete_session(*call.profile, session_id_of(call.path["session_id"], "session id"))
    return Reply(None)


# --- memories ---


def ingest(call: Call) -> Reply:
    """Store a conversation."""
    profile = call.profile
    session_id = optional_session(call.body)
    messages = call.body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, INVALID, "messages must be a list of at least one message", "/messages")
    if len(messages) > _MESSAGES:
        raise ApiError(400, INVALID, f"at most {_MESSAGES} messages can be ingested at once", "/messages")
    parsed = [_message(message, f"/messages/{n}", session_id) for n, message in enumerate(messages)]
    call.store.ingest(*profile, parsed)
    return Reply(None)


def remember(call: Call) -> Reply:
    """Store one memory."""
    content = text_field(call.body, "content", _MESSAGE_BYTES)
    return Reply(memory_json(call.store.remember(*call.profile, content, optional_session(call.body))))


def recall(call: Call) -> Reply:
    """Find memories that answer a question."""
    query = text_field(call.body, "query", _QUERY_BYTES)
    level = choice(call.body.get("thinkingLevel", "low"), "thinkingLevel", tuple(_CANDIDATES))
    length = choice(call.body.get("responseLength", "medium"), "responseLength", tuple(_ANSWERS))
    if "referenceDate" in call.body:
        instant(call.body["referenceDate"], "/referenceDate")
    found = call.store.recall(*call.profile, query, _CANDIDATES[level])
    answer = " ".join(candidate.memory.summary for candidate in found[: _ANSWERS[length]])
    return Reply({"answer": answer, "count": len(found), "candidates": [candidate_json(one) for one in found]})


def summary(call: Call) -> Reply:
    """Write a profile as Markdown."""
    return Reply({"summary": call.store.summary(*call.profile, optional_session(call.body))})


def list_memories(call: Call) -> Reply:
    """List a profile's memories without their content, oldest first."""
    memories = sorted(call.store.profile(*call.profile).memories.values(), key=lambda memory: memory.memory_id)
    if "type" in call.query:
        wanted = choice(call.query["type"], "type", MEMORY_TYPES)
        memories = [memory for memory in memories if memory.type == wanted]
    if "session_id" in call.query:
        session_id = session_id_of(call.query["session_id"], "session_id")
        memories = [memory for memory in memories if memory.session_id == session_id]
    if "cursor" in call.query:
        cursor = memory_id_of(call.query["cursor"], "cursor")
        memories = [memory for memory in memories if memory.memory_id > cursor]
    rows = [memory_json(memory, content=False) for memory in memories]
    return _listed(rows, per_page_of(call.query, _PAGE), lambda row: str(row["id"]))


def get_memory(call: Call) -> Reply:
    """Return a memory."""
    return Reply(memory_json(call.store.memory(*call.profile, call.memory_id)))


def delete_memory(call: Call) -> Reply:
    """Delete a memory and return it."""
    return Reply(memory_json(call.store.delete_memory(*call.profile, call.memory_id)))


def _message(message: object, pointer: str, session_id: str | None) -> Message:
    if not isinstance(message, dict):
        raise ApiError(400, INVALID, "a message must be an object", pointer)
    return Message(
        role=choice(message.get("role"), "role", _ROLES),
        content=text_field(message, "content", _MESSAGE_BYTES),
        timestamp=instant(message["timestamp"], pointer + "/timestamp") if "timestamp" in message else None,
        session_id=session_id,
    )


def _listed(rows: Sequence[T], per_page: int, cursor_of: Callable[[T], str]) -> Reply:
    page, info = page_of(rows, per_page, cursor_of)
    return Reply(page, info=info)


_N: Final = "/client/v4/accounts/{account_id}/agent-memory/namespaces"
_P: Final = _N + "/{namespace_name}/profiles/{profile_name}"
_PAGED: Final = frozenset({"per_page", "cursor"})

ROUTES: Final = (
    Route("agent-memory-namespace-list", "GET", _N, list_namespaces, _PAGED | {"order", "direction"}),
    Route("agent-memory-namespace-create", "POST", _N, create_namespace, has_body=True),
    Route("agent-memory-namespace-get", "GET", _N + "/{namespace_name}", get_namespace),
    Route("agent-memory-namespace-delete", "DELETE", _N + "/{namespace_name}", delete_namespace),
    Route("agent-memory-profile-list", "GET", _N + "/{namespace_name}/profiles", list_profiles, _PAGED),
    Route("agent-memory-profile-delete", "DELETE", _P, delete_profile),
    Route("agent-memory-ingest", "POST", _P + "/ingest", ingest, has_body=True),
    Route("agent-memory-memory-list", "GET", _P + "/memories", list_memories, _PAGED | {"session_id", "type"}),
    Route("agent-memory-memory-get", "GET", _P + "/memories/{memory_id}", get_memory),
    Route("agent-memory-memory-delete", "DELETE", _P + "/memories/{memory_id}", delete_memory),
    Route("agent-memory-recall", "POST", _P + "/recall", recall, has_body=True),
    Route("agent-memory-remember", "POST", _P + "/remember", remember, has_body=True),
    Route("agent-memory-session-delete", "DELETE", _P + "/sessions/{session_id}", delete_session),
    Route("agent-memory-summary", "POST", _P + "/summary", summary, has_body=True),
)
