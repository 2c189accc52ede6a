"""What the fake Agent Memory API keeps, and its rules: namespaces, profiles, memories and their source messages.

Rules, as the API's pages state them:

1. A namespace is made by name and can be made again after it was deleted.
2. A profile comes into being with the first write to it (ingest or remember).
3. Ingest is idempotent: a message that the profile already holds makes no second memory.
4. Deleting a session is idempotent: one without rows is no fault.
5. Deleting a memory deletes the messages it came from, so the same conversation can be ingested anew.

The real service lets a language model extract, recall and summarise. Here a user's message becomes one memory, its
type follows from a few words, and recall is a match of words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from config.clock import rfc3339
from ops.fakes.ulid import UlidSource

MemoryType = Literal["fact", "event", "instruction", "task"]
MEMORY_TYPES: Final = ("fact", "event", "instruction", "task")

#: Two codes are from the API's published examples (1003, 10008); the others are this double's own.
AUTHENTICATION: Final = 10000
INVALID: Final = 1001
NO_NAMESPACE: Final = 1003
NO_PROFILE: Final = 1004
NO_MEMORY: Final = 1005
NAME_EXISTS: Final = 10008
NO_ROUTE: Final = 7000
UNAVAILABLE: Final = 10013

_SUMMARY_LENGTH: Final = 160
_WORD: Final = re.compile(r"[a-z0-9]+")
_STOP_TEXT: Final = (
    "a an and are as at be by did do does for from had has have how i in is it me my of on or our should so that the "
    "their this to use user was we were what when where which who why will with you your"
)
_STOP: Final = frozenset(_STOP_TEXT.split())
_TYPE_WORDS: Final[tuple[tuple[MemoryType, frozenset[str]], ...]] = (
    ("instruction", frozenset({"prefer", "prefers", "always", "never", "please", "want", "wants", "avoid"})),
    ("task", frozenset({"todo", "must", "need", "needs", "remind", "deadline", "finish"})),
    ("event", frozenset({"yesterday", "today", "tomorrow", "met", "bought", "moved", "visited", "ordered"})),
)


class ApiError(Exception):
    """A failure of the API: its HTTP status, its numeric code, and text for people."""

    def __init__(self, status: int, code: int, message: str, pointer: str = "") -> None:
        """``pointer`` is the JSON pointer of the field that is at fault."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.pointer = pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation. Equal messages of one session are the same message."""

    role: str
    content: str
    timestamp: str | None
    session_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A stored memory; ``source`` is the message it was extracted from, if it was."""

    memory_id: str
    type: MemoryType
    content: str
    session_id: str | None
    created_at: float
    source: Message | None = None

    @property
    def summary(self) -> str:
        """Return the content, cut to a line."""
        line = " ".join(self.content.split())
        return line if len(line) <= _SUMMARY_LENGTH else line[: _SUMMARY_LENGTH - 1].rstrip() + "…"


@dataclass(slots=True, kw_only=True)
class Profile:
    """An isolated store of memories."""

    name: str
    created_at: float
    memories: dict[str, Memory] = field(default_factory=dict)
    messages: set[Message] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Namespace:
    """A named container of profiles."""

    namespace_id: str
    name: str
    created_at: float
    profiles: dict[str, Profile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory that a recall found, and how well it fits: from 0 to 1."""

    memory: Memory
    score: float


