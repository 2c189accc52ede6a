"""A client of an HTTP API behind a broker: it holds no key, only a run's token.

``BROKER_URL`` and ``BROKER_RUN_TOKEN`` come from the environment. The list of allowed routes is looked at before a
call is sent: that spares a call which would be refused, and guards nothing. The broker guards.

Two lines hold what differs from one API to another: ``RUN``, which the broker fills in, and ``_TABLE``. The rest is the
same for every API. Python 3.9 or later, and its standard library only.
"""

from __future__ import annotations

import datetime as dt
import decimal
import difflib
import enum
import http.client
import inspect
import json
import math
import os
import re
import select
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes, urlsplit

RUN = None  # filled in by the broker
_TABLE = "{\"specgen\":\"0.1.0\",\"document\":\"agent-memory.openapi.json\",\"sha256\":\"e0f0cda455406f53bdec3cd99a29e7e2dba301902c8ad27b60501bb8cf3e73c2\",\"profile\":\"agent-memory\",\"global\":\"memory\",\"allow\":[\"POST /client/v4/accounts/00000000000000000000000000000042/agent-memory/namespaces/support-agent/profiles/customer-42/remember\",\"POST /client/v4/accounts/00000000000000000000000000000042/agent-memory/namespaces/support-agent/profiles/customer-42/recall\",\"GET /client/v4/accounts/00000000000000000000000000000042/agent-memory/namespaces/support-agent/profiles/customer-42/memories/*\"],\"operations\":[{\"name\":\"agent_memory_namespace_list\",\"method\":\"GET\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces\",\"route\":\"GET /client/v4/accounts/*/agent-memory/namespaces\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"}],\"arguments\":[{\"id\":\"per_page\",\"name\":\"per_page\",\"in\":\"query\",\"type\":\"integer\",\"explode\":true,\"doc\":\"\\\"How many to answer at most.\\\"\"},{\"id\":\"order\",\"name\":\"order\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"What to sort by.\\\"\"},{\"id\":\"direction\",\"name\":\"direction\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Which way to sort.\\\"\"},{\"id\":\"cursor\",\"name\":\"cursor\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Where the page before ended: its result_info.cursor.\\\"\"}],\"tags\":[\"Namespaces\"],\"doc\":\"\\\"List namespaces\\\"\\n\\n\\\"Lists the account's namespaces, a page at a time.\\\"\"},{\"name\":\"agent_memory_namespace_create\",\"method\":\"POST\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces\",\"route\":\"POST /client/v4/accounts/*/agent-memory/namespaces\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"}],\"body\":{\"media\":\"application/json\",\"form\":\"json\",\"required\":true,\"type\":\"object\"},\"tags\":[\"Namespaces\"],\"doc\":\"\\\"Make a namespace\\\"\\n\\n\\\"Makes an empty namespace. A name is free again once its namespace was deleted.\\\"\"},{\"name\":\"agent_memory_namespace_get\",\"method\":\"GET\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}\",\"route\":\"GET /client/v4/accounts/*/agent-memory/namespaces/*\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"}],\"tags\":[\"Namespaces\"],\"doc\":\"\\\"Read a namespace\\\"\\n\\n\\\"Reads one namespace by its name.\\\"\"},{\"name\":\"agent_memory_namespace_delete\",\"method\":\"DELETE\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}\",\"route\":\"DELETE /client/v4/accounts/*/agent-memory/namespaces/*\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"}],\"tags\":[\"Namespaces\"],\"doc\":\"ASK FIRST: \\\"Delete a namespace\\\"\\n\\n\\\"Deletes a namespace with all profiles and memories in it.\\\"\\n\\nIt may destroy something: \\\"DELETE removes what it names\\\"\"},{\"name\":\"agent_memory_profile_list\",\"method\":\"GET\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles\",\"route\":\"GET /client/v4/accounts/*/agent-memory/namespaces/*/profiles\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"}],\"arguments\":[{\"id\":\"per_page\",\"name\":\"per_page\",\"in\":\"query\",\"type\":\"integer\",\"explode\":true,\"doc\":\"\\\"How many to answer at most.\\\"\"},{\"id\":\"cursor\",\"name\":\"cursor\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Where the page before ended: its result_info.cursor.\\\"\"}],\"tags\":[\"Profiles\"],\"doc\":\"\\\"List profiles\\\"\\n\\n\\\"Lists the profiles of a namespace, a page at a time.\\\"\"},{\"name\":\"agent_memory_profile_delete\",\"method\":\"DELETE\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}\",\"route\":\"DELETE /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"tags\":[\"Profiles\"],\"doc\":\"ASK FIRST: \\\"Delete a profile\\\"\\n\\n\\\"Deletes a profile with its memories and messages.\\\"\\n\\nIt may destroy something: \\\"This deletes everything that is remembered in the profile.\\\"\"},{\"name\":\"agent_memory_ingest\",\"method\":\"POST\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/ingest\",\"route\":\"POST /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/ingest\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"body\":{\"media\":\"application/json\",\"form\":\"json\",\"required\":true,\"type\":\"object\"},\"tags\":[\"Memories\"],\"doc\":\"\\\"Store a conversation\\\"\\n\\n\\\"Reads a conversation and keeps what is worth remembering of it. The profile is made with the first write. The same conversation sent twice is kept once. At most 500 messages of 32,768 bytes each.\\\"\"},{\"name\":\"agent_memory_memory_list\",\"method\":\"GET\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories\",\"route\":\"GET /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/memories\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"arguments\":[{\"id\":\"per_page\",\"name\":\"per_page\",\"in\":\"query\",\"type\":\"integer\",\"explode\":true,\"doc\":\"\\\"How many to answer at most.\\\"\"},{\"id\":\"cursor\",\"name\":\"cursor\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Where the page before ended.\\\"\"},{\"id\":\"session_id\",\"name\":\"session_id\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Only memories of this session.\\\"\"},{\"id\":\"type\",\"name\":\"type\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Only memories of this sort.\\\"\"}],\"tags\":[\"Memories\"],\"doc\":\"\\\"List memories\\\"\\n\\n\\\"Lists a profile's memories without their content, oldest first, a page at a time.\\\"\"},{\"name\":\"agent_memory_memory_get\",\"method\":\"GET\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories/{memory_id}\",\"route\":\"GET /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/memories/*\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"},{\"id\":\"memory_id\",\"name\":\"memory_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The memory.\\\"\"}],\"tags\":[\"Memories\"],\"doc\":\"\\\"Read a memory\\\"\\n\\n\\\"Reads one memory with its content.\\\"\"},{\"name\":\"agent_memory_memory_delete\",\"method\":\"DELETE\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories/{memory_id}\",\"route\":\"DELETE /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/memories/*\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"},{\"id\":\"memory_id\",\"name\":\"memory_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The memory.\\\"\"}],\"tags\":[\"Memories\"],\"doc\":\"ASK FIRST: \\\"Delete a memory\\\"\\n\\n\\\"Deletes one memory with the messages it came from, and answers what it was.\\\"\\n\\nIt may destroy something: \\\"This deletes the memory and the messages it came from.\\\"\"},{\"name\":\"agent_memory_recall\",\"method\":\"POST\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/recall\",\"route\":\"POST /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/recall\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"body\":{\"media\":\"application/json\",\"form\":\"json\",\"required\":true,\"type\":\"object\"},\"tags\":[\"Memories\"],\"doc\":\"\\\"Ask what is remembered\\\"\\n\\n\\\"Finds the memories that answer a question, best first, and answers it from them. It changes nothing.\\\"\"},{\"name\":\"agent_memory_remember\",\"method\":\"POST\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/remember\",\"route\":\"POST /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/remember\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"body\":{\"media\":\"application/json\",\"form\":\"json\",\"required\":true,\"type\":\"object\"},\"tags\":[\"Memories\"],\"doc\":\"\\\"Store one memory\\\"\\n\\n\\\"Keeps one memory as it is given. The profile is made with the first write.\\\"\"},{\"name\":\"agent_memory_session_delete\",\"method\":\"DELETE\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/sessions/{session_id}\",\"route\":{\"route\":\"DELETE /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/sessions/*\",\"encoded\":true,\"wide\":true},\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"},{\"id\":\"session_id\",\"name\":\"session_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The session; any text.\\\"\"}],\"tags\":[\"Memories\"],\"doc\":\"ASK FIRST: \\\"Delete what a session left\\\"\\n\\n\\\"Deletes the memories and messages of one session and leaves the others. A session without any is no fault.\\\"\\n\\nIt may destroy something: \\\"This deletes everything that the session left in the profile.\\\"\"},{\"name\":\"agent_memory_summary\",\"method\":\"POST\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/summary\",\"route\":\"POST /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/summary\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"body\":{\"media\":\"application/json\",\"form\":\"json\",\"required\":true,\"type\":\"object\"},\"tags\":[\"Memories\"],\"doc\":\"\\\"Read a summary\\\"\\n\\n\\\"Writes everything that a profile holds as Markdown. It changes nothing.\\\"\"}]}"  # the API

__all__ = ["Answer", "CallError", "Client", "NotAllowedError"]

_API: dict[str, Any] = {"profile": "", "global": "", "allow": None, "operations": [], **json.loads(_TABLE)}
_RUN: dict[str, Any] | None = json.loads(RUN) if isinstance(RUN, str) else None

_UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_PLAIN = _UNRESERVED + "@+="
_WIDE = ":!$&'()*,"
_QUERY_NAME = _UNRESERVED + "[]$@:!*'(),/"
#: What has to be escaped in a segment; a route takes it with any ``encoded``. Other escapes it must list.
_NEEDED = ' "<>[]^`{|}'
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_INT = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_PARAM = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]{0,63})\}")
_PIECE = re.compile(r"(\{[^{}]*\})")
_JSON = re.compile(r"application/(?:[^;]*\+)?json *(?:;.*)?", re.IGNORECASE)
_HEADER = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_BETWEEN = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "": Any,
}
_MAX_DECODINGS = 8


