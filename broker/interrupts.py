"""SIGINT while a command is loaded: the process ends at once with code 130, for nothing is held or made yet.

KeyboardInterrupt is no use there. In the midst of an import it may be raised where it is printed and
forgotten, or becomes another error. Whoever begins to hold something asks for it again
(`raise_on_interrupt`): a loop, or a process that is started.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in broker/__main__.py: until `end_on_interrupt` as little is loaded as can be
if TYPE_CHECKING:
    from types import FrameType

BARE = __import__("_signal")  # what `signal` gives names to, which takes it as long as an interpreter's start
INTERRUPTED: int = 128 + BARE.SIGINT


def end_on_interrupt() -> None:
    """Until `raise_on_interrupt`. A signal that is ignored, as that of a shell's background job, or handled
    by somebody else stays so."""
    if BARE.getsignal(BARE.SIGINT) is BARE.default_int_handler:
        BARE.signal(BARE.SIGINT, _end)


def raise_on_interrupt() -> None:
    """KeyboardInterrupt from now on."""
    if BARE.getsignal(BARE.SIGINT) is _end:
        BARE.signal(BARE.SIGINT, BARE.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
