"""``fetch`` for QuickJS: it really sends, by HTTP to loopback, and answers as a browser's or Node's does."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from tests.broker.specgen.engine import Engine

_FETCH = """
globalThis.fetch = async (url, settings) => {
  const body = settings.body instanceof Uint8Array ? Array.from(settings.body) : settings.body;
  const answer = JSON.parse(__fetch(JSON.stringify({url, ...settings, body})));
  return {
    status: answer.status,
    headers: {get: (name) => name.toLowerCase() === "content-type" ? answer.type : null},
    arrayBuffer: async () => Uint8Array.from(answer.body).buffer,
  };
};
"""


def with_fetch(source: str, **options: Any) -> tuple[Engine, list[dict[str, Any]]]:
    """Return an engine whose global ``remote`` is a client with these options, and what fetch was given."""
    settings: list[dict[str, Any]] = []

    def fetch(text: str) -> str:
        call = json.loads(text)
        settings.append(call)
        return json.dumps(_sent(call))

    engine = Engine(source)
    engine.add("__fetch", fetch)
    engine.eval(_FETCH)
    engine.eval(f"globalThis.remote = BrokerClient.create({json.dumps(options)})")
    return engine, settings


def _sent(call: dict[str, Any]) -> dict[str, Any]:
    parts = urlsplit(call["url"])
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    body = call.get("body")
    content = bytes(body) if isinstance(body, list) else body.encode() if body is not None else None
    target = call["url"].partition(parts.netloc)[2]
    try:
        connection.request(call["method"], target, body=content, headers=call["headers"])
        response = connection.getresponse()
        return {
            "status": response.status,
            "type": response.headers.get("content-type"),
            "body": list(response.read()),
        }
    finally:
        connection.close()
