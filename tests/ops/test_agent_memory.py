"""The fake Agent Memory API keeps the rules of the real one: it is what the demo and the flow tests call."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ops.fakes.agent_memory import AgentMemory, start
from ops.fakes.memory_api import ROUTES
from ops.fakes.memory_auth import KeyDigest
from ops.fakes.memory_record import Record, read_record
from ops.fakes.memory_store import MemoryStore

KEY = "canary-key-of-the-fake-memory-api"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()
N = "/client/v4/accounts/42/agent-memory/namespaces"
P = N + "/support/profiles/customer-1"
ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


@dataclass
class Answer:
    status: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def result(self) -> Any:
        assert self.body["success"] is True, self.body
        assert self.body["errors"] == []
        assert self.body["messages"] == []
        return self.body["result"]

    @property
    def code(self) -> int:
        assert self.body["success"] is False
        assert self.body["result"] is None
        return self.body["errors"][0]["code"]


class Client:
    def __init__(self, url: str, api: AgentMemory) -> None:
        self.url = url
        self.api = api

    def __call__(
        self, method: str, target: str, body: Any = None, authorization: str | None = f"Bearer {KEY}"
    ) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        try:
            content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            connection.request(
                method, target, content, {} if authorization is None else {"Authorization": authorization}
            )
            response = connection.getresponse()
            return Answer(response.status, json.loads(response.read() or b"null"), dict(response.getheaders()))
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served():
    running, api = start(ways=[KeyDigest(DIGEST)])
    with running:
        yield Client(running.url, api)


@pytest.fixture
def call(served):
    served.api.store = MemoryStore(time.time)
    served.api.store.create_namespace("42", "support")
    served.api.record = Record(key_digest=DIGEST)
    return served


def remember(call: Client, content: str, session: str | None = None, profile: str = P) -> dict[str, Any]:
    return call("POST", profile + "/remember", {"content": content, "sessionId": session}).result


def ids(answer: Answer) -> list[str]:
    return [row["id"] for row in answer.result]


def test_the_document_has_fourteen_operations_and_the_fake_has_each():
    assert len(ROUTES) == 14
    assert len({route.operation for route in ROUTES}) == 14
    assert len({(route.method, route.template) for route in ROUTES}) == 14


# --- namespaces ---


def test_a_namespace_is_made_read_listed_and_deleted_and_its_name_is_free_again(call):
    made = call("POST", N, {"name": "billing"})
    assert made.status == 201
    assert set(made.result) == {"id", "name", "created_at", "updated_at"}
    assert ULID.fullmatch(made.result["id"])
    assert call("GET", N + "/billing").result == made.result
    assert [row["name"] for row in call("GET", N).result] == ["support", "billing"]
    remember(call, "kept", profile=N + "/billing/profiles/x")
    assert call("DELETE", N + "/billing").result is None
    assert call("GET", N + "/billing").code == 1003
    again = call("POST", N, {"name": "billing"})
    assert again.status == 201
    assert again.result["id"] != made.result["id"]
    assert call("GET", N + "/billing/profiles").result == []


def test_a_namespace_name_that_exists_is_409(call):
    answer = call("POST", N, {"name": "support"})
    assert (answer.status, answer.code) == (409, 10008)
    assert answer.body["errors"][0]["source"] == {"pointer": "/name"}


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 33, "a b", 7, None])
def test_a_namespace_name_out_of_pattern_is_400(call, name):
    assert call("POST", N, {"name": name}).status == 400


def test_another_account_has_other_namespaces(call):
    other = N.replace("42", "43")
    assert call("GET", other).result == []
    assert call("GET", other + "/support").status == 404
    assert call("POST", other, {"name": "support"}).status == 201


def test_namespaces_come_in_the_order_asked_for_page_by_page_and_the_last_page_has_no_cursor(call):
    for name in ("c", "a", "b"):
        call("POST", N, {"name": name})
    names, cursor = [], ""
    while True:
        page = call("GET", f"{N}?order=name&direction=desc&per_page=3{cursor}")
        names.append([row["name"] for row in page.result])
        assert page.body["result_info"]["per_page"] == 3
        assert page.body["result_info"]["count"] == len(page.result)
        if "cursor" not in page.body["result_info"]:
            break
        cursor = "&cursor=" + page.body["result_info"]["cursor"]
    assert names == [["support", "c", "b"], ["a"]]
    assert [row["name"] for row in call("GET", N + "?order=id&direction=desc").result] == ["b", "a", "c", "support"]


def test_a_cursor_of_another_order_is_400(call):
    call("POST", N, {"name": "a"})
    cursor = call("GET", N + "?order=name&per_page=1").body["result_info"]["cursor"]
    assert call("GET", f"{N}?order=id&per_page=1&cursor={cursor}").status == 400


@pytest.mark.parametrize(
    "query",
    ["order=size", "direction=up", "per_page=0", "per_page=1001", "per_page=x", "cursor=%2F", "cursor=bm8", "x=1",
     "order=id&order=name", "order"],
)  # fmt: skip
def test_a_query_against_the_document_is_400(call, query):
    assert call("GET", f"{N}?{query}").status == 400


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_namespace_that_is_not_there_is_404(call, method):
    answer = call(method, N + "/nowhere")
    assert (answer.status, answer.code) == (404, 1003)


# --- profiles ---


def test_a_profile_comes_into_being_with_the_first_write_and_goes_with_its_memories(call):
    assert call("GET", N + "/support/profiles").result == []
    assert call("GET", P + "/memories").code == 1004
    kept = remember(call, "first")
    call("POST", N + "/support/profiles/another/ingest", {"messages": [{"role": "user", "content": "hi"}]})
    listed = call("GET", N + "/support/profiles").result
    assert [row["name"] for row in listed] == ["another", "customer-1"]
    assert set(listed[0]) == {"name", "createdAt"}
    assert call("DELETE", P).result is None
    assert call("GET", f"{P}/memories/{kept['id']}").code == 1004
    assert call("DELETE", P).status == 404


def test_profiles_come_page_by_page(call):
    for name in ("b", "c", "a"):
        remember(call, "x", profile=f"{N}/support/profiles/{name}")
    first = call("GET", N + "/support/profiles?per_page=2")
    cursor = first.body["result_info"]["cursor"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,256}", cursor)
    last = call("GET", f"{N}/support/profiles?per_page=2&cursor={cursor}")
    assert [row["name"] for row in first.result + last.result] == ["a", "b", "c"]
    assert "cursor" not in last.body["result_info"]
    assert call("GET", N + "/support/profiles?per_page=501").status == 400
    assert call("GET", N + "/nowhere/profiles").code == 1003


@pytest.mark.parametrize("profile", ["Customer", "a%2Fb", "..", "a" * 101, "-a", "a%00"])
def test_a_profile_name_out_of_pattern_is_400(call, profile):
    assert call("GET", f"{N}/support/profiles/{profile}/memories").status == 400


def test_a_profile_does_not_see_what_another_holds(call):
    kept = remember(call, "The customer wants replies in Spanish.")
    other = N + "/support/profiles/customer-2"
    remember(call, "nothing", profile=other)
    assert call("POST", other + "/recall", {"query": "Spanish replies"}).result["count"] == 0
    assert call("GET", f"{other}/memories/{kept['id']}").code == 1005


# --- memories ---


def test_what_is_remembered_is_recalled_by_its_words_and_read_back_by_its_id(call):
    kept = remember(call, "The customer wants replies in Spanish.", "chat-7")
    remember(call, "The invoice was paid.")
    assert kept["type"] == "instruction"
    assert kept["sessionId"] == "chat-7"
    assert ULID.fullmatch(kept["id"])
    found = call("POST", P + "/recall", {"query": "Which language does the customer want?"}).result
    assert found["count"] == 1
    assert found["answer"] == "The customer wants replies in Spanish."
    [candidate] = found["candidates"]
    assert set(candidate) == {"id", "summary", "sessionId", "score"}
    assert candidate["id"] == kept["id"]
    assert 0 < candidate["score"] <= 1
    assert call("GET", f"{P}/memories/{kept['id']}").result == kept


def test_a_recall_without_a_match_has_an_empty_answer(call):
    remember(call, "The invoice was paid.")
    assert call("POST", P + "/recall", {"query": "Spanish"}).result == {"answer": "", "count": 0, "candidates": []}
    assert call("POST", P + "/recall", {"query": "?!"}).result["count"] == 0


def test_the_best_match_comes_first_and_the_answer_is_as_long_as_asked(call):
    for content in ("apples", "apples and pears", "apples and pears and plums"):
        remember(call, content)
    body = {"query": "apples pears plums", "thinkingLevel": "high", "referenceDate": "2026-11-30"}
    short = call("POST", P + "/recall", body | {"responseLength": "short"}).result
    assert [candidate["score"] for candidate in short["candidates"]] == [1.0, 0.67, 0.33]
    assert short["answer"] == "apples and pears and plums"
    long = call("POST", P + "/recall", body | {"responseLength": "long"}).result
    assert long["answer"] == "apples and pears and plums apples and pears apples"


def test_a_low_thinking_level_looks_at_fewer_candidates(call):
    for n in range(8):
        remember(call, f"apple {n}")
    assert call("POST", P + "/recall", {"query": "apple"}).result["count"] == 5
    assert call("POST", P + "/recall", {"query": "apple", "thinkingLevel": "medium"}).result["count"] == 8


@pytest.mark.parametrize(
    "body",
    [{}, {"query": ""}, {"query": 1}, {"query": "x" * 1025}, {"query": "x", "thinkingLevel": "max"},
     {"query": "x", "responseLength": 3}, {"query": "x", "referenceDate": "soon"}, {"query": "\ud800"}, [], b"{", b""],
)  # fmt: skip
def test_a_recall_against_the_document_is_400(call, body):
    remember(call, "x")
    assert call("POST", P + "/recall", body).status == 400


@pytest.mark.parametrize("body", [{}, {"content": ""}, {"content": "x", "sessionId": ""}, {"content": "é" * 16_385},
                                  {"content": "x", "sessionId": "s" * 65}, {"content": ["x"]}])  # fmt: skip
def test_a_memory_against_the_document_is_400_and_makes_no_profile(call, body):
    assert call("POST", P + "/remember", body).status == 400
    assert call("GET", N + "/support/profiles").result == []


def test_memories_are_listed_without_content_filtered_and_page_by_page(call):
    first = remember(call, "The user prefers tea.", "s/1")
    second = remember(call, "Paris is in France.", "s/1")
    third = remember(call, "Wants no calls.", None)
    whole = call("GET", P + "/memories")
    assert ids(whole) == [first["id"], second["id"], third["id"]]
    assert all("content" not in row for row in whole.result)
    assert ids(call("GET", P + "/memories?type=instruction")) == [first["id"], third["id"]]
    assert ids(call("GET", P + "/memories?session_id=s%2F1")) == [first["id"], second["id"]]
    page = call("GET", P + "/memories?per_page=2")
    cursor = page.body["result_info"]["cursor"]
    assert len(cursor) == 26
    rest = call("GET", f"{P}/memories?per_page=2&cursor={cursor}")
    assert ids(rest) == [third["id"]]
    assert rest.body["result_info"] == {"count": 1, "per_page": 2}


@pytest.mark.parametrize("query", ["type=idea", "session_id=", "cursor=short", "per_page=501", "order=id"])
def test_a_list_of_memories_against_the_document_is_400(call, query):
    remember(call, "x")
    assert call("GET", f"{P}/memories?{query}").status == 400


def test_a_memory_id_that_is_none_is_400_and_one_that_is_not_there_is_404(call):
    remember(call, "x")
    for method in ("GET", "DELETE"):
        assert call(method, P + "/memories/not-a-ulid").status == 400
        absent = call(method, f"{P}/memories/{'0' * 26}")
        assert (absent.status, absent.code) == (404, 1005)


# --- conversations ---

CONVERSATION = {
    "sessionId": "chat-1",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "I prefer concise answers.", "timestamp": "2026-04-21T00:00:00.000Z"},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": "Remind me to renew the contract."},
        {"role": "user", "content": "Yesterday I moved to Lyon."},
        {"role": "user", "content": "My cat is called Miez."},
    ],
}


def test_a_conversation_gives_a_memory_for_each_thing_the_user_said_with_its_type(call):
    answer = call("POST", P + "/ingest", CONVERSATION)
    assert answer.status == 200
    assert answer.result is None
    assert [row["type"] for row in call("GET", P + "/memories").result] == ["instruction", "task", "event", "fact"]


def test_ingesting_the_same_conversation_again_makes_no_second_memory(call):
    call("POST", P + "/ingest", CONVERSATION)
    before = ids(call("GET", P + "/memories"))
    call("POST", P + "/ingest", CONVERSATION)
    assert ids(call("GET", P + "/memories")) == before


def test_deleting_a_memory_returns_it_and_deletes_its_source_message_so_that_it_can_be_ingested_anew(call):
    call("POST", P + "/ingest", CONVERSATION)
    first, *others = ids(call("GET", P + "/memories"))
    deleted = call("DELETE", f"{P}/memories/{first}").result
    assert deleted["content"] == "I prefer concise answers."
    assert call("GET", f"{P}/memories/{first}").code == 1005
    call("POST", P + "/ingest", CONVERSATION)
    again = ids(call("GET", P + "/memories"))
    assert again[:-1] == others
    assert again[-1] != first


def test_deleting_a_session_leaves_the_others_and_can_be_done_twice(call):
    call("POST", P + "/ingest", CONVERSATION)
    kept = remember(call, "stays", "a/../b?c")
    for _ in range(2):
        answer = call("DELETE", P + "/sessions/chat-1")
        assert answer.status == 200
        assert answer.result is None
    assert ids(call("GET", P + "/memories")) == [kept["id"]]
    assert call("DELETE", P + "/sessions/a%2F..%2Fb%3Fc").status == 200
    assert call("GET", P + "/memories").result == []
    assert call("DELETE", P + "/sessions/" + "s" * 65).status == 400
    assert call("DELETE", N + "/support/profiles/never/sessions/x").code == 1004


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": []}, {"messages": "x"}, {"messages": ["x"]}, {"messages": [{"role": "user"}]},
     {"messages": [{"role": "robot", "content": "x"}]}, {"messages": [{"role": "user", "content": "x" * 32_769}]},
     {"messages": [{"role": "user", "content": "x"}] * 501},
     {"messages": [{"role": "user", "content": "x", "timestamp": "noon"}]}],
)  # fmt: skip
def test_a_conversation_against_the_document_is_400(call, body):
    assert call("POST", P + "/ingest", body).status == 400


def test_a_summary_has_a_section_a_type_and_the_last_session(call):
    call("POST", P + "/ingest", CONVERSATION)
    remember(call, "Lives in Lyon.", "chat-2")
    text = call("POST", P + "/summary", {}).result["summary"]
    assert text.startswith("## Summary\n")
    assert "### Instructions\n\n- I prefer concise answers." in text
    assert text.endswith("### Last Session\n\n- Lives in Lyon.")
    bounded = call("POST", P + "/summary", {"sessionId": "chat-1"}).result["summary"]
    assert bounded.endswith("- My cat is called Miez.")
    assert call("POST", P + "/summary").status == 400
    assert call("POST", N + "/support/profiles/never/summary", {}).code == 1004


# --- who calls, and what is unknown ---


@pytest.mark.parametrize(
    ("authorization", "known_as"),
    [(None, "none"), ("", "refused"), (f"Basic {KEY}", "refused"), ("Bearer ", "refused"), (KEY, "refused"),
     (f"Bearer {KEY}x", "refused")],
)  # fmt: skip
def test_a_request_without_the_key_is_401_and_reads_nothing(call, authorization, known_as):
    answer = call("DELETE", N + "/support", authorization=authorization)
    assert (answer.status, answer.code) == (401, 10000)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert call.api.record.received[-1].authenticated == known_as
    assert call("GET", N + "/support").status == 200


@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", "/"), ("GET", N + "/"), ("PUT", N), ("HEAD", N), ("GET", P), ("GET", N.replace("/client/v4", "")),
     ("POST", P + "/memories"), ("GET", N.replace("namespaces", "Namespaces")), ("GET", P + "/memories/"),
     ("GET", "/client/v4/accounts//agent-memory/namespaces")],
)  # fmt: skip
def test_a_request_that_the_api_does_not_have_is_501(call, method, target):
    answer = call(method, target)
    assert answer.status == 501
    if method != "HEAD":
        assert answer.code == 7000


def test_the_record_tells_every_request_in_order_and_never_the_key(call):
    call("GET", N + "?per_page=5")
    call("GET", N, authorization="Bearer wrong")
    call("GET", f"/somewhere/{KEY}?q={KEY}")
    rows = call.api.record.received
    assert [(row.n, row.method, row.target, row.operation, row.authenticated, row.status) for row in rows] == [
        (1, "GET", N + "?per_page=5", "agent-memory-namespace-list", "key", 200),
        (2, "GET", N, "agent-memory-namespace-list", "refused", 401),
        (3, "GET", "/somewhere/<key>?q=<key>", "", "none", 501),
    ]


def test_a_key_digest_must_be_one():
    with pytest.raises(ValueError):
        KeyDigest("abcd")


def test_it_runs_as_a_program_says_where_and_writes_its_record_to_a_file(tmp_path):
    record = tmp_path / "record.jsonl"
    command = [sys.executable, "-m", "ops.fakes.agent_memory", "--port", "0", "--key-digest", DIGEST]
    command += ["--namespace", "42/support", "--record", str(record)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root) as program:
        try:
            ready = program.stdout.readline()
            url = re.fullmatch(r"agent memory: ready on (http://127\.0\.0\.1:\d+)\n", ready)[1]
            assert Client(url, None)("GET", N + "/support").status == 200
            [row] = read_record(record)
            assert (row.target, row.authenticated) == (N + "/support", "key")
            assert KEY not in record.read_text()
            assert record.stat().st_mode & 0o077 == 0
        finally:
            program.terminate()
        assert program.wait(timeout=10) == 0
        assert program.stderr.read() == ""


def test_the_program_refuses_to_start_without_saying_who_is_accepted():
    command = [sys.executable, "-m", "ops.fakes.agent_memory", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 2
    assert "--key-digest or --jwks" in done.stderr
