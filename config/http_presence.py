"""Whether a client is still there, asked of the kernel: reading does not tell while it is paused."""

from __future__ import annotations

import select
from typing import Any, Final

#: The other side has ended. Where the kernel does not know this event, that is seen when reading goes on.
_ENDED: Final = getattr(select, "POLLRDHUP", 0)


def is_here(sock: Any) -> bool:
    """Say whether the other end of a connected socket still sends, or may."""
    poll = select.poll()
    poll.register(sock, _ENDED)
    return not poll.poll(0)
