// Store a memory, recall it, read it back by its id.

const A = "00000000000000000000000000000042", NS = "support-agent", ME = "customer-42";

(async function () {
  const kept = await memory.agent_memory_remember(
    A, NS, ME, { content: "The customer wants replies in Spanish.", sessionId: "chat-7" });
  print("stored", kept.result.id);
  globalThis.lastStored = kept.result.id;
  const found = await memory.agent_memory_recall(A, NS, ME, { query: "Which language does the customer want?" });
  print("recalled:", found.result.answer);
  const read = await memory.agent_memory_memory_get(A, NS, ME, found.result.candidates[0].id);
  print("read back by id:", read.result.content);
})().catch(print);