class NotAllowedError(Exception):
    """The run may not make this call; nothing was sent. ``nearest`` are routes that it may call."""

    def __init__(self, call: str, nearest: list[str], why: str = "") -> None:
        """Take the call as method and target, and what is wrong with its query where that is all."""
        near = "; nearest: " + ", ".join(nearest) if nearest else ""
        super().__init__("not allowed, nothing was sent: " + call + (": " + why if why else near))
        self.nearest = nearest


class CallError(Exception):
    """The broker or the API answered with a failure. ``code`` is its stable code, if it says one."""

    def __init__(self, status: int, code: str | None, body: Any) -> None:
        """Take what was answered."""
        text = body if isinstance(body, str) else json.dumps(body) if not isinstance(body, bytes) else "(bytes)"
        super().__init__(f"{status} {text[:500]}" if text else str(status))
        self.status = status
        self.code = code
        self.body = body


class Answer(NamedTuple):
    """What :meth:`Client.raw` returns: JSON parsed, other text as str, anything else as bytes, nothing as None."""

    status: int
    content_type: str
    body: Any


class Client:
    """The API. Every method is an operation, but for ``raw``, ``find`` and ``close``."""

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        profile: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        """Take the broker's URL, or the profile's as the broker told it; what is left out is in the environment."""
        url = (base_url or os.environ["BROKER_URL"]).rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise ValueError("the URL of the broker is http://host:port")
        self._profile: str = profile or (_RUN or _API)["profile"]
        root, within, _ = (parts.path + "/").partition("/p/")
        self._root = root.rstrip("/")
        self._path = parts.path if within else f"{self._root}/p/{self._profile}"
        self._tls = parts.scheme == "https"
        self._netloc = parts.netloc
        self._token = token if token is not None else os.environ["BROKER_RUN_TOKEN"]
        self._timeout = timeout
        self._kept = threading.local()
        self._grant: dict[str, Any] | None = None
        if _RUN is not None and _RUN["profile"] == self._profile:
            self._grant = _RUN

    def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Call any target, around the list: text and bytes are sent as they are, any other body as JSON.

        The answer is returned whatever its status is.
        """
        content: bytes | None = None
        if body is not None:
            content = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else _json(body)
            content_type = content_type or ("application/json" if not isinstance(body, (str, bytes)) else None)
        return self._send(method, self._path + path, content, content_type, headers or {})

    def find(self, text: str = "") -> list[str]:
        """List the operations that have all these words in their name, route, tags or description."""
        words = text.lower().split()
        found = []
        for one in _API["operations"]:
            signature = inspect.signature(getattr(self, one["name"]))
            line = f"{one['name']}{signature}: {one['method']} {one['template']}"
            summary = one.get("doc", "").partition("\n")[0]
            searched = " ".join([line, *one.get("tags", ()), one.get("doc", "")]).lower()
            if all(word in searched for word in words):
                found.append(line + (f"  {summary}" if summary else ""))
        return found

    def close(self) -> None:
        """Close this thread's connection; the next call makes a new one."""
        connection = getattr(self._kept, "connection", None)
        if connection is not None:
            connection.close()
            self._kept.connection = None

    def _call(self, operation: dict[str, Any], given: dict[str, Any]) -> Any:
        grant = self._granted(operation)
        target, pairs = _target(operation, given, (grant or {}).get("params") or {})
        headers = {
            one["name"]: _header(one, given[one["id"]])
            for one in operation.get("arguments", ())
            if one["in"] == "header" and given.get(one["id"]) is not None
        }
        routes = (grant or {}).get("routes")
        if routes is not None:
            params = grant["params"] if grant else {}
            unfit = [_unfit(route, operation["method"], target, pairs, params) for route in routes]
            if "" not in unfit:
                why = next((one for one in unfit if one), "")
                raise NotAllowedError(operation["method"] + " " + target, _nearest(operation, routes), why)
        content, content_type = _body(operation.get("body"), given.get("body"), operation["name"])
        answer = self._send(operation["method"], self._path + target, content, content_type, headers)
        if not 200 <= answer.status < 300:
            raise CallError(answer.status, _code(answer.body), answer.body)
        return answer.body

    def _granted(self, operation: dict[str, Any]) -> dict[str, Any] | None:
        """Return routes and parameters of the run; the broker is asked once, if the table does not say them."""
        if self._grant is None:
            needs = any(one["in"] == "run" for one in operation.get("path", ()))
            if _API["allow"] is not None and not needs:
                return {"routes": _API["allow"], "params": {}}
            self._grant = self._asked()
        return self._grant

    def _asked(self) -> dict[str, Any]:
        answer = self._send("GET", self._root + "/v1/self", None, None, {})
        told = answer.body if answer.status == http.client.OK and isinstance(answer.body, dict) else {}
        mine = told.get("profiles", {}).get(self._profile, {})
        return {"profile": self._profile, "routes": mine.get("routes", _API["allow"]), "params": told.get("params", {})}

    def _send(
        self, method: str, target: str, content: bytes | None, content_type: str | None, headers: dict[str, str]
    ) -> Answer:
        sent = {**headers, "Authorization": "Bearer " + self._token}
        if content_type is not None:
            sent["Content-Type"] = content_type
        connection, kept = self._connection()
        try:
            try:
                connection.request(method, target, body=content, headers=sent)
                response = connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                # The other side may close a kept connection at any time. Only what may be sent twice is.
                if not kept or content is not None or method not in ("GET", "HEAD", "PUT", "DELETE"):
                    raise
                connection.close()
                connection.request(method, target, headers=sent)
                response = connection.getresponse()
            body = response.read()
        except BaseException:
            self.close()
            raise
        kind = response.headers.get("Content-Type") or ""
        return Answer(response.status, kind, _parsed(kind, body))

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        connection: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        if connection is None:
            make = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
            connection = self._kept.connection = make(self._netloc, timeout=self._timeout)
            return connection, False
        if connection.sock is not None and select.select([connection.sock], [], [], 0)[0]:
            # Something to read before anything was asked: the other side is gone.
            connection.close()
        return connection, connection.sock is not None


