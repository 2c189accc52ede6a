"""Recall it in a later run, which is a fresh process."""

import client as memory

A, NS, ME = "00000000000000000000000000000042", "support-agent", "customer-42"

print("left over from the first run:", getattr(memory, "last_stored", "nothing"))
found = memory.recall(A, NS, ME, {"query": "What language should replies use?"})
print(found["result"]["count"], "memory found:", found["result"]["answer"])
