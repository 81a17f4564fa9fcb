"""One piece of memory that all connections of a server receive into, one after the other: what a socket gives
is cut, begun and copied to where it stays before the loop reads the next one.

A piece of its own for each read cost a copy, and its bytes drove others out of the processor's cache. Here
they are the ones that are there already.

The rule: bytes of a read are good until the next `lend`. A connection copies what it keeps: frames that it
cannot begin yet, and those of all APIs but Produce, which gives its records to the log before it returns, or
copies them (handlers/produce.py). Kept true all the same: memory that somebody still views is never received
into; it is given up and counted, and another piece takes its place.

While memory for parts of frames is used up (arrival.py) a read brings NARROW_BYTES: as little of a frame that
cannot go on yet is in memory of ours, and what follows waits in the system's. Whether reads are narrow costs
a read nothing: another piece of memory lies in the first one's place.
"""

from __future__ import annotations

import sys

RECEIVE_BYTES = 256 << 10
# a little more than what is free of a frame (arrival.FREE_BYTES), so that one read tells that it needs room
NARROW_BYTES = 4200
NOTHING = memoryview(b"")


class Receiver:
    """Not for two reads at a time: a loop's reads follow one another."""

    def __init__(self) -> None:
        self._memory = bytearray(RECEIVE_BYTES)
        self._other_memory = bytearray(NARROW_BYTES)  # for when reads are narrow, or no longer
        self.is_narrow = False
        self.view = NOTHING  # what was lent last
        self._own_references = sys.getrefcount(self._memory)
        self.given_up_count = 0

    @property
    def memory(self) -> object:
        """What views of the last read are views of."""
        return self.view.obj

    def narrow(self) -> None:
        """From the next read on."""
        if not self.is_narrow:
            self._swap()

    def widen(self) -> None:
        """From the next read on."""
        if self.is_narrow:
            self._swap()

    def _swap(self) -> None:
        self.is_narrow = not self.is_narrow
        self._memory, self._other_memory = self._other_memory, self._memory

    def lend(self, sizehint: int = -1) -> memoryview:
        """Where the next read goes. The views of the last one are void, or the memory theirs."""
        self.view = NOTHING
        if (
            sys.getrefcount(self._memory) > self._own_references
        ):  # each read has a view of its own: slices of it keep it alive
            self._memory = bytearray(len(self._memory))
            self.given_up_count += 1
        view = self.view = memoryview(self._memory)
        return view