def _target(
    operation: dict[str, Any], given: dict[str, Any], params: dict[str, str]
) -> tuple[str, list[tuple[str, str]]]:
    """Return the target, and the pairs of its query as they read decoded."""
    route = operation["route"] if isinstance(operation["route"], dict) else {}
    known = {one["id"]: one for one in operation.get("path", ())}
    path = []
    for segment in operation["template"].split("/"):
        text = ""
        for piece in _PIECE.split(segment):
            one = known.get(piece[1:-1]) if piece.startswith("{") else None
            if one is None:
                text += piece
            elif one["in"] == "run":
                if one["name"] not in params:
                    raise ValueError(f"the run has no parameter {one['name']}")
                text += params[one["name"]]
            else:
                text += _segment(one, given[one["id"]], route)
        if "{" in segment:
            _check_segment(text)
        path.append(text)
    pairs: list[tuple[str, str]] = [(name, _encoded(value, _UNRESERVED)) for name, value in operation.get("fixed", ())]
    for one in operation.get("arguments", ()):
        if one["in"] == "query" and given.get(one["id"]) is not None:
            pairs.extend(_pairs(one, given[one["id"]]))
    query = "&".join(f"{_encoded(name, _QUERY_NAME)}={value}" for name, value in pairs)
    return "/".join(path) + ("?" + query if query else ""), [(name, unquote(value)) for name, value in pairs]


