"""A reference is followed inside the document and the files beside it, and nowhere else."""

import json
import os
from pathlib import Path

import pytest

from broker.specgen.document import Document, read_document
from broker.specgen.references import UnresolvedError, child


def document(directory: Path, members: dict | None = None, version: str = "3.0.3", **files: str | dict) -> Document:
    """Read a document with these members; ``files`` stand beside it (``__`` in a name is a directory, ``_`` a dot)."""
    for name, content in files.items():
        path = directory / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    path = directory / "openapi.json"
    path.write_text(json.dumps({"openapi": version, "paths": {"/a": {}}, **(members or {})}))
    return read_document(path)


def lost(read: Document, reference: object, pointer: str = "#/x") -> UnresolvedError:
    with pytest.raises(UnresolvedError) as caught:
        read.resolve({"$ref": reference}, pointer)
    note = caught.value.note("limit")
    assert (note.level, note.pointer) == ("limit", caught.value.pointer)
    assert note.reason.isprintable()
    assert note.remedy
    return caught.value


@pytest.mark.parametrize(
    ("tokens", "pointer"),
    [
        (("paths", "/pets/{id}", "get"), "#/paths/~1pets~1%7Bid%7D/get"),
        (("a~b", 0), "#/a~0b/0"),
        (("",), "#/"),
        (("caf\u00e9 100% #1\n",), "#/caf%C3%A9%20100%25%20%231%0A"),
    ],
)
def test_a_pointer_is_escaped_as_a_fragment(tokens, pointer):
    assert child("#", *tokens) == pointer


@pytest.mark.parametrize(
    "name", ["plain", "", "/", "~", "~1", "%", "%25", "a b", "caf\u00e9", "#", "{id}", "'\"\\", "\n"]
)
def test_a_reference_made_of_a_pointer_leads_to_where_the_pointer_was_made(tmp_path, name):
    read = document(tmp_path, {"x": {name: {"found": name}}})
    assert read.resolve({"$ref": child("#/x", name)}, "#/y") == ({"found": name}, child("#/x", name))


def test_a_node_without_a_reference_comes_back_as_it_is(tmp_path):
    read = document(tmp_path)
    for node in ({}, {"a": 1}, [], "text", 7, None, True):
        assert read.resolve(node, "#/x") == (node, "#/x")


def test_a_reference_may_be_escaped_as_a_pointer_and_as_a_fragment(tmp_path):
    read = document(tmp_path, {"x": {"a/b": [{}, {"c d~": 1}]}})
    assert read.resolve({"$ref": "#/x/a~1b/1/c%20d~0"}, "#/y")[0] == 1
    assert read.resolve({"$ref": "#/x/a%7E1b/1"}, "#/y") == ({"c d~": 1}, "#/x/a~1b/1")


def test_a_chain_is_followed_to_its_end(tmp_path):
    read = document(tmp_path, {"x": {"a": {"$ref": "#/x/b"}, "b": {"$ref": "#/x/c"}, "c": {"end": True}}})
    assert read.resolve(read.root["x"]["a"], "#/x/a") == ({"end": True}, "#/x/c")


def test_a_pointer_may_lead_through_a_reference(tmp_path):
    read = document(tmp_path, {"x": {"a": {"$ref": "#/x/b"}, "b": {"c": {"end": True}}}})
    assert read.resolve({"$ref": "#/x/a/c"}, "#/y") == ({"end": True}, "#/x/b/c")


@pytest.mark.parametrize(
    "members",
    [
        {"a": {"$ref": "#/x/a"}},
        {"a": {"$ref": "#/x/b"}, "b": {"$ref": "#/x/a"}},
        {"a": {"$ref": "#/x/a/deeper"}},
        {"a": {"$ref": "#/x/b/c"}, "b": {"$ref": "#/x/a/c"}},
    ],
)
def test_references_that_only_lead_to_each_other_are_told(tmp_path, members):
    read = document(tmp_path, {"x": members})
    assert "comes back to itself" in lost(read, "#/x/a").reason


