// Another customer's memory, through the client and around it.

const A = "00000000000000000000000000000042", NS = "support-agent", OTHER = "customer-43";
const QUESTION = { query: "Which language does the customer want?" };

(async function () {
  try {
    print("the client answered:", JSON.stringify(await memory.agent_memory_recall(A, NS, OTHER, QUESTION)));
  } catch (refusal) {
    print("the client refused:", refusal.message);
  }
  const path = `/client/v4/accounts/${A}/agent-memory/namespaces/${NS}/profiles/${OTHER}/recall`;
  const answer = JSON.parse(__broker_host_call(JSON.stringify({ method: "POST", path, body: QUESTION })));
  print("the broker answered:", answer.status, JSON.parse(answer.body).code);
})().catch(print);
