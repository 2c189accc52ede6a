"""The client of JavaScript sends the bytes that Python's sends, and neither sends what no route takes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.specgen.filling import fill
from config.match import Matcher
from tests.broker.specgen import pair
from tests.broker.specgen.engine import Engine, JavaScriptError
from tests.broker.specgen.pair import Pair
from tests.broker.specgen.reading import query
from tests.config.grants_of import profile
from tests.worlds.api import Api as Recorded

MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
OBJECT = {"type": "object", "properties": {"eq": {"type": "string"}, "a b": {"type": "integer"}}}


def path(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", **schema}}


def listed(**members: Any) -> dict[str, Any]:
    return query("q", schema={"type": "array", "items": {"type": "string"}}, **members)


def op(name: str, *parameters: Any, body: tuple[str, Any] | None = None, required: bool = True) -> dict[str, Any]:
    made: dict[str, Any] = {"operationId": name, "parameters": list(parameters), "responses": {}}
    if body is not None:
        made["requestBody"] = {"required": required, "content": {body[0]: {"schema": body[1]}}}
    return made


PATHS = {
    "/free/{id}": {"get": op("free", path("id"))},
    "/id/{id}": {"get": op("whole", path("id", type="integer"))},
    "/plain/{id}": {"get": op("plain", path("id", format="uuid"))},
    "/file/{name}.json/": {"get": op("glob", path("name"))},
    "/form": {"get": op("form", listed())},
    "/comma": {"get": op("comma", listed(explode=False))},
    "/space": {"get": op("space", listed(style="spaceDelimited", explode=False))},
    "/pipe": {"get": op("pipe", listed(style="pipeDelimited", explode=False))},
    "/deep": {"get": op("deep", query("filter", style="deepObject", schema=OBJECT))},
    "/json": {"get": op("written", query("q", content={"application/json": {"schema": {"type": "object"}}}))},
    "/scalar": {"get": op("scalar", query("q", schema={"type": "string"}), query("DateCreated<", type="string"))},
    "/header": {"get": op("header", {"name": "X-Thing", "in": "header", "schema": {"type": "string"}})},
    "/body": {"post": op("send", body=("application/json", {"type": "object"}))},
    "/maybe": {"post": op("maybe", listed(), body=("application/json", {}), required=False)},
    "/urlencoded": {"post": op("urlencoded", body=("application/x-www-form-urlencoded", {"type": "object"}))},
    "/multipart": {"post": op("multipart", body=("multipart/form-data", {"type": "object"}))},
    "/text": {"post": op("text", body=("text/plain", {"type": "string"}))},
}


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    api, document = pair.read(PATHS)
    with Recorded() as recorded:
        made = Pair(pair.files(api, document), recorded, tmp_path_factory.mktemp("clients"))
        made.matcher = Matcher(profile(allow=list(api.catalog), request_headers=list(api.request_headers)))
        yield made
        made.client.close()


@pytest.mark.parametrize(
    ("method", "arguments", "others", "target"),
    [
        ("free", ["a b"], {}, "/free/a%20b"),
        ("free", ["é<>:!$&'()*,@+="], {}, "/free/%C3%A9%3C%3E:!$&'()*,@+="),
        ("free", ["\U0001f600"], {}, "/free/%F0%9F%98%80"),
        ("free", ["..a"], {}, "/free/..a"),
        ("whole", [7], {}, "/id/7"),
        ("whole", [10**18], {}, "/id/1000000000000000000"),
        ("whole", [5.0], {}, "/id/5"),
        ("glob", ["a"], {}, "/file/a.json/"),
        ("form", [], {}, "/form"),
        ("form", [], {"q": ["a", "b,c"]}, "/form?q=a&q=b%2Cc"),
        ("form", [], {"q": "alone"}, "/form?q=alone"),
        ("form", [], {"q": []}, "/form"),
        ("comma", [], {"q": ["a", "b,c"]}, "/comma?q=a,b%2Cc"),
        ("space", [], {"q": ["a", "b"]}, "/space?q=a%20b"),
        ("pipe", [], {"q": ["a", "b"]}, "/pipe?q=a%7Cb"),
        ("deep", [], {"filter": {"eq": "1"}}, "/deep?filter[eq]=1"),
        (
            "written",
            [],
            {"q": {"a": [1, "é"], "b": None}},
            "/json?q=%7B%22a%22%3A%5B1%2C%22%C3%A9%22%5D%2C%22b%22%3Anull%7D",
        ),
        ("scalar", [], {"q": "a+b&c=d#e%2F"}, "/scalar?q=a%2Bb%26c%3Dd%23e%252F"),
        ("scalar", [], {"q": True}, "/scalar?q=true"),
        ("scalar", [], {"q": False}, "/scalar?q=false"),
        ("scalar", [], {"q": 0}, "/scalar?q=0"),
        ("scalar", [], {"q": ""}, "/scalar?q="),
        ("scalar", [], {"q": None}, "/scalar"),
        ("scalar", [], {"q": 1e21}, "/scalar?q=1000000000000000000000"),
        ("scalar", [], {"q": 1e-7}, "/scalar?q=0.0000001"),
        ("scalar", [], {"q": -1.25e-9}, "/scalar?q=-0.00000000125"),
        ("scalar", [], {"q": -0.0}, "/scalar?q=0"),
        ("scalar", [], {"q": 0.1}, "/scalar?q=0.1"),
        ("scalar", [], {"q": 2**70}, "/scalar?q=1180591620717411303424"),
    ],
)
def test_both_clients_write_a_value_in_the_same_way(clients, method, arguments, others, target):
    assert clients.both(method, *arguments, **others).target == target


@pytest.mark.parametrize(
    ("method", "arguments", "others"),
    [
        ("free", ["."], {}),
        ("free", [".."], {}),
        ("free", [""], {}),
        ("free", ["a/b"], {}),
        ("free", ["../../admin/config"], {}),
        ("free", ["..\\x"], {}),
        ("free", ["%2e%2e"], {}),
        ("free", ["a?x=1"], {}),
        ("free", ["a#f"], {}),
        ("free", ["a;b"], {}),
        ("free", ["a\nb"], {}),
        ("free", ["a\x85b"], {}),
        ("plain", ["a:b"], {}),
        ("plain", ["é"], {}),
        ("glob", [".."], {}),
        ("free", [None], {}),
        ("free", [], {}),
        ("free", [{"a": 1}], {}),
        ("free", [["a"]], {}),
        ("scalar", [], {"q": "a\x00"}),
        ("scalar", [], {"q": {"a": 1}}),
        ("scalar", [], {"nothing": 1}),
        ("scalar", [], {"__proto__": 1}),
        ("deep", [], {"filter": {"other": "1"}}),
        ("deep", [], {"filter": "x"}),
        ("header", [], {"X_Thing": "a\r\nb: c"}),
        ("header", [], {"X_Thing": "é"}),
        ("send", [], {}),
        ("send", [None], {}),
        ("urlencoded", ["text"], {}),
        ("text", [{"a": 1}], {}),
    ],
)
def test_what_no_route_takes_is_refused_before_it_is_sent(clients, method, arguments, others):
    assert clients.refused(method, *arguments, **others)


SLASHES = {
    "/repo/{ref}": {"get": op("ref", path("ref"))},
    "/many/{ids}": {"get": op("many", path("ids", type="array", items={"type": "string"}))},
}


@pytest.fixture(scope="module")
def slashes(tmp_path_factory):
    api, document = pair.read(SLASHES, slashes=frozenset({"ref"}))
    with Recorded() as recorded:
        made = Pair(pair.files(api, document), recorded, tmp_path_factory.mktemp("clients"))
        yield made
        made.client.close()


def test_a_slash_goes_escaped_where_the_operator_said_so(slashes):
    assert slashes.both("ref", "heads/a b").target == "/repo/heads%2Fa%20b"


@pytest.mark.parametrize("value", ["../x", "a/../b", "a//b", "/a", "a/", "a/.", "..;x/a", "%2e%2e"])
def test_an_escaped_slash_makes_no_segment_of_dots_or_nothing(slashes, value):
    assert slashes.refused("ref", value)


def test_a_list_in_the_path_is_joined_by_commas_that_none_of_its_values_holds(slashes):
    assert slashes.both("many", ["a", "b"]).target == "/many/a,b"
    assert "comma" in slashes.refused("many", ["a,b", "c"])


def test_half_of_a_surrogate_pair_is_sent_by_neither(clients):
    for method, arguments, others in [
        ("free", ["a\ud800"], {}),
        ("scalar", [], {"q": "\udc00"}),
        ("send", [{"a": "\ud800"}], {}),
    ]:
        clients.refused(method, *arguments, **others)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
#: QuickJS writes a few numbers of 17 digits with one more than is needed: the same number, in other bytes.
FLOATS = (
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: float(f"{value:.15g}")).filter(math.isfinite)
)
SCALARS = TEXTS | st.integers(-(2**64), 2**64) | FLOATS | st.booleans()
#: Objects of JavaScript put names that are whole numbers first.
NAMES = TEXTS.map("n".__add__)
CALLS = st.one_of(
    st.tuples(st.sampled_from(["free", "plain", "glob"]), st.tuples(SCALARS), st.just({})),
    st.tuples(
        st.sampled_from(["form", "comma", "space", "pipe"]),
        st.just(()),
        st.fixed_dictionaries({"q": st.lists(SCALARS)}),
    ),
    st.tuples(
        st.just("scalar"), st.just(()), st.fixed_dictionaries({}, optional={"q": SCALARS, "DateCreated_lt": SCALARS})
    ),
    st.tuples(
        st.just("deep"),
        st.just(()),
        st.fixed_dictionaries({"filter": st.fixed_dictionaries({}, optional={"eq": SCALARS})}),
    ),
    st.tuples(st.just("header"), st.just(()), st.fixed_dictionaries({"X_Thing": SCALARS})),
    st.tuples(st.just("urlencoded"), st.tuples(st.dictionaries(NAMES, SCALARS | st.lists(SCALARS))), st.just({})),
    st.tuples(st.just("multipart"), st.tuples(st.dictionaries(NAMES, SCALARS)), st.just({})),
    st.tuples(st.just("text"), st.tuples(TEXTS.filter(bool)), st.just({})),
)


@MANY
@given(call=CALLS)
def test_both_clients_send_the_same_bytes_or_both_refuse(clients, call):
    method, arguments, others = call
    clients.recorded.received.clear()
    try:
        getattr(clients.client, method)(*arguments, **others)
    except (ValueError, TypeError):
        clients.refused(method, *arguments, **others)
        return
    sent = clients.both(method, *arguments, **others)
    clients.matcher.match(sent.method, sent.target.encode("ascii"), {})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@MANY
@given(value=st.dictionaries(TEXTS, VALUES, max_size=3) | TEXTS | st.booleans())
def test_a_body_of_json_is_the_same_value_in_both(clients, value):
    one, other = clients.python("send", value), clients.javascript("send", value)
    assert json.loads(one.body) == value
    # Text in an envelope is sent as it is, so a JSON text goes as it is written.
    assert (json.loads(other.body) if isinstance(value, str) else other.body) == value
    assert one.content_type == other.content_type == "application/json"


def test_a_body_that_may_be_left_out_stands_before_the_options(clients):
    assert clients.both("maybe", None, q=["a"]).body == b""
    sent = clients.both("maybe", [1], q=["a"])
    assert (sent.body, sent.target) == (b"[1]", "/maybe?q=a")


def test_a_file_goes_as_a_part_of_its_own(clients):
    sent = clients.python("multipart", {"a": "x", "file": ('a"b\r\n.txt', b"--form-0", "text/plain")})
    assert sent.content_type == "multipart/form-data; boundary=form-1"
    assert sent.body == (
        b'--form-1\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n'
        b'--form-1\r\nContent-Disposition: form-data; name="file"; filename="a%22b%0D%0A.txt"\r\n'
        b"Content-Type: text/plain\r\n\r\n--form-0\r\n--form-1--\r\n"
    )
    other = clients.javascript(
        "multipart", {"a": "x", "file": {"name": 'a"b\r\n.txt', "bytes": b"--form-0", "type": "text/plain"}}
    )
    assert (other.body.encode(), other.content_type) == (sent.body, sent.content_type)


def test_an_object_in_a_form_goes_as_json_and_as_a_part_it_says_so(clients):
    sent = clients.both("multipart", {"a": {"x": [1, "ü"]}, "many": [{}, "text"]})
    assert sent.body == (
        b'--form-0\r\nContent-Disposition: form-data; name="a"\r\n'
        b'Content-Type: application/json\r\n\r\n{"x":[1,"\xc3\xbc"]}\r\n'
        b'--form-0\r\nContent-Disposition: form-data; name="many"\r\n'
        b"Content-Type: application/json\r\n\r\n{}\r\n"
        b'--form-0\r\nContent-Disposition: form-data; name="many"\r\n\r\ntext\r\n--form-0--\r\n'
    )
    assert clients.both("urlencoded", {"a": {"x": [1]}}).body == b"a=%7B%22x%22%3A%5B1%5D%7D"


def test_bytes_that_are_no_text_do_not_go_through_a_host_function(clients):
    with pytest.raises(JavaScriptError, match="takes text"):
        clients.javascript("multipart", {"file": b"\xff\xfe"})
    assert clients.engine.calls == []


def engine(answer: dict[str, Any] | None = None, paths: Any = None, **options: Any) -> Engine:
    api, document = pair.read(paths or PATHS)
    source = pair.files(api, document, **options)["client.js"].decode()
    return Engine(source, None if answer is None else lambda _call: answer)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ({"status": 200, "content_type": "application/json", "body": '{"a": 1}'}, {"a": 1}),
        ({"status": 200, "content_type": "application/problem+json; charset=utf-8", "body": "[1]"}, [1]),
        ({"status": 200, "content_type": "text/plain", "body": "[1]"}, "[1]"),
        ({"status": 200, "body": {"a": 1}}, {"a": 1}),
        ({"status": 200, "body": "[1]"}, [1]),
        ({"status": 204, "content_type": "", "body": ""}, None),
        ({"status": 200, "content_type": "application/json", "body": "no json"}, "no json"),
        ({"status": 200, "content_type": "image/png", "body": "/wAB", "encoding": "base64"}, {"$bytes": [255, 0, 1]}),
    ],
)
def test_an_answer_is_parsed_by_what_it_says_it_is(answer, value):
    assert engine(answer).call("api", "form", []) == value


def test_a_failure_is_raised_with_its_status_and_code():
    body = json.dumps({"code": "route-not-granted", "detail": "no"})
    answer = {"status": 403, "content_type": "application/problem+json", "body": body}
    with pytest.raises(JavaScriptError, match="403") as caught:
        engine(answer).call("api", "form", [])
    assert (caught.value.name, caught.value.status, caught.value.code) == ("CallError", 403, "route-not-granted")


def test_what_the_list_does_not_have_is_not_sent_and_the_nearest_are_named():
    made = engine(allow=["GET /form", "GET /comma"])
    with pytest.raises(JavaScriptError) as caught:
        made.call("api", "pipe", [])
    assert caught.value.name == "NotAllowedError"
    assert set(caught.value.nearest) == {"GET /form", "GET /comma"}
    assert made.calls == []


def test_a_name_goes_twice_only_where_the_list_says_so():
    made = engine(allow=[{"route": "GET /form", "query": {"q": "any"}}])
    made.call("api", "form", [{"q": ["a"]}])
    with pytest.raises(JavaScriptError, match="nothing was sent"):
        made.call("api", "form", [{"q": ["a", "b"]}])


def test_without_a_list_everything_goes_to_the_host_function():
    made = engine(allow=None)
    made.call("api", "pipe", [])
    assert [call["path"] for call in made.calls] == ["/pipe"]


def test_a_client_that_was_filled_in_knows_what_its_run_may_do():
    api, document = pair.read(PATHS)
    source = pair.files(api, document, allow=None)["client.js"]
    filled = fill(source, "js", {"profile": "mine", "routes": ["GET /form"], "params": {}})
    made = Engine(filled.decode())
    made.call("api", "form", [])
    assert made.calls[0]["profile"] == "mine"
    with pytest.raises(JavaScriptError, match="nothing was sent"):
        made.call("api", "comma", [])


def test_raw_calls_around_the_list():
    made = engine({"status": 404, "content_type": "text/plain", "body": "no"}, allow=[])
    answer = made.call("api", "raw", ["PATCH", "/../x", {"a": 1}])
    assert answer == {"status": 404, "content_type": "text/plain", "body": "no"}
    assert made.calls == [
        {"profile": "p", "method": "PATCH", "path": "/../x", "body": {"a": 1}, "content_type": "application/json"}
    ]


def test_the_global_has_the_operations_and_nothing_that_an_object_inherits():
    made = engine()
    assert json.loads(made.eval("JSON.stringify(Object.keys(api))"))[-2:] == ["raw", "find"]
    for name in ("then", "constructor", "toString", "__proto__", "hasOwnProperty"):
        assert made.eval(f"api[{name!r}] === undefined"), name
    assert made.eval("Object.isFrozen(api) && Object.keys(api).every((name) => api.find('') instanceof Array)")


def test_members_that_a_prototype_was_given_are_never_sent():
    made = engine()
    made.eval("Object.prototype.q = 'planted'; Object.prototype.body = 'planted'")
    made.call("api", "scalar", [{}])
    made.call("api", "send", [{"a": {}}])
    assert [(call["path"], call.get("body")) for call in made.calls] == [("/scalar", None), ("/body", {"a": {}})]


def test_operations_are_found_by_words_of_theirs():
    made = engine()
    assert made.call("api", "find", ["GET comma"]) == ["comma({q?}): GET /comma"]
    assert len(made.call("api", "find", [])) == len(PATHS)


def test_operations_are_found_by_their_tags_in_either(tmp_path):
    written = pair.files(*pair.read({"/a": {"get": {**op("one"), "tags": ["Billing", "x" * 1000]}, "put": op("two")}}))
    with Recorded() as recorded:
        clients = Pair(written, recorded, tmp_path)
    assert clients.client.find("billing get") == ["one(): GET /a"]
    assert clients.engine.call("api", "find", ["billing get"]) == ["one(): GET /a"]
    assert clients.client.find("x" * 100) == clients.engine.call("api", "find", ["x" * 100]) == []


def test_an_operation_that_destroys_is_marked_where_it_is_found_and_in_every_help(tmp_path):
    told = {"summary": "Drop it", "description": "It is gone then.", "deprecated": True}
    written = pair.files(*pair.read({"/a/{id}": {"delete": {**op("drop", path("id")), **told}}}))
    with Recorded() as recorded:
        clients = Pair(written, recorded, tmp_path)
    (line,) = clients.engine.call("api", "find", ["gone DELETE"])
    assert line == 'drop(id): DELETE /a/{id}  ASK FIRST: "Drop it"'
    assert clients.client.find("gone DELETE") == [line.replace("(id)", "(id: str)")]
    help_text = [
        'ASK FIRST: "Drop it"',
        '"It is gone then."',
        'It may destroy something: "DELETE removes what it names"',
        "Deprecated.",
        "DELETE /a/{id}",
    ]
    assert clients.client.drop.__doc__.split("\n\n") == help_text
    assert repr("\n\n".join(help_text)) in written["client.pyi"].decode()
    assert "/** " + "\n   * \n   * ".join(help_text) + " */" in written["client.d.ts"].decode()
