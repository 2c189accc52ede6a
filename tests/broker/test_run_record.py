"""What the minter is told of a run: always something it takes, however many routes the code called and tried."""

import msgspec

from broker import run_record
from broker.records import ProfileRow, RunRow
from broker.run_record import MAX_COUNTS, OTHERS
from broker.trace import Trace
from config.contract import RunRecord, decode
from minter.app import MAX_RECORD
from minter.forms import check_record


def recorded(trace):
    row = RunRow(
        run_id="run_1",
        caller="agent",
        trace_id=None,
        params=b"{}",
        token_digest=b"",
        **dict.fromkeys(("created_at", "expires_at", "boot_expires_at", "ceiling_at", "boot_ceiling_at"), 0.0),
        boot_id="b",
        end_reason="expired",
        trace=trace.dump(),
        profiles=(ProfileRow(profile="api", grant_digest="sha256:" + "a" * 64, source=b"{}"),),
    )
    body = msgspec.json.encode(run_record.run_record(row))
    assert len(body) <= MAX_RECORD
    record = decode(RunRecord, body)
    check_record(record)
    return record


def filled(routes, calls, *, long=0):
    trace = Trace()
    for number in range(routes):
        for _ in range(calls(number)):
            route = f"GET /v1/{number:06d}" + "x" * long
            trace.record("api", "GET", route, status=200, delivered=True, bytes_sent=0, bytes_back=0, milliseconds=0.0)
            trace.denied("route-reserved", route, profile="api")
    return trace


def test_few_counts_are_all_named():
    trace = filled(3, lambda _: 1)
    trace.denied("profile-not-granted")
    record = recorded(trace)
    assert {count.route for count in record.by_route} == {f"GET /v1/{number:06d}" for number in range(3)}
    assert sum(count.calls for count in record.denied_by) == 4
    assert [(count.profile, count.route) for count in record.denied_by if count.code == "profile-not-granted"] == [
        ("", None)
    ]


def test_code_that_tries_every_route_of_a_catalog_cannot_keep_its_record_from_being_taken():
    record = recorded(filled(3000, lambda number: 2 if number == 2999 else 1))
    for counts in (record.by_route, record.denied_by):
        assert len(counts) == MAX_COUNTS + 1
        assert counts[0].calls == 2
        assert (counts[-1].route, counts[-1].calls) == (OTHERS, 3000 - MAX_COUNTS)
        assert sum(count.calls for count in counts) == 3001


def test_long_templates_are_counted_together_as_well():
    record = recorded(filled(300, lambda _: 1, long=1500))
    assert record.by_route[-1].route == OTHERS
    assert sum(count.calls for count in record.by_route) == 300
