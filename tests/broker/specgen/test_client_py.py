"""The client of Python: what it asks, what it refuses, and how it says so."""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import json
import pydoc
import select
import socket
import threading
import uuid
from typing import Any

import pytest

from broker.specgen.filling import fill
from tests.broker.specgen import pair
from tests.broker.specgen.loading import load
from tests.broker.specgen.pair import Pair
from tests.broker.specgen.reading import query
from tests.broker.specgen.test_client_js import PATHS, op, path
from tests.worlds.api import Answer
from tests.worlds.api import Api as Recorded

PETS = {
    "/pets/{id}": {
        "get": {**op("get_pet", path("id")), "summary": "Read a pet", "description": "All of it."},
        "put": op("put_pet", path("id"), body=("application/json", {"type": "object"})),
    },
    "/pets": {
        "get": op(
            "list_pets",
            query("limit", type="integer"),
            query("kind", enum=["cat", "dog"]),
            query("since", type="string"),
        )
    },
}


@pytest.fixture(scope="module")
def recorded():
    with Recorded() as api:
        yield api


@pytest.fixture
def make(recorded, tmp_path):
    made = []

    def build(paths: Any = None, *, run: Any = None, profile: str | None = None, **options: Any) -> Pair:
        choices = {name: options.pop(name) for name in ("params", "bind") if name in options}
        api, document = pair.read(paths or PETS, **choices)
        files = pair.files(api, document, **options)
        if run is not None:
            files["client.py"] = fill(files["client.py"], "py", run)
        made.append(Pair(files, recorded, tmp_path, profile))
        recorded.received.clear()
        return made[-1]

    yield build
    for one in made:
        one.client.close()


def test_a_method_says_what_it_takes(make):
    client = make().client
    assert str(inspect.signature(client.list_pets)) == "(*, limit: int = None, kind: str = None, since: str = None)"
    assert str(inspect.signature(client.put_pet)) == "(id: str, body: dict)"
    shown = pydoc.plain(pydoc.render_doc(client.get_pet))
    assert "get_pet(id: str)" in shown
    assert '"Read a pet"\n    \n    "All of it."\n    \n    GET /pets/{id}' in shown
    assert client.get_pet.__name__ == "get_pet"


@pytest.mark.parametrize(
    ("arguments", "others", "told"),
    [
        ([], {}, "missing a required argument: 'id'"),
        (["1", "2"], {}, "too many positional arguments"),
        (["1"], {"idd": 1}, "get_pet() takes no 'idd'; it takes id"),
        (["1"], {"id": "2"}, "multiple values for argument 'id'"),
    ],
)
def test_a_wrong_call_is_told_what_the_method_takes(make, recorded, arguments, others, told):
    with pytest.raises(TypeError, match="get_pet") as caught:
        make().client.get_pet(*arguments, **others)
    assert told in str(caught.value)
    assert recorded.received == []


def test_path_arguments_may_be_named(make):
    assert make().python("put_pet", body={"a": 1}, id="7").target == "/pets/7"


class Color(enum.Enum):
    RED = "red"


class Size(str, enum.Enum):  # noqa: UP042 - the form whose str() is not its value
    BIG = "big"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Color.RED, "red"),
        (Size.BIG, "big"),
        (dt.date(2026, 12, 1), "2026-12-01"),
        (dt.datetime(2026, 12, 1, 4, 5, tzinfo=dt.UTC), "2026-12-01T04%3A05%3A00%2B00%3A00"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    ],
)
def test_values_of_python_are_written_as_what_they_stand_for(make, value, written):
    made = make()
    assert made.python("list_pets", since=value).target == f"/pets?since={written}"
    assert json.loads(made.python("put_pet", "1", {"a": value}).body)["a"] != ""


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (Answer(headers=[("Content-Type", "application/json")], body=b'{"a": 1}'), {"a": 1}),
        (Answer(headers=[("Content-Type", "application/hal+json; charset=utf-8")], body=b"[1]"), [1]),
        (Answer(headers=[("Content-Type", "text/plain")], body="é".encode()), "é"),
        (Answer(headers=[("Content-Type", "text/plain")], body=b"\xff"), b"\xff"),
        (Answer(headers=[("Content-Type", "application/json")], body=b"{"), b"{"),
        (Answer(headers=[("Content-Type", "image/png")], body=b"\x89"), b"\x89"),
        (Answer(status=204, body=b""), None),
    ],
)
def test_an_answer_is_parsed_by_what_it_says_it_is(make, answer, value):
    made = make()
    made.answer = answer
    assert made.client.list_pets() == value


def test_a_failure_is_raised_with_status_code_and_body(make):
    made = make()
    body = b'{"code": "route-not-granted", "detail": "no"}'
    made.answer = Answer(status=403, headers=[("Content-Type", "application/problem+json")], body=body)
    with pytest.raises(made.module.CallError, match="403") as caught:
        made.client.list_pets()
    assert (caught.value.status, caught.value.code) == (403, "route-not-granted")
    assert caught.value.body["detail"] == "no"


