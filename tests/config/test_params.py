from __future__ import annotations

import pytest

from config.params import check_params, compile_pattern, refuse_unknown
from config.problems import ProblemError
from tests.config.grants_of import profile

CUSTOMERS = {"customer": "[a-z0-9-]{1,100}"}


def test_the_declared_parameters_are_taken_and_the_others_left_to_other_profiles():
    assert check_params(profile(params=CUSTOMERS), {"customer": "acme", "other": "x"}) == {"customer": "acme"}
    assert check_params(profile(), {"other": "x"}) == {}


@pytest.mark.parametrize("value", ["", "ACME", "acme/evil", "..", ".", "a b", "a\n", "acme\n", "é", "a%2Fb", "x" * 101])
def test_a_value_that_does_not_fit_is_refused_without_being_repeated(value):
    with pytest.raises(ProblemError) as refused:
        check_params(profile(params=CUSTOMERS), {"customer": value})
    assert refused.value.code == "params-invalid"
    assert refused.value.members == {"param": "customer"}
    assert not value or value not in refused.value.detail.replace("parameter", "")


@pytest.mark.parametrize(
    "value",
    ["..", ".", "...", "a/b", "a\\b", "a%b", "a;b", "a?b", "a#b", "a!b", "a*", "{x}", "é", "a\n", "", "x" * 257],
)
def test_whatever_the_pattern_a_value_is_one_plain_segment(value):
    assert not compile_pattern("(?s).*").fits(value)


@pytest.mark.parametrize("value", ["a", "AZaz09-._~@+=:", ".a", "a.", "user:42", "x" * 256])
def test_a_plain_segment_with_colons_is_a_value_if_the_pattern_takes_it(value):
    assert compile_pattern(".*").fits(value)


def test_the_pattern_must_match_the_whole_value():
    pattern = compile_pattern("a|ab")
    assert pattern.fits("ab")
    assert not pattern.fits("abc")
    assert not compile_pattern("(?m)^a$").fits("a:b")


def test_a_missing_parameter_and_one_that_is_no_text_are_refused():
    for given in ({}, {"customer": 7}, {"customer": None}):
        with pytest.raises(ProblemError):
            check_params(profile(params=CUSTOMERS), given)


def test_a_parameter_that_no_profile_of_the_run_declares_is_refused():
    profiles = [profile(params=CUSTOMERS), profile(params={"region": "[a-z]+"})]
    refuse_unknown(profiles, {"customer": "x", "region": "y"})
    with pytest.raises(ProblemError) as refused:
        refuse_unknown(profiles, {"customer": "x", "secret-name": "y"})
    assert "customer, region" in refused.value.detail
    assert "secret-name" not in refused.value.detail


@pytest.mark.parametrize("text", ["", "(", "[", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)b", "a{1001}", "x" * 1001, "\ud800"])
def test_a_pattern_outside_the_linear_time_language_is_refused(text):
    with pytest.raises(ValueError, match="pattern"):
        compile_pattern(text)


def test_an_evil_pattern_costs_no_more_than_its_value():
    assert not compile_pattern("(a+)+(b+)+c").fits("a" * 200)


def test_patterns_written_the_same_are_equal_and_remembering_stays_bounded():
    pattern = compile_pattern("[a-z0-9]+")
    assert pattern == compile_pattern("[a-z0-9]+")
    for number in range(10_000):
        assert pattern.fits(f"v{number}")
    assert len(pattern._known) <= 4096
