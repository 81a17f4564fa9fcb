"""A port that nobody listens on, below those that systems give to outgoing connections.

One of those would be taken while its broker restarts: by a client that connects to it, even, since a
connection to a port of its own is one that Linux makes.
"""

from __future__ import annotations

import random
import socket
from collections import deque

PORTS = range(12_000, 32_000)
TRIES_MAX = 1_000
DRAWN = random.SystemRandom()  # two processes that were seeded alike draw other ports
# Not given again soon by this process: it may not listen on them yet, as one that begins several nodes.
_given: deque[int] = deque(maxlen=1_000)


def free_port() -> int:
    """Free when it was looked at: who starts a broker on it tries another if it is not any more. Raises
    OSError where many tries found none."""
    for _ in range(TRIES_MAX):
        port = DRAWN.choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.append(port)
        return port
    raise OSError(f"no free port in {PORTS}")
