"""The custody report as a file and as text: one document that loads nothing and runs nothing, whatever names say."""

import base64
import contextlib
import hashlib
import io
import itertools
import json
import re
from html.parser import HTMLParser

import pytest

from config.console.terminal import plain
from config.settings import KeySettings
from minter.cli import custody_html, custody_picture, custody_text
from tests.minter.lease_world import CANARY

#: What an operator, a caller or whoever edits a file may have written.
HOSTILE = (
    '"><script>alert(1)</script>',
    "'onmouseover='alert(1)",
    "</style><img src=//evil.example.com/x>",
    "evil\u202etxt.exe",
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[31mred\x1b[0m",
    "&lt;b&gt;",
    "[bold red]markup[/]",
)


class Reader(HTMLParser):
    """What a browser would see: tags with their attributes, the text between them, headings and captions."""

    def __init__(self, document):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.outline, self.open = [], [], [], []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "rect", "path", "line"):
            self.open.append(tag)
        if tag in ("h1", "h2", "h3", "caption"):
            self.outline.append([tag, ""])

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag, f"{tag} is not nested"

    def handle_data(self, data):
        self.texts.append(data)
        if self.outline and self.open and self.outline[-1][0] in self.open:
            self.outline[-1][1] += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
async def made(world):
    """A report with something in every part, under hostile names where names are free."""
    keys = dict(world.settings.keys)
    for number, name in enumerate(HOSTILE):
        world.secret(f"k{number}", f"{CANARY}-{number}")
        path = f"file:{world.folder / 'secrets' / f'k{number}'}"
        keys[name] = KeySettings(source=path, owner=name, purpose=name, second_copy=name, rotate_every="90d")
    grants = json.loads((world.folder / "grants.json").read_text())
    for number, name in enumerate(HOSTILE):
        profile = {**grants["profiles"]["open"], "token": {"type": "static", "key": name}}
        grants["profiles"][f"hostile-{number}"] = profile
    (world.folder / "grants.json").write_text(json.dumps(grants))
    world.changes["keys"] = keys
    await world.restart()
    await world.lease()
    await world.lease(profile="jwt")
    await world.minter.service.end(lambda live: live.row.kind == "jwt", "operator")
    await world.lease(profile="remote")
    report = await world.minter.custody_report.make(now=world.clock.now() + 80 * 86400)
    report["leases"] = (await world.minter.custody_report.make(now=world.clock.now()))["leases"]
    # What a kind of another distribution, or a state that was written by another hand, may hold.
    report["leases"]["orphans"] = [{**report["leases"]["active"][0], "profile": HOSTILE[0], "caller": HOSTILE[1]}]
    report["leases"]["totals"]["orphan_suspect"] = 1
    for key, name in zip(report["keys"], HOSTILE, strict=False):
        for one in (*key["who_may"], *key["who_did"]):
            one["callers" if "callers" in one else "caller"] = [name] if "callers" in one else name
    return report


def words_of(report):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        custody_text.show(report)
    return out.getvalue()


# --- HTML ---


async def test_the_document_has_the_parts_in_their_order(made):
    outline = Reader(custody_html.render(made)).outline
    assert [text for tag, text in outline if tag in ("h1", "h2")] == [
        *("Custody report", "Open leases", "Who may use what", "Keys"),
        *("Findings: unused, too wide, too old", "What this does not prove"),
    ]
    keys = next(index for index, one in enumerate(outline) if one[1] == "Keys")
    assert [text.partition(":")[0] for tag, text in outline[:keys] if tag == "caption"] == [
        *("Orphans", "On loan, by profile and key", "On loan, one by one"),
        *("Ended here, still accepted by an API that does not ask the minter", "Lent as they are"),
    ]
    named = [text for tag, text in outline[keys:] if tag == "h3"]
    assert named == [plain(key["alias"]) for key in made["keys"]]


async def test_nothing_runs_and_nothing_is_loaded_from_anywhere(made):
    document = custody_html.render(made)
    read = Reader(document)
    allowed = {"html", "head", "meta", "title", "style", "body", "header", "main", "nav", "section", "article"}
    allowed |= {"h1", "h2", "h3", "p", "dl", "dt", "dd", "ul", "li", "a", "code", "strong", "span", "time", "br", "div"}
    allowed |= {"table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption"}
    allowed |= {"svg", "desc", "g", "rect", "path", "line", "text"}
    assert {tag for tag, _ in read.tags} <= allowed
    for tag, attributes in read.tags:
        assert not any(name.startswith("on") or name in ("style", "src", "srcset", "xlink:href") for name in attributes)
        assert tag != "a" or attributes["href"].startswith("#")
    style = re.search(r"<style>(.*?)</style>", document, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert "</" not in style


async def test_the_policy_in_it_allows_its_own_style_and_nothing_else(made):
    document = custody_html.render(made)
    (policy,) = [meta["content"] for meta in Reader(document).all("meta") if "http-equiv" in meta]
    style = re.search(r"<style>(.*?)</style>", document, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


async def test_a_hostile_name_is_text_and_what_cannot_be_seen_of_it_is_spelt_out(made):
    document = custody_html.render(made)
    read = Reader(document)
    for name in HOSTILE:
        assert any(plain(name) in text for text in read.texts), name
    assert "alert(1)</script>" not in document
    assert "\u202e" not in document
    assert "\x1b" not in document
    assert len(read.all("svg")) == 1 + sum(2 for key in made["keys"] if key["age_percent"] is not None)


async def test_a_reader_of_the_screen_finds_its_way(made):
    read = Reader(custody_html.render(made))
    assert read.all("html") == [{"lang": "en"}]
    assert all(head.get("scope") in ("col", "row") for head in read.all("th"))
    assert len(read.all("caption")) == len(read.all("table"))
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"][1:] for attributes in read.all("a")}
    targets |= {one for _, attributes in read.tags for one in attributes.get("aria-labelledby", "").split()}
    assert targets <= set(ids)
    assert any("role" in svg and svg["role"] == "img" for svg in read.all("svg"))
    assert any("83 %" in text or "88 %" in text for text in read.texts)
    assert "due soon" in "".join(read.texts)  # in words, not by colour alone


async def test_no_part_of_it_is_needed_for_another(made):
    """A minter that has just begun has nothing to show, and the report is whole."""
    made["keys"] = made["without_key"] = made["findings"] = made["broker_tokens"] = made["valid_until_rotated"] = []
    made["leases"] |= {
        name: [] for name in ("orphans", "irrevocable", "revoking", "being_made", "active", "groups", "over_but_valid")
    }
    made["audit"]["checkpoint"] = None
    made["quarantined_since"] = "2030-01-01T00:00:00.000Z"
    text = "".join(Reader(custody_html.render(made)).texts)
    assert "Quarantine." in text
    assert "none is known" in text
    assert "Nothing is on loan." in text
    assert "QUARANTINE" in words_of(made)


# --- the picture ---


def keys_of(count, profiles=1):
    kinds = ("static", "jwt")
    return [
        {
            "alias": f"key-{number:03d}" + "-with-a-name-that-is-far-too-long-for-its-box" * (number % 3 == 0),
            "phase": "active",
            "use": "static",
            "who_may": [
                {"profile": f"p-{number}-{n}", "kind": kinds[n % 2], "callers": ["a", "b", "c", "d"]}
                for n in range(profiles if number % 5 else 0)
            ],
        }
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "profiles"), [(0, 0), (1, 1), (1, 30), (10, 2), (60, 1), (60, 20), (1000, 3)])
def test_the_picture_stays_readable_with_any_number_of_keys(count, profiles):
    drawn = custody_picture.picture({"keys": keys_of(count, profiles), "without_key": []})
    assert drawn.rows <= custody_picture.MAX_ROWS
    boxes = sorted((box.column, box.y) for box in drawn.boxes)
    for (column, y), (next_column, next_y) in itertools.pairwise(boxes):
        assert column != next_column or next_y - y >= custody_picture.BOX, "two boxes lie on one another"
    for box in drawn.boxes:
        assert custody_picture.BOX / 2 < box.y < drawn.height
        assert box.x + box.width <= custody_picture.WIDTH
        assert len(box.text) * 7.4 <= (box.width if box.shape != "none" else 480)
    shown = {box.full for box in drawn.boxes if box.column == "key"}
    assert len(shown) == count if not drawn.left_out else str(len(shown)) in drawn.left_out
    edges = {(box.x, box.y) for box in drawn.boxes} | {(box.x + box.width, box.y) for box in drawn.boxes}
    assert all({(line.x1, line.y1), (line.x2, line.y2)} <= edges for line in drawn.lines)


def test_a_key_with_very_many_profiles_says_how_many_are_not_drawn():
    (key, *_) = keys_of(2, 30)[1:]
    drawn = custody_picture.picture({"keys": [key], "without_key": []})
    assert f"and {30 - custody_picture.MAX_PROFILES} more profiles" in [box.text for box in drawn.boxes]


# --- text ---


async def test_the_text_has_the_same_parts_and_is_plain_where_it_is_no_terminal(made):
    text = words_of(made)
    parts = ("Custody report", "OPEN LEASES", "Orphans", "KEYS", "FINDINGS", "WHAT THIS DOES NOT PROVE")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert all(len(line) <= 100 and line == line.rstrip() for line in text.splitlines())
    assert "[########--] 88 % soon" in text
    assert "[bold red]markup[/]" in text
    assert made["audit"]["hash"] in text
    assert CANARY not in text