def test_a_chain_is_bounded(tmp_path):
    chain = {f"s{number}": {"$ref": f"#/x/s{number + 1}"} for number in range(2000)}
    read = document(tmp_path, {"x": chain | {"s2000": {}}})
    assert "more than 32 references lead to references" in lost(read, "#/x/s0").reason
    assert read.resolve({"$ref": "#/x/s1990"}, "#/y") == ({}, "#/x/s2000")
    through = {f"s{number}": {"$ref": f"#/x/s{number + 1}/more"} for number in range(2000)}
    assert "more than 32" in lost(document(tmp_path, {"x": through}), "#/x/s0/more").reason


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("#/nothing", "leads to nothing"),
        ("#/x/list/2", "leads to nothing"),
        ("#/x/list/01", "leads to nothing"),
        ("#/x/list/-1", "leads to nothing"),
        ("#/x/list/-", "leads to nothing"),
        ("#/x/text/0", "leads to nothing"),
        ("#anchor", "names an anchor"),
        ("#/x/~2", "has a ~ that is neither"),
        ("#/%ff", "is no UTF-8"),
        (7, "$ref is no text"),
        (["#/x"], "$ref is no text"),
        ("https://specs.example/common.json#/limit", "leads to the network, which is never asked"),
        ("HTTPS://specs.example/", "leads to the network"),
        ("//specs.example/common.json", "leads to the network"),
        ("file:///etc/passwd", "leads to the network"),
        ("/etc/passwd", "is outside the document's directory"),
        ("../secret.json", "is outside the document's directory"),
        ("%2e%2e/secret.json", "is outside the document's directory"),
        ("inner/../../secret.json#/a", "is outside the document's directory"),
        ("link.json", "is outside the document's directory"),
        ("loop.json", "leads to a file that"),
        ("missing.json", "No such file"),
        ("a%00b.json", "leads to a file that cannot be found"),
        ("n" * 5000, "leads to a file that"),
        (".", "leads to a file that cannot be used: cannot be read"),
        ("broken.json", "leads to a file that cannot be used: not JSON"),
        ("pipe.json", "not a regular file"),
        ("\x1b[2J\u202e", "leads to a file that"),
    ],
)
def test_a_reference_that_leads_nowhere_says_why(tmp_path, reference, reason):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.json").write_text('{"a": "canary-outside"}')
    (inside / "link.json").symlink_to(tmp_path / "secret.json")
    (inside / "loop.json").symlink_to(inside / "loop.json")
    (inside / "broken.json").write_text("{")
    os.mkfifo(inside / "pipe.json")
    read = document(inside, {"x": {"list": [1, 2], "text": "abc"}})
    error = lost(read, reference)
    assert reason in error.reason
    assert error.pointer == "#/x"
    assert len(error.reason) < 500


def test_an_absolute_path_is_refused_even_into_the_directory(tmp_path):
    read = document(tmp_path, pet_json={"a": 1})
    assert "outside" in lost(read, str(tmp_path / "pet.json")).reason
    assert read.resolve({"$ref": "pet.json#/a"}, "#/x")[0] == 1


def test_a_file_that_cannot_be_used_is_not_read_again(tmp_path):
    read = document(tmp_path, pet_json="{")
    lost(read, "pet.json")
    (tmp_path / "pet.json").write_text("{}")
    assert "not JSON" in lost(read, "pet.json#/a").reason


def test_the_place_of_an_error_is_the_reference_that_fails(tmp_path):
    read = document(tmp_path, {"x": {"a": {"$ref": "#/x/b"}, "b": {"$ref": "#/x/c"}}})
    assert lost(read, "#/x/a").pointer == "#/x/b"


def test_a_reference_in_a_file_counts_from_that_file(tmp_path):
    read = document(
        tmp_path,
        {"x": {"deep": {"$ref": "parts/one.json#/a"}, "own": {"from": "document"}}},
        parts__one_json={"a": {"$ref": "more/two.yaml#/b"}, "here": 1},
        parts__more__two_yaml="""
b:
  c: {$ref: "../one.json#/here"}
  d: {$ref: "../../openapi.json#/x/own"}
  e: {$ref: "#/b"}
""",
    )
    node, pointer = read.resolve(read.root["x"]["deep"], "#/x/deep")
    assert pointer == "parts/more/two.yaml#/b"
    assert read.resolve(node["c"], child(pointer, "c")) == (1, "parts/one.json#/here")
    assert read.resolve(node["d"], child(pointer, "d")) == ({"from": "document"}, "#/x/own")
    assert read.resolve(node["e"], child(pointer, "e")) == (node, pointer)


def test_a_whole_file_may_be_referred_to(tmp_path):
    read = document(tmp_path, pet_yaml="get: {}\n")
    assert read.resolve({"$ref": "./pet.yaml"}, "#/x") == ({"get": {}}, "pet.yaml#")
    assert read.resolve({"$ref": "pet.yaml#"}, "#/x") == ({"get": {}}, "pet.yaml#")
    assert read.resolve({"$ref": "#"}, "#/x") == (read.root, "#")


def test_a_link_inside_the_directory_is_the_file_that_it_leads_to(tmp_path):
    read = document(tmp_path, pet_json={"a": 1})
    (tmp_path / "link.json").symlink_to(tmp_path / "pet.json")
    assert read.resolve({"$ref": "link.json#/a"}, "#/x") == (1, "pet.json#/a")


def test_a_file_of_any_name_can_stand_in_a_pointer(tmp_path):
    odd = tmp_path / "a #1 50%.json"
    odd.write_text('{"a": {"$ref": "#/b"}, "b": 7}')
    read = document(tmp_path)
    node, pointer = read.resolve({"$ref": "a%20%231%2050%25.json"}, "#/x")
    assert pointer == "a%20%231%2050%25.json#"
    assert read.resolve(node["a"], child(pointer, "a")) == (7, "a%20%231%2050%25.json#/b")