def test_a_redirect_is_no_answer_and_is_not_followed(make, recorded):
    made = make()
    made.answer = Answer(status=302, headers=[("Location", f"{recorded.origin}/elsewhere")], body=b"")
    with pytest.raises(made.module.CallError, match="302"):
        made.client.list_pets()
    assert len(recorded.received) == 1


def test_what_the_list_does_not_have_is_not_sent_and_the_nearest_are_named(make, recorded):
    made = make(allow=["GET /pets/42", {"route": "GET /pets", "query": {"limit": "int"}}])
    made.client.get_pet("42")
    made.client.list_pets(limit=3)
    recorded.received.clear()
    for call in (
        lambda: made.client.get_pet("43"),
        lambda: made.client.put_pet("42", {}),
        lambda: made.client.list_pets(kind="cat"),
        lambda: made.client.list_pets(limit="many"),
    ):
        with pytest.raises(made.module.NotAllowedError, match="nothing was sent") as caught:
            call()
        assert "GET /pets/42" in caught.value.nearest
    assert recorded.received == []


@pytest.mark.parametrize(
    ("entry", "calls", "refused"),
    [
        ("GET /pets/*", ["a", "1"], []),
        ("GET /pets/a*c", ["abc", "abbc"], ["ac", "xabc", "abcx"]),
        ("GET /pets/a*b*c", ["axbxc", "axbbxc"], ["abc", "axbc", "abxc", "axc"]),
        ("GET /pets/{who}", ["mine"], ["other"]),
        ("GET /pets/x-{who}", ["x-mine"], ["mine", "x-other"]),
        ("GET /pets/{unknown}", ["anything"], []),
    ],
)
def test_the_list_takes_what_its_templates_take(make, entry, calls, refused):
    made = make(run={"profile": "p", "routes": [entry], "params": {"who": "mine"}})
    for value in calls:
        made.client.get_pet(value)
    for value in refused:
        with pytest.raises(made.module.NotAllowedError):
            made.client.get_pet(value)


@pytest.mark.parametrize(
    ("rule", "calls", "refused"),
    [
        ("any", ["a", ""], []),
        ("cat", ["cat"], ["dog"]),
        (["cat", "dog"], ["cat"], ["cow"]),
        ({"const": "any"}, ["any"], ["cat"]),
        ({"values": ["cat"], "required": True}, ["cat"], ["dog", None]),
        ({"pattern": "c.*"}, ["cat", "dog"], []),
        ({"param": "who"}, ["mine"], ["other"]),
        ("{who}", ["mine"], ["other"]),
        ("{unknown}", ["anything"], []),
    ],
)
def test_the_list_takes_what_its_query_rules_take(make, rule, calls, refused):
    entry = {"route": "GET /pets", "query": {"kind": rule}}
    made = make(run={"profile": "p", "routes": [entry], "params": {"who": "mine"}})
    for value in calls:
        made.client.list_pets(kind=value)
    for value in refused:
        with pytest.raises(made.module.NotAllowedError):
            made.client.list_pets(kind=value)


def test_a_client_that_knows_no_list_asks_the_broker_once(make, recorded):
    made = make(allow=None)
    told = {"params": {}, "profiles": {"p": {"routes": ["GET /pets"]}, "other": {"routes": []}}}
    recorded.otherwise = lambda request: Answer(
        headers=[("Content-Type", "application/json")],
        body=json.dumps(told).encode() if request.target == "/v1/self" else b"{}",
    )
    made.client.list_pets()
    made.client.list_pets()
    with pytest.raises(made.module.NotAllowedError):
        made.client.get_pet("1")
    assert [request.target for request in recorded.received] == ["/v1/self", "/p/p/pets", "/p/p/pets"]
    assert all(request.header("authorization") == "Bearer brk_x" for request in recorded.received)


def test_a_broker_that_does_not_tell_leaves_the_judging_to_each_call(make, recorded):
    made = make(allow=None)
    recorded.otherwise = lambda request: Answer(status=404 if request.target == "/v1/self" else 200)
    made.client.list_pets()


def test_what_was_filled_in_is_for_its_own_profile_only(make, recorded):
    run = {"profile": "p", "routes": [], "params": {}}
    made = make(run=run, profile="other", allow=["GET /pets"])
    made.client.list_pets()
    assert [request.target for request in recorded.received] == ["/p/other/pets"]


def test_a_run_parameter_has_the_value_of_the_run_and_is_no_argument(make, recorded):
    made = make(params={"id": "[a-z]+"}, run={"profile": "p", "routes": ["GET /pets/{id}"], "params": {"id": "mine"}})
    assert str(inspect.signature(made.client.get_pet)) == "()"
    assert made.python("get_pet").target == "/pets/mine"


