from __future__ import annotations

import json

from broker.specgen.model import Note, Security
from broker.specgen.report import label, report_json, report_text
from broker.specgen.summary import next_steps, summary
from tests.broker.specgen.making import api, told

HOSTILE = "x\u202e\x1b[31m\n\u200b{{evil}}"


def text(**changed) -> str:
    return report_text(api(**changed)).decode()


def test_the_counts_add_up_to_the_operations_of_the_document():
    report = json.loads(report_json(api()))
    counts = report["counts"]
    assert counts == {
        "operations": 4,
        "carried": 1,
        "limited": 1,
        "left-out": 1,
        "not-carried": 1,
        "routes": 3,
    }
    assert [one["status"] for one in report["operations"]] == ["carried", "limited", "left-out", "not-carried"]
    assert "4 operations: 1 carried, 1 carried with a limit, 1 left out, 1 not carried" in text()


def test_one_operation_is_no_operations():
    assert "1 operation: 1 carried" in text(told=(told("GET /pets"),))


def test_every_operation_is_told_once_with_pointer_reason_and_remedy():
    shown = text()
    for one in api().told:
        assert shown.splitlines().count("  " + label(one)) == 1
        assert shown.splitlines().count("    " + one.pointer) == 1
    assert "limit: #/x: a value holds no slash" in shown
    assert "remedy: --slashes id" in shown
    told_ = json.loads(report_json(api()))["operations"][1]
    assert told_["pointer"] == api().told[1].pointer
    assert told_["notes"] == [
        {"level": "limit", "pointer": "#/x", "reason": "a value holds no slash", "remedy": "--slashes id"}
    ]


def test_a_pointer_inside_its_operation_is_written_from_there_on():
    made = {"told": (told("GET /pets", "limited", Note("limit", "#/paths/GET ~1pets/parameters/0", "a cookie")),)}
    assert "    limit: .../parameters/0: a cookie" in text(**made).splitlines()
    made = {"told": (told("GET /pets", "limited", Note("limit", "#/paths/GET ~1pets", "all of it")),)}
    assert "    limit: all of it" in text(**made).splitlines()


def test_what_is_not_carried_stands_before_what_is():
    shown = text()
    headings = ["Not carried: 1", "Carried with a limit: 1", "Left out: 1", "Carried: 1"]
    assert [shown.index(heading) for heading in headings] == sorted(shown.index(heading) for heading in headings)


def test_questions_and_notes_on_the_whole_document_are_named():
    security = Security(placement=None, question="what stands before the key?", scopes=("read:pets",))
    made = {"security": security, "notes": (Note("warn", "#/servers/1", "another host"),)}
    assert "placement: what stands before the key?" in text(**made)
    assert "warn: #/servers/1: another host" in text(**made)
    assert "read:pets" in text(**made)
    report = json.loads(report_json(api(**made)))
    assert report["questions"] == [{"field": "placement", "question": "what stands before the key?"}]
    assert report["notes"][0]["reason"] == "another host"


def test_texts_of_the_document_are_cleaned_for_people_and_encoded_for_machines():
    made = {
        "title": HOSTILE,
        "source": HOSTILE,
        "told": (told(f"GET /{HOSTILE}", "not-carried", Note("stop", HOSTILE, HOSTILE, HOSTILE), id_=HOSTILE),),
    }
    for character in "\u202e\x1b\u200b":
        assert character not in text(**made)
        assert not any(character in line for line in summary(api(**made)))
    data = report_json(api(**made))
    assert data.isascii()
    assert json.loads(data)["title"] == HOSTILE


def test_a_megabyte_in_a_label_makes_no_long_report():
    made = {"told": (told("GET /" + "x" * 1_000_000, "carried", id_="y" * 1_000_000),)}
    assert len(text(**made)) < 5000


def test_the_report_has_no_line_that_only_a_wide_screen_shows():
    notes = [Note("warn", "", "word " * 200, "remedy " * 100)]
    assert max(map(len, text(notes=tuple(notes)).splitlines())) <= 120


def test_the_summary_names_the_first_that_are_not_carried_and_counts_the_rest():
    reason = Note("stop", "", "its host is another")
    many = tuple(told(f"GET /{number}", "not-carried", Note("warn", "", "odd"), reason) for number in range(8))
    lines = list(summary(api(told=many)))
    assert lines[0] == "8 operations: 8 not carried"
    assert lines[1] == "not carried: GET /0: its host is another"
    assert lines[-1] == "not carried: 3 more, each in report.txt"


def test_the_next_steps_are_what_is_left_to_the_operator():
    asked = api(security=Security(placement=None, question="how?"))
    profile = {"allowed_callers": [], "allow": [], "token": {"type": "static", "key": "pets"}}
    steps = next_steps(asked, "out", profile).splitlines()
    assert steps[1].startswith("  read out/report.txt")
    assert steps[2] == "  answer in out/grants.json, or by an option: placement"
    assert steps[3].startswith("  fill allowed_callers in out/grants.json")
    assert steps[4].startswith("  fill allow in out/grants.json")
    assert "into custody as pets" in steps[5]
    assert steps[6:] == ["  broker check out/grants.json"]


def test_the_next_steps_leave_out_what_there_is_not_to_do():
    plain = api(told=(told("GET /pets"),))
    done = {"allowed_callers": ["agent"], "allow": ["GET /pets"]}
    for profile in (done, {}):
        assert next_steps(plain, "out", profile).splitlines() == ["Next:", "  broker check out/grants.json"]
