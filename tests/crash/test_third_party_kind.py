"""A kind of another distribution, in a real minter, at a real issuer."""

from __future__ import annotations

import json

import pytest

from tests.worlds.killable import PLUGINS, Received

pytestmark = pytest.mark.flow


def test_it_mints_at_its_issuer_and_the_end_of_the_run_deletes_the_token_there(minter, issuer):
    assert minter.start()
    lent = minter.lease("issued", run := minter.run_id())
    assert isinstance(lent, Received), lent
    assert minter.use(lent.value) == 200
    assert issuer.alive() == ["mb-" + lent.lease_id]
    minter.end_run(run)
    minter.until(lambda: not issuer.alive(), "the token is deleted at the issuer")
    assert minter.use(lent.value) == 401
    assert minter.stop() == 0


def test_installed_is_not_trusted(minter):
    settings = minter.root / "minter.toml"
    settings.write_text(settings.read_text().replace('kinds = ["issuer-double"]\n', ""))
    shown = minter.run("kinds", "list", "--json")
    assert (PLUGINS / "issuer_double-1.0.dist-info").is_dir()
    assert "issuer-double" not in json.dumps(json.loads(shown.stdout))
    assert not minter.start()
    assert minter.process.returncode == 3
    assert "unknown token kind 'issuer-double'" in minter.log()


def test_a_kind_that_the_settings_name_and_nobody_installed_is_a_fault(minter):
    settings = minter.root / "minter.toml"
    settings.write_text(settings.read_text().replace('["issuer-double"]', '["issuer-double", "not-there"]'))
    assert not minter.start()
    assert minter.process.returncode == 3
    assert "not installed" in minter.log()


def test_an_unknown_failpoint_is_a_fault_and_a_known_one_is_named_loudly(minter):
    assert not minter.start("no.such-point")
    assert minter.process.returncode == 3
    assert "MINTER_TEST_FAILPOINT" in minter.log()
    assert minter.start("mint.requested:1000")
    assert "TEST FAILPOINT" in minter.log()
