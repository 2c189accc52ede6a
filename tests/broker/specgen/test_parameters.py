"""The parameters of an operation: what the code gives, what is fixed, what it is never offered, and what is lost."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.specgen.model import Argument
from broker.specgen.queries import path_options, query_rules
from config.query import compile_query
from tests.broker.specgen import operating, reading
from tests.broker.specgen.reading import ITEM, parameters, query, rules, told


def path(name="id", **fields):
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, **fields}


def header(name, **fields):
    return {"name": name, "in": "header", "schema": {"type": "string"}, **fields}


def only(found) -> Argument:
    (argument,) = found.arguments
    return argument


def names(found) -> list[str]:
    return [argument.name for argument in found.arguments]


def levels(found) -> list[str]:
    return [note.level for note in found.notes]


# Where a parameter is declared


def test_a_parameter_of_the_path_item_is_inherited():
    within = reading.document(components={"parameters": {"first-parameter": query("first", type="integer")}})
    found = parameters(shared=[{"$ref": "#/components/parameters/first-parameter"}], within=within)
    assert only(found).name == "first"
    assert only(found).schema.pointer == "#/components/parameters/first-parameter/schema"
    assert found.notes == ()


def test_the_operations_own_parameter_wins_by_name_and_place():
    own = [query("a", type="integer"), query("c")]
    found = parameters(*own, shared=[query("a", required=True), header("a"), query("b")])
    assert [(one.name, one.place, one.required) for one in found.arguments] == [
        ("a", "query", False),
        ("b", "query", False),
        ("c", "query", False),
        ("a", "header", False),
    ]
    assert found.arguments[0].schema.schema == {"type": "integer"}


def test_a_header_is_the_same_one_in_any_case():
    found = parameters(header("X-Trace", required=True), shared=[header("x-trace")])
    assert [(one.name, one.required) for one in found.arguments] == [("X-Trace", True)]


def test_a_parameter_that_stands_twice_counts_once_and_is_told():
    found = parameters(query("a", type="integer"), query("a", type="string"))
    assert only(found).schema.schema == {"type": "integer"}
    assert told(found) == [("warn", 'query parameter "a": stands twice; the first one counts')]
    assert found.notes[0].pointer == f"{ITEM}/get/parameters/1"


@pytest.mark.parametrize(
    "reference",
    ["https://api.swaggerhub.com/domains/x/1.0#/components/parameters/Limit", "#/components/parameters/Limit", 7],
)
def test_a_parameter_that_cannot_be_resolved_stops_the_operation_and_not_only_itself(reference):
    found = parameters(query("a"), {"$ref": reference})
    assert levels(found) == ["stop"]
    assert found.notes[0].pointer == f"{ITEM}/get/parameters/1"
    assert found.notes[0].remedy


def test_a_name_of_the_template_that_no_parameter_declares_is_a_required_text():
    found = parameters(names=("id",))
    assert found.path["id"] == Argument(
        identifier="", name="id", place="path", required=True, schema=found.path["id"].schema
    )
    assert found.path["id"].schema.schema == {"type": "string"}
    assert told(found) == [("warn", 'path parameter "id" is not declared; it is taken as a text')]


def test_a_declared_name_that_the_template_lacks_is_left_out_and_told():
    found = parameters(path("id"), path("other"), names=("id",))
    assert list(found.path) == ["id"]
    assert told(found) == [("warn", 'path parameter "other": does not stand in the path; it is left out')]


def test_a_parameter_of_the_path_is_required_whatever_it_says():
    found = parameters(path("id", required=False), names=("id",))
    assert found.path["id"].required
    assert found.notes == ()


def test_names_of_the_template_keep_their_order():
    found = parameters(path("b"), path("a"), names=("a", "b", "c", "a"))
    assert list(found.path) == ["a", "b", "c"]


def test_required_arguments_come_first_and_headers_last():
    own = [header("X-A"), header("X-B", required=True), query("c"), query("d", required=True)]
    assert names(parameters(*own)) == ["d", "X-B", "c", "X-A"]


def test_what_a_parameter_says_of_itself_is_kept_as_it_is():
    found = parameters(query("q", description="What\nto find\u202e", required=True))
    assert only(found).description == "What\nto find\u202e"
    assert only(found).required


def test_a_parameter_without_a_schema_takes_any_text():
    found = parameters({"name": "q", "in": "query"})
    assert rules({"name": "q", "in": "query"}) == {"q": "any"}
    assert told(found) == [("warn", 'query parameter "q": has no schema; any text is taken')]


def test_a_schema_that_cannot_be_resolved_limits_its_parameter():
    found = parameters(query("q", schema={"$ref": "#/none"}))
    assert names(found) == ["q"]
    assert levels(found) == ["limit"]


# How it is written


@pytest.mark.parametrize(
    ("members", "style", "explode", "shape"),
    [
        ({"type": "string"}, "form", True, "scalar"),
        ({"type": "array", "items": {"type": "string"}}, "form", True, "array"),
        ({"type": "array", "explode": False}, "form", False, "array"),
        ({"type": "array", "style": "spaceDelimited"}, "spaceDelimited", False, "array"),
        ({"type": "array", "style": "pipeDelimited", "explode": False}, "pipeDelimited", False, "array"),
        ({"type": "array", "style": "pipeDelimited", "explode": True}, "form", True, "array"),
        ({"type": "string", "style": "spaceDelimited"}, "form", False, "scalar"),
        ({"type": "string", "style": "deepObject"}, "form", True, "scalar"),
        ({"type": "array", "explode": "no"}, "form", True, "array"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "form", True, "array"),
        ({"anyOf": [{"type": "string"}, {"properties": {"a": {}}}]}, "form", True, "scalar"),
        ({"properties": {"a": {}}, "explode": False}, "form", False, "object"),
        ({"properties": {"a": {}}, "style": "pipeDelimited"}, "pipeDelimited", False, "object"),
        ({"properties": {"a": {}}, "style": "deepObject", "explode": False}, "deepObject", True, "object"),
        ({"content": {"application/json": {"schema": {"type": "object"}}}}, "json", False, "scalar"),
        ({"content": {"application/vnd.x+json; charset=utf-8": {}}}, "json", False, "scalar"),
    ],
)
def test_a_query_value_is_written_in_its_style_or_the_default_one(members, style, explode, shape):
    argument = only(parameters(query(**members)))
    assert (argument.style, argument.explode, argument.shape) == (style, explode, shape)


def test_values_of_paths_and_headers_are_written_simply():
    listed = {"type": "array", "items": {"type": "integer"}}
    found = parameters(path("id", schema=listed), header("X-Ids", schema=listed), names=("id",))
    for argument in (found.path["id"], only(found)):
        assert (argument.style, argument.explode, argument.shape) == ("simple", False, "array")


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"style": "curly"}, 'unknown style "curly"'),
        ({"style": "simple"}, 'unknown style "simple"'),
        ({"style": ["form"]}, "unknown style (no text)"),
        ({"style": "deepObject", "type": "array"}, "says nothing of lists"),
        ({"type": "array", "items": {"type": "object"}}, "a list of lists or objects"),
        ({"type": "object"}, "names no member that can be sent"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "names no member that can be sent"),
        ({"style": "deepObject"}, "names no member that can be sent"),
        ({"style": "deepObject", "properties": {"a": {"type": "object"}}}, "names no member that can be sent"),
        ({"style": "pipeDelimited", "explode": True, "properties": {"a": {}}}, "not defined"),
        ({"content": {"text/csv": {}}}, "only JSON is carried"),
        ({"content": {"application/json": {}, "text/plain": {}}}, "not one media type"),
        ({"content": {}}, "not one media type"),
        ({"content": []}, "not one media type"),
        ({"content": {"application/json": {"$ref": "#/none"}}}, "leads to nothing"),
    ],
)
def test_what_no_client_can_write_limits_an_optional_parameter_and_stops_a_required_one(members, says):
    optional = parameters(query(**members))
    assert optional.arguments == ()
    assert levels(optional)[-1] == "limit"
    assert says in optional.notes[-1].reason
    required = parameters(query(**members, required=True))
    assert required.arguments == ()
    assert levels(required)[-1] == "stop"
    assert says in required.notes[-1].reason


@pytest.mark.parametrize("style", ["label", "matrix"])
def test_a_path_in_the_style_of_labels_or_matrices_stops_the_operation(style):
    found = parameters(path("id", style=style), names=("id",))
    assert told(found) == [("stop", f'path parameter "id": is written in the style {style}; it is required')]
    assert found.path["id"].name == "id"


@pytest.mark.parametrize("explode", [False, True])
def test_an_object_of_a_header_or_in_one_value_keeps_its_members(explode):
    schema = {"properties": {"a": {}, "b": {}}}
    whole = query("q", explode=False, schema=schema)
    found = parameters(whole, header("X-Page", explode=explode, schema=schema))
    assert [(one.name, one.members) for one in found.arguments] == [("q", ("a", "b")), ("X-Page", ("a", "b"))]
    assert found.notes == ()


def test_a_deep_object_has_the_members_that_one_pair_can_carry():
    deep = {"eq": {"type": "integer"}, "in": {"type": "array"}, "not": {"properties": {"eq": {}}}, "a b": {}}
    found = parameters(query("filter", style="deepObject", schema={"type": "object", "properties": deep}))
    assert only(found).members == ("eq",)
    assert told(found) == [("limit", 'query parameter "filter": its members "in", "not", "a b" cannot be sent')]


def test_a_required_member_that_cannot_be_sent_loses_the_object():
    deep = {"properties": {"eq": {}, "in": {"type": "array"}}, "required": ["in"]}
    found = parameters(query("filter", style="deepObject", schema=deep))
    assert found.arguments == ()
    assert told(found) == [("limit", 'query parameter "filter": its required members "in" cannot be sent')]


@pytest.mark.parametrize(
    "rest", [{"additionalProperties": True}, {"additionalProperties": {}}, {"patternProperties": {"x": {}}}]
)
def test_an_object_that_takes_other_members_too_is_limited_to_those_it_names(rest):
    found = parameters(query("page", schema={"properties": {"limit": {}}, **rest}))
    assert only(found).members == ("limit",)
    assert levels(found) == ["limit"]


def test_an_exploded_objects_member_is_not_another_parameter():
    schema = {"properties": {"limit": {"type": "integer"}, "offset": {}, "auth_token": {}, "key": {}}}
    found = parameters(query("page", schema=schema), query("limit"), refused=("key",))
    assert {one.name: one.members for one in found.arguments} == {"page": ("offset",), "limit": ()}
    assert levels(found) == ["limit"]
    assert '"limit", "auth_token", "key"' in found.notes[0].reason
    assert rules(query("page", schema=schema), query("limit"), refused=("key",)) == {"offset": "any", "limit": "any"}


def test_two_exploded_objects_do_not_share_a_member():
    page = {"properties": {"limit": {}, "offset": {}}}
    found = parameters(query("page", schema=page), query("more", schema=page, required=True))
    assert {one.name: one.members for one in found.arguments} == {"page": ("limit", "offset")}
    assert levels(found) == ["stop"]


# What the code is never offered


@pytest.mark.parametrize(
    "name", ["access_token", "oauth_token", "api_key", "apiKey", "authToken", "client_secret", "jwt"]
)
def test_a_query_parameter_that_carries_a_credential_is_not_offered(name):
    found = parameters(query(name))
    assert found.arguments == ()
    assert levels(found) == ["warn"]
    assert "carries a credential" in found.notes[0].reason


def test_a_key_that_is_called_an_api_key_in_prose_is_one():
    for place in ("query", "header"):
        assert parameters({"name": "key", "in": place, "description": "The API key of your project."}).arguments == ()
    assert names(parameters(query("key", description="The key of the entry."))) == ["key"]
    assert names(parameters(query("owner", description="Who made the API key."))) == ["owner"]
    assert names(parameters(query("key", description=["API key"]))) == ["key"]


@pytest.mark.parametrize(
    "name",
    [
        "pageToken",
        "page_token",
        "next_token",
        "continuation-token",
        "token_type",
        "secret_name",
        "key",
        "sort_keys",
        "tokens",
    ],
)
def test_a_query_parameter_about_pages_or_about_keys_is_offered(name):
    assert names(parameters(query(name))) == [name]


@pytest.mark.parametrize("place", ["query", "header", "cookie"])
@pytest.mark.parametrize("required", [False, True])
def test_the_name_of_a_security_scheme_is_not_offered_even_when_it_is_required(place, required):
    found = parameters({"name": "Appid", "in": place, "required": required, "schema": {}}, refused=("appid",))
    assert found.arguments == ()
    assert levels(found) == ["warn"]


def test_a_required_credential_that_no_scheme_sends_is_told_as_a_limit():
    found = parameters(query("access_token", required=True), header("X-Auth-Token", required=True))
    assert found.arguments == ()
    assert levels(found) == ["limit", "limit"]
    assert found.notes[0].remedy.endswith("--placement query:access_token")
    assert found.notes[1].remedy.endswith("--placement header:X-Auth-Token")


@pytest.mark.parametrize("name", ["Accept", "content-type", "AUTHORIZATION"])
def test_headers_with_places_of_their_own_are_ignored_as_the_specification_says(name):
    found = parameters(header(name, required=True))
    assert found.arguments == ()
    assert levels(found) == ["warn"]
    assert "is ignored" in found.notes[0].reason


def test_a_query_named_like_such_a_header_is_offered():
    assert names(parameters(query("accept"), query("content-type"))) == ["accept", "content-type"]


@pytest.mark.parametrize("name", ["Host", "content-length"])
def test_headers_that_whoever_sends_writes_are_not_offered(name):
    assert levels(parameters(header(name, required=True))) == ["warn"]


@pytest.mark.parametrize(
    "name",
    ["Connection", "Proxy-Foo", "X-Forwarded-For", "X-HTTP-Method-Override", "Broker-Run", "a b", "x\r\ny", "\u00e9"],
)
def test_a_header_that_the_broker_never_passes_limits_or_stops(name):
    assert levels(parameters(header(name))) == ["limit"]
    assert levels(parameters(header(name, required=True))) == ["stop"]
    assert parameters(header(name)).arguments == ()


def test_an_optional_cookie_is_a_limit_and_a_required_one_stops():
    cookie = {"name": "session", "in": "cookie", "schema": {}}
    optional, required = parameters(cookie), parameters({**cookie, "required": True})
    assert told(optional) == [("limit", 'cookie parameter "session": a cookie never passes')]
    assert told(required) == [("stop", 'cookie parameter "session": a cookie never passes; it is required')]
    assert required.notes[0].remedy.endswith("--placement cookie:session")


@pytest.mark.parametrize("place", ["querystring", "body", "formData", "elsewhere", ""])
def test_a_place_that_is_not_known_limits_or_stops(place):
    assert levels(parameters({"name": "a", "in": place})) == ["limit"]
    assert levels(parameters({"name": "a", "in": place, "required": True})) == ["stop"]


def test_a_path_parameter_named_like_a_credential_is_told():
    found = parameters(path("webhook_token"), path("token_id"), names=("webhook_token", "token_id"))
    assert levels(found) == ["limit"]
    assert found.notes[0].remedy.startswith("--param webhook_token,")
    by_run = parameters(path("webhook_token"), names=("webhook_token",), params={"webhook_token": "x"})
    assert by_run.notes == ()


@pytest.mark.parametrize("mark", ["x-multi-segment", "allowReserved"])
def test_a_path_parameter_whose_values_may_hold_slashes_is_reported_and_not_acted_on(mark):
    found = parameters(path("path", **{mark: True}), names=("path",))
    assert levels(found) == ["limit"]
    assert found.notes[0].remedy.startswith("--slashes path,")
    assert parameters(path("path", **{mark: True}), names=("path",), slashes=frozenset({"path"})).notes == ()


def test_a_remedy_never_shows_a_name_that_a_shell_would_read():
    found = parameters(path("$(reboot)token", **{"x-multi-segment": True}), names=("$(reboot)token",))
    assert [note.remedy.partition(",")[0] for note in found.notes] == ["--param NAME", "--slashes NAME"]
    assert parameters({"name": "; reboot", "in": "cookie"}).notes[0].remedy.endswith("cookie:NAME")


def test_an_empty_value_is_told_where_the_rule_would_not_take_it():
    assert levels(parameters(query("q", type="integer", allowEmptyValue=True))) == ["limit"]
    assert levels(parameters(query("q", type="string", allowEmptyValue=True))) == []


# Names


def test_names_of_queries_are_kept_byte_for_byte():
    wire = ["include[]", "$.xgafv", "deployment.series_name", "self", "client", "body", "values"]
    assert names(parameters(*map(query, wire))) == wire


@pytest.mark.parametrize("name", ["a b", "a&b", "a=b", "a%20b", "\u00e9", "a\nb", "x" * 257, "a#b", "a;b"])
def test_a_query_name_that_no_rule_can_write_limits_or_stops(name):
    assert levels(parameters(query(name))) == ["limit"]
    assert levels(parameters(query(name, required=True))) == ["stop"]
    assert "a query name is" in parameters(query(name)).notes[0].reason


def test_only_names_that_stand_in_the_query_are_held_to_its_rules():
    flat = query("a b", schema={"properties": {"limit": {}}})
    found = parameters(path("a b"), header("a#b"), flat, names=("a b",))
    assert names(found) == ["a b", "a#b"]
    assert found.notes == ()


def test_a_name_in_a_note_is_bounded_and_of_one_line():
    (note,) = parameters(query("a\n\u202e" * 10_000)).notes
    assert len(note.reason) < 300
    assert note.reason.isprintable()


# What the operator fixes


def test_a_bound_query_parameter_is_fixed_and_no_argument():
    found = parameters(query("org", required=True, type="integer"), query("q"), bind={"org": "42"})
    assert found.fixed_query == (("org", "42"),)
    assert names(found) == ["q"]
    assert rules(query("org"), bind={"org": "42"}) == {"org": {"const": "42", "required": True}}


def test_a_header_is_not_bound():
    found = parameters(header("X-Org"), bind={"X-Org": "42"})
    assert found.fixed_query == ()
    assert names(found) == ["X-Org"]


def test_a_member_is_bound_by_the_name_that_is_sent():
    deep = query("filter", style="deepObject", schema={"properties": {"eq": {"type": "integer"}, "org": {}}})
    found = parameters(deep, bind={"filter[org]": "42"})
    assert found.fixed_query == (("filter[org]", "42"),)
    assert only(found).members == ("eq",)
    assert rules(deep, bind={"filter[org]": "42"})["filter[org]"] == {"const": "42", "required": True}
    flat = query("page", schema={"properties": {"org": {}}})
    assert parameters(flat, bind={"org": "42"}).fixed_query == (("org", "42"),)
    assert parameters(flat, bind={"org": "42"}).arguments == ()


def test_an_object_that_is_bound_as_a_whole_is_not_offered_at_all():
    deep = {"style": "deepObject", "schema": {"properties": {"eq": {}}}}
    found = parameters(query("filter", **deep), bind={"filter": "x"})
    assert (found.arguments, found.fixed_query, levels(found)) == ((), (), ["limit"])
    assert '"filter[eq]"' in found.notes[0].remedy
    assert levels(parameters(query("filter", **deep, required=True), bind={"filter": "x"})) == ["stop"]


@pytest.mark.parametrize("name", ["q", "page[q]"])
def test_a_value_that_no_query_holds_is_not_bound(name):
    deep = query("page", style="deepObject", schema={"properties": {"q": {}, "r": {}}})
    found = parameters(query("q"), deep, bind={name: "a\nb"})
    assert levels(found) == ["stop"]
    assert "a\nb" not in found.notes[0].reason


def test_a_parameter_that_the_path_itself_fixes_is_no_argument():
    page = query("page", schema={"properties": {"beta": {}, "limit": {}}})
    api = operating.api({"/r?beta=true": operating.get(parameters=[query("beta", required=True), query("q"), page])})
    operation = operating.one(api)
    assert operation.fixed_query == (("beta", "true"),)
    assert [(one.name, one.members) for one in operation.arguments] == [("q", ()), ("page", ("limit",))]
    assert operation.route["query"] == {"q": "any", "limit": "any", "beta": {"const": "true", "required": True}}


def test_a_credential_is_not_bound():
    found = parameters(query("access_token"), bind={"access_token": "x"})
    assert (found.fixed_query, found.arguments) == ((), ())


# Wrong types and sizes


@pytest.mark.parametrize(
    "written",
    [
        *({"a": 1}, "name", 7, True, [7], ["x"], [[]], [None], [{}], [{"name": "a"}], [{"in": "query"}]),
        *([{"name": 1, "in": "query"}], [{"name": "a", "in": ["query"]}], [{"name": "", "in": "query"}]),
    ],
)
def test_parameters_of_a_wrong_type_stop_the_operation(written):
    found = parameters(shared=written)
    assert set(levels(found)) == {"stop"}
    assert found.notes[0].pointer.startswith(f"{ITEM}/parameters")


def test_more_parameters_than_any_operation_has_stop_it():
    many = [query(f"q{index}") for index in range(501)]
    assert levels(parameters(*many)) == ["stop"]
    assert levels(parameters(*many[:500])) == []


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.text(max_size=4)
    | st.sampled_from(
        (
            *("string", "object", "array", "query", "path", "header", "cookie", "deepObject", "form", "matrix", "id"),
            *("#/components/parameters/a", "application/json", "#/paths/~1x"),
        )
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    *("$ref", "name", "in", "required", "style", "explode", "schema", "content", "type", "items"),
                    *("enum", "properties", "application/json", "allOf", "anyOf", "description", "const", "format"),
                )
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)
NEARLY = st.fixed_dictionaries(
    {"name": st.sampled_from(["id", "q", "a[b]", "X-A"]), "in": st.sampled_from(["path", "query", "header", "cookie"])},
    optional={
        "required": ANYTHING,
        "style": st.sampled_from(["form", "simple", "deepObject", "pipeDelimited"]) | ANYTHING,
        "explode": st.booleans() | ANYTHING,
        "schema": ANYTHING,
        "content": ANYTHING,
        "description": ANYTHING,
    },
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(ANYTHING | st.lists(NEARLY, max_size=4), ANYTHING | st.lists(NEARLY, max_size=4), ANYTHING)
def test_parameters_of_any_type_anywhere_never_fail(shared, own, component):
    within = reading.document("3.1.0", components={"parameters": {"a": component}})
    found = parameters(shared=shared, names=("id",), within=within, bind={"q": "1"})
    written = reading.read_parameters(
        within,
        {"parameters": shared},
        ITEM,
        {"parameters": own},
        ITEM + "/get",
        names=("id",),
        choices=reading.Choices(),
        refused=frozenset(),
    )
    for one in (found, written):
        assert compile_query(query_rules(within, one.arguments, one.fixed_query))[1] == []
        for argument in one.path.values():
            path_options(within, argument, reading.Choices())
        assert all(note.pointer and note.reason for note in one.notes)