def test_files_are_counted_and_so_are_their_bytes_together(tmp_path):
    for number in range(1001):
        (tmp_path / f"{number}.json").write_text("{}")
    read = document(tmp_path)
    for number in range(999):
        read.resolve({"$ref": f"{number}.json"}, "#/x")
    assert "one of more than 1000" in lost(read, "999.json").reason
    assert read.resolve({"$ref": "998.json"}, "#/x") == ({}, "998.json#")
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text('{"a": "' + "x" * (40 << 20) + '"}')
    read = document(tmp_path)
    read.resolve({"$ref": "one.json"}, "#/x")
    assert "larger than 64 MiB, with the files" in lost(read, "two.json").reason


def test_a_file_is_read_once(tmp_path):
    read = document(tmp_path, pet_json={"a": 1})
    read.resolve({"$ref": "pet.json"}, "#/x")
    (tmp_path / "pet.json").unlink()
    assert read.resolve({"$ref": "pet.json#/a"}, "#/x") == (1, "pet.json#/a")


@pytest.mark.parametrize(
    ("version", "pointer", "overrides"),
    [
        ("3.0.3", "#/components/parameters/p", False),
        ("3.0.3", "#/paths/~1a", True),
        ("3.0.3", "#/paths/~1a/get", False),
        ("3.0.3", "#/components/pathItems/a", True),
        ("3.1.0", "#/components/parameters/p", True),
        ("3.2.0", "#/paths/~1a", True),
    ],
)
def test_what_stands_beside_a_reference_counts_on_a_path_item_and_from_3_1_on(tmp_path, version, pointer, overrides):
    read = document(tmp_path, {"x": {"target": {"a": 1, "b": 1}}}, version)
    node, place = read.resolve({"$ref": "#/x/target", "b": 2, "c": 2}, pointer)
    assert node == ({"a": 1, "b": 2, "c": 2} if overrides else {"a": 1, "b": 1})
    assert place == "#/x/target"
    assert read.root["x"]["target"] == {"a": 1, "b": 1}


def test_the_nearest_of_what_stands_beside_the_references_of_a_chain_wins(tmp_path):
    read = document(
        tmp_path, {"x": {"mid": {"$ref": "#/x/end", "a": 2, "b": 2}, "end": {"a": 3, "b": 3, "c": 3}}}, "3.1.0"
    )
    assert read.resolve({"$ref": "#/x/mid", "a": 1}, "#/y")[0] == {"a": 1, "b": 2, "c": 3}


def test_beside_a_reference_to_true_or_false(tmp_path):
    read = document(tmp_path, {"x": {"yes": True, "no": False}}, "3.1.0")
    assert read.resolve({"$ref": "#/x/yes", "type": "string"}, "#/y")[0] == {"type": "string"}
    assert read.resolve({"$ref": "#/x/no", "type": "string"}, "#/y")[0] is False


def test_a_reference_beside_a_reference_counts_from_the_file_that_it_was_written_in(tmp_path):
    read = document(
        tmp_path,
        {
            "paths": {"/a": {"$ref": "paths/a.json", "parameters": [{"$ref": "#/x/p"}, {"$ref": "p.json"}]}},
            "x": {"p": 1},
        },
        paths__a_json={"get": {"$ref": "#/x/g"}, "x": {"g": 2, "p": "wrong"}},
        p_json="3",
        paths__p_json='"wrong"',
    )
    item, pointer = read.resolve(read.root["paths"]["/a"], "#/paths/~1a")
    assert pointer == "paths/a.json#"
    assert read.resolve(item["get"], child(pointer, "get"))[0] == 2
    found = [read.resolve(node, child(pointer, "parameters", at)) for at, node in enumerate(item["parameters"])]
    assert found == [(1, "#/x/p"), (3, "p.json#")]


def test_what_stands_beside_references_is_bounded_in_all(tmp_path):
    target = {f"m{number}": 0 for number in range(1000)}
    read = document(tmp_path, {"x": {"target": target}}, "3.1.0")
    for number in range(1998):
        read.resolve({"$ref": "#/x/target", "b": number}, "#/y")
    assert "comes back" not in lost(read, "#/x/target/none").reason
    with pytest.raises(UnresolvedError, match="members stand beside references"):
        read.resolve({"$ref": "#/x/target", "b": 0, "c": 0}, "#/y")


def test_a_node_is_followed_once(tmp_path):
    read = document(tmp_path, {"x": {"target": {"a": 1}}, "node": {"$ref": "#/x/target", "b": 2}}, "3.1.0")
    first, _ = read.resolve(read.root["node"], "#/node")
    assert read.resolve(read.root["node"], "#/node")[0] is first
