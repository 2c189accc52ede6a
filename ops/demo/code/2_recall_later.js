// Recall it in a later run, which starts from nothing.

const A = "00000000000000000000000000000042", NS = "support-agent", ME = "customer-42";

(async function () {
  print("left over from the first run:", globalThis.lastStored ?? "nothing");
  const found = await memory.agent_memory_recall(A, NS, ME, { query: "What language should replies use?" });
  print(found.result.count, "memory found:", found.result.answer);
})().catch(print);
