"""Recall it with a token that the minter made for this run alone."""

import client as memory

A, NS, ME = "00000000000000000000000000000042", "support-agent", "customer-42"

memory.PROFILE = "agent-memory-jwt"
found = memory.recall(A, NS, ME, {"query": "What language should replies use?"})
print("recalled:", found["result"]["answer"])
