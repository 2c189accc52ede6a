"""What an operation is sent and what it answers, of all that the document offers: one of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from broker.specgen import schemas
from broker.specgen.document import Document
from broker.specgen.model import Body, Note, SchemaAt
from broker.specgen.references import UnresolvedError, child
from broker.specgen.styles import is_json, shown
from broker.specgen.texts import quoted

_Form = Literal["json", "form", "multipart", "raw"]

_WORD: Final = r"[A-Za-z0-9!#$&^_.+'|~-]{1,100}"
_VALUE: Final = r"(?:" + _WORD + r'|"[A-Za-z0-9!#$&^_.+|~ /:=,\-]{0,100}")'
_MEDIA: Final = re.compile(rf"({_WORD}/{_WORD})(?:\s*;\s*{_WORD}={_VALUE}){{0,4}}", re.ASCII)
_RANGE: Final = re.compile(r"(?:\*|application|text|image|audio|video|font|model)/\*", re.ASCII)
_SUCCESS: Final = re.compile(r"2(?:[0-9][0-9]|XX)", re.ASCII)
#: Their requests have no body that every server reads.
_BODILESS: Final = ("GET", "HEAD")
#: From what is carried best to what is carried as it is.
_FORMS: Final[tuple[_Form, ...]] = ("json", "form", "multipart", "raw")
_MAX_MEDIA: Final = 100


def read_body(
    document: Document, operation: Mapping[str, Any], operation_pointer: str, method: str
) -> tuple[Body | None, tuple[Note, ...]]:
    """Return what the operation is sent, and the notes on it; no body when it takes none or none can be carried.

    JSON is preferred, then forms, then everything else as it is. A required body that cannot be carried is a note of
    level "stop".
    """
    written = operation.get("requestBody")
    if written is None:
        return None, ()
    pointer = child(operation_pointer, "requestBody")
    try:
        node, pointer = document.resolve(written, pointer)
    except UnresolvedError as error:
        return None, (error.note("stop"),)
    if not isinstance(node, Mapping):
        return None, (Note("stop", pointer, "requestBody is not an object", "mend the document"),)
    required = node.get("required") is True
    if method in _BODILESS:
        return None, (_lost(pointer, f"a body of {method} is not sent", "", required=required),)
    offered = list(_offered(document, node.get("content"), child(pointer, "content")))
    if not offered:
        reason = "requestBody names no media type that can be sent"
        return None, (_lost(pointer, reason, "say under content what is sent", required=required),)
    # Of two that are as good, `min` takes the document's first.
    media, form, described, place = min(offered, key=lambda one: (_FORMS.index(one[1]), one[0] != "application/json"))
    description = node.get("description")
    body = Body(
        media=media,
        form=form,
        required=required,
        schema=SchemaAt(described.get("schema", {}), child(place, "schema")),
        description=description if isinstance(description, str) else "",
    )
    others = [other for other, *_ in offered if other != media]
    return body, tuple(_notes(document, body, described, place, others))


def read_result(document: Document, operation: Mapping[str, Any], operation_pointer: str) -> SchemaAt | None:
    """Return the schema of the operation's successful JSON answer: the first that a 2xx response has.

    ``default`` counts only where no 2xx response is described: otherwise it is what errors look like.
    """
    responses = operation.get("responses")
    if not isinstance(responses, Mapping):
        return None
    codes = [code for code in responses if _SUCCESS.fullmatch(code)]
    for code in codes or ["default"]:
        pointer = child(operation_pointer, "responses", code)
        try:
            response, pointer = document.resolve(responses.get(code), pointer)
        except UnresolvedError:
            continue
        if isinstance(response, Mapping):
            for media, _, described, place in _offered(document, response.get("content"), child(pointer, "content")):
                if is_json(media) and "schema" in described:
                    return SchemaAt(described["schema"], child(place, "schema"))
    return None


def _lost(pointer: str, reason: str, remedy: str, *, required: bool) -> Note:
    return Note("stop" if required else "limit", pointer, reason + ("; it is required" if required else ""), remedy)


def _offered(document: Document, content: Any, pointer: str) -> Iterator[tuple[str, _Form, Mapping[str, Any], str]]:
    """Yield the media types that can be sent: (Content-Type, form, Media Type Object, its pointer)."""
    if not isinstance(content, Mapping):
        return
    for written, node in list(content.items())[:_MAX_MEDIA]:
        try:
            described, place = document.resolve(node, child(pointer, written))
        except UnresolvedError:
            continue
        if not isinstance(described, Mapping):
            described = {}
        media = _media(document, written, described, place)
        if media is not None:
            yield media, _form(media), described, place


def _media(document: Document, written: str, described: Mapping[str, Any], place: str) -> str | None:
    """Return the Content-Type to send for a media type as written, which may be a range."""
    text = written.strip()
    if _RANGE.fullmatch(text):
        kinds = schemas.types(document, SchemaAt(described.get("schema", {}), child(place, "schema")))
        if text in ("*/*", "application/*") and kinds & {"object", "array"}:
            return "application/json"
        return "text/plain" if text == "text/*" else "application/octet-stream"
    return text if _MEDIA.fullmatch(text) else None


def _form(media: str) -> _Form:
    bare = media.partition(";")[0].strip().lower()
    if is_json(media):
        return "json"
    return {"application/x-www-form-urlencoded": "form", "multipart/form-data": "multipart"}.get(bare, "raw")  # type: ignore[return-value]


def _notes(
    document: Document, body: Body, described: Mapping[str, Any], place: str, others: list[str]
) -> Iterator[Note]:
    if others:
        yield Note("warn", place, f"the body is sent as {body.media}; also offered: {shown(others)}")
    if body.form == "raw" and not body.media.lower().startswith("text/"):
        yield Note("limit", place, f"a body of {quoted(body.media, 80)} is sent as the code gives it, as text or bytes")
    try:
        document.resolve(body.schema.schema, body.schema.pointer)
    except UnresolvedError as error:
        yield error.note("limit")
    encoding = described.get("encoding")
    if body.form in ("form", "multipart") and isinstance(encoding, Mapping):
        here = child(place, "encoding")
        unusual = [name for name, one in encoding.items() if _is_unusual(one)]
        if unusual:
            reason = f"the encoding of its members {shown(unusual)} is not followed; they are written as usual"
            yield Note("limit", here, reason)
        typed = [name for name, one in encoding.items() if isinstance(one, Mapping) and one.get("contentType")]
        if typed and body.form == "multipart":
            reason = f"the content types of its members {shown(typed)} are written where the code gives them"
            yield Note("warn", here, reason)


def _is_unusual(encoding: Any) -> bool:
    """Say whether a member is written otherwise than one pair a value."""
    if not isinstance(encoding, Mapping):
        return False
    return encoding.get("style", "form") != "form" or encoding.get("explode") is False or bool(encoding.get("headers"))
