"""Starting a command and standing in for it: its signals, its exit status.

While a :class:`Supervisor` is entered no signal ends this process: what comes is kept, then handed to the command.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Self

from broker.reach import Account
from config.console import terminal

_ENDING: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_FORWARDED: Final = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)
_WATCHED: Final = (*_FORWARDED, signal.SIGCHLD)
_PR_SET_NO_NEW_PRIVS: Final = 38
# As shells say it.
_NOT_RUNNABLE: Final = 126
_NOT_FOUND: Final = 127
_SIGNALLED: Final = 128


class Supervisor:
    """Keeps the signals that come while it is entered, and runs one command."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _WATCHED:
            self._before[number] = signal.signal(number, self._keep)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _keep(self, number: int, _frame: FrameType | None) -> None:
        self._kept.append(number)

    def asked_to_end(self) -> int | None:
        """Return the exit status for a signal that came before the command was started, if one did."""
        return next((_SIGNALLED + number for number in self._kept if number in _ENDING), None)

    def run(self, argv: Sequence[str], env: Mapping[str, str], *, user: Account | None, umask: int) -> int:
        """Run ``argv`` as ``user`` (None: as ourselves) and return its exit status; 128 + n for a signal.

        It has our stdin, stdout and stderr and no other descriptor. As another user it can gain no rights: no
        set-user-id program takes effect.
        """
        try:
            child = self._start(argv, env, user, umask)
        except FileNotFoundError:
            terminal.say(f"{argv[0]}: not found")
            return _NOT_FOUND
        except OSError as error:
            terminal.say(f"{argv[0]}: cannot be run: {error.strerror}")
            return _NOT_RUNNABLE
        status = self._stand_in(child)
        return _SIGNALLED - status if status < 0 else status

    def _start(
        self, argv: Sequence[str], env: Mapping[str, str], user: Account | None, umask: int
    ) -> subprocess.Popen[bytes]:
        if user is None:
            return subprocess.Popen(argv, env=env, close_fds=True, umask=umask)  # noqa: S603 - it is what is asked for
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return subprocess.Popen(  # noqa: S603 - it is what is asked for
            argv, env=env, close_fds=True, umask=umask, user=user.uid, group=user.gid, extra_groups=user.groups
        )

    def _stand_in(self, child: subprocess.Popen[bytes]) -> int:
        # The command was started first: it would inherit the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        try:
            for number in self._kept:
                if number in _FORWARDED:
                    child.send_signal(number)
            while (status := child.poll()) is None:
                number, sent = _next_signal()
                if sent and number in _FORWARDED:
                    child.send_signal(number)
            return status
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def _next_signal() -> tuple[int, bool]:
    """Wait for a signal; return it, and whether a process sent it.

    What the terminal sends (Ctrl-C) comes to the command by itself: it would have it twice.
    """
    wait: Callable[..., Any] | None = getattr(signal, "sigwaitinfo", None)
    if wait is None:  # macOS
        return signal.sigwait(_WATCHED), True
    info = wait(_WATCHED)
    return info.si_signo, info.si_code <= 0
