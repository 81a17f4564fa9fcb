"""A shell that waits for the end of the process that started a broker, then ends the broker and removes its
folder.

It holds the reading end of a pipe whose only writing end is in the process that started it: the pipe ends
when that process does, however it ends. The last line written to it names the broker's process (0: none) and
a mark: processes whose environment holds the mark end with it, be they grandchildren of the process that has
gone (Linux; empty: none). A shell is small (1 MiB), starts in a millisecond, and ends a broker that is paused
too, which could not watch for itself. Refused: PR_SET_PDEATHSIG, which fires when the *thread* that started
the broker ends, knows children alone, and leaves the folder.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

# What is marked is looked for until nothing of it is found, and once more: a process may be forking, or about
# to take up its environment.
_SCRIPT = """
pid=0 mark=
while read -r first second; do pid=$first mark=$second; done
end_marked() {
    found=
    for each in /proc/[0-9]*; do
        if grep -qzxF -- "$mark" "$each/environ" 2>/dev/null; then
            kill -9 "${each#/proc/}" 2>/dev/null && found=1
        fi
    done
    [ -n "$found" ]
}
if [ -n "$mark" ]; then
    tries=0
    while end_marked || [ "$tries" -eq 0 ]; do
        tries=$((tries + 1)); [ "$tries" -lt 20 ] || break; sleep 0.05
    done
fi
if [ "$pid" -gt 0 ]; then kill -9 "$pid" 2>/dev/null; fi
tries=0
until rm -rf -- "$1" 2>/dev/null || [ "$tries" -ge 20 ]; do tries=$((tries + 1)); sleep 0.1; done
"""
END_S = 10.0


class Guard:
    """Of one folder, which need not be there yet. It leaves the session and the process group, so that what
    ends those does not end it first."""

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

    def watch(self, pid: int, mark: str = "") -> None:
        """From here on it is that process which it ends, and those with `mark` (NAME=TEXT) in their
        environment; 0 and "": none."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody ended it: there is no guard any more
            os.write(self._process.stdin.fileno(), f"{pid} {mark}\n".encode())

    def end(self) -> None:
        """The folder is gone on return. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if os.getpid() == self._owner:  # in a fork the shell is nobody's child
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
