"""Recall it in a later run, which starts from nothing."""

import client
from client import memory

A, NS, ME = "00000000000000000000000000000042", "support-agent", "customer-42"

print("left over from the first run:", getattr(client, "last_stored", "nothing"))
found = memory.agent_memory_recall(A, NS, ME, {"query": "What language should replies use?"})
print(found["result"]["count"], "memory found:", found["result"]["answer"])
