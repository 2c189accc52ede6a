"""Our tokens: 256 random bits, a checksum that refuses before any look-up, digests only in files."""

from __future__ import annotations

import copy
import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import tokens
from config.clock import FakeClock, rfc3339
from config.errors import ConfigurationError
from config.load import edit_token_file, read_token_file
from config.secret import Secret
from config.tokenfiles import Principal, TokenFile, create, find, index, revoke, rotate

NOW = FakeClock().now()


def test_a_token_has_the_published_form_and_no_two_are_alike():
    made = {tokens.generate("brk_").reveal() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(token) == tokens.LENGTH and re.fullmatch(tokens.PATTERN, token) for token in made)


@given(position=st.integers(4, tokens.LENGTH - 1), character=st.sampled_from("0Zz5"))
def test_a_changed_character_fails_the_checksum(position, character):
    token = tokens.generate("clr_").reveal()
    changed = token[:position] + character + token[position + 1 :]
    assert (tokens.digest(changed, "clr_") is None) == (changed != token)


@given(st.text(max_size=80))
def test_no_other_text_has_a_digest(text):
    assert tokens.digest(text, "brk_") is None


def test_the_checksum_is_crc_32_in_base62_as_scanners_compute_it():
    # Worked out by hand: CRC-32 of "123456789" is 0xCBF43926 = 3421780262, by the check value of its specification.
    alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    value = 0
    for character in tokens.checksum("123456789"):
        value = value * 62 + alphabet.index(character)
    assert value == 0xCBF43926
    assert len(tokens.checksum("")) == tokens.CHECKSUM_LENGTH


def test_a_token_of_another_kind_has_no_digest():
    assert tokens.digest(tokens.generate("clr_").reveal(), "brk_") is None


def test_a_secret_shows_nothing_of_itself():
    secret = Secret("sekret-AAAA1111")
    for text in (str(secret), repr(secret), f"{secret}", f"{secret:>20}", "%s" % secret, repr([secret])):  # noqa: UP031
        assert "sekret" not in text
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leak(secret)
    assert secret != Secret("sekret-AAAA1111")
    assert secret.matches(Secret("sekret-AAAA1111"))
    assert not secret.matches(Secret("sekret-AAAA1112"))


def test_a_created_caller_is_found_by_its_token_and_the_file_has_only_the_digest(tmp_path):
    made: list[Secret] = []

    def add(file):
        callers, token = create(file.callers, Principal(id="support-agent"), "clr_")
        made.append(token)
        return TokenFile(callers=callers)

    path = tmp_path / "callers.json"
    edit_token_file(path, add)
    token = made[0].reveal()
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert find(index(read_token_file(path)), token, "clr_", now=NOW).id == "support-agent"
    assert find(index(read_token_file(path)), tokens.generate("clr_").reveal(), "clr_", now=NOW) is None
    with pytest.raises(KeyError):
        edit_token_file(path, add)


def test_a_rotated_token_works_to_the_end_of_the_overlap_and_not_at_it():
    callers, old = create([], Principal(id="a"), "clr_")
    callers, new = rotate(callers, "a", "clr_", now=NOW, overlap_s=60)
    known = index(TokenFile(callers=callers))
    assert find(known, old.reveal(), "clr_", now=NOW + 59.9)
    assert not find(known, old.reveal(), "clr_", now=NOW + 60)
    assert find(known, new.reveal(), "clr_", now=NOW + 1e9)


def test_a_second_rotation_never_prolongs_an_older_token():
    callers, old = create([], Principal(id="a"), "clr_")
    callers, _ = rotate(callers, "a", "clr_", now=NOW, overlap_s=60)
    callers, _ = rotate(callers, "a", "clr_", now=NOW + 30, overlap_s=600)
    assert not find(index(TokenFile(callers=callers)), old.reveal(), "clr_", now=NOW + 61)


def test_a_rotation_without_overlap_ends_the_old_token_at_once():
    callers, old = create([], Principal(id="a"), "clr_")
    callers, _ = rotate(callers, "a", "clr_", now=NOW, overlap_s=0)
    assert not find(index(TokenFile(callers=callers)), old.reveal(), "clr_", now=NOW)


def test_a_revoked_caller_is_gone_and_an_unknown_one_is_an_error():
    callers, token = create([], Principal(id="a"), "clr_")
    assert not find(index(TokenFile(callers=revoke(callers, "a"))), token.reveal(), "clr_", now=NOW)
    with pytest.raises(KeyError):
        revoke(callers, "b")


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"callers": [{"id": "a"}, {"id": "a"}]}, "a stands twice"),
        ({"callers": [{"id": "a", "uid": 5}]}, "a caller has only id and tokens"),
        ({"callers": [{"id": "bad id"}]}, "callers[0].id: expected a text of the form"),
        ({"callers": [{"id": "a\n"}]}, "callers[0].id: expected a text of the form"),
        ({"callers": [{"id": "a", "tokens": [{"sha256": "0" * 64 + "\n"}]}]}, "tokens[0].sha256"),
        ({"callers": [{"id": "a", "tokens": [{"sha256": "00"}]}]}, "tokens[0].sha256"),
        ({"callers": [{"id": "a", "tokens": [{"sha256": "0" * 64, "not_after": "soon"}]}]}, "not_after"),
        ({"callers": [{"id": "a", "tokens": [{"sha256": "0" * 64}, {"sha256": "0" * 64}]}]}, "the digest stands twice"),
        ({"caller": []}, "did you mean callers?"),
    ],
)
def test_a_token_file_with_a_fault_is_refused(tmp_path, document, fault):
    path = tmp_path / "callers.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        read_token_file(path)


def test_a_failed_edit_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "callers.json"
    path.write_text('{"callers": []}')

    def fail(_file):
        raise KeyError("x")

    with pytest.raises(KeyError):
        edit_token_file(path, fail)
    assert path.read_text() == '{"callers": []}'
    assert rfc3339(0.0) == "1970-01-01T00:00:00.000Z"
