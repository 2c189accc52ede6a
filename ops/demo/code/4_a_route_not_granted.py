"""A route that the key could reach and the grant does not list."""

import json

import client as memory

A, NS = "00000000000000000000000000000042", "support-agent"

try:
    print("the client answered:", memory.namespace_delete(A, NS))
except memory.NotAllowedError as refusal:
    print("the client refused:", refusal)

status, body = memory.raw("DELETE", f"/client/v4/accounts/{A}/agent-memory/namespaces/{NS}")
print("the broker answered:", status, json.loads(body)["code"])
