"""YAML is read as its 1.2 core schema: what is written is what is meant, and what would cost too much is refused."""

import json

import pytest
import yaml

from broker.specgen import yamltext
from broker.specgen.model import DocumentError
from broker.specgen.yamltext import read_yaml


@pytest.fixture(autouse=True, params=["c", "python"])
def parser(request, monkeypatch):
    """Every test runs with the parser in C, and with the one that is there without it."""
    if request.param == "python":
        monkeypatch.setattr(yamltext, "_LOADER", yaml.SafeLoader)
    else:
        assert yaml.CSafeLoader is yamltext._LOADER


def refusal(text: str) -> str:
    with pytest.raises(DocumentError) as caught:
        read_yaml(text)
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 400
    return line


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("on", "on"),
        ("no", "no"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("tRue", "tRue"),
        ("null", None),
        ("~", None),
        ("", None),
        ("2026-11-30", "2026-11-30"),
        ("2026-11-30T10:00:00Z", "2026-11-30T10:00:00Z"),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("0o17", 15),
        ("010", 10),
        ("0x1F", 31),
        pytest.param("0x" + "F" * 5000, "0x" + "F" * 5000, id="more digits than can be written, of 16"),
        pytest.param("0o" + "7" * 9000, "0o" + "7" * 9000, id="more digits than can be written, of 8"),
        ("-7", -7),
        ("+7", 7),
        ("3.0", 3.0),
        ("3.0.3", "3.0.3"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.5e-1", -0.05),
        ("5.", 5.0),
        (".", "."),
        ("-", "-"),
        ("1e", "1e"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("12e8456", "12e8456"),
        ("9" * 5000, "9" * 5000),
        ("\u0661\u0662", "\u0661\u0662"),
        ("'200'", "200"),
        ('"true"', "true"),
        ("! 200", "200"),
        ("!!str 200", "200"),
        ("!!int '200'", 200),
        ("!!float '2'", 2),
        ("!!bool 'true'", True),
        ("!!null ''", None),
        ("=", "="),
        ("<<", "<<"),
        ("|\n    200\n", "200\n"),
    ],
)
def test_a_value_is_what_the_core_schema_says(written, value):
    if written == "-":
        written = "'-'"
    found = read_yaml(f"a: {written}\n")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("key", ["200", "on", "null", "~", "true", "2026-11-30", "1.0", "'200'", "!!str 200", "0x10"])
def test_a_key_is_always_the_text_that_was_written(key):
    assert list(read_yaml(f"{key}: 1\n")) == [key.removeprefix("!!str ").strip("'")]


def test_an_empty_key_is_an_empty_text():
    assert read_yaml("? \n: 1\n") == {"": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3\n", '"a" stands twice in its mapping, line 3'),
        ("{a: 1, a: 2}", '"a" stands twice in its mapping, line 1'),
        ("200: 1\n'200': 2\n", '"200" stands twice'),
        ("&x a: 1\n*x : 2\n", '"a" stands twice'),
        ("? [a]\n: 1\n", "a key is no text, line 1"),
        ("? {a: 1}\n: 1\n", "a key is no text"),
        ("a: &x [1]\n*x : 2\n", "a key is no text, line 2"),
        ("a: *nothing\n", 'the alias "nothing" names nothing, line 1'),
        ("a: &x {b: *x}\n", 'the alias "x" stands inside what it names'),
        ("a: &x [[*x]]\n", 'the alias "x" stands inside what it names'),
        ("--- 1\n--- 2\n", "a second document starts, line 2"),
        ("", "holds nothing"),
        ("# a comment\n", "holds nothing"),
        ("a: [1\n", "not YAML: "),
        ("a: b: c\n", "line 1 column"),
        ("a: '\x07'\n", "not YAML: "),
        ("a: !!timestamp 2026-11-30\n", 'the tag "tag:yaml.org,2002:timestamp" has no value in JSON, line 1'),
        ("a: !!binary aGk=\n", "has no value in JSON"),
        ("a: !!set {b}\n", "has no value in JSON"),
        ("a: !!omap [b: 1]\n", "has no value in JSON"),
        ("a: !!python/object/apply:os.system [exit]\n", "has no value in JSON"),
        ("a: !mine {b: 1}\n", 'the tag "!mine" has no value in JSON'),
        ("a: !!int x\n", '"x" is not what its tag "tag:yaml.org,2002:int" says'),
        ("a: !!int 'true'\n", "is not what its tag"),
        ("a: !!map [1]\n", "has no value in JSON"),
        ('a: "\\ud800"\n', ""),
        ('a: "\\U0000dfff"\n', ""),
        ("a: {<<: 1}\n", "<< takes a mapping"),
        ("a: {<<: [{b: 1}, 2]}\n", "<< takes a mapping"),
        ("[" * 201 + "]" * 201, "nested deeper than 200 levels"),
        ("[" * 10_000 + "]" * 10_000, "nest"),  # the parser in C may be the first to say it
        ("a: " + "{a: " * 10_000 + "}" * 10_000, "nested deeper than 200 levels"),
        ("- " * 10_000 + "1", "nested deeper than 200 levels"),
        ("a: &x " + "[" * 150 + "]" * 150 + "\nb: " + "[" * 60 + "*x" + "]" * 60, "nested deeper than 200 levels"),
        ("&a" + "\u202e" * 9 + "\n", ""),
    ],
)
def test_what_is_no_document_is_refused_by_its_reason_and_line(text, reason):
    assert reason in refusal(text)


