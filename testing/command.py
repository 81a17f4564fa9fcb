"""Runs a command beside a broker: its exit code, signals passed on, and its end with ours.

The command shares our terminal, process group, input and output. On Linux it is killed when we are (PR_SET_PDEATHSIG; we are the
thread that starts it, and stay); elsewhere it goes on, and finds its broker gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

NOT_FOUND, NOT_EXECUTABLE = 127, 126
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def run_command(words: Sequence[str], env: Mapping[str, str]) -> int:
    """As a shell gives it: 128 and the number of a signal that ended it, 127 for a command that is not there. From the main thread only."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    parent = os.getpid()

    def die_with_parent() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that was asked for
            os._exit(1)

    early: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *PASSED_ON)}
    try:
        signal.signal(signal.SIGINT, lambda number, frame: None)  # the terminal sends it to the command, too
        for number in PASSED_ON:
            signal.signal(number, pass_on)
        process = subprocess.Popen(words, env=dict(env), preexec_fn=die_with_parent)  # we have one thread
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
