"""Whether a client is still there, asked of the kernel: for when reading does not tell.

Reading tells nothing while it is paused, and nothing more once the client has ended its side. A client that is gone
and one that has ended its side and waits for its answer look the same until something is written to them.
"""

from __future__ import annotations

import select
from typing import Any, Final

HERE: Final = 0
#: It sends nothing more, and may wait for its answer or be gone.
ENDED: Final = 1
GONE: Final = 2

#: Where the kernel does not know this one, an end of sending is seen when reading goes on.
_ENDED: Final = getattr(select, "POLLRDHUP", 0)


def presence(sock: Any) -> int:
    """Return :data:`HERE`, :data:`ENDED` or :data:`GONE` for the other end of a connected socket."""
    poll = select.poll()
    poll.register(sock, _ENDED)
    for _, events in poll.poll(0):
        if events & (select.POLLERR | select.POLLHUP):
            return GONE
        return ENDED
    return HERE