class MemoryStore:
    """Everything the API keeps, for all accounts.

    >>> store = MemoryStore(lambda: 0.0)
    >>> namespace = store.create_namespace("42", "support")
    >>> kept = store.remember("42", "support", "customer-1", "Wants replies in Spanish.", None)
    >>> [found.memory.summary for found in store.recall("42", "support", "customer-1", "Which replies?", 5)]
    ['Wants replies in Spanish.']
    """

    def __init__(self, now: Callable[[], float], ids: UlidSource | None = None) -> None:
        """Read time, in epoch seconds, from ``now``."""
        self._now = now
        self._ids = ids or UlidSource(now)
        self._accounts: dict[str, dict[str, Namespace]] = {}

    # --- namespaces ---

    def create_namespace(self, account: str, name: str) -> Namespace:
        """Make a namespace. Errors: 409 when the account has one of that name."""
        namespaces = self._accounts.setdefault(account, {})
        if name in namespaces:
            raise ApiError(409, NAME_EXISTS, "Namespace name already exists", "/name")
        namespaces[name] = Namespace(namespace_id=self._ids.new(), name=name, created_at=self._now())
        return namespaces[name]

    def namespaces(self, account: str) -> Iterable[Namespace]:
        """Return the account's namespaces in no order."""
        return self._accounts.get(account, {}).values()

    def namespace(self, account: str, name: str) -> Namespace:
        """Return a namespace. Errors: 404."""
        try:
            return self._accounts[account][name]
        except KeyError:
            raise ApiError(404, NO_NAMESPACE, "namespace not found") from None

    def delete_namespace(self, account: str, name: str) -> None:
        """Delete a namespace with all it holds; its name is free again. Errors: 404."""
        self.namespace(account, name)
        del self._accounts[account][name]

    # --- profiles ---

    def profile(self, account: str, namespace: str, name: str) -> Profile:
        """Return a profile that was written to. Errors: 404 for either name."""
        try:
            return self.namespace(account, namespace).profiles[name]
        except KeyError:
            raise ApiError(404, NO_PROFILE, "profile not found") from None

    def delete_profile(self, account: str, namespace: str, name: str) -> None:
        """Delete a profile with its memories and messages. Errors: 404."""
        self.profile(account, namespace, name)
        del self.namespace(account, namespace).profiles[name]

    def _written(self, account: str, namespace: str, name: str) -> Profile:
        profiles = self.namespace(account, namespace).profiles
        if name not in profiles:
            profiles[name] = Profile(name=name, created_at=self._now())
        return profiles[name]

    # --- memories ---

    def remember(self, account: str, namespace: str, profile: str, content: str, session_id: str | None) -> Memory:
        """Store one memory. Errors: 404 for the namespace."""
        return self._keep(self._written(account, namespace, profile), content, session_id, None)

    def ingest(self, account: str, namespace: str, profile: str, messages: Sequence[Message]) -> None:
        """Store a conversation; each new message of a user becomes a memory. Errors: 404 for the namespace."""
        store = self._written(account, namespace, profile)
        for message in messages:
            if message in store.messages:
                continue
            store.messages.add(message)
            if message.role == "user":
                self._keep(store, message.content, message.session_id, message)

    def memory(self, account: str, namespace: str, profile: str, memory_id: str) -> Memory:
        """Return a memory. Errors: 404."""
        try:
            return self.profile(account, namespace, profile).memories[memory_id]
        except KeyError:
            raise ApiError(404, NO_MEMORY, "memory not found") from None

    def delete_memory(self, account: str, namespace: str, profile: str, memory_id: str) -> Memory:
        """Delete a memory and the message it came from, and return it. Errors: 404."""
        memory = self.memory(account, namespace, profile, memory_id)
        store = self.profile(account, namespace, profile)
        del store.memories[memory_id]
        if memory.source is not None:
            store.messages.discard(memory.source)
        return memory

    def delete_session(self, account: str, namespace: str, profile: str, session_id: str) -> None:
        """Delete the rows of one session; none is no fault. Errors: 404 for namespace and profile."""
        store = self.profile(account, namespace, profile)
        store.memories = {key: kept for key, kept in store.memories.items() if kept.session_id != session_id}
        store.messages = {message for message in store.messages if message.session_id != session_id}

    def recall(self, account: str, namespace: str, profile: str, query: str, limit: int) -> list[Candidate]:
        """Return the memories that share words with the query, best first. Errors: 404."""
        wanted = _words(query)
        found = []
        for memory in self.profile(account, namespace, profile).memories.values():
            shared = wanted & _words(memory.content)
            if shared:
                found.append(Candidate(memory, round(len(shared) / len(wanted), 2)))
        found.sort(key=lambda candidate: (-candidate.score, candidate.memory.memory_id))
        return found[:limit]

    def summary(self, account: str, namespace: str, profile: str, session_id: str | None) -> str:
        """Write everything that a profile holds as Markdown. ``session_id`` bounds the last section. Errors: 404."""
        memories = list(self.profile(account, namespace, profile).memories.values())
        lines = ["## Summary"]
        for kind in MEMORY_TYPES:
            of_kind = [f"- {memory.summary}" for memory in memories if memory.type == kind]
            if of_kind:
                lines += ["", f"### {kind.capitalize()}s", "", *of_kind]
        sessions = [memory.session_id for memory in memories if memory.session_id is not None]
        last = session_id if session_id is not None else (sessions[-1] if sessions else None)
        of_session = [f"- {memory.summary}" for memory in memories if last is not None and memory.session_id == last]
        if of_session:
            lines += ["", "### Last Session", "", *of_session]
        return "\n".join(lines)

    def _keep(self, store: Profile, content: str, session_id: str | None, source: Message | None) -> Memory:
        memory = Memory(
            memory_id=self._ids.new(),
            type=_classify(content),
            content=content,
            session_id=session_id,
            created_at=self._now(),
            source=source,
        )
        store.memories[memory.memory_id] = memory
        return memory


def namespace_json(namespace: Namespace) -> dict[str, object]:
    """Write a namespace as the API does."""
    made = rfc3339(namespace.created_at)
    return {"id": namespace.namespace_id, "name": namespace.name, "created_at": made, "updated_at": made}


def profile_json(profile: Profile) -> dict[str, object]:
    """Write a profile as the API does."""
    return {"name": profile.name, "createdAt": rfc3339(profile.created_at)}


def memory_json(memory: Memory, *, content: bool = True) -> dict[str, object]:
    """Write a memory as the API does; lists leave ``content`` out."""
    made = rfc3339(memory.created_at)
    body: dict[str, object] = {"id": memory.memory_id, "type": memory.type, "summary": memory.summary}
    if content:
        body["content"] = memory.content
    return body | {"sessionId": memory.session_id, "createdAt": made, "updatedAt": made}


def candidate_json(candidate: Candidate) -> dict[str, object]:
    """Write what a recall found as the API does."""
    memory = candidate.memory
    return {
        "id": memory.memory_id,
        "summary": memory.summary,
        "sessionId": memory.session_id,
        "score": candidate.score,
    }


def _words(text: str) -> frozenset[str]:
    # A plural or a third person is the same word: "wants" answers "want".
    return frozenset(word.rstrip("s") or word for word in _WORD.findall(text.lower()) if word not in _STOP)


def _classify(content: str) -> MemoryType:
    words = frozenset(_WORD.findall(content.lower()))
    for kind, marks in _TYPE_WORDS:
        if words & marks:
            return kind
    return "fact"
