"""Runs a command beside a broker: its exit code, and signals passed on.

The command shares our terminal, process group, input and output. Not here: its end when we are killed
(guard.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

NOT_FOUND, NOT_EXECUTABLE = 127, 126
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_command(words: Sequence[str], env: Mapping[str, str]) -> int:
    """As a shell gives it: 128 and the number of a signal that ended it, 127 for a command that is not there.
    From the main thread only."""
    early: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and is_foreground():
            return  # Ctrl-C: the terminal sends it to the command, too
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    heard = [
        number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN
    ]  # as under nohup
    before = {number: signal.signal(number, pass_on) for number in heard}
    try:
        process = subprocess.Popen(words, env=dict(env))
        for missed in early:
            process.send_signal(missed)
        code = process.wait()
    except FileNotFoundError:
        print(f"millrace: there is no command {words[0]!r}", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"millrace: {words[0]!r} cannot be run: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def is_foreground() -> bool:
    """Whether this process group is the one that its terminal sends Ctrl-C to; it is not where there is no
    terminal, as in CI."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
