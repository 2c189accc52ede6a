"""Logs of both programs: structlog, one JSON object a line on stderr; readable columns on a terminal.

What is logged is names, ids, codes, outcomes, sizes and fingerprints: never a body, a query, a path of a call or the
text of an upstream's error. Redaction belongs to the types (:class:`config.secret.Secret`); the processor here is
the second net and masks whatever has the shape of one of our tokens.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog

from config.tokens import PATTERN

_TOKEN = re.compile(PATTERN)


def set_up(program: str, level: str, *, stream: TextIO | None = None) -> None:
    """Send structlog and the libraries' loggers to ``stream`` (default: stderr)."""
    out = stream or sys.stderr
    terminal = out.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            _named(program),
            _exception_type,
            _mask,
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Sink(out))),
        cache_logger_on_first_use=True,
    )
    # Libraries log through logging. Their texts may quote what they were given, so only their warnings are shown,
    # and of those only who spoke: the library's own words stay out.
    root = logging.getLogger()
    root.handlers[:] = [_Library()]
    root.setLevel(logging.WARNING)
    for name in ("uvicorn.access", "aiohttp.access"):
        logging.getLogger(name).disabled = True


class _Sink:
    """What is written to. A full disk or a pipe that nobody reads takes lines, and must not take what wrote them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class _Library(logging.Handler):
    """Turn a library's warning into one of our lines, without its arguments."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        structlog.get_logger().log(
            record.levelno, "library-warning", logger=record.name, place=f"{record.module}:{record.lineno}", error=kind
        )


def _named(program: str) -> structlog.typing.Processor:
    def add(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["program"] = program
        return event

    return add


def _exception_type(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep an exception's type and where it was raised; its text may quote a value."""
    info = event.pop("exc_info", None)
    error = sys.exc_info()[1] if info is True else info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event["error"] = type(error).__name__
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        if frame is not None:
            event["place"] = f"{frame.tb_frame.f_globals.get('__name__', '?')}:{frame.tb_lineno}"
    return event


def _mask(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _TOKEN.sub("<token>", value)
    return event
