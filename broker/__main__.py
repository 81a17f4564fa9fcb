"""The process's edge: arguments, environment and the event loop. The only place that names uvloop.

`millrace` is `main`. It refuses to run with -O: assertions are part of what keeps data right.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Runs to the end on uvloop, or on the library's loop where uvloop is not installed."""
    import asyncio

    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        from uvloop import new_event_loop as new_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def main(words: Sequence[str] | None = None) -> int:
    if not __debug__:
        print("millrace: does not run with -O or PYTHONOPTIMIZE: its assertions guard data", file=sys.stderr)
        return 2
    from millrace.broker.cli import run

    return run(sys.argv[1:] if words is None else words, os.environ, run_loop)


if __name__ == "__main__":
    sys.exit(main())
