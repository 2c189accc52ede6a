"""A client of the Agent Memory API for code that holds no key.

It has a function for each of the API's 14 operations, a copy of the run's allow list, and nothing else: ``BROKER_URL``
and ``BROKER_RUN_TOKEN`` come from the environment, and the token is worth only what the run may do. The list spares a
call that would be refused anyway; it guards nothing, because the code could change it. The broker guards.

Python's standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import re
from typing import Any
from urllib.parse import quote, urlsplit

PROFILE = "agent-memory"

_OWN = "/client/v4/accounts/00000000000000000000000000000042/agent-memory/namespaces/support-agent/profiles/customer-42"

#: A copy of what the profile grants; ``*`` is one segment.
ALLOW = [f"POST {_OWN}/remember", f"POST {_OWN}/recall", f"GET {_OWN}/memories/*"]

_ALLOWED = re.compile("|".join(re.escape(route).replace(r"\*", r"[0-9A-Za-z.~_@+=-]+") for route in ALLOW))
_TIMEOUT_S = 30

Json = dict[str, Any]


class NotAllowedError(Exception):
    """The copy of the allow list has no such route; nothing was sent."""


class FailedError(Exception):
    """The broker or the API answered with a failure."""

    def __init__(self, status: int, text: str) -> None:
        """Keep the status that was answered."""
        super().__init__(f"{status} {text}")
        self.status = status


def namespace_list(account: str) -> Json:
    """List namespaces."""
    return _call("GET", _namespaces(account))


def namespace_create(account: str, body: Json) -> Json:
    """Make a namespace."""
    return _call("POST", _namespaces(account), body)


def namespace_get(account: str, namespace: str) -> Json:
    """Read a namespace."""
    return _call("GET", _namespaces(account, namespace))


def namespace_delete(account: str, namespace: str) -> Json:
    """Delete a namespace with all it holds."""
    return _call("DELETE", _namespaces(account, namespace))


def profile_list(account: str, namespace: str) -> Json:
    """List profiles."""
    return _call("GET", _namespaces(account, namespace, "profiles"))


def profile_delete(account: str, namespace: str, profile: str) -> Json:
    """Delete a profile with its memories."""
    return _call("DELETE", _profile(account, namespace, profile))


def ingest(account: str, namespace: str, profile: str, body: Json) -> Json:
    """Store a conversation."""
    return _call("POST", _profile(account, namespace, profile, "ingest"), body)


def memory_list(account: str, namespace: str, profile: str) -> Json:
    """List memories."""
    return _call("GET", _profile(account, namespace, profile, "memories"))


def memory_get(account: str, namespace: str, profile: str, memory: str) -> Json:
    """Read a memory."""
    return _call("GET", _profile(account, namespace, profile, "memories", memory))


def memory_delete(account: str, namespace: str, profile: str, memory: str) -> Json:
    """Delete a memory."""
    return _call("DELETE", _profile(account, namespace, profile, "memories", memory))


def recall(account: str, namespace: str, profile: str, body: Json) -> Json:
    """Ask what is remembered."""
    return _call("POST", _profile(account, namespace, profile, "recall"), body)


def remember(account: str, namespace: str, profile: str, body: Json) -> Json:
    """Store one memory."""
    return _call("POST", _profile(account, namespace, profile, "remember"), body)


def session_delete(account: str, namespace: str, profile: str, session: str) -> Json:
    """Delete what one session left."""
    return _call("DELETE", _profile(account, namespace, profile, "sessions", session))


def summary(account: str, namespace: str, profile: str, body: Json) -> Json:
    """Read a summary of everything remembered."""
    return _call("POST", _profile(account, namespace, profile, "summary"), body)


def raw(method: str, path: str, body: Json | None = None) -> tuple[int, str]:
    """Call around the allow list, as hostile code would: return whatever the broker answers."""
    host_call: Json = {"profile": PROFILE, "method": method, "path": path}
    if body is not None:
        host_call["body"] = body
    status, text = _send("POST", "/v1/call", host_call)
    if status != http.client.OK:
        return status, text
    answer = json.loads(text)
    return answer["status"], answer["body"] if isinstance(answer["body"], str) else json.dumps(answer["body"])


def _namespaces(account: str, *rest: str) -> str:
    parts = ["client", "v4", "accounts", account, "agent-memory", "namespaces", *rest]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _profile(account: str, namespace: str, *rest: str) -> str:
    return _namespaces(account, namespace, "profiles", *rest)


def _call(method: str, path: str, body: Json | None = None) -> Json:
    if not _ALLOWED.fullmatch(f"{method} {path}"):
        raise NotAllowedError(f"not on the allow list: {method} {path}")
    status, text = _send(method, f"/p/{PROFILE}{path}", body)
    if not 200 <= status < 300:
        raise FailedError(status, text)
    answer: Json = json.loads(text)
    return answer


def _send(method: str, target: str, body: Json | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(os.environ["BROKER_URL"]).netloc, timeout=_TIMEOUT_S)
    headers = {"Authorization": "Bearer " + os.environ["BROKER_RUN_TOKEN"]}
    content = None
    if body is not None:
        content = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, target, content, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()
