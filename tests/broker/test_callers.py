from __future__ import annotations

from types import SimpleNamespace

import pytest

from broker.callers import Callers, Failures, bearer
from config import tokenfiles, tokens
from config.clock import FakeClock
from config.errors import ConfigurationError
from config.load import edit_token_file
from config.problems import ProblemError


def create(path, id_):
    issued = []

    def change(file):
        principals, token = tokenfiles.create(file.principals(), tokenfiles.Principal(id=id_), tokens.CALLER)
        issued.append(token.reveal())
        return tokenfiles.TokenFile(callers=principals)

    edit_token_file(path, change)
    return issued[0]


def scope(token=None, *, uid=None, client="127.0.0.1", scheme="Bearer"):
    headers = [] if token is None else [(b"authorization", f"{scheme} {token}".encode())]
    return {"headers": headers, "peer": SimpleNamespace(uid=uid) if uid is not None else None, "client": (client, 5)}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "callers.json"


@pytest.fixture
def token(path):
    return create(path, "orchestrator")


@pytest.fixture
def callers(path, token, clock):
    return Callers(path, clock, Failures(clock))


def code(callers, given):
    with pytest.raises(ProblemError) as refused:
        callers.authenticate(given)
    return refused.value.code


def test_a_listed_token_names_its_caller(callers, token):
    assert callers.authenticate(scope(token)) == "orchestrator"
    assert callers.authenticate(scope(token, scheme="bearer")) == "orchestrator"


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="empty"),
        pytest.param(tokens.generate(tokens.CALLER).reveal(), id="unknown"),
        pytest.param(tokens.generate(tokens.RUN).reveal(), id="a run token"),
        pytest.param(tokens.generate(tokens.BROKER).reveal(), id="a broker token"),
        pytest.param("clr_" + "0" * 49, id="bad checksum"),
        pytest.param("clr_\N{LATIN SMALL LETTER E WITH ACUTE}" + "0" * 48, id="not ASCII"),
    ],
)
def test_any_other_token_is_refused_alike(callers, given):
    assert code(callers, scope(given)) == "caller-token-invalid"


def test_a_token_in_another_scheme_is_refused(callers, token):
    assert code(callers, scope(token, scheme="Basic")) == "caller-token-invalid"
    assert code(callers, scope(token, scheme="Bearer:")) == "caller-token-invalid"


def test_two_authorization_headers_are_refused_even_if_both_are_right(callers, token):
    given = scope(token)
    given["headers"] *= 2
    assert code(callers, given) == "request-malformed"
    assert bearer([(b"Authorization", b"Bearer x")]) == "x"


def test_during_the_overlap_of_a_rotation_both_tokens_work_and_then_only_the_new_one(callers, path, token, clock):
    issued = []

    def rotate(file):
        principals, new = tokenfiles.rotate(
            file.principals(), "orchestrator", tokens.CALLER, now=clock.now(), overlap_s=60
        )
        issued.append(new.reveal())
        return tokenfiles.TokenFile(callers=principals)

    edit_token_file(path, rotate)
    assert callers.refresh()
    assert callers.authenticate(scope(token)) == callers.authenticate(scope(issued[0])) == "orchestrator"
    clock.advance(59)
    assert callers.authenticate(scope(token)) == "orchestrator"
    clock.advance(1)
    assert code(callers, scope(token)) == "caller-token-invalid"
    assert callers.authenticate(scope(issued[0])) == "orchestrator"


def test_a_caller_that_is_created_while_the_broker_runs_is_known_at_the_next_look(callers, path):
    token = create(path, "second")
    assert code(callers, scope(token)) == "caller-token-invalid"
    assert callers.refresh()
    assert callers.authenticate(scope(token)) == "second"
    assert not callers.refresh()


@pytest.mark.parametrize("content", [b"{", b'{"callers": [{"id": "x", "tokens": [{"sha256": "short"}]}]}', None])
def test_a_file_that_does_not_load_leaves_the_callers_as_they_were(callers, path, token, content):
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert not callers.refresh()
    assert callers.authenticate(scope(token)) == "orchestrator"
    create_again = path.with_name("new.json")
    other = create(create_again, "other")
    create_again.rename(path)
    assert callers.refresh()
    assert callers.authenticate(scope(other)) == "other"
    assert code(callers, scope(token)) == "caller-token-invalid"


def test_a_missing_file_stops_the_start(tmp_path, clock):
    with pytest.raises(ConfigurationError):
        Callers(tmp_path / "nowhere.json", clock, Failures(clock))


def test_a_thousand_wrong_tokens_do_not_lock_out_the_right_one(callers, token):
    wrong = tokens.generate(tokens.CALLER).reveal()
    codes = [code(callers, scope(wrong, uid=1000)) for _ in range(1000)]
    assert codes[:20] == ["caller-token-invalid"] * 20
    assert codes[20:] == ["too-many-requests"] * 980
    assert callers.authenticate(scope(token, uid=1000)) == "orchestrator"


def test_wrong_tokens_of_one_peer_do_not_slow_down_another(callers, clock):
    for _ in range(30):
        code(callers, scope("clr_wrong", uid=1000))
    assert code(callers, scope("clr_wrong", uid=1001)) == "caller-token-invalid"
    assert code(callers, scope("clr_wrong", client="10.0.0.1")) == "caller-token-invalid"
    assert code(callers, scope("clr_wrong", uid=1000)) == "too-many-requests"
    clock.advance(1)
    assert code(callers, scope("clr_wrong", uid=1000)) == "caller-token-invalid"


def test_wrong_tokens_from_very_many_peers_are_slowed_down_together(callers):
    codes = [code(callers, scope("clr_wrong", client=f"10.0.{n // 256}.{n % 256}")) for n in range(300)]
    assert codes.count("caller-token-invalid") == 200
    assert codes.count("too-many-requests") == 100


def test_the_memory_of_wrong_tokens_is_bounded(clock):
    failures = Failures(clock)
    for n in range(10_000):
        failures.failed(scope("x", client=str(n)), "caller-token-invalid")
    assert len(failures._peers) == Failures._PEERS
