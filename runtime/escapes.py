"""What escapes from a callback of the loop, and when that ends the process.

asyncio logs such an exception and goes on: whatever the callback had half done stays half done, and whoever
waits for the rest waits for ever. So a callback in which code of ours took part is fatal: `on_fatal` is told,
once each, and the next start recovers. Logged only:

  * what a protocol raises while it takes bytes: the loop closes that connection;
  * what comes from a library alone, or from the loop (a future that was done already);
  * results that nobody asked for: background work is supervised (tasks.py), and what else fails is told to
    whoever waits;
  * messages without an exception.

Not here: how the process ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

from millrace.runtime.errors import MillraceError

log = logging.getLogger(__name__)

_OURS = __name__.partition(".")[0] + "."


class CallbackFailed(MillraceError):
    """A defect of ours, met outside every task. `cause` is what was raised."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"a callback failed ({type(self.cause).__name__}: {self.cause}), which is a defect, and what it "
            "left half done cannot be trusted: "
            "the next start recovers all that was acknowledged; please report it with the trace in the log"
        )


def guard_loop(loop: asyncio.AbstractEventLoop, on_fatal: Callable[[CallbackFailed], None]) -> None:
    """From now on the loop tells what is fatal; all is logged as before."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or not is_fatal(context):
            loop.default_exception_handler(context)
            return
        log.critical("%s", context.get("message"), exc_info=error)
        on_fatal(CallbackFailed(error))

    loop.set_exception_handler(handle)


def is_fatal(context: dict[str, Any]) -> bool:
    """`context` is what a loop gives its exception handler."""
    error = context.get("exception")
    return error is not None and "handle" in context and _has_frame_of_ours(error.__traceback__)


def _has_frame_of_ours(trace: TracebackType | None) -> bool:
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith(_OURS):
            return True
        trace = trace.tb_next
    return False