def test_an_alias_repeats_what_its_anchor_names_and_shares_it():
    read = read_yaml("a: &x {b: [1]}\nc: *x\nd: &y text\ne: *y\n*y : 1\n")
    assert read == {"a": {"b": [1]}, "c": {"b": [1]}, "d": "text", "e": "text", "text": 1}
    assert read["a"] is read["c"]


def test_an_alias_names_the_last_anchor_of_its_name():
    assert read_yaml("[&x 1, *x, &x 2, *x]") == [1, 1, 2, 2]
    assert read_yaml("[&x {a: &x 1}, *x]") == [{"a": 1}, 1]


def test_a_merge_key_takes_what_the_mapping_does_not_say_itself():
    read = read_yaml("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {z: 3, <<: [*a, *b]}\nd: {<<: *a}\n")
    assert read["c"] == {"z": 3, "x": 1, "y": 1}
    assert read["d"] == {"x": 1, "y": 1}
    assert read_yaml("c: {<<: {x: 1}, '<<': 3, <<: {x: 2, y: 2}}\n")["c"] == {"x": 1, "y": 2, "<<": 3}


def test_what_was_merged_into_is_what_an_alias_repeats():
    read = read_yaml("a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: *b\nd: {<<: *b}\n")
    assert read["c"] == read["d"] == {"x": 1, "y": 2}
    assert read["c"] is read["b"]


@pytest.mark.parametrize("repeat", ["[{0}]", "{{<<: [{0}]}}", "{{a: [{0}]}}"], ids=["lists", "merges", "mappings"])
def test_a_bomb_of_aliases_is_refused(repeat):
    lines = ["- &a0 {x: 1, y: 2}"]
    lines += [f"- &a{level} " + repeat.format(", ".join([f"*a{level - 1}"] * 10)) for level in range(1, 30)]
    assert "aliases repeat more than 500000 values" in refusal("\n".join(lines))


def test_many_aliases_of_a_small_thing_are_no_bomb():
    read = read_yaml("- &a {x: 1}\n" + "- *a\n" * 20_000)
    assert len(read) == 20_001


def test_a_key_that_is_an_alias_counts_as_what_it_repeats(monkeypatch):
    monkeypatch.setattr(yamltext, "MAX_ALIASED", 3)
    assert read_yaml("[&k k, {*k : 1}, {*k : 1}, {*k : 1}]")[3] == {"k": 1}
    assert "aliases repeat more than 3 values" in refusal("[&k k, {*k : 1}, {*k : 1}, {*k : 1}, {*k : 1}]")


def test_an_alias_counts_as_what_the_last_anchor_of_its_name_holds(monkeypatch):
    monkeypatch.setattr(yamltext, "MAX_ALIASED", 1)
    assert read_yaml("[&x {a: &x 1, b: [2, 3]}, *x]")[1] == 1


def test_the_values_of_a_file_are_counted(monkeypatch):
    monkeypatch.setattr(yamltext, "MAX_NODES", 100)
    assert len(read_yaml("[" + "1," * 90 + "]")) == 90
    assert "holds more than 100 values" in refusal("[" + "1," * 100 + "]")


def test_json_is_yaml():
    value = {
        "openapi": "3.0.3",
        "paths": {"/a": {"get": {"responses": {"200": {"x": [1, 2.5, None, True, "caf\u00e9\n"]}}}}},
    }
    assert read_yaml(json.dumps(value)) == value
    assert read_yaml(json.dumps(value, indent=2)) == value


def test_many_tag_directives_are_refused_before_the_parser_compares_them_all():
    directives = "".join(f"%TAG !t{number}! x\n" for number in range(200_000))
    assert "more than 100 %TAG directives" in refusal(directives + "--- 1\n")
    assert read_yaml("%TAG !t! tag:yaml.org,2002:\n--- !t!str 1\n") == "1"
