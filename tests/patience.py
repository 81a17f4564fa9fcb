"""How long a test waits for what has to come: only what never comes takes so long, whatever the machine and
its load.

What must not come is not waited for: a test of that waits for something that comes behind it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import IO, AnyStr

PATIENCE_S = 120.0


def until(is_true: Callable[[], object], what: str = "it did not come to be", pause_s: float = 0.02) -> None:
    """Asks again and again."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(pause_s)


async def eventually(is_true: Callable[[], bool]) -> None:
    """Waits until a condition of the other side of a socket, or of a thread, holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110  (the condition is on the other side)
            await asyncio.sleep(0.002)


def next_line(lines: IO[AnyStr] | None) -> AnyStr:
    """The next line that a process writes; an empty one at its end."""
    assert lines is not None, "its output is no pipe"
    found: list[AnyStr] = []
    reader = threading.Thread(target=lambda: found.append(lines.readline()), daemon=True)
    reader.start()
    reader.join(PATIENCE_S)
    assert found, "it wrote no line"
    return found[0]
