"""Recall it with a token that the minter made for this run alone."""

from client import Client

A, NS, ME = "00000000000000000000000000000042", "support-agent", "customer-42"

memory = Client(profile="agent-memory-jwt")
found = memory.agent_memory_recall(A, NS, ME, {"query": "What language should replies use?"})
print("recalled:", found["result"]["answer"])
