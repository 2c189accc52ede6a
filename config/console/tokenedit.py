"""Creating, rotating and revoking the tokens of callers and brokers, as both command lines do it.

The files are changed under their lock and replaced atomically, so this works with the service running (which picks
the change up) and without it. A new token exists in clear once: in what these functions return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from config import load, tokenfiles, tokens
from config.clock import parse_rfc3339
from config.console import terminal
from config.console.commands import CommandError
from config.durations import parse_duration
from config.errors import ConfigurationError, ExitCode, Fault
from config.secret import Secret
from config.tokenfiles import Principal, TokenFile

Which = Literal["callers", "brokers"]

_PREFIX: Final[dict[Which, tokens.Prefix]] = {"callers": tokens.CALLER, "brokers": tokens.BROKER}


@dataclass(frozen=True, slots=True)
class TokensOf:
    """The tokens of one file: ``path`` and which of the two lists it holds."""

    path: Path
    which: Which

    def create(self, principal: Principal) -> Secret:
        """Add ``principal`` and return its first token; a missing file is made, readable by its owner only.

        Errors: ``CommandError`` (conflict) when the id is taken, (usage) when it is not an id.
        """
        made: Secret = self._change(
            lambda listed: tokenfiles.create(listed, principal, _PREFIX[self.which]),
            key_error=self._taken(principal.id),
        )
        return made

    def rotate(self, id_: str, *, now: float, overlap_s: float) -> Secret:
        """Return a new token for ``id_``; the old ones end after ``overlap_s`` seconds.

        Errors: ``CommandError`` (usage) when there is no such id.
        """
        self._must_exist()
        made: Secret = self._change(
            lambda listed: tokenfiles.rotate(listed, id_, _PREFIX[self.which], now=now, overlap_s=overlap_s),
            key_error=self._unknown(id_),
        )
        return made

    def revoke(self, id_: str) -> None:
        """Remove ``id_`` with all its tokens.

        Errors: ``CommandError`` (usage) when there is no such id.
        """
        self._must_exist()
        self._change(lambda listed: (tokenfiles.revoke(listed, id_), None), key_error=self._unknown(id_))

    def listed(self) -> list[Principal]:
        """Return who stands in the file. Errors: ``ConfigurationError``."""
        file = load.read_token_file(self.path)
        self._must_hold(file)
        return file.callers if self.which == "callers" else file.brokers

    def _change(
        self, operation: Callable[[Sequence[Principal]], tuple[list[Principal], Any]], *, key_error: CommandError
    ) -> Any:
        result: list[Any] = []

        def change(file: TokenFile) -> TokenFile:
            self._must_hold(file)
            listed, made = operation(file.callers if self.which == "callers" else file.brokers)
            result.append(made)
            return TokenFile(callers=listed) if self.which == "callers" else TokenFile(brokers=listed)

        try:
            load.edit_token_file(self.path, change)
        except KeyError:
            raise key_error from None
        except ValueError as error:
            raise CommandError(ExitCode.USAGE, str(error)) from None
        except OSError as error:
            raise ConfigurationError([Fault(str(self.path), f"cannot be changed: {error.strerror}")]) from None
        return result[0]

    def _noun(self) -> str:
        return self.which.removesuffix("s")

    def _group(self) -> str:
        return "broker callers" if self.which == "callers" else "minter brokers"

    def _unknown(self, id_: str) -> CommandError:
        return CommandError(
            ExitCode.USAGE, f"there is no {self._noun()} {id_} in {self.path}", f"See: {self._group()} list"
        )

    def _taken(self, id_: str) -> CommandError:
        return CommandError(
            ExitCode.CONFLICT,
            f"{self._noun()} {id_} is in {self.path} already; nothing was changed",
            f"For a new token: {self._group()} rotate {id_}",
        )

    def _must_exist(self) -> None:
        load.read_file(self.path)

    def _must_hold(self, file: TokenFile) -> None:
        other = file.brokers if self.which == "callers" else file.callers
        if other:
            raise ConfigurationError([Fault(str(self.path), f"this file does not hold {self.which}")])


def store(path: Path, token: Secret) -> None:
    """Write a token into a file of its own that only its owner can read, in place of what is there.

    Errors: ``CommandError``.
    """
    try:
        load.write_atomic(path, token.reveal().encode() + b"\n", mode=0o600)
    except OSError as error:
        raise CommandError(
            ExitCode.CONFIGURATION,
            f"{path}: the new token could not be written: {error.strerror}",
            "The token is valid but lost: mend the path and rotate it.",
        ) from None


def described(principal: Principal, *, now: float) -> dict[str, Any]:
    """Return what ``list`` shows of a principal: how many of its tokens count, and until when a rotated one does."""
    ends = [entry.not_after for entry in principal.tokens if entry.not_after is not None]
    live = [end for end in ends if parse_rfc3339(end) > now]
    return {
        "id": principal.id,
        "tokens": len(principal.tokens) - len(ends) + len(live),
        "overlap_ends_at": max(live, key=parse_rfc3339, default=None),
    }


def hand_over(token: Secret, file: Path | None) -> None:
    """Give a new token to the operator: into ``file``, else alone on stdout."""
    if file is None:
        terminal.out_secret(token)
    else:
        store(file, token)


def overlap(text: str) -> float:
    """Read ``--overlap``. Errors: ``CommandError`` (usage)."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--overlap: {error}") from None
