"""Another customer's memory, through the client and around it."""

from client import NotAllowedError, memory

A, NS, OTHER = "00000000000000000000000000000042", "support-agent", "customer-43"
QUESTION = {"query": "Which language does the customer want?"}

try:
    print("the client answered:", memory.agent_memory_recall(A, NS, OTHER, QUESTION))
except NotAllowedError as refusal:
    print("the client refused:", refusal)

path = f"/client/v4/accounts/{A}/agent-memory/namespaces/{NS}/profiles/{OTHER}/recall"
answer = memory.raw("POST", path, QUESTION)
print("the broker answered:", answer.status, answer.body["code"])
