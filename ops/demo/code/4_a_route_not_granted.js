// A route that the key could reach and the grant does not list.

const A = "00000000000000000000000000000042", NS = "support-agent";

(async function () {
  try {
    print("the client answered:", JSON.stringify(await memory.agent_memory_namespace_delete(A, NS)));
  } catch (refusal) {
    print("the client refused:", refusal.message);
  }
  const path = `/client/v4/accounts/${A}/agent-memory/namespaces/${NS}`;
  const answer = JSON.parse(__broker_host_call(JSON.stringify({ method: "DELETE", path })));
  print("the broker answered:", answer.status, JSON.parse(answer.body).code);
})().catch(print);
