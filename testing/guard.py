"""A shell that waits for the end of the process that started a broker, then ends the broker and removes its folder.

It holds the reading end of a pipe whose only writing end is in the process that started it: the pipe ends when that process does, however it
ends. The last number written to it is the broker's process; 0 while there is none. A shell is small (1 MiB), starts in a millisecond, and
ends a broker that is paused too, which could not watch for itself. Refused: PR_SET_PDEATHSIG, which fires when the *thread* that
started the broker ends, and leaves the folder.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

_SCRIPT = """
pid=0
while read -r line; do pid=$line; done
if [ "$pid" -gt 0 ]; then kill -9 "$pid" 2>/dev/null; fi
tries=0
until rm -rf -- "$1" 2>/dev/null || [ "$tries" -ge 20 ]; do tries=$((tries + 1)); sleep 0.1; done
"""
END_S = 10.0


class Guard:
    """Of one folder. It leaves the session and the process group, so that what ends those does not end it first."""

    def __init__(self, folder: str) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "millrace-guard", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, pid: int) -> None:
        """From here on it is that process which it ends; 0: none."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody ended it: there is no guard any more
            os.write(self._process.stdin.fileno(), f"{pid}\n".encode())

    def end(self) -> None:
        """The folder is gone on return. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if os.getpid() == self._owner:  # in a fork the shell is nobody's child
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