def _segment(one: dict[str, Any], value: Any, route: dict[str, Any]) -> str:
    """Return a value of the path, escaped as far as the route takes it."""
    if one.get("style") == "json":
        texts = [_json(value).decode()]
    elif one.get("shape") == "array":
        texts = [_text(item, one) for item in _items(value, one)]
    elif one.get("shape") == "object":
        members = list(_members(value, one))
        texts = [name + "=" + text for name, text in members] if one.get("explode") else [t for m in members for t in m]
    else:
        texts = [_text(value, one)]
    if len(texts) > 1 and any("," in text for text in texts):
        raise ValueError(f"{one['id']}: a comma stands between two values and in none")
    text = ",".join(texts)
    if not text.strip("."):
        raise ValueError(f"{one['id']}: a part of the path is never empty or dots only")
    wide, encoded = bool(route.get("wide")), route.get("encoded", False)
    listed = encoded if isinstance(encoded, list) else []
    written = ""
    for mark in text:
        escape = _encoded(mark, "")
        if mark in _PLAIN or (wide and mark in _WIDE):
            written += mark
        elif encoded and (mark in _NEEDED or mark > "\x7f" or escape in listed):
            written += escape
        else:
            raise ValueError(f"{one['id']}: the route takes no {mark!r} here")
    return written


