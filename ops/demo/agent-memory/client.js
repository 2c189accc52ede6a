// A client of an HTTP API behind a broker: it holds no key, only a run's token, or nothing but a host function.
//
// Two lines hold what differs from one API to another: RUN, which the broker fills in, and TABLE. The rest is the same
// for every API: ECMAScript 2020, and nothing of browsers, Node or any other host is needed. A call goes through the
// host function (JSON text in, JSON text or a promise of it out) where there is one, else through fetch. The list of
// allowed routes is looked at before a call is sent: that spares a call which would be refused. The broker guards.
(function () {
  "use strict";

  var RUN = null; // filled in by the broker
  var TABLE = "{\"specgen\":\"0.1.0\",\"document\":\"agent-memory.openapi.json\",\"sha256\":\"e0f0cda455406f53bdec3cd99a29e7e2dba301902c8ad27b60501bb8cf3e73c2\",\"profile\":\"agent-memory\",\"global\":\"memory\",\"allow\":[\"POST /client/v4/accounts/00000000000000000000000000000042/agent-memory/namespaces/support-agent/profiles/customer-42/remember\",\"POST /client/v4/accounts/00000000000000000000000000000042/agent-memory/namespaces/support-agent/profiles/customer-42/recall\",\"GET /client/v4/accounts/00000000000000000000000000000042/agent-memory/namespaces/support-agent/profiles/customer-42/memories/*\"],\"operations\":[{\"name\":\"agent_memory_namespace_list\",\"method\":\"GET\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces\",\"route\":\"GET /client/v4/accounts/*/agent-memory/namespaces\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"}],\"arguments\":[{\"id\":\"per_page\",\"name\":\"per_page\",\"in\":\"query\",\"type\":\"integer\",\"explode\":true,\"doc\":\"\\\"How many to answer at most.\\\"\"},{\"id\":\"order\",\"name\":\"order\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"What to sort by.\\\"\"},{\"id\":\"direction\",\"name\":\"direction\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Which way to sort.\\\"\"},{\"id\":\"cursor\",\"name\":\"cursor\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Where the page before ended: its result_info.cursor.\\\"\"}],\"tags\":[\"Namespaces\"],\"doc\":\"\\\"List namespaces\\\"\\n\\n\\\"Lists the account's namespaces, a page at a time.\\\"\"},{\"name\":\"agent_memory_namespace_create\",\"method\":\"POST\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces\",\"route\":\"POST /client/v4/accounts/*/agent-memory/namespaces\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"}],\"body\":{\"media\":\"application/json\",\"form\":\"json\",\"required\":true,\"type\":\"object\"},\"tags\":[\"Namespaces\"],\"doc\":\"\\\"Make a namespace\\\"\\n\\n\\\"Makes an empty namespace. A name is free again once its namespace was deleted.\\\"\"},{\"name\":\"agent_memory_namespace_get\",\"method\":\"GET\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}\",\"route\":\"GET /client/v4/accounts/*/agent-memory/namespaces/*\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"}],\"tags\":[\"Namespaces\"],\"doc\":\"\\\"Read a namespace\\\"\\n\\n\\\"Reads one namespace by its name.\\\"\"},{\"name\":\"agent_memory_namespace_delete\",\"method\":\"DELETE\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}\",\"route\":\"DELETE /client/v4/accounts/*/agent-memory/namespaces/*\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"}],\"tags\":[\"Namespaces\"],\"doc\":\"ASK FIRST: \\\"Delete a namespace\\\"\\n\\n\\\"Deletes a namespace with all profiles and memories in it.\\\"\\n\\nIt may destroy something: \\\"DELETE removes what it names\\\"\"},{\"name\":\"agent_memory_profile_list\",\"method\":\"GET\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles\",\"route\":\"GET /client/v4/accounts/*/agent-memory/namespaces/*/profiles\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"}],\"arguments\":[{\"id\":\"per_page\",\"name\":\"per_page\",\"in\":\"query\",\"type\":\"integer\",\"explode\":true,\"doc\":\"\\\"How many to answer at most.\\\"\"},{\"id\":\"cursor\",\"name\":\"cursor\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Where the page before ended: its result_info.cursor.\\\"\"}],\"tags\":[\"Profiles\"],\"doc\":\"\\\"List profiles\\\"\\n\\n\\\"Lists the profiles of a namespace, a page at a time.\\\"\"},{\"name\":\"agent_memory_profile_delete\",\"method\":\"DELETE\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}\",\"route\":\"DELETE /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"tags\":[\"Profiles\"],\"doc\":\"ASK FIRST: \\\"Delete a profile\\\"\\n\\n\\\"Deletes a profile with its memories and messages.\\\"\\n\\nIt may destroy something: \\\"This deletes everything that is remembered in the profile.\\\"\"},{\"name\":\"agent_memory_ingest\",\"method\":\"POST\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/ingest\",\"route\":\"POST /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/ingest\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"body\":{\"media\":\"application/json\",\"form\":\"json\",\"required\":true,\"type\":\"object\"},\"tags\":[\"Memories\"],\"doc\":\"\\\"Store a conversation\\\"\\n\\n\\\"Reads a conversation and keeps what is worth remembering of it. The profile is made with the first write. The same conversation sent twice is kept once. At most 500 messages of 32,768 bytes each.\\\"\"},{\"name\":\"agent_memory_memory_list\",\"method\":\"GET\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories\",\"route\":\"GET /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/memories\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"arguments\":[{\"id\":\"per_page\",\"name\":\"per_page\",\"in\":\"query\",\"type\":\"integer\",\"explode\":true,\"doc\":\"\\\"How many to answer at most.\\\"\"},{\"id\":\"cursor\",\"name\":\"cursor\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Where the page before ended.\\\"\"},{\"id\":\"session_id\",\"name\":\"session_id\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Only memories of this session.\\\"\"},{\"id\":\"type\",\"name\":\"type\",\"in\":\"query\",\"type\":\"string\",\"explode\":true,\"doc\":\"\\\"Only memories of this sort.\\\"\"}],\"tags\":[\"Memories\"],\"doc\":\"\\\"List memories\\\"\\n\\n\\\"Lists a profile's memories without their content, oldest first, a page at a time.\\\"\"},{\"name\":\"agent_memory_memory_get\",\"method\":\"GET\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories/{memory_id}\",\"route\":\"GET /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/memories/*\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"},{\"id\":\"memory_id\",\"name\":\"memory_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The memory.\\\"\"}],\"tags\":[\"Memories\"],\"doc\":\"\\\"Read a memory\\\"\\n\\n\\\"Reads one memory with its content.\\\"\"},{\"name\":\"agent_memory_memory_delete\",\"method\":\"DELETE\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories/{memory_id}\",\"route\":\"DELETE /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/memories/*\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"},{\"id\":\"memory_id\",\"name\":\"memory_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The memory.\\\"\"}],\"tags\":[\"Memories\"],\"doc\":\"ASK FIRST: \\\"Delete a memory\\\"\\n\\n\\\"Deletes one memory with the messages it came from, and answers what it was.\\\"\\n\\nIt may destroy something: \\\"This deletes the memory and the messages it came from.\\\"\"},{\"name\":\"agent_memory_recall\",\"method\":\"POST\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/recall\",\"route\":\"POST /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/recall\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"body\":{\"media\":\"application/json\",\"form\":\"json\",\"required\":true,\"type\":\"object\"},\"tags\":[\"Memories\"],\"doc\":\"\\\"Ask what is remembered\\\"\\n\\n\\\"Finds the memories that answer a question, best first, and answers it from them. It changes nothing.\\\"\"},{\"name\":\"agent_memory_remember\",\"method\":\"POST\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/remember\",\"route\":\"POST /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/remember\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"body\":{\"media\":\"application/json\",\"form\":\"json\",\"required\":true,\"type\":\"object\"},\"tags\":[\"Memories\"],\"doc\":\"\\\"Store one memory\\\"\\n\\n\\\"Keeps one memory as it is given. The profile is made with the first write.\\\"\"},{\"name\":\"agent_memory_session_delete\",\"method\":\"DELETE\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/sessions/{session_id}\",\"route\":{\"route\":\"DELETE /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/sessions/*\",\"encoded\":true,\"wide\":true},\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"},{\"id\":\"session_id\",\"name\":\"session_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The session; any text.\\\"\"}],\"tags\":[\"Memories\"],\"doc\":\"ASK FIRST: \\\"Delete what a session left\\\"\\n\\n\\\"Deletes the memories and messages of one session and leaves the others. A session without any is no fault.\\\"\\n\\nIt may destroy something: \\\"This deletes everything that the session left in the profile.\\\"\"},{\"name\":\"agent_memory_summary\",\"method\":\"POST\",\"template\":\"/client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/summary\",\"route\":\"POST /client/v4/accounts/*/agent-memory/namespaces/*/profiles/*/summary\",\"path\":[{\"id\":\"account_id\",\"name\":\"account_id\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The account.\\\"\"},{\"id\":\"namespace_name\",\"name\":\"namespace_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The namespace.\\\"\"},{\"id\":\"profile_name\",\"name\":\"profile_name\",\"in\":\"path\",\"type\":\"string\",\"required\":true,\"doc\":\"\\\"The profile.\\\"\"}],\"body\":{\"media\":\"application/json\",\"form\":\"json\",\"required\":true,\"type\":\"object\"},\"tags\":[\"Memories\"],\"doc\":\"\\\"Read a summary\\\"\\n\\n\\\"Writes everything that a profile holds as Markdown. It changes nothing.\\\"\"}]}"; // the API

  // Nothing of these is inherited, whatever the code does to its prototypes.
  const bare = (text) => JSON.parse(text, (_, value) => (isObject(value) ? Object.setPrototypeOf(value, null) : value));
  const API = Object.assign({ profile: "", global: "", allow: null, operations: [] }, bare(TABLE));
  const run = typeof RUN === "string" ? bare(RUN) : null;

  const UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  const PLAIN = UNRESERVED + "@+=";
  const WIDE = ":!$&'()*,";
  const QUERY_NAME = UNRESERVED + "[]$@:!*'(),/";
  // What has to be escaped in a segment; a route takes it with any `encoded`. Other escapes it must list.
  const NEEDED = " \"<>[]^`{|}";
  const CONTROL = /[\x00-\x1f\x7f-\x9f]/;
  const INT = /^-?(0|[1-9][0-9]{0,18})$/;
  const PARAM = /\{([A-Za-z_][A-Za-z0-9_.-]{0,63})\}/;
  const JSON_TYPE = /^application\/(?:[^;]*\+)?json *(?:;.*)?$/i;
  const HEADER = /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/;
  const BETWEEN = { form: ",", spaceDelimited: "%20", pipeDelimited: "%7C" };
  const MAX_DECODINGS = 8;
  const NAMES = ["profile", "hostCall", "fetch", "baseUrl", "token"];

  // The run may not make this call; nothing was sent. `nearest` are routes that it may call.
  class NotAllowedError extends Error {
    constructor(call, nearest, why) {
      const near = nearest.length ? "; nearest: " + nearest.join(", ") : "";
      super("not allowed, nothing was sent: " + call + (why ? ": " + why : near));
      this.name = "NotAllowedError";
      this.nearest = nearest;
    }
  }

  // The broker or the API answered with a failure. `code` is its stable code, if it says one.
  class CallError extends Error {
    constructor(status, code, body) {
      const text = typeof body === "string" ? body : body === null ? "" : isBytes(body) ? "(bytes)" : json(body);
      super(text ? status + " " + text.slice(0, 500) : String(status));
      this.name = "CallError";
      this.status = status;
      this.code = code;
      this.body = body;
    }
  }

  function has(object, name) {
    return Object.prototype.hasOwnProperty.call(object, name);
  }

  function isObject(value) {
    return typeof value === "object" && value !== null && !Array.isArray(value) && !isBytes(value) && !isDate(value);
  }

  function isBytes(value) {
    return value instanceof Uint8Array;
  }

  function isDate(value) {
    return value instanceof Date;
  }

  // Return a client. Options, all of them optional: profile, hostCall, fetch, baseUrl (the broker's, or the profile's as
  // the broker told it) and token.
  function create(options) {
    const given = Object.assign(Object.create(null), options);
    for (const name of Object.keys(given)) {
      if (!NAMES.includes(name)) throw new TypeError("a client takes " + NAMES.join(", "));
    }
    const profile = given.profile || (run || API).profile;
    const way = { profile, given, grant: run !== null && run.profile === profile ? run : null };
    const client = Object.create(null);
    const add = (name, value) => Object.defineProperty(client, name, { value, enumerable: true });
    for (const operation of API.operations) {
      const method = async (...values) => call(way, operation, values);
      Object.defineProperty(method, "name", { value: operation.name });
      add(operation.name, method);
    }
    // Any call, around the list: text and bytes are sent as they are, any other body as JSON. The answer comes back
    // whatever its status is.
    add("raw", async (method, path, body, more) => {
      const extra = Object.assign(Object.create(null), more);
      const plain = typeof body === "string" || isBytes(body);
      const absent = body === undefined || body === null;
      const type = extra.contentType || (absent || plain ? null : "application/json");
      const content = absent ? null : plain ? { media: type, text: body } : { media: type, value: body };
      return send(way, method, path, content, extra.headers || {});
    });
    // The operations that have all these words in their name, route, tags or description.
    add("find", (text) => {
      const words = String(text === undefined ? "" : text).toLowerCase().split(/\s+/);
      const searched = (one) => [line(one), ...(one.tags || []), one.doc || ""].join(" ").toLowerCase();
      return API.operations.filter((one) => words.every((word) => searched(one).includes(word))).map(line);
    });
    return Object.freeze(client);
  }

  function line(operation) {
    const names = positional(operation).map((one) => one.id);
    const options = (operation.arguments || []).map((one) => one.id + (one.required ? "" : "?"));
    const all = options.length ? names.concat("{" + options.join(", ") + "}") : names;
    const head = operation.name + "(" + all.join(", ") + "): " + operation.method + " " + operation.template;
    return operation.doc ? head + "  " + operation.doc.split("\n")[0] : head;
  }

  function positional(operation) {
    const path = (operation.path || []).filter((one) => one.in === "path");
    return operation.body ? path.concat({ id: "body", in: "body", required: operation.body.required }) : path;
  }

  async function call(way, operation, values) {
    const given = arrange(operation, values);
    const grant = await granted(way, operation);
    const params = grant && grant.params ? grant.params : {};
    const [target, pairs] = build(operation, given, params);
    const headers = Object.create(null);
    for (const one of operation.arguments || []) {
      if (one.in === "header" && one.id in given) headers[one.name] = header(one, given[one.id]);
    }
    const routes = grant ? grant.routes : null;
    const reasons = (routes || []).map((route) => unfit(route, operation.method, target, pairs, params));
    if (routes && !reasons.includes("")) {
      throw new NotAllowedError(operation.method + " " + target, nearest(operation, routes), reasons.find(Boolean));
    }
    const content = body(operation.body, given.body, operation.name);
    const answer = await send(way, operation.method, target, content, headers);
    if (answer.status < 200 || answer.status > 299) {
      const code = isObject(answer.body) && typeof answer.body.code === "string" ? answer.body.code : null;
      throw new CallError(answer.status, code, answer.body);
    }
    return answer.body;
  }

  // Return the arguments by their names; what is null or undefined is not given.
  function arrange(operation, values) {
    const name = operation.name;
    const first = positional(operation);
    const known = operation.arguments || [];
    const given = Object.create(null);
    if (values.length > first.length + 1) throw new TypeError(name + "() is given too many arguments: " + line(operation));
    const options = values.length > first.length ? values[first.length] : null;
    if (options !== null && options !== undefined) {
      if (!isObject(options)) throw new TypeError(name + "() takes its options as one object: " + line(operation));
      for (const key of Object.keys(options)) {
        if (!known.some((one) => one.id === key)) {
          throw new TypeError(name + "() takes no option " + JSON.stringify(key) + ": " + line(operation));
        }
        if (options[key] !== null && options[key] !== undefined) given[key] = options[key];
      }
    }
    first.forEach((one, index) => {
      if (values[index] !== null && values[index] !== undefined) given[one.id] = values[index];
    });
    for (const one of first.concat(known)) {
      if ((one.required || one.in === "path") && !(one.id in given)) {
        throw new TypeError(name + "() needs " + one.id + ": " + line(operation));
      }
    }
    return given;
  }

  // Return routes and parameters of the run; the broker is asked once, if the table does not say them.
  async function granted(way, operation) {
    if (way.grant) return way.grant;
    const needs = (operation.path || []).some((one) => one.in === "run");
    if ((API.allow && !needs) || host(way)) return { routes: API.allow, params: {} };
    const [root, path] = urls(way);
    const answer = await fetched(way, "GET", root + "/v1/self", null, {});
    const told = answer.status === 200 && isObject(answer.body) ? bare(json(answer.body)) : {};
    const mine = isObject(told.profiles) && has(told.profiles, way.profile) ? told.profiles[way.profile] : {};
    way.grant = { routes: mine.routes || API.allow, params: told.params || {} };
    return way.grant;
  }

  function host(way) {
    return way.given.hostCall || (way.given.baseUrl ? null : globalThis.__broker_host_call) || null;
  }

  function setting(way, name, variable) {
    const env = typeof process === "object" && process !== null && process.env ? process.env : {};
    const value = way.given[name] || env[variable];
    if (!value) throw new TypeError("neither a host function nor " + name + " is there");
    return value;
  }

  function urls(way) {
    const url = setting(way, "baseUrl", "BROKER_URL").replace(/\/+$/, "");
    const match = /^(https?:\/\/[^\/?#]+)((?:\/[^?#]*)?)$/.exec(url);
    if (!match) throw new TypeError("the URL of the broker is http://host:port");
    const at = (match[2] + "/").indexOf("/p/");
    const root = match[1] + (at < 0 ? match[2] : match[2].slice(0, at));
    return [root, at < 0 ? root + "/p/" + way.profile : url];
  }

  async function send(way, method, target, content, headers) {
    const call = host(way);
    if (!call) return fetched(way, method, urls(way)[1] + target, content, headers);
    const parts = ['"profile":' + json(way.profile), '"method":' + json(method), '"path":' + json(target)];
    if (content) {
      // A body that is text is sent as it is, so a JSON text goes as what it is written as.
      const whole = has(content, "value") && typeof content.value !== "string";
      parts.push('"body":' + (whole ? json(content.value) : json(textOf(content))));
      if (content.media) parts.push('"content_type":' + json(content.media));
    }
    if (Object.keys(headers).length) parts.push('"headers":' + json(headers));
    // Joined, not added up: QuickJS keeps a long sum in pieces, and its bindings do not hand those over.
    const answer = JSON.parse(await call(["{", parts.join(","), "}"].join("")));
    const type = answer.content_type || "";
    let body = answer.body === undefined || answer.body === "" ? null : answer.body;
    if (answer.encoding === "base64") body = fromBase64(body || "");
    else if (typeof body === "string" && (type === "" || JSON_TYPE.test(type.trim()))) body = parsed(body);
    return { status: answer.status, content_type: type, body };
  }

  async function fetched(way, method, url, content, headers) {
    const sent = Object.assign(Object.create(null), headers, { Authorization: "Bearer " + setting(way, "token", "BROKER_RUN_TOKEN") });
    if (content && content.media) sent["Content-Type"] = content.media;
    const bytes = !content ? undefined : has(content, "value") ? json(content.value) : content.text;
    // Never another place than the broker, and no credential of a page.
    const settings = { method, headers: sent, body: bytes, redirect: "manual", credentials: "omit" };
    const answer = await (way.given.fetch || globalThis.fetch)(url, settings);
    const type = answer.headers.get("content-type") || "";
    const raw = new Uint8Array(await answer.arrayBuffer());
    let body = raw.length ? raw : null;
    if (body && (JSON_TYPE.test(type.trim()) || /^text\//i.test(type))) {
      const text = decodedText(raw);
      if (text !== null) body = /^text\//i.test(type) ? text : parsed(text);
    }
    return { status: answer.status, content_type: type, body };
  }

  function parsed(text) {
    try {
      return JSON.parse(text);
    } catch (_) {
      return text;
    }
  }

  // Return the target, and the pairs of its query as they read decoded.
  function build(operation, given, params) {
    const route = typeof operation.route === "string" ? {} : operation.route;
    const known = operation.path || [];
    const path = operation.template.split("/").map((segment) => {
      const text = segment.split(/(\{[^{}]*\})/).map((piece) => {
        const one = piece.startsWith("{") ? known.find((each) => each.id === piece.slice(1, -1)) : undefined;
        if (!one) return piece;
        if (one.in !== "run") return pathValue(one, given[one.id], route);
        if (!has(params, one.name)) throw new RangeError("the run has no parameter " + one.name);
        return params[one.name];
      }).join("");
      if (segment.includes("{")) checkSegment(text);
      return text;
    });
    let pairs = (operation.fixed || []).map(([name, value]) => [name, encoded(value, UNRESERVED)]);
    for (const one of operation.arguments || []) {
      if (one.in === "query" && one.id in given) pairs = pairs.concat(queryPairs(one, given[one.id]));
    }
    const query = pairs.map(([name, value]) => encoded(name, QUERY_NAME) + "=" + value).join("&");
    return [path.join("/") + (query ? "?" + query : ""), pairs.map(([name, value]) => [name, decodeURIComponent(value)])];
  }

  // Return a value of the path, escaped as far as the route takes it.
  function pathValue(one, value, route) {
    let texts;
    if (one.style === "json") texts = [json(value)];
    else if (one.shape === "array") texts = items(value, one).map((item) => scalar(item, one));
    else if (one.shape === "object") {
      const pairs = members(value, one);
      texts = one.explode ? pairs.map((pair) => pair.join("=")) : pairs.flat();
    } else texts = [scalar(value, one)];
    if (texts.length > 1 && texts.some((text) => text.includes(","))) {
      throw new RangeError(one.id + ": a comma stands between two values and in none");
    }
    const text = texts.join(",");
    if (/^\.*$/.test(text)) throw new RangeError(one.id + ": a part of the path is never empty or dots only");
    const listed = Array.isArray(route.encoded) ? route.encoded : [];
    let written = "";
    for (const mark of text) {
      const escape = encoded(mark, "");
      if (PLAIN.includes(mark) || (route.wide && WIDE.includes(mark))) written += mark;
      else if (route.encoded && (NEEDED.includes(mark) || mark > "\x7f" || listed.includes(escape))) written += escape;
      else throw new RangeError(one.id + ": the route takes no " + JSON.stringify(mark) + " here");
    }
    return written;
  }

  // Refuse what a server could read as another path, however often it decodes.
  function checkSegment(segment) {
    let decoded = segment;
    for (let count = 0; count < MAX_DECODINGS; count += 1) {
      for (const part of decoded.split(/[\/\\]/)) {
        if (/^\.*$/.test(part.split(/[;?#]/)[0])) {
          throw new RangeError("a part of the path is, decoded, never empty or dots only");
        }
      }
      if (!/%[0-9A-Fa-f]{2}/.test(decoded)) return;
      try {
        decoded = decodeURIComponent(decoded.replace(/%(?![0-9A-Fa-f]{2})/g, "%25"));
      } catch (_) {
        throw new RangeError("a part of the path decodes to no text");
      }
      if (CONTROL.test(decoded)) throw new RangeError("a part of the path holds no control characters");
    }
    throw new RangeError("a part of the path decodes too often");
  }

  // Return the pairs of a query parameter, the values escaped: OpenAPI's styles.
  function queryPairs(one, value) {
    const style = one.style || "form";
    const escaped = (text) => encoded(text, UNRESERVED);
    if (style === "json") return [[one.name, escaped(json(value))]];
    if (one.shape !== "array" && one.shape !== "object") return [[one.name, escaped(scalar(value, one))]];
    let texts;
    if (one.shape === "array") {
      texts = items(value, one).map((item) => scalar(item, one));
      if (one.explode) return texts.map((text) => [one.name, escaped(text)]);
    } else {
      const pairs = members(value, one);
      if (style === "deepObject") return pairs.map(([name, text]) => [one.name + "[" + name + "]", escaped(text)]);
      if (one.explode) return pairs.map(([name, text]) => [name, escaped(text)]);
      texts = pairs.flat();
    }
    return texts.length ? [[one.name, texts.map(escaped).join(BETWEEN[style])]] : [];
  }

  function header(one, value) {
    let text;
    if (one.style === "json") text = json(value).replace(/[\x7f-\uffff]/g, unicodeEscape);
    else if (one.shape === "array") text = items(value, one).map((item) => scalar(item, one)).join(",");
    else if (one.shape === "object") {
      text = members(value, one).map((pair) => pair.join(one.explode ? "=" : ",")).join(",");
    } else text = scalar(value, one);
    if (!HEADER.test(text)) throw new RangeError(one.id + ": a header is visible ASCII, with spaces only inside");
    return text;
  }

  function unicodeEscape(unit) {
    return "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0");
  }

  function items(value, one) {
    if (isObject(value) || isBytes(value)) throw new TypeError(one.id + ": a list is needed");
    return (Array.isArray(value) ? value : [value]).filter((item) => item !== null && item !== undefined);
  }

  function members(value, one) {
    const known = one.members || [];
    if (!isObject(value)) throw new TypeError(one.id + ": an object is needed");
    for (const name of Object.keys(value)) {
      if (!known.includes(name)) {
        throw new TypeError(one.id + ": no member " + JSON.stringify(name) + "; there are " + known.join(", "));
      }
    }
    const there = known.filter((name) => has(value, name) && value[name] !== null && value[name] !== undefined);
    return there.map((name) => [name, scalar(value[name], one)]);
  }

  // Return a scalar as it is written: numbers without an exponent, as in Python's client.
  function scalar(value, one) {
    if (typeof value === "string") return value;
    if (typeof value === "boolean" || typeof value === "bigint") return String(value);
    if (isDate(value)) return value.toISOString();
    if (typeof value !== "number") throw new TypeError(one.id + ": this cannot be sent here");
    if (!Number.isFinite(value)) throw new RangeError(one.id + ": there is no such number");
    return decimal(value);
  }

  function decimal(value) {
    const match = /^(-?)(\d)(?:\.(\d+))?e([+-]\d+)$/.exec(String(value));
    if (!match) return String(value);
    const digits = match[2] + (match[3] || "");
    const point = Number(match[4]) + 1;
    // No number has more digits than its exponent says, from where on it is written with one.
    return match[1] + (point > 0 ? digits.padEnd(point, "0") : "0." + "0".repeat(-point) + digits);
  }

  function encoded(text, raw) {
    if (CONTROL.test(text)) throw new RangeError("a target holds no control characters");
    let written = "";
    for (const mark of text) {
      if (raw.includes(mark)) written += mark;
      else written += mark < "\x80" ? "%" + mark.charCodeAt(0).toString(16).toUpperCase() : utf8(mark);
    }
    return written;
  }

  // Return the text in UTF-8, escaped but for what encodeURIComponent leaves.
  function utf8(text) {
    try {
      return encodeURIComponent(text);
    } catch (_) {
      throw new RangeError("half of a surrogate pair cannot be sent");
    }
  }

  function bytesOf(text) {
    const escaped = utf8(text);
    const found = [];
    for (let index = 0; index < escaped.length; index += 1) {
      if (escaped[index] === "%") {
        found.push(parseInt(escaped.slice(index + 1, index + 3), 16));
        index += 2;
      } else found.push(escaped.charCodeAt(index));
    }
    return Uint8Array.from(found);
  }

  // Return what bytes say in UTF-8, or null.
  function decodedText(bytes) {
    let escaped = "";
    for (const byte of bytes) escaped += "%" + (byte < 16 ? "0" : "") + byte.toString(16);
    try {
      return decodeURIComponent(escaped);
    } catch (_) {
      return null;
    }
  }

  function textOf(content) {
    if (has(content, "value")) return json(content.value);
    const text = isBytes(content.text) ? decodedText(content.text) : content.text;
    if (text === null) throw new TypeError("the host function takes text, and these bytes are none");
    return text;
  }

  function fromBase64(text) {
    const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const found = [];
    let held = 0;
    let bits = 0;
    for (const mark of text.replace(/=+$/, "")) {
      held = ((held << 6) | digits.indexOf(mark)) & 0xfff;
      bits += 6;
      if (bits >= 8) {
        bits -= 8;
        found.push((held >> bits) & 0xff);
      }
    }
    return Uint8Array.from(found);
  }

  // Return JSON of a value's own members. Whole numbers of any size are written as they are.
  function json(value) {
    if (value === null || value === undefined) return "null";
    if (typeof value === "string") {
      utf8(value);
      return JSON.stringify(value);
    }
    if (typeof value === "boolean" || typeof value === "bigint") return String(value);
    if (typeof value === "number") {
      if (!Number.isFinite(value)) throw new RangeError("JSON has no such number");
      return String(value);
    }
    if (isDate(value)) return JSON.stringify(value.toISOString());
    if (Array.isArray(value)) return "[" + value.map(json).join(",") + "]";
    if (!isObject(value)) throw new TypeError("a value cannot be sent as JSON");
    const there = Object.keys(value).filter((name) => value[name] !== undefined);
    return "{" + there.map((name) => json(name) + ":" + json(value[name])).join(",") + "}";
  }

  // Return the content and its type: {media, value} for JSON, else {media, text}, which may be bytes.
  function body(described, value, name) {
    if (!described || value === undefined) return null;
    const { media, form } = described;
    if (form === "json") {
      json(value);
      return { media, value };
    }
    if (form === "raw") {
      if (typeof value !== "string" && !isBytes(value)) throw new TypeError(name + "() needs a body of text or bytes");
      if (typeof value === "string") utf8(value);
      return { media, text: value };
    }
    if (!isObject(value)) throw new TypeError(name + "() needs a body of names and values");
    const fields = fieldsOf(value);
    if (form === "multipart") return multipart(fields, media);
    const pairs = fields.map(([key, item]) => {
      if (isFile(item)) throw new TypeError(key + ": a form holds no files");
      return formText(key) + "=" + formText(isObject(item) ? json(item) : item);
    });
    return { media, text: pairs.join("&") };
  }

  function fieldsOf(value) {
    const found = [];
    for (const key of Object.keys(value)) {
      for (const item of Array.isArray(value[key]) ? value[key] : [value[key]]) {
        if (item === null || item === undefined) continue;
        found.push([key, isBytes(item) || isObject(item) ? item : scalar(item, { id: key })]);
      }
    }
    return found;
  }

  // A file is bytes, or {name, bytes, type}.
  function isFile(item) {
    return isBytes(item) || (isObject(item) && isBytes(item.bytes));
  }

  function formText(text) {
    return utf8(text).replace(/[!'()*]/g, (mark) => "%" + mark.charCodeAt(0).toString(16).toUpperCase());
  }

  function multipart(fields, media) {
    const parts = fields.map(([key, item]) => {
      const file = isBytes(item) ? { bytes: item } : isFile(item) ? item : null;
      let head = 'Content-Disposition: form-data; name="' + quoted(key) + '"';
      if (file) {
        const type = file.type || "application/octet-stream";
        if (!HEADER.test(type)) throw new RangeError(key + ": that is no content type");
        head += '; filename="' + quoted(file.name || key) + '"\r\nContent-Type: ' + type;
      } else if (isObject(item)) head += "\r\nContent-Type: application/json";
      return [bytesOf(head + "\r\n\r\n"), file ? file.bytes : bytesOf(isObject(item) ? json(item) : item)];
    });
    // One character a byte: only to look whether the mark stands in a part.
    const seen = parts.map((part) => part.map((bytes) => Array.from(bytes, (one) => String.fromCharCode(one)).join("")).join(""));
    let number = 0;
    while (seen.some((part) => part.includes("form-" + number))) number += 1;
    const chunks = [];
    for (const part of parts) chunks.push(bytesOf("--form-" + number + "\r\n"), ...part, bytesOf("\r\n"));
    chunks.push(bytesOf("--form-" + number + "--\r\n"));
    const whole = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
    let at = 0;
    for (const chunk of chunks) {
      whole.set(chunk, at);
      at += chunk.length;
    }
    return { media: media + "; boundary=form-" + number, text: whole };
  }

  function quoted(text) {
    return text.replace(/"/g, "%22").replace(/\r/g, "%0D").replace(/\n/g, "%0A");
  }

  // Return why a route does not take the query of a call: "" when it does, null when it is another route. It is judged
  // as far as it can be here; the rest is left to the broker.
  function unfit(entry, method, target, pairs, params) {
    const route = typeof entry === "string" ? entry : entry.route;
    const space = route.indexOf(" ");
    const segments = target.split("?")[0].split("/");
    const wanted = route.slice(space + 1).split("/");
    if (route.slice(0, space) !== method || segments.length !== wanted.length) return null;
    if (!wanted.every((one, index) => fits(one, segments[index], params))) return null;
    const rules = (typeof entry === "string" ? null : entry.query) || {};
    const names = pairs.map(([name]) => name);
    for (const [name, value] of pairs) {
      if (!has(rules, name)) return "its query takes no " + name;
      if (!takes(rules[name], value, params)) return "its query does not take this " + name;
      const twice = names.filter((each) => each === name).length > 1;
      if (twice && !(isObject(rules[name]) && rules[name].repeat)) return "its query takes " + name + " once";
    }
    const required = Object.keys(rules).filter((name) => isObject(rules[name]) && rules[name].required);
    const missing = required.find((name) => !names.includes(name));
    return missing === undefined ? "" : "its query needs " + missing;
  }

  function fits(wanted, segment, params) {
    const param = PARAM.exec(wanted);
    if (param && has(params, param[1])) return segment === wanted.split(param[0]).join(params[param[1]]);
    const parts = (param ? wanted.split(param[0]).join("*") : wanted).split("*");
    if (parts.length === 1) return segment === wanted;
    const last = parts[parts.length - 1];
    if (!segment.startsWith(parts[0]) || !segment.endsWith(last)) return false;
    if (parts[0].length + last.length >= segment.length) return false;
    const inner = segment.slice(parts[0].length, segment.length - last.length);
    return parts.length === 2 || (inner.length >= 2 && inner.slice(1, -1).includes(parts[1]));
  }

  function takes(rule, value, params) {
    const isParam = (name) => !has(params, name) || params[name] === value;
    if (Array.isArray(rule)) return rule.includes(value);
    if (isObject(rule)) {
      const listed = rule.const !== undefined && rule.const !== null ? [rule.const] : rule.values;
      if (listed) return listed.includes(value);
      if (rule.param) return isParam(rule.param);
      return rule.type !== "int" || INT.test(value);
    }
    const param = PARAM.exec(rule);
    if (param && param[0] === rule) return isParam(param[1]);
    return rule === "any" || (rule === "int" ? INT.test(value) : rule === value);
  }

  function nearest(operation, routes) {
    const own = operation.method + " " + operation.template;
    const like = (text) => {
      let count = 0;
      while (count < own.length && own[count] === text[count]) count += 1;
      return count;
    };
    const texts = routes.map((route) => (typeof route === "string" ? route : route.route));
    return texts.sort((one, other) => like(other) - like(one)).slice(0, 3);
  }

  const client = create();
  if (API.global) Object.defineProperty(globalThis, API.global, { value: client, configurable: true, enumerable: true });
  if (typeof module === "object" && module !== null && module.exports) {
    module.exports = { create, client, NotAllowedError, CallError };
  } else {
    Object.defineProperty(globalThis, "BrokerClient", {
      value: Object.freeze({ create, NotAllowedError, CallError }), configurable: true,
    });
  }
})();
