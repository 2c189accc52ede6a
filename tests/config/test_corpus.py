"""Every rule of DESIGN section 4 that a call can obey or break, from the table in ``corpus_routes.json``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config.explain import explain
from config.match import DeniedError
from tests.config.grants_of import matcher

CORPUS = json.loads((Path(__file__).parent / "corpus_routes.json").read_text())


def build(group):
    return matcher(allow=group["allow"], catalog=group.get("catalog", []), params=group.get("params", {}))


def cases(kind):
    for group in CORPUS:
        built = build(group)
        for method, target, expected in group.get(kind, []):
            yield pytest.param(
                built, group.get("given", {}), method, target, expected, id=f"{group['rule'][:40]}: {method} {target!r}"
            )


@pytest.mark.parametrize(("built", "given", "method", "target", "route"), list(cases("granted")))
def test_a_call_within_the_rules_is_granted_by_the_route_that_decides(built, given, method, target, route):
    assert built.match(method, target.encode(), given).rule.text == route
    explained = explain(built, method, target.encode(), given)
    assert explained.granted
    assert [c.route for c in explained.candidates if c.verdict == "decides"] == [route]


@pytest.mark.parametrize(("built", "given", "method", "target", "code"), list(cases("refused")))
def test_a_call_against_the_rules_is_refused_with_its_code(built, given, method, target, code):
    with pytest.raises(DeniedError) as denied:
        built.match(method, target.encode(), given)
    assert denied.value.code == code
    assert explain(built, method, target.encode(), given).code == code


@pytest.mark.parametrize("group", CORPUS, ids=[group["rule"] for group in CORPUS])
def test_every_rule_has_a_granted_and_a_refused_case(group):
    """A rule that has but one side says so (``one_sided``), and why."""
    assert bool(group.get("granted")) + bool(group.get("refused")) == (1 if group.get("one_sided") else 2)