def _check_segment(segment: str) -> None:
    """Refuse what a server could read as another path, however often it decodes."""
    decoded = segment.encode()
    for _ in range(_MAX_DECODINGS):
        for part in re.split(rb"[/\\]", decoded):
            if not re.split(rb"[;?#]", part, maxsplit=1)[0].strip(b"."):
                raise ValueError("a part of the path is, decoded, never empty or dots only")
        if not re.search(rb"%[0-9A-Fa-f]{2}", decoded):
            return
        decoded = unquote_to_bytes(decoded)
        if _CONTROL.search(decoded.decode()):
            raise ValueError("a part of the path holds no control characters")
    raise ValueError("a part of the path decodes too often")


def _pairs(one: dict[str, Any], value: Any) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a query parameter, the values escaped: OpenAPI's styles."""
    name, style, explode = one["name"], one.get("style", "form"), one.get("explode", False)
    if style == "json":
        yield name, _encoded(_json(value).decode(), _UNRESERVED)
        return
    if one.get("shape") not in ("array", "object"):
        yield name, _encoded(_text(value, one), _UNRESERVED)
        return
    if one["shape"] == "array":
        texts = [_text(item, one) for item in _items(value, one)]
        if explode:
            for text in texts:
                yield name, _encoded(text, _UNRESERVED)
            return
    else:
        members = list(_members(value, one))
        if style == "deepObject" or explode:
            for member, text in members:
                yield f"{name}[{member}]" if style == "deepObject" else member, _encoded(text, _UNRESERVED)
            return
        texts = [text for member in members for text in member]
    if texts:
        yield name, _BETWEEN[style].join(_encoded(text, _UNRESERVED) for text in texts)


