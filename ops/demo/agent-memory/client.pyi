# {"version": "0.1.0", "document": "agent-memory.openapi.json", "openapi": "3.0.3", "sha256": "e0f0cda455406f53bdec3cd99a29e7e2dba301902c8ad27b60501bb8cf3e73c2"}
from typing import Any, Literal, NamedTuple
from typing_extensions import NotRequired, TypedDict

class NotAllowedError(Exception):
    nearest: list[str]

class CallError(Exception):
    status: int
    code: str | None
    body: Any

class Answer(NamedTuple):
    status: int
    content_type: str
    body: Any

agent_memory_namespace_list_result = TypedDict("agent_memory_namespace_list_result", {
    'result': list[Namespace],
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
    'result_info': Page,
})

agent_memory_namespace_create_body = TypedDict("agent_memory_namespace_create_body", {
    'name': str,
})

agent_memory_namespace_create_result = TypedDict("agent_memory_namespace_create_result", {
    'result': Namespace,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

agent_memory_namespace_get_result = TypedDict("agent_memory_namespace_get_result", {
    'result': Namespace,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

agent_memory_namespace_delete_result = TypedDict("agent_memory_namespace_delete_result", {
    'result': dict[str, Any] | None,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

agent_memory_profile_list_result = TypedDict("agent_memory_profile_list_result", {
    'result': list[Profile],
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
    'result_info': Page,
})

agent_memory_profile_delete_result = TypedDict("agent_memory_profile_delete_result", {
    'result': dict[str, Any] | None,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

agent_memory_ingest_body = TypedDict("agent_memory_ingest_body", {
    'messages': list[Message],
    'sessionId': NotRequired[str | None],
})

agent_memory_ingest_result = TypedDict("agent_memory_ingest_result", {
    'result': dict[str, Any] | None,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

agent_memory_memory_list_result = TypedDict("agent_memory_memory_list_result", {
    'result': list[MemoryRow],
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
    'result_info': Page,
})

agent_memory_memory_get_result = TypedDict("agent_memory_memory_get_result", {
    'result': Memory,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

agent_memory_memory_delete_result = TypedDict("agent_memory_memory_delete_result", {
    'result': Memory,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

agent_memory_recall_body = TypedDict("agent_memory_recall_body", {
    'query': str,
    'thinkingLevel': NotRequired[Literal['low', 'medium', 'high']],
    'responseLength': NotRequired[Literal['short', 'medium', 'long']],
    'referenceDate': NotRequired[str],
})

agent_memory_recall_result = TypedDict("agent_memory_recall_result", {
    'result': agent_memory_recall_result_result,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

agent_memory_remember_body = TypedDict("agent_memory_remember_body", {
    'content': str,
    'sessionId': NotRequired[str | None],
})

agent_memory_remember_result = TypedDict("agent_memory_remember_result", {
    'result': Memory,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

agent_memory_session_delete_result = TypedDict("agent_memory_session_delete_result", {
    'result': dict[str, Any] | None,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

agent_memory_summary_body = TypedDict("agent_memory_summary_body", {
    'sessionId': NotRequired[str | None],
})

agent_memory_summary_result = TypedDict("agent_memory_summary_result", {
    'result': agent_memory_summary_result_result,
    'success': Literal[True],
    'errors': list[Fault],
    'messages': list[Fault],
})

Namespace = TypedDict("Namespace", {
    'id': str,
    'name': str,
    'created_at': str,
    'updated_at': str,
})

Fault = TypedDict("Fault", {
    'code': int,
    'message': str,
    'documentation_url': NotRequired[str],
    'source': NotRequired[Fault_source],
})

Page = TypedDict("Page", {
    'count': int,
    'per_page': int,
    'cursor': NotRequired[str],
})

Profile = TypedDict("Profile", {
    'name': str,
    'createdAt': str,
})

Message = TypedDict("Message", {
    'role': Literal['system', 'user', 'assistant'],
    'content': str,
    'timestamp': NotRequired[str],
})

MemoryRow = TypedDict("MemoryRow", {
    'id': str,
    'type': Literal['fact', 'event', 'instruction', 'task'],
    'summary': str,
    'sessionId': str | None,
    'createdAt': str,
    'updatedAt': str,
})

Memory = TypedDict("Memory", {
    'id': str,
    'type': Literal['fact', 'event', 'instruction', 'task'],
    'summary': str,
    'sessionId': str | None,
    'createdAt': str,
    'updatedAt': str,
    'content': str,
})

agent_memory_recall_result_result = TypedDict("agent_memory_recall_result_result", {
    'count': int,
    'candidates': list[Candidate],
    'answer': NotRequired[str],
})

agent_memory_summary_result_result = TypedDict("agent_memory_summary_result_result", {
    'summary': str,
})

Fault_source = TypedDict("Fault_source", {
    'pointer': NotRequired[str],
})

Candidate = TypedDict("Candidate", {
    'id': str,
    'summary': str,
    'sessionId': str | None,
    'score': float,
})

class Client:
    def __init__(
        self, base_url: str | None = None, token: str | None = None, profile: str | None = None, timeout: float = 60.0
    ) -> None: ...
    def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer: ...
    def find(self, text: str = "") -> list[str]: ...
    def close(self) -> None: ...
    def agent_memory_namespace_list(self, account_id: str, *, per_page: int | None = None, order: Literal['id', 'name'] | None = None, direction: Literal['asc', 'desc'] | None = None, cursor: str | None = None) -> agent_memory_namespace_list_result:
        '"List namespaces"\n\n"Lists the account\'s namespaces, a page at a time."\n\nGET /client/v4/accounts/{account_id}/agent-memory/namespaces\n\naccount_id: "The account."\nper_page: "How many to answer at most."\norder: "What to sort by."\ndirection: "Which way to sort."\ncursor: "Where the page before ended: its result_info.cursor."'
    def agent_memory_namespace_create(self, account_id: str, body: agent_memory_namespace_create_body) -> agent_memory_namespace_create_result:
        '"Make a namespace"\n\n"Makes an empty namespace. A name is free again once its namespace was deleted."\n\nPOST /client/v4/accounts/{account_id}/agent-memory/namespaces\n\naccount_id: "The account."'
    def agent_memory_namespace_get(self, account_id: str, namespace_name: str) -> agent_memory_namespace_get_result:
        '"Read a namespace"\n\n"Reads one namespace by its name."\n\nGET /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}\n\naccount_id: "The account."\nnamespace_name: "The namespace."'
    def agent_memory_namespace_delete(self, account_id: str, namespace_name: str) -> agent_memory_namespace_delete_result:
        'ASK FIRST: "Delete a namespace"\n\n"Deletes a namespace with all profiles and memories in it."\n\nIt may destroy something: "DELETE removes what it names"\n\nDELETE /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}\n\naccount_id: "The account."\nnamespace_name: "The namespace."'
    def agent_memory_profile_list(self, account_id: str, namespace_name: str, *, per_page: int | None = None, cursor: str | None = None) -> agent_memory_profile_list_result:
        '"List profiles"\n\n"Lists the profiles of a namespace, a page at a time."\n\nGET /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles\n\naccount_id: "The account."\nnamespace_name: "The namespace."\nper_page: "How many to answer at most."\ncursor: "Where the page before ended: its result_info.cursor."'
    def agent_memory_profile_delete(self, account_id: str, namespace_name: str, profile_name: str) -> agent_memory_profile_delete_result:
        'ASK FIRST: "Delete a profile"\n\n"Deletes a profile with its memories and messages."\n\nIt may destroy something: "This deletes everything that is remembered in the profile."\n\nDELETE /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}\n\naccount_id: "The account."\nnamespace_name: "The namespace."\nprofile_name: "The profile."'
    def agent_memory_ingest(self, account_id: str, namespace_name: str, profile_name: str, body: agent_memory_ingest_body) -> agent_memory_ingest_result:
        '"Store a conversation"\n\n"Reads a conversation and keeps what is worth remembering of it. The profile is made with the first write. The same conversation sent twice is kept once. At most 500 messages of 32,768 bytes each."\n\nPOST /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/ingest\n\naccount_id: "The account."\nnamespace_name: "The namespace."\nprofile_name: "The profile."'
    def agent_memory_memory_list(self, account_id: str, namespace_name: str, profile_name: str, *, per_page: int | None = None, cursor: str | None = None, session_id: str | None = None, type: Literal['fact', 'event', 'instruction', 'task'] | None = None) -> agent_memory_memory_list_result:
        '"List memories"\n\n"Lists a profile\'s memories without their content, oldest first, a page at a time."\n\nGET /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories\n\naccount_id: "The account."\nnamespace_name: "The namespace."\nprofile_name: "The profile."\nper_page: "How many to answer at most."\ncursor: "Where the page before ended."\nsession_id: "Only memories of this session."\ntype: "Only memories of this sort."'
    def agent_memory_memory_get(self, account_id: str, namespace_name: str, profile_name: str, memory_id: str) -> agent_memory_memory_get_result:
        '"Read a memory"\n\n"Reads one memory with its content."\n\nGET /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories/{memory_id}\n\naccount_id: "The account."\nnamespace_name: "The namespace."\nprofile_name: "The profile."\nmemory_id: "The memory."'
    def agent_memory_memory_delete(self, account_id: str, namespace_name: str, profile_name: str, memory_id: str) -> agent_memory_memory_delete_result:
        'ASK FIRST: "Delete a memory"\n\n"Deletes one memory with the messages it came from, and answers what it was."\n\nIt may destroy something: "This deletes the memory and the messages it came from."\n\nDELETE /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/memories/{memory_id}\n\naccount_id: "The account."\nnamespace_name: "The namespace."\nprofile_name: "The profile."\nmemory_id: "The memory."'
    def agent_memory_recall(self, account_id: str, namespace_name: str, profile_name: str, body: agent_memory_recall_body) -> agent_memory_recall_result:
        '"Ask what is remembered"\n\n"Finds the memories that answer a question, best first, and answers it from them. It changes nothing."\n\nPOST /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/recall\n\naccount_id: "The account."\nnamespace_name: "The namespace."\nprofile_name: "The profile."'
    def agent_memory_remember(self, account_id: str, namespace_name: str, profile_name: str, body: agent_memory_remember_body) -> agent_memory_remember_result:
        '"Store one memory"\n\n"Keeps one memory as it is given. The profile is made with the first write."\n\nPOST /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/remember\n\naccount_id: "The account."\nnamespace_name: "The namespace."\nprofile_name: "The profile."'
    def agent_memory_session_delete(self, account_id: str, namespace_name: str, profile_name: str, session_id: str) -> agent_memory_session_delete_result:
        'ASK FIRST: "Delete what a session left"\n\n"Deletes the memories and messages of one session and leaves the others. A session without any is no fault."\n\nIt may destroy something: "This deletes everything that the session left in the profile."\n\nDELETE /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/sessions/{session_id}\n\naccount_id: "The account."\nnamespace_name: "The namespace."\nprofile_name: "The profile."\nsession_id: "The session; any text."'
    def agent_memory_summary(self, account_id: str, namespace_name: str, profile_name: str, body: agent_memory_summary_body) -> agent_memory_summary_result:
        '"Read a summary"\n\n"Writes everything that a profile holds as Markdown. It changes nothing."\n\nPOST /client/v4/accounts/{account_id}/agent-memory/namespaces/{namespace_name}/profiles/{profile_name}/summary\n\naccount_id: "The account."\nnamespace_name: "The namespace."\nprofile_name: "The profile."'

memory: Client
