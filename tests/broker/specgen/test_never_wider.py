"""Whatever passes the catalog of a document of anything is in the document, by a reading of its bare text."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.specgen.model import route_text
from config.match import DeniedError, Matcher
from tests.broker.specgen.anything import DOCUMENTS
from tests.broker.specgen.hostile import read_or_none
from tests.config.grants_of import profile

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
#: Outside of braces these end what is sent of a path key.
ENDS = re.compile(r"[#?](?![^{]*\})")
FOREIGN = ["x", "admin", "..", "%2e", "a%2Fb", "a;b", ".json", ":do", "", "%00"]
CREDENTIALS = ["access_token", "authorization"]


def keys(root: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (method, pattern of the path) of whatever the document may have an operation of."""
    found = []
    for key, item in root["paths"].items():
        # What a reference leads to may have any method: that the path is the document's is looked at all the same.
        methods = METHODS if not isinstance(item, dict) or "$ref" in item else [name.upper() for name in item]
        parts = re.split(r"(\{[^{}]*\})", ENDS.split(key)[0])
        pattern = "".join("[^/?]+" if part.startswith("{") else re.escape(part) for part in parts)
        found += [(method, pattern) for method in methods]
    return found


def texts(value: Any) -> set[str]:
    """Return every text of the document, the names of members too."""
    if isinstance(value, dict):
        return set(value).union(*map(texts, value.values()))
    if isinstance(value, list):
        return set().union(*map(texts, value))
    return {value} if isinstance(value, str) else set()


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(DOCUMENTS, st.data())
def test_what_passes_the_catalog_is_in_the_document(root, data):
    found = read_or_none(root)
    if found is None or not found[1].catalog:
        return
    api = found[1]
    matcher = Matcher(profile(allow=list(api.catalog), request_headers=list(api.request_headers)))
    known, said = keys(root), texts(root)
    pieces = st.sampled_from([*FOREIGN, *sorted({one for key in root["paths"] for one in re.split("[/{}#?]", key)})])
    names = st.sampled_from(
        [*CREDENTIALS, "admin", *sorted(name for name in said if re.fullmatch(r"[\w.\[\]-]+", name, re.ASCII))]
    )
    for _ in range(20):
        method, _, path = route_text(data.draw(st.sampled_from(api.catalog))).partition(" ")
        method = data.draw(st.sampled_from([method, method, *METHODS]))
        parts = [data.draw(pieces) if data.draw(st.integers(0, 4)) == 0 else part for part in path.split("/")[1:]]
        path = "/" + re.sub(r"\*", lambda _: data.draw(st.just("7") | pieces), "/".join(parts))
        query = "&".join(f"{name}=1" for name in data.draw(st.lists(names, max_size=2)))
        try:
            matcher.match(method, f"{path}?{query}".rstrip("?").encode(), {})
        except DeniedError:
            continue
        assert any(method == one and re.fullmatch(pattern, path) for one, pattern in known), (method, path)
        for name in (unquote(pair.partition("=")[0]) for pair in query.split("&") if pair):
            assert name.lower() not in CREDENTIALS
            # A member of an object is written filter[eq]; a pair of the path's own query stands in its key.
            assert said & {name, name.partition("[")[0]} or any(name in key for key in root["paths"]), name
