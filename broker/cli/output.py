"""The standard streams of a command, and what is done when nobody takes what it says.

A pipe that its reader has closed (`millrace objects list | head -3`) ends a command quietly with code 141,
128 + SIGPIPE, as a shell says of any program that ends so. It ends by SystemExit out of the write: no
`except` for errors of the store or the disk takes it for one of theirs, and what the command holds is given
back on the way. (The signal itself stays ignored: it would also end a command that writes to a connection
which the store has closed.) Standard output that cannot be written for another reason, as on a full disk, is
told in a sentence, code 2.

What nobody reads of standard error, or what finds no room there, is dropped: the verdict and the exit code
still count. `serve` does the same with both streams and serves on. A stream that was closed at the start
(`>&-`) is the null device, so that no file or socket gets its number.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CLOSED_PIPE = 128 + signal.SIGPIPE
CANNOT_TELL = 2


class Outlet(io.FileIO):
    """A descriptor that is written to until nobody takes it; from then on the null device takes the rest.
    `is_needed`: the command ends then. What a full disk does not take is lost where it is not needed, and
    there may be room for the next line."""

    def __init__(self, descriptor: int, *, is_needed: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._is_needed = is_needed

    def write(self, data: ReadableBuffer, /) -> int:
        """Raises SystemExit where the output is needed and cannot be written, or nobody reads it."""
        try:
            return super().write(data)
        except OSError as error:
            is_closed = isinstance(error, BrokenPipeError)
            if is_closed or self._is_needed:
                self._discard_the_rest()
            if self._is_needed:
                if not is_closed:
                    print(f"millrace: standard output: {error.strerror}", file=sys.stderr)
                raise SystemExit(CLOSED_PIPE if is_closed else CANNOT_TELL) from None
            return memoryview(data).nbytes

    def _discard_the_rest(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)


def take_over(*, is_lasting: bool) -> None:
    """Puts outlets in place of the process's own streams; one that somebody else put there stays.
    `is_lasting`: the command serves whoever listens, and does not end for its own output."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(sys.stderr, Outlet(2, is_needed=False))
    if sys.stdout is sys.__stdout__:
        sys.stdout = _stream(sys.stdout, Outlet(1, is_needed=not is_lasting))


def _stream(before: TextIO | None, outlet: Outlet) -> TextIO:
    """As the interpreter had made it from its environment; None: it was closed."""
    is_prompt = outlet.fileno() == 2 or (
        isinstance(before, io.TextIOWrapper) and (before.line_buffering or before.write_through)
    )
    return io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=before.encoding if before is not None else "utf-8",
        errors=before.errors if before is not None else "backslashreplace",
        line_buffering=is_prompt,
    )
