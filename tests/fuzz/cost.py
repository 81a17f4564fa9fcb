"""What a call costs, in figures that a busy machine does not change: the memory it holds at most, and the
steps of Python it takes.

Not seen: what libraries in C hold for themselves (Guard looks at the process for that), and how many bytes
one step copies.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

# What a message takes when it is decoded, at most, for each of its bytes: protocol/compile.py says 58.
DECODED_FACTOR = 60
NO_LIMIT = 1 << 62


class TooManySteps(AssertionError):
    pass


def peak_bytes(call: Callable[[], object]) -> int:
    """The most that `call` held at once, its result included. What it made on first use is in there, too:
    call it before."""
    tracemalloc.start()
    try:
        _result = call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def count_steps(call: Callable[[], object], steps_max: int = NO_LIMIT) -> int:
    """The calls, lines and returns of Python in `call`; TooManySteps as soon as there are more than
    `steps_max`, so that a loop without an end is found, too."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        if count > steps_max:
            raise TooManySteps(f"more than {steps_max} steps")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
