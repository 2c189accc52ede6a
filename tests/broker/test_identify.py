from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.identify import Seen, find
from broker.placements import Registry
from config import tokens
from config.problems import ProblemError
from tests.worlds.tokens import fixed

TOKEN = fixed(tokens.RUN).encode()
OTHER = fixed(tokens.RUN, "Another").encode()
BUILT_IN = Registry()
BEARER = BUILT_IN.build({"scheme": "bearer"})


def basic(pair: bytes) -> bytes:
    return b"Basic " + base64.b64encode(pair)


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer " + TOKEN, b"bearer " + TOKEN, b"BEARER  " + TOKEN, b"Token " + TOKEN, b"token " + TOKEN,
        basic(b"user:" + TOKEN), basic(TOKEN + b":"), basic(TOKEN + b":x"), basic(TOKEN + b":" + TOKEN),
        basic(b":" + TOKEN), b"basic " + base64.b64encode(b"a:" + TOKEN),
    ],
)  # fmt: skip
def test_authorization_is_a_place_whatever_the_placement(value):
    found = find(b"/a", [(b"accept", b"x"), (b"authorization", value)])
    assert found.unverified_token == TOKEN
    for case in ({"scheme": "bearer"}, {"scheme": "header", "name": "X"}, {"scheme": "query", "name": "k"}):
        assert found.take_out(b"/a", BUILT_IN.build(case), b"") == b"/a"


@pytest.mark.parametrize(
    "headers",
    [
        [], [(b"authorization", b"Bearer ")], [(b"authorization", b"Bearer sk-123")],
        [(b"authorization", b"Basic !!!")], [(b"authorization", b"Bearer brk_short")], [(b"x-note", b"brk_")],
        [(b"authorization", b"Basic")],
    ],
)  # fmt: skip
def test_what_does_not_look_like_a_run_token_is_none(headers):
    with pytest.raises(ProblemError, match="run-token-missing"):
        find(b"/a", headers)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer " + TOKEN), (b"authorization", b"Bearer " + OTHER)],
        [(b"authorization", b"Bearer " + TOKEN), (b"x-api-key", OTHER)],
        [(b"authorization", basic(TOKEN + b":" + OTHER))],
        [(b"authorization", b"Bearer " + TOKEN), (b"cookie", b"a=" + OTHER)],
    ],
)
def test_two_that_differ_are_a_conflict(headers):
    with pytest.raises(ProblemError, match="run-token-conflict"):
        find(b"/a", headers)
    with pytest.raises(ProblemError, match="run-token-conflict"):
        find(b"/a?k=" + OTHER, headers[:1])


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        (b"/a", [(b"x-api-key", TOKEN)]),
        (b"/a", [(b"authorization", b"Bearer x" + TOKEN)]),
        (b"/a", [(b"authorization", b"Bearer " + TOKEN + b" " + TOKEN)]),
        (b"/a", [(b"authorization", b"Digest " + TOKEN)]),
        (b"/a", [(b"authorization", TOKEN)]),
        (b"/a", [(b"authorization", basic(b"x" + TOKEN + b":y"))]),
        (b"/a", [(b"authorization", b"Bearer " + TOKEN), (b"user-agent", b"x/" + TOKEN)]),
        (b"/a", [(b"proxy-authorization", b"Bearer " + TOKEN)]),
        (b"/a", [(b"cookie", b"session=" + TOKEN)]),
        (b"/a?key=" + TOKEN, []),
        (b"/" + TOKEN, []),
        (b"/" + TOKEN, [(b"authorization", b"Bearer " + TOKEN)]),
    ],
)
def test_one_that_stands_elsewhere_is_misplaced(target, headers):
    found = find(target, headers)
    with pytest.raises(ProblemError, match="run-token-misplaced"):
        found.take_out(target, BEARER, b"")


def test_a_bare_token_in_authorization_is_placed_only_where_the_placement_puts_the_key_bare():
    found = find(b"/a", [(b"authorization", TOKEN)])
    bare = BUILT_IN.build({"scheme": "header", "name": "Authorization"})
    assert found.take_out(b"/a", bare, b"") == b"/a"


@pytest.mark.parametrize(
    ("target", "rest"),
    [
        (b"/a?key=%b", b"/a"),
        (b"/a?x=1&key=%b", b"/a?x=1"),
        (b"/a?key=%b&x=1", b"/a?x=1"),
        (b"/a?x=1&key=%b&y=2", b"/a?x=1&y=2"),
        (b"/a?x=1&&key=%b", b"/a?x=1&"),
        (b"/a?key=%b&", b"/a?"),
        (b"/a?KEY=%b", None),
        (b"/a?xkey=%b", None),
        (b"/a?key=%b%%20", None),
        (b"/a?key=x%b", None),
        (b"/a?key=%b;x", None),
    ],
)
def test_exactly_one_literal_pair_is_taken_out_of_a_query(target, rest):
    query = BUILT_IN.build({"scheme": "query", "name": "key"})
    target %= TOKEN
    found = find(target, [])
    if rest is None:
        with pytest.raises(ProblemError, match="run-token-misplaced"):
            found.take_out(target, query, b"")
    else:
        assert found.take_out(target, query, b"") == rest


