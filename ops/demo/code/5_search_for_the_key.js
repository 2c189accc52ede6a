// Search for the key, and for a way to get it, in everything the code can reach.

(function () {
  // What the key begins with. It stands nowhere in one piece, so that the search does not find itself.
  const mark = ["fake", "agent", "memory", "token", "held", "by", "the", "minter", ""].join("-");
  const places = [], waiting = [[globalThis, "globalThis"]], seen = new Set([globalThis]);
  const source = Function.prototype.toString;
  function look(value, place) {
    const text = typeof value === "function" ? source.call(value) : typeof value === "string" ? value : "";
    if (text.includes(mark)) places.push(place);
    if (Object(value) === value && !seen.has(value)) waiting.push([seen.add(value) && value, place]);
  }
  while (waiting.length) {
    const [held, place] = waiting.pop();
    look(Object.getPrototypeOf(held), place + ".__proto__");
    for (const name of Reflect.ownKeys(held)) {
      look(String(name), place);
      const property = Object.getOwnPropertyDescriptor(held, name);
      for (const part of ["value", "get", "set"]) look(property[part], `${place}.${String(name)}`);
    }
  }
  const known = ["std", "os", "require", "process", "fetch", "XMLHttpRequest", "Deno", "WebAssembly", "importScripts"];
  const ways = known.filter((name) => name in globalThis).map((name) => `the engine has ${name}`);
  print("the client:", Reflect.ownKeys(memory).length, "names");
  print("ways out of the engine besides the host function:", ways.join(", ") || "none");
  print("the key was found in:", places.join(", ") || "nothing");
  print("result: " + JSON.stringify({ places, ways, notes: [] }));
})();
