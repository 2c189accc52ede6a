from __future__ import annotations

import json

import pytest

from broker.specgen.catalog import catalog_json, digest, grants_json
from broker.specgen.outdir import Directory
from tests.broker.specgen.making import api


def files(made=None, **more) -> dict[str, bytes]:
    made = made or api()
    found = {
        "grants.json": grants_json(made, profile="pets", global_name="pets", callers=(), allow=()),
        "client.py": b"one\ntwo\n",
        **more,
    }
    return {**found, "catalog.json": catalog_json(made, {name: digest(data) for name, data in found.items()})}


@pytest.fixture
def directory(tmp_path):
    return Directory(tmp_path / "deep" / "out")


def differences(directory, wanted):
    return {found.name: found for found in directory.differences(wanted, "pets")}


def test_a_missing_directory_is_made_and_a_second_write_changes_nothing(directory):
    assert sorted(directory.write(files())) == ["catalog.json", "client.py", "grants.json"]
    assert (directory.path / "client.py").read_bytes() == b"one\ntwo\n"
    assert directory.write(files()) == []
    assert directory.differences(files(), "pets") == []
    assert sorted(path.name for path in directory.path.iterdir()) == ["catalog.json", "client.py", "grants.json"]


def test_what_we_wrote_may_be_replaced(directory):
    directory.write(files())
    newer = files(api(catalog=("GET /v2/pets",)), **{"client.py": b"three\n"})
    assert directory.foreign(newer) == []


def test_what_was_there_before_or_was_changed_since_is_foreign(directory):
    directory.path.mkdir(parents=True)
    (directory.path / "client.py").write_text("mine")
    assert directory.foreign(files()) == ["client.py"]
    (directory.path / "client.py").unlink()
    directory.write(files())
    (directory.path / "grants.json").write_text("{}")
    assert directory.foreign(files()) == ["grants.json"]


def test_a_catalog_of_somebody_else_is_foreign(directory):
    directory.path.mkdir(parents=True)
    (directory.path / "catalog.json").write_text('{"catalog": []}')
    assert directory.foreign(files()) == ["catalog.json"]


def test_a_run_that_was_cut_short_is_finished_by_the_next(directory):
    directory.write(files())
    newer = files(api(catalog=("GET /v2/pets",)), **{"client.py": b"three\n"})
    (directory.path / "client.py").write_bytes(newer["client.py"])
    assert directory.foreign(newer) == []


def test_the_catalog_which_says_what_is_ours_is_written_last(directory, monkeypatch):
    order = []
    monkeypatch.setattr("config.load.write_atomic", lambda path, data, *, mode: order.append(path.name))
    directory.write(files())
    assert order[-1] == "catalog.json"
    assert len(order) == 3


def test_a_link_out_of_the_directory_is_replaced_and_not_followed(directory, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("precious")
    directory.path.mkdir(parents=True)
    (directory.path / "client.py").symlink_to(outside)
    directory.write(files())
    assert outside.read_text() == "precious"
    assert not (directory.path / "client.py").is_symlink()


def test_stale_and_missing_files_are_told_with_the_lines_that_differ(directory):
    directory.write(files())
    (directory.path / "grants.json").unlink()
    found = differences(directory, files(**{"client.py": b"one\nthree\n"}))
    assert found["grants.json"].what == "is missing"
    assert found["client.py"].what == "is stale"
    assert found["client.py"].lines == ("- two", "+ three")
    assert "catalog.json" in found


def test_of_one_very_long_line_the_place_that_differs_is_shown(directory):
    start = b"x" * 10_000
    directory.write(files(**{"client.py": start + b" old " + b"y" * 10_000}))
    lines = differences(directory, files(**{"client.py": start + b" new " + b"y" * 10_000}))["client.py"].lines
    assert [line[:5] for line in lines] == ["- ...", "+ ..."]
    assert "old" in lines[0]
    assert "new" in lines[1]


def test_brackets_and_digests_are_not_shown(directory):
    directory.write(files(**{"client.py": b"{\none\n}\n"}))
    found = differences(directory, files(**{"client.py": b"[\n\ntwo\n]\n"}))
    assert found["client.py"].lines == ("- one", "+ two")
    assert found["catalog.json"].lines == ()


def test_lines_in_another_order_are_a_difference(directory):
    directory.write(files())
    assert differences(directory, files(**{"client.py": b"two\none\n"}))["client.py"].what.startswith("is stale")


def test_differences_are_bounded_and_hold_no_control_characters(directory):
    directory.write(files(**{"client.py": b"\x1b[31m" + b"x" * 100_000}))
    wanted = b"\n".join(b"line %d" % number for number in range(1000))
    lines = differences(directory, files(**{"client.py": wanted}))["client.py"].lines
    assert len(lines) == 8
    assert lines[-1] == "+ and 994 lines more"
    wanted = b"\n".join(b"line %d" % number for number in range(7))
    assert differences(directory, files(**{"client.py": wanted}))["client.py"].lines[-1] == "+ and 1 line more"
    assert max(map(len, lines)) < 200
    assert not any("\x1b" in line for line in lines)


def test_of_an_edited_grants_file_only_the_catalog_is_compared(directory):
    directory.write(files())
    path = directory.path / "grants.json"
    edited = json.loads(path.read_text())
    edited["profiles"]["pets"]["allow"] = ["GET /v1/pets/*"]
    path.write_text(json.dumps(edited))
    assert directory.differences(files(), "pets") == []
    newer = files(api(catalog=(*api().catalog, "GET /v1/pets/secret")))
    found = differences(directory, newer)["grants.json"]
    assert "the catalog of pets in it is not this document's" in found.what
    assert found.lines == ('+ "GET /v1/pets/secret"',)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"profiles": {"pets": 1}}', '{"profiles": {"other": {}}}', "[" * 99999]
)
def test_a_grants_file_that_is_something_else_is_the_operators(directory, text):
    directory.write(files())
    (directory.path / "grants.json").write_text(text)
    assert directory.differences(files(), "pets") == []
    assert directory.foreign(files()) == ["grants.json"]
