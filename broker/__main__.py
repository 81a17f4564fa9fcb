"""The process's edge: arguments, environment and the event loop. The only place that names uvloop.

`millrace` is `main`. What becomes of a command whose output nobody reads is said in cli/output.py; SIGINT ends any but `serve` with code 130,
without a trace. It refuses to run with -O: assertions are part of what keeps data right.
"""

from __future__ import annotations

import os
import signal
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
    from millrace.broker.cli.output import take_over

    given = sys.argv[1:] if words is None else words
    take_over(is_lasting=given[:1] == ["serve"])
    try:
        return run(given, os.environ, run_loop)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        sys.stdout.flush()  # here, where a closed pipe has its exit code; left to the interpreter's end it would be a trace


if __name__ == "__main__":
    sys.exit(main())
