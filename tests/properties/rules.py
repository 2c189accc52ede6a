"""The rules of grants read one by one, route by route: what the matcher must decide, however it is built.

It shares no code with the matcher but the constants of the grammar.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote, unquote_to_bytes

#: The values of the run parameters.
GIVEN = {"p": "a", "q": "bb"}


def text(item):
    return item if isinstance(item, str) else item["route"]


def well_formed(path):
    """Rules 1 and 2 of exact wire."""
    if not re.fullmatch(r"(?:/(?:[A-Za-z0-9\-._~!$&'()*+,=:@]|%[0-9A-F]{2})*)+", path, re.ASCII):
        return False
    *inner, _ = segments = path[1:].split("/")
    return "" not in inner and all(map(segment_well_formed, segments))


def segment_well_formed(segment):
    for escape in re.findall("%..", segment):
        if re.fullmatch(r"[A-Za-z0-9\-_~]", unquote(escape)):
            return False
    seen = segment
    while set(seen) != {"."}:
        if seen != segment and any(hollow(part) for part in re.split(r"[/\\]", seen)):
            return False
        try:
            further = unquote_to_bytes(seen).decode()
        except UnicodeDecodeError:
            return False
        if any(unicodedata.category(mark) == "Cc" for mark in further):
            return False
        if further == seen:
            return True
        seen = further
    return False


def hollow(part):
    return not re.split("[;?#]", part)[0].strip(".")


def star_takes(value, item):
    options = {} if isinstance(item, str) else item
    marks = "-._~@+=" + (":!$&'()*," if options.get("wide") else "")
    encoded = options.get("encoded", False)
    listed = set(encoded) if isinstance(encoded, list) else set()
    tokens = re.findall(r"%..|.", value)
    for token in tokens:
        if len(token) == 3:
            mark = unquote_to_bytes(token)
            needed = mark[0] >= 0x80 or mark.decode() in ' "<>[]^`{|}'
            if not encoded or not (needed or token in listed):
                return False
        elif not (token.isascii() and token.isalnum()) and token not in marks:
            return False
    return bool(tokens) and set(value) != {"."}


def segment_takes(template, segment, item):
    named = re.fullmatch(r"(.*)\{(.)\}(.*)", template)
    if named:
        return segment == named[1] + GIVEN[named[2]] + named[3]
    pieces = template.split("*")
    if len(pieces) == 1:
        return segment == template
    if len(pieces) == 2:
        found = re.fullmatch(f"{re.escape(pieces[0])}(.+){re.escape(pieces[1])}", segment)
        return bool(found) and star_takes(found[1], item)
    if not (segment.startswith(pieces[0]) and segment.endswith(pieces[2])):
        return False
    return any(
        segment[cut:].startswith(pieces[1])
        and star_takes(segment[len(pieces[0]) : cut], item)
        and star_takes(segment[cut + len(pieces[1]) : len(segment) - len(pieces[2])], item)
        for cut in range(len(segment))
    )


def kind(template):
    """Position order: smaller is more specific."""
    literal = len(re.sub(r"\*|\{.\}", "", template))
    if "{" in template:
        return 1, -literal
    if "*" in template:
        return (2, -literal) if template != "*" else (3, 0)
    return 0, 0


def fold(segment):
    if "%" in segment:
        return unicodedata.normalize("NFKC", unquote(segment)).casefold()
    return segment.lower()


def documents(template, segment):
    pieces = re.sub(r"\{.\}", "*", template).lower().split("*")
    pattern = "(?s:.+)".join(map(re.escape, pieces))
    return re.fullmatch(pattern, segment) is not None


def decide(allow, catalog, method, target):
    """Return ("granted", template) or the refusal's code."""
    if not well_formed(target):
        return "target-malformed"
    segments = target[1:].split("/")
    matching = []
    for item in allow:
        granted_method, path = text(item).split(" ")
        parts = path[1:].split("/")
        if (
            granted_method == method
            and len(parts) == len(segments)
            and all(segment_takes(part, segment, item) for part, segment in zip(parts, segments, strict=True))
        ):
            matching.append((parts, item))
    if not matching:
        return "not-granted"
    parts, item = min(matching, key=lambda match: [(*kind(part), part) for part in match[0]])
    for written in catalog:
        documented_method, documented_path = written.split(" ")
        same = documented_method == method or {documented_method, method} == {"GET", "HEAD"}
        starred = re.sub(r"\{.\}", "*", documented_path)
        if (
            same
            and f"{method} {starred}" not in {text(other) for other in allow}
            and reserves(starred, parts, segments, item)
        ):
            return "route-reserved"
    return "granted", text(item)


def reserves(documented_path, parts, segments, item):
    documented = documented_path[1:].removesuffix("/").split("/") if documented_path != "/" else []
    readings = [[(fold(segment), part) for part, segment in zip(parts, segments, strict=True) if segment or part]]
    if isinstance(item, dict) and isinstance(item.get("encoded"), list) and "%2F" in item["encoded"]:
        readings.append([(piece, part) for folded, part in readings[0] for piece in re.split(r"[/\\]", folded)])
    return any(
        len(documented) == len(reading)
        and all(documents(template, folded) for template, (folded, _) in zip(documented, reading, strict=True))
        and any(kind(template) < kind(part) for template, (_, part) in zip(documented, reading, strict=True))
        for reading in readings
    )
