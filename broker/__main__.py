"""The process's edge: arguments, environment and the event loop. The only place that names uvloop.

`millrace` is `main`. What becomes of a command whose output nobody reads is said in cli/output.py; SIGINT and
SIGTERM end any but `serve` with code 130 and 143, without a trace, also while it is loaded (interrupts.py).
It refuses to run with -O: assertions are part of what keeps data right.
"""

from __future__ import annotations

import os
import sys

from millrace.broker.interrupts import INTERRUPTED, end_on_interrupt, raise_on_interrupt

# nothing is loaded that takes time before `end_on_interrupt`: not `typing`, not `signal`
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Runs to the end on uvloop, or on the library's loop where uvloop is not installed. SIGTERM cancels it,
    as SIGINT does."""
    import asyncio

    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        from uvloop import new_event_loop as new_loop
    except ImportError:
        pass
    raise_on_interrupt()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_until_terminated(main))


async def _until_terminated(main: Coroutine[Any, Any, int]) -> int:
    """What a command holds or made is given back on the way out; `serve` puts a handler of its own in place
    of this one."""
    import asyncio
    import signal

    task, is_terminated = asyncio.current_task(), False
    assert task is not None

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await main
    except asyncio.CancelledError:
        if is_terminated:
            return 128 + signal.SIGTERM
        raise


def main(words: Sequence[str] | None = None) -> int:
    end_on_interrupt()
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
        return INTERRUPTED
    finally:
        raise_on_interrupt()
        # here, where a closed pipe has its exit code; left to the interpreter's end it would be a trace
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