@pytest.mark.parametrize(
    "target",
    [
        b"/a?q=%62rk_" + TOKEN[4:],
        b"/%62rk_" + TOKEN[4:],
        b"/a?q=" + b"".join(b"%%%02X" % byte for byte in TOKEN),
        b"/a?key=" + TOKEN + b"&q=%62rk_" + TOKEN[4:],
        b"/a?key=%62rk_" + TOKEN[4:],
    ],
)
def test_one_that_is_written_with_escapes_is_misplaced(target):
    query = BUILT_IN.build({"scheme": "query", "name": "key"})
    for placement in (BEARER, query):
        with pytest.raises(ProblemError, match="run-token-misplaced"):
            find(target, [(b"authorization", b"Bearer " + TOKEN)]).take_out(target, placement, b"")


@pytest.mark.parametrize("target", [b"/a?key=%b&key=%b", b"/%b?key=%b", b"/a?key=%b&x=%b", b"/a?x=%b&key=%b"])
def test_a_second_one_in_the_target_is_misplaced(target):
    query = BUILT_IN.build({"scheme": "query", "name": "key"})
    target %= (TOKEN, TOKEN)
    with pytest.raises(ProblemError, match="run-token-misplaced"):
        find(target, []).take_out(target, query, b"")


def test_a_prefix_may_stand_before_the_token_and_need_not():
    for value in (TOKEN, b"sk-" + TOKEN):
        found = find(b"/a", [(b"authorization", b"Bearer " + value)])
        assert found.take_out(b"/a", BEARER, b"sk-") == b"/a"
    with pytest.raises(ProblemError, match="run-token-misplaced"):
        found.take_out(b"/a", BEARER, b"")


@pytest.mark.parametrize(
    "token", [TOKEN[:-1], TOKEN + b"0", TOKEN[:-1] + (b"0" if TOKEN[-1:] != b"0" else b"1"), b"brk_" + b"a" * 49]
)
def test_a_bad_checksum_is_refused_before_any_look_up(token):
    def by_digest(_: bytes) -> None:
        raise AssertionError("looked up")

    with pytest.raises(ProblemError, match="run-token-invalid"):
        find(b"/a", [(b"authorization", b"Bearer " + token)]).run(by_digest, Seen())


@given(
    st.binary(max_size=80),
    st.lists(st.tuples(st.sampled_from([b"authorization", b"cookie", b"x-a"]), st.binary(max_size=90)), max_size=4),
)
def test_nothing_that_can_be_sent_breaks_the_search(target, headers):
    code = "run-token-"
    try:
        find(target, headers).take_out(target, BEARER, b"")
    except ProblemError as problem:
        code = problem.code
    assert code.startswith("run-token-")


@given(st.binary(max_size=20), st.binary(max_size=20), st.sampled_from(["bearer", "query", "cookie", "header"]))
def test_a_token_is_never_left_in_what_goes_on(before, after, scheme):
    """Whatever surrounds it in the target: it is taken out whole, or the call is refused."""
    options = {"name": "key"} if scheme != "bearer" else {}
    placement = BUILT_IN.build({"scheme": scheme, **options})
    for target in (b"/a?" + before + b"key=" + TOKEN + after, b"/" + before + TOKEN + after):
        try:
            rest = find(target, [(b"authorization", b"Bearer " + TOKEN)]).take_out(target, placement, b"")
        except ProblemError:
            continue
        assert TOKEN not in rest


def test_what_a_connection_remembers_is_asked_for_again_each_time():
    """A run that has ended, or whose token was replaced, is not in the table any more."""
    first, second = (tokens.generate(tokens.RUN).reveal() for _ in range(2))
    table = {tokens.digest(first, tokens.RUN): "first", tokens.digest(second, tokens.RUN): "second"}
    seen = Seen()

    def opened(token: str) -> object:
        return find(b"/a", [(b"authorization", b"Bearer " + token.encode())]).run(table.get, seen)

    assert [opened(token) for token in (first, first, second, first)] == ["first", "first", "second", "first"]
    del table[tokens.digest(first, tokens.RUN)]
    with pytest.raises(ProblemError) as refused:
        opened(first)
    assert refused.value.code == "run-token-invalid"
    assert opened(second) == "second"
