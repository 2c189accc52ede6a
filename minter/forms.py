"""The form of what brokers send: checked before a name reaches the table or the audit log."""

from __future__ import annotations

import re
from typing import Final

from config.contract import LeaseRequest, RunRecord
from config.problems import ProblemError
from config.tokenfiles import ID

_RUN_ID: Final = re.compile(r"run_[0-9A-Za-z]{22}", re.ASCII)
_TRACE_ID: Final = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}", re.ASCII)
_WORD: Final = re.compile(r"[a-z][a-z0-9-]{0,63}", re.ASCII)
_TEXT: Final = re.compile(r"[\x20-\x7e]{1,2048}", re.ASCII)
_MAX_COUNT: Final = 2**53
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
#: A run's record names at most so many routes: a profile has no more that a person would read.
_MAX_ROUTES: Final = 2000


def check_run_id(run_id: str) -> str:
    """Return the id of a run; what is none names no run: ``run-not-found``."""
    if not _RUN_ID.fullmatch(run_id):
        raise ProblemError("run-not-found")
    return run_id


def check_request(request: LeaseRequest) -> None:
    """Refuse a request whose names are none: ``body-malformed``. Run parameters are checked by the grant."""
    if not _RUN_ID.fullmatch(request.run_id):
        raise ProblemError("body-malformed", "run_id is no id of a run")
    if not ID.fullmatch(request.caller):
        raise ProblemError("body-malformed", "caller is no id of a caller")
    _check_trace_id(request.trace_id)


def check_record(record: RunRecord) -> None:
    """Refuse counts that are none: ``body-malformed``."""
    if not ID.fullmatch(record.caller):
        raise ProblemError("body-malformed", "caller is no id of a caller")
    if not _WORD.fullmatch(record.ended):
        raise ProblemError("body-malformed", "ended is no short word")
    _check_trace_id(record.trace_id)
    if len(record.by_route) > _MAX_ROUTES:
        raise ProblemError("body-malformed", "by_route is too long")
    for count in record.by_route:
        if not _TEXT.fullmatch(count.profile) or not _TEXT.fullmatch(count.route):
            raise ProblemError("body-malformed", "by_route names no route")
    _check_denied(record)
    counts = [record.calls, record.denied, record.shed]
    counts += [count.calls for count in record.by_route]
    counts += [count.calls for count in record.denied_by]
    if not all(0 <= count <= _MAX_COUNT for count in counts):
        raise ProblemError("body-malformed", "a count is out of range")


def _check_denied(record: RunRecord) -> None:
    if max(len(record.denied_by), len(record.grant_digests)) > _MAX_ROUTES:
        raise ProblemError("body-malformed", "denied_by or grant_digests is too long")
    for count in record.denied_by:
        if not _WORD.fullmatch(count.code):
            raise ProblemError("body-malformed", "denied_by names no problem code")
        if not all(_TEXT.fullmatch(text) for text in (count.profile, count.route) if text):
            raise ProblemError("body-malformed", "denied_by names no route")
    for profile, digest in record.grant_digests.items():
        if not _TEXT.fullmatch(profile) or not _DIGEST.fullmatch(digest):
            raise ProblemError("body-malformed", "grant_digests names no grant")


def _check_trace_id(trace_id: str | None) -> None:
    if trace_id is not None and not _TRACE_ID.fullmatch(trace_id):
        raise ProblemError("body-malformed", "trace_id is not 1 to 128 letters, digits and . _ : / @ + = -")
