"""Audit logs for the tests of them: opened, grown, read and verified."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

from config.settings import AuditSettings
from minter import audit_verify
from minter.audit import AuditLog
from minter.audit_events import Event
from minter.audit_segments import lines_of, segments
from minter.audit_verify import Head

NOW = 1_893_456_000.0


def pinned(n=0):
    return Event("key.pinned", {"alias": f"key-{n}", "origins": ["https://api.example.com"]})


def open_log(path, *, known=None, now=NOW, **settings):
    return AuditLog(path, installation="inst-1", known=known, now=now, settings=AuditSettings(**settings))


def grow(log, count, start=0):
    for n in range(start, start + count):
        log.append([pinned(n)], now=NOW + n)
    return Head(*log.head())


def report_of(path, **options):
    return audit_verify.verify(lines_of(s.path for s in segments(path)), installation="inst-1", **options)


def records(path):
    return [json.loads(line) for line in lines_of(s.path for s in segments(path))]


def codes(path):
    return [record["code"] for record in records(path)]


def whole(path):
    """Return every byte of a log, across its files."""
    return b"".join(segment.path.read_bytes() for segment in segments(path))


def second_of(log):
    return log._sinks.targets[1][1]


class Gate:
    """Lets writes of a file through, or holds them as a disk does that does not answer."""

    def __init__(self, target):
        self.open = threading.Event()
        self.open.set()
        target._write = self.write

    def write(self, fd, data):
        self.open.wait(20)
        return os.write(fd, data)


class Receiver:
    """The system's log: a datagram socket that is read when the test says so."""

    def __init__(self, path: Path):
        self.path = path
        self.start()

    def start(self):
        self.path.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.setblocking(False)

    def stop(self):
        self.socket.close()
        self.path.unlink()

    def lines(self):
        found = []
        while True:
            try:
                found.append(self.socket.recv(1 << 20))
            except BlockingIOError:
                return found

    def seqs(self):
        return [json.loads(line.partition(b": ")[2])["seq"] for line in self.lines()]
