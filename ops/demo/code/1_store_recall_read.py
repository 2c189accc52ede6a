"""Store a memory, recall it, read it back by its id."""

import client
from client import memory

A, NS, ME = "00000000000000000000000000000042", "support-agent", "customer-42"

kept = memory.agent_memory_remember(
    A, NS, ME, {"content": "The customer wants replies in Spanish.", "sessionId": "chat-7"}
)
print("stored", kept["result"]["id"])
client.last_stored = kept["result"]["id"]
found = memory.agent_memory_recall(A, NS, ME, {"query": "Which language does the customer want?"})
print("recalled:", found["result"]["answer"])
read = memory.agent_memory_memory_get(A, NS, ME, found["result"]["candidates"][0]["id"])
print("read back by id:", read["result"]["content"])