def _header(one: dict[str, Any], value: Any) -> str:
    if one.get("style") == "json":
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), default=_plain)
    elif one.get("shape") == "array":
        text = ",".join(_text(item, one) for item in _items(value, one))
    elif one.get("shape") == "object":
        between = "=" if one.get("explode") else ","
        text = ",".join(name + between + item for name, item in _members(value, one))
    else:
        text = _text(value, one)
    if not _HEADER.fullmatch(text):
        raise ValueError(f"{one['id']}: a header is visible ASCII, with spaces only inside")
    return text


def _items(value: Any, one: dict[str, Any]) -> list[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        return [item for item in value if item is not None]
    if isinstance(value, (dict, bytes)):
        raise TypeError(f"{one['id']}: a list is needed")
    return [value]


def _members(value: Any, one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        raise TypeError(f"{one['id']}: a dict is needed")
    for name in value:
        if name not in one.get("members", ()):
            raise TypeError(f"{one['id']}: no member {name!r}; there are " + ", ".join(one.get("members", ())))
    for name in one.get("members", ()):
        if value.get(name) is not None:
            yield name, _text(value[name], one)


def _text(value: Any, one: dict[str, Any]) -> str:
    """Return a scalar as it is written: numbers without an exponent, as in JavaScript's client."""
    value = _plain(value) if isinstance(value, (enum.Enum, dt.date, dt.time, uuid.UUID)) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, (float, decimal.Decimal)):
        if not math.isfinite(value):
            raise ValueError(f"{one['id']}: there is no such number")
        digits = format(decimal.Decimal(repr(value)) if isinstance(value, float) else value, "f")
        digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
        return "0" if digits == "-0" else digits
    raise TypeError(f"{one['id']}: a {type(value).__name__} cannot be sent here")


def _plain(value: Any) -> Any:
    """Return what stands for a value that JSON does not have."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON")


def _encoded(text: str, raw: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("a target holds no control characters")
    return "".join(mark if mark in raw else "".join(f"%{byte:02X}" for byte in _utf8(mark)) for mark in text)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair cannot be sent") from None


def _json(value: Any) -> bytes:
    return _utf8(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain))


def _body(body: dict[str, Any] | None, value: Any, name: str) -> tuple[bytes | None, str | None]:
    """Return the content and its type."""
    if body is None or value is None:
        return None, None
    return _content(body["media"], body["form"], value, name)


def _content(media: str, form: str, value: Any, name: str) -> tuple[bytes, str]:
    if form == "json":
        return _json(value), media
    if form == "raw":
        if not isinstance(value, (str, bytes)):
            raise TypeError(f"{name}() needs a body of str or bytes")
        return _utf8(value) if isinstance(value, str) else value, media
    if not isinstance(value, dict):
        raise TypeError(f"{name}() needs a body of names and values")
    fields = list(_fields(value))
    if form == "multipart":
        return _multipart(fields, media)
    pairs = []
    for key, item in fields:
        if isinstance(item, (bytes, tuple)):
            raise TypeError(f"{key}: a form holds no files")
        pairs.append(_form(key) + "=" + _form(_json(item).decode() if isinstance(item, dict) else item))
    return "&".join(pairs).encode(), media


def _fields(value: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError("the names of a form are str")
        for one in item if isinstance(item, list) else [item]:
            if one is not None:
                yield key, one if isinstance(one, (bytes, tuple, dict)) else _text(one, {"id": key})


def _form(text: str) -> str:
    return "".join(chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in _utf8(text))


def _multipart(fields: list[tuple[str, Any]], media: str) -> tuple[bytes, str]:
    parts = []
    for key, item in fields:
        name, content, kind = item if isinstance(item, tuple) else (None, item, None)
        if isinstance(content, dict):
            content, kind = _json(content).decode(), kind or "application/json"
        elif isinstance(content, bytes):
            name, kind = name or key, kind or "application/octet-stream"
        head = f'Content-Disposition: form-data; name="{_quoted(key)}"'
        head += f'; filename="{_quoted(name)}"' if name is not None else ""
        if kind is not None:
            if not _HEADER.fullmatch(kind):
                raise ValueError(f"{key}: that is no content type")
            head += "\r\nContent-Type: " + kind
        parts.append(_utf8(head) + b"\r\n\r\n" + (content if isinstance(content, bytes) else _utf8(content)))
    number = 0
    while any(f"form-{number}".encode() in part for part in parts):
        number += 1
    mark = f"--form-{number}"
    content = b"".join(mark.encode() + b"\r\n" + part + b"\r\n" for part in parts) + mark.encode() + b"--\r\n"
    return content, media + f"; boundary=form-{number}"


def _quoted(text: str) -> str:
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _parsed(kind: str, body: bytes) -> Any:
    if not body:
        return None
    try:
        if _JSON.fullmatch(kind.strip()):
            return json.loads(body)
        return body.decode() if kind.lower().startswith("text/") else body
    except ValueError:
        return body


def _code(body: Any) -> str | None:
    code = body.get("code") if isinstance(body, dict) else None
    return code if isinstance(code, str) else None


def _unfit(entry: Any, method: str, target: str, pairs: list[tuple[str, str]], params: dict[str, str]) -> str | None:
    """Return why a route does not take the query of a call: "" when it does, None when it is another route.

    It is judged as far as it can be here; the rest is left to the broker.
    """
    route = entry["route"] if isinstance(entry, dict) else entry
    own, _, path = route.partition(" ")
    segments, wanted = target.partition("?")[0].split("/"), path.split("/")
    if own != method or len(segments) != len(wanted):
        return None
    if not all(_fits(one, segment, params) for one, segment in zip(wanted, segments)):
        return None
    rules = (entry.get("query") if isinstance(entry, dict) else None) or {}
    names = [name for name, _ in pairs]
    for name, value in pairs:
        rule = rules.get(name)
        if rule is None:
            return f"its query takes no {name}"
        if not _takes(rule, value, params):
            return f"its query does not take this {name}"
        if names.count(name) > 1 and not (isinstance(rule, dict) and rule.get("repeat")):
            return f"its query takes {name} once"
    required = [name for name, rule in rules.items() if isinstance(rule, dict) and rule.get("required")]
    return next((f"its query needs {name}" for name in required if name not in names), "")


def _fits(wanted: str, segment: str, params: dict[str, str]) -> bool:
    param = _PARAM.search(wanted)
    if param and param[1] in params:
        return segment == wanted.replace(param[0], params[param[1]])
    parts = (wanted.replace(param[0], "*") if param else wanted).split("*")
    if len(parts) == 1:
        return segment == wanted
    if not segment.startswith(parts[0]) or not segment.endswith(parts[-1]):
        return False
    inner = segment[len(parts[0]) : len(segment) - len(parts[-1])]
    if len(parts[0]) + len(parts[-1]) >= len(segment):
        return False
    return len(parts) == 2 or (len(inner) >= 2 and parts[1] in inner[1 : len(inner) - 1])


def _takes(rule: Any, value: str, params: dict[str, str]) -> bool:
    if isinstance(rule, dict):
        values = [rule["const"]] if rule.get("const") is not None else rule.get("values")
        if values is None and rule.get("param") is not None:
            return params.get(rule["param"], value) == value
        return value in values if values is not None else rule.get("type") != "int" or bool(_INT.fullmatch(value))
    if isinstance(rule, list):
        return value in rule
    param = _PARAM.fullmatch(rule)
    if param:
        return params.get(param[1], value) == value
    return rule == "any" or (bool(_INT.fullmatch(value)) if rule == "int" else rule == value)


def _nearest(operation: dict[str, Any], routes: list[Any]) -> list[str]:
    texts = [route["route"] if isinstance(route, dict) else route for route in routes]
    own = operation["method"] + " " + operation["template"]

    def unlike(text: str) -> int:
        return -next((at for at, (one, two) in enumerate(zip(own, text)) if one != two), min(len(own), len(text)))

    return sorted(texts, key=unlike)[:3]


def _method(operation: dict[str, Any]) -> Callable[..., Any]:
    """Make the method of an operation."""
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    notes = []
    positional = [one for one in operation.get("path", ()) if one["in"] == "path"]
    body = operation.get("body")
    if body is not None:
        kind = body.get("type", "") if body["form"] != "raw" else "raw"
        required = bool(body.get("required"))
        positional.append({**body, "id": "body", "in": "body", "type": kind, "required": required})
    for one in [*positional, *operation.get("arguments", ())]:
        keyword = one["in"] in ("query", "header")
        sort = inspect.Parameter.KEYWORD_ONLY if keyword else inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = inspect.Parameter.empty if one.get("required") or one["in"] == "path" else None
        parameters.append(inspect.Parameter(one["id"], sort, default=default, annotation=_TYPES.get(one["type"], Any)))
        if one.get("doc"):
            notes.append(f"{one['id']}: {one['doc']}")
    signature = inspect.Signature(parameters)
    known = [one.name for one in parameters[1:]]
    needed = [one.name for one in parameters[1:] if one.default is inspect.Parameter.empty]
    name = operation["name"]

    def call(self: Client, /, *arguments: Any, **named: Any) -> Any:
        for one in named:
            if one not in known:
                near = difflib.get_close_matches(one, known) or known
                raise TypeError(f"{name}() takes no {one!r}; it takes " + (", ".join(near) or "no arguments"))
        try:
            bound = signature.bind(self, *arguments, **named)
        except TypeError as error:
            raise TypeError(f"{name}(): {error}; it is {name}{signature}") from None
        for one in needed:
            if bound.arguments[one] is None:
                raise TypeError(f"{name}() needs {one}; it is {name}{signature}")
        return self._call(operation, {key: value for key, value in bound.arguments.items() if key != "self"})

    call.__name__ = name
    call.__qualname__ = "Client." + name
    lines = [operation.get("doc", ""), f"{operation['method']} {operation['template']}", "\n".join(notes)]
    call.__doc__ = "\n\n".join(line for line in lines if line)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


for _operation in _API["operations"]:
    setattr(Client, _operation["name"], _method(_operation))


def __getattr__(name: str) -> Any:
    if name and name == _API["global"]:
        globals()[name] = client = Client()
        return client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