def test_a_run_parameter_that_nobody_filled_in_is_asked_for(make, recorded):
    made = make(params={"id": "[a-z]+"})
    told = {"params": {"id": "mine"}, "profiles": {"p": {"routes": ["GET /pets/{id}"]}}}
    recorded.otherwise = lambda _request: Answer(
        headers=[("Content-Type", "application/json")], body=json.dumps(told).encode()
    )
    made.client.get_pet()
    assert recorded.received[-1].target == "/p/p/pets/mine"


def test_what_was_bound_is_no_argument_and_is_always_sent(make):
    made = make(bind={"id": "42", "kind": "cat"})
    assert made.python("get_pet").target == "/pets/42"
    assert made.python("list_pets", limit=1).target == "/pets?kind=cat&limit=1"


def test_raw_calls_around_the_list_and_returns_any_status(make, recorded):
    made = make(allow=[])
    made.answer = Answer(status=404, headers=[("Content-Type", "text/plain")], body=b"no")
    assert made.client.raw("PATCH", "/../x?y", {"a": 1}) == (404, "text/plain", "no")
    (request,) = recorded.received
    assert (request.method, request.target, request.body) == ("PATCH", "/p/p/../x?y", b'{"a":1}')
    assert request.header("content-type") == "application/json"


def test_the_client_of_the_environment_is_made_when_it_is_asked_for(make, recorded, monkeypatch, tmp_path):
    monkeypatch.delenv("BROKER_URL", raising=False)
    api, document = pair.read(PETS)
    module = load(pair.files(api, document, name="pets")["client.py"], tmp_path)
    with pytest.raises(KeyError):
        _ = module.pets
    monkeypatch.setenv("BROKER_URL", recorded.origin)
    monkeypatch.setenv("BROKER_RUN_TOKEN", "brk_env")
    make()
    module.pets.list_pets()
    module.pets.close()
    assert recorded.received[-1].header("authorization") == "Bearer brk_env"
    assert module.pets is module.pets
    with pytest.raises(AttributeError):
        _ = module.cats


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:80", "http://", "http://x/?a=1", "http://x/#f"])
def test_an_url_that_is_none_of_a_broker_is_refused(make, url):
    with pytest.raises(ValueError, match="broker"):
        make().module.Client(base_url=url, token="t")


def test_the_profiles_own_url_does_as_well(make, recorded):
    made = make()
    client = made.module.Client(base_url=recorded.origin + "/p/p/", token="t")
    client.list_pets()
    client.close()
    assert recorded.received[-1].target == "/p/p/pets"


def test_calls_share_a_connection_and_each_thread_has_its_own(make, recorded):
    made = make()
    before = recorded.connections
    made.client.list_pets()
    made.client.list_pets()
    assert recorded.connections == before + 1

    def other():
        made.client.list_pets()
        made.client.close()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert recorded.connections == before + 2


def test_a_connection_that_the_other_side_closed_is_made_anew(make, recorded):
    made = make()
    made.answer = Answer(headers=[("Connection", "close")])
    made.client.put_pet("1", {})
    made.client.put_pet("1", {})
    made.client.list_pets()
    assert [request.method for request in recorded.received] == ["PUT", "PUT", "GET"]


def hanging_up(listener: socket.socket, heads: list[bytes]) -> None:
    """Answer one request of each connection as if more were welcome, and hang up."""
    for _ in range(2):
        connection, _ = listener.accept()
        with connection:
            heads.append(connection.recv(65_536).partition(b"\r\n")[0])
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def test_a_call_that_cannot_be_sent_twice_does_not_meet_a_connection_that_is_gone(make):
    module = make().module
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hanging_up, args=(listener, heads), daemon=True)
        thread.start()
        client = module.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", token="t")
        for _ in range(2):
            client.raw("POST", "/x")
            # The other side is gone as soon as this has something to read: its end.
            select.select([client._kept.connection.sock], [], [], 30)
        client.close()
        thread.join()
    assert heads == [b"POST /p/p/x HTTP/1.1"] * 2


def test_a_name_goes_twice_only_where_the_list_says_so(make, recorded):
    made = make(PATHS, allow=[{"route": "GET /form", "query": {"q": "any"}}])
    made.client.form(q=["a"])
    with pytest.raises(made.module.NotAllowedError):
        made.client.form(q=["a", "b"])
    assert len(recorded.received) == 1


def test_operations_are_found_by_words_of_theirs(make):
    client = make().client
    assert client.find("read pet") == ['get_pet(id: str): GET /pets/{id}  "Read a pet"']
    assert len(client.find()) == 3


def test_every_operation_of_the_larger_document_has_its_method(make):
    made = make(PATHS)
    assert all(callable(getattr(made.client, item["operationId"])) for one in PATHS.values() for item in one.values())
