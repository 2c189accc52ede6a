"""Store a memory, recall it, read it back by its id."""

import client as memory

A, NS, ME = "00000000000000000000000000000042", "support-agent", "customer-42"

kept = memory.remember(A, NS, ME, {"content": "The customer wants replies in Spanish.", "sessionId": "chat-7"})
print("stored", kept["result"]["id"])
memory.last_stored = kept["result"]["id"]
found = memory.recall(A, NS, ME, {"query": "Which language does the customer want?"})
print("recalled:", found["result"]["answer"])
read = memory.memory_get(A, NS, ME, found["result"]["candidates"][0]["id"])
print("read back by id:", read["result"]["content"])
