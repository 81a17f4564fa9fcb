"""A port that nobody listens on, below those that systems give to outgoing connections.

One of those would be taken while its broker restarts: by a client that connects to it, even, since a
connection to a port of its own is one that Linux makes.
"""

from __future__ import annotations

import random
import socket

PORTS = range(12_000, 32_000)
TRIES_MAX = 1_000
DRAWN = random.SystemRandom()  # two processes that were seeded alike draw other ports


def free_port() -> int:
    """Free when it was looked at: who starts a broker on it tries another if it is not any more. Raises
    OSError where many tries found none."""
    for _ in range(TRIES_MAX):
        port = DRAWN.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise OSError(f"no free port in {PORTS}")
