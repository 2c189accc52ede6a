// {"version": "0.1.0", "document": "agent-memory.openapi.json", "openapi": "3.0.3", "sha256": "e0f0cda455406f53bdec3cd99a29e7e2dba301902c8ad27b60501bb8cf3e73c2"}
export interface Options {
  profile?: string;
  hostCall?: (call: string) => string | Promise<string>;
  fetch?: (url: string, settings: any) => Promise<any>;
  baseUrl?: string;
  token?: string;
}
export interface Answer {
  status: number;
  content_type: string;
  body: any;
}
export declare class NotAllowedError extends Error {
  nearest: string[];
}
export declare class CallError extends Error {
  status: number;
  code: string | null;
  body: any;
}
export declare function create(options?: Options): Client;
export declare const client: Client;
export type agent_memory_namespace_list_result = {
  "result": (Namespace)[];
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
  "result_info": Page;
};
export type agent_memory_namespace_create_body = {
  "name": string;
};
export type agent_memory_namespace_create_result = {
  "result": Namespace;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type agent_memory_namespace_get_result = {
  "result": Namespace;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type agent_memory_namespace_delete_result = {
  "result": { [name: string]: unknown } | null;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type agent_memory_profile_list_result = {
  "result": (Profile)[];
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
  "result_info": Page;
};
export type agent_memory_profile_delete_result = {
  "result": { [name: string]: unknown } | null;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type agent_memory_ingest_body = {
  "messages": (Message)[];
  "sessionId"?: string | null;
};
export type agent_memory_ingest_result = {
  "result": { [name: string]: unknown } | null;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type agent_memory_memory_list_result = {
  "result": (MemoryRow)[];
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
  "result_info": Page;
};
export type agent_memory_memory_get_result = {
  "result": Memory;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type agent_memory_memory_delete_result = {
  "result": Memory;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type agent_memory_recall_body = {
  "query": string;
  "thinkingLevel"?: "low" | "medium" | "high";
  "responseLength"?: "short" | "medium" | "long";
  "referenceDate"?: string;
};
export type agent_memory_recall_result = {
  "result": agent_memory_recall_result_result;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type agent_memory_remember_body = {
  "content": string;
  "sessionId"?: string | null;
};
export type agent_memory_remember_result = {
  "result": Memory;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type agent_memory_session_delete_result = {
  "result": { [name: string]: unknown } | null;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type agent_memory_summary_body = {
  "sessionId"?: string | null;
};
export type agent_memory_summary_result = {
  "result": agent_memory_summary_result_result;
  "success": true;
  "errors": (Fault)[];
  "messages": (Fault)[];
};
export type Namespace = {
  "id": string;
  "name": string;
  "created_at": string;
  "updated_at": string;
};
export type Fault = {
  "code": number;
  "message": string;
  "documentation_url"?: string;
  "source"?: Fault_source;
};
export type Page = {
  "count": number;
  "per_page": number;
  "cursor"?: string;
};
export type Profile = {
  "name": string;
  "createdAt": string;
};
export type Message = {
  "role": "system" | "user" | "assistant";
  "content": string;
  "timestamp"?: string;
};
export type MemoryRow = {
  "id": string;
  "type": "fact" | "event" | "instruction" | "task";
  "summary": string;
  "sessionId": string | null;
  "createdAt": string;
  "updatedAt": string;
};
export type Memory = {
  "id": string;
  "type": "fact" | "event" | "instruction" | "task";
  "summary": string;
  "sessionId": string | null;
  "createdAt": string;
  "updatedAt": string;
  "content": string;
};
export type agent_memory_recall_result_result = {
  "count": number;
  "candidates": (Candidate)[];
  "answer"?: string;
};
export type agent_memory_summary_result_result = {
  "summary": string;
};
export type Fault_source = {
  "pointer"?: string;
};
export type Candidate = {
  "id": string;
  "summary": string;
  "sessionId": string | null;
  "score": number;
};
export interface Client {
  raw(
    method: string,
    path: string,
    body?: any,
    options?: { contentType?: string; headers?: { [name: string]: string } },
  ): Promise<Answer>;
  find(text?: string): string[];
  /** "List namespaces"
   * 
   * "Lists the account's namespaces, a page at a time."
   * 
   * GET /client/v4/accounts/{account_id}/agent-memory/namespaces
   * 
   * account_id: "The account."
   * per_page: "How many to answer at most."
   * order: "What to sort by."
   * direction: "Which way to sort."
   * cursor: "Where the page before ended: its result_info.cursor." */
  agent_memory_namespace_list(account_id: string, options?: { per_page?: number; order?: "id" | "name"; direction?: "asc" | "desc"; cursor?: string }): Promise<agent_memory_namespace_list_result>;
  /** "Make a namespace"
   * 
   * "Makes an empty namespace. A name is free again once its namespace was deleted."
   * 
   * POST /client/v4/accounts/{account_id}/agent-memory/namespaces
   * 
   * account_id: "The account." */
  agent_memory_namespace_create(account_id: string, body: agent_memory_namespace_create_body): Promise<agent_memory_namespace_create_result>;
  /** "Read a namespace"
   * 
   * "Reads one namespace by its name."
   * 
   * GET /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}
   * 
   * account_id: "The account."
   * namespace_name: "The namespace." */
  agent_memory_namespace_get(account_id: string, namespace_name: string): Promise<agent_memory_namespace_get_result>;
  /** ASK FIRST: "Delete a namespace"
   * 
   * "Deletes a namespace with all profiles and memories in it."
   * 
   * It may destroy something: "DELETE removes what it names"
   * 
   * DELETE /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}
   * 
   * account_id: "The account."
   * namespace_name: "The namespace." */
  agent_memory_namespace_delete(account_id: string, namespace_name: string): Promise<agent_memory_namespace_delete_result>;
  /** "List profiles"
   * 
   * "Lists the profiles of a namespace, a page at a time."
   * 
   * GET /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles
   * 
   * account_id: "The account."
   * namespace_name: "The namespace."
   * per_page: "How many to answer at most."
   * cursor: "Where the page before ended: its result_info.cursor." */
  agent_memory_profile_list(account_id: string, namespace_name: string, options?: { per_page?: number; cursor?: string }): Promise<agent_memory_profile_list_result>;
  /** ASK FIRST: "Delete a profile"
   * 
   * "Deletes a profile with its memories and messages."
   * 
   * It may destroy something: "This deletes everything that is remembered in the profile."
   * 
   * DELETE /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}
   * 
   * account_id: "The account."
   * namespace_name: "The namespace."
   * profile_name: "The profile." */
  agent_memory_profile_delete(account_id: string, namespace_name: string, profile_name: string): Promise<agent_memory_profile_delete_result>;
  /** "Store a conversation"
   * 
   * "Reads a conversation and keeps what is worth remembering of it. The profile is made with the first write. The same conversation sent twice is kept once. At most 500 messages of 32,768 bytes each."
   * 
   * POST /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/ingest
   * 
   * account_id: "The account."
   * namespace_name: "The namespace."
   * profile_name: "The profile." */
  agent_memory_ingest(account_id: string, namespace_name: string, profile_name: string, body: agent_memory_ingest_body): Promise<agent_memory_ingest_result>;
  /** "List memories"
   * 
   * "Lists a profile's memories without their content, oldest first, a page at a time."
   * 
   * GET /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories
   * 
   * account_id: "The account."
   * namespace_name: "The namespace."
   * profile_name: "The profile."
   * per_page: "How many to answer at most."
   * cursor: "Where the page before ended."
   * session_id: "Only memories of this session."
   * type: "Only memories of this sort." */
  agent_memory_memory_list(account_id: string, namespace_name: string, profile_name: string, options?: { per_page?: number; cursor?: string; session_id?: string; type?: "fact" | "event" | "instruction" | "task" }): Promise<agent_memory_memory_list_result>;
  /** "Read a memory"
   * 
   * "Reads one memory with its content."
   * 
   * GET /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories/{memory_id}
   * 
   * account_id: "The account."
   * namespace_name: "The namespace."
   * profile_name: "The profile."
   * memory_id: "The memory." */
  agent_memory_memory_get(account_id: string, namespace_name: string, profile_name: string, memory_id: string): Promise<agent_memory_memory_get_result>;
  /** ASK FIRST: "Delete a memory"
   * 
   * "Deletes one memory with the messages it came from, and answers what it was."
   * 
   * It may destroy something: "This deletes the memory and the messages it came from."
   * 
   * DELETE /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories/{memory_id}
   * 
   * account_id: "The account."
   * namespace_name: "The namespace."
   * profile_name: "The profile."
   * memory_id: "The memory." */
  agent_memory_memory_delete(account_id: string, namespace_name: string, profile_name: string, memory_id: string): Promise<agent_memory_memory_delete_result>;
  /** "Ask what is remembered"
   * 
   * "Finds the memories that answer a question, best first, and answers it from them. It changes nothing."
   * 
   * POST /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/recall
   * 
   * account_id: "The account."
   * namespace_name: "The namespace."
   * profile_name: "The profile." */
  agent_memory_recall(account_id: string, namespace_name: string, profile_name: string, body: agent_memory_recall_body): Promise<agent_memory_recall_result>;
  /** "Store one memory"
   * 
   * "Keeps one memory as it is given. The profile is made with the first write."
   * 
   * POST /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/remember
   * 
   * account_id: "The account."
   * namespace_name: "The namespace."
   * profile_name: "The profile." */
  agent_memory_remember(account_id: string, namespace_name: string, profile_name: string, body: agent_memory_remember_body): Promise<agent_memory_remember_result>;
  /** ASK FIRST: "Delete what a session left"
   * 
   * "Deletes the memories and messages of one session and leaves the others. A session without any is no fault."
   * 
   * It may destroy something: "This deletes everything that the session left in the profile."
   * 
   * DELETE /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/sessions/{session_id}
   * 
   * account_id: "The account."
   * namespace_name: "The namespace."
   * profile_name: "The profile."
   * session_id: "The session; any text." */
  agent_memory_session_delete(account_id: string, namespace_name: string, profile_name: string, session_id: string): Promise<agent_memory_session_delete_result>;
  /** "Read a summary"
   * 
   * "Writes everything that a profile holds as Markdown. It changes nothing."
   * 
   * POST /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/summary
   * 
   * account_id: "The account."
   * namespace_name: "The namespace."
   * profile_name: "The profile." */
  agent_memory_summary(account_id: string, namespace_name: string, profile_name: string, body: agent_memory_summary_body): Promise<agent_memory_summary_result>;
}
declare global {
  const memory: Client;
}
