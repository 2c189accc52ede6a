"""A route that the key could reach and the grant does not list."""

from client import NotAllowedError, memory

A, NS = "00000000000000000000000000000042", "support-agent"

try:
    print("the client answered:", memory.agent_memory_namespace_delete(A, NS))
except NotAllowedError as refusal:
    print("the client refused:", refusal)

answer = memory.raw("DELETE", f"/client/v4/accounts/{A}/agent-memory/namespaces/{NS}")
print("the broker answered:", answer.status, answer.body["code"])
