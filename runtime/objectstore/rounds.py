"""Bounds and paces what is tried again because a store's condition was lost: a key that is another's, or that
the store says is.

    rounds = Rounds()
    while True:
        ... look, then put on a condition; return when it was won ...
        if not await rounds.again():
            raise contradiction(key, what a put was told, what a read is told, rounds.count)

The first rounds follow at once, for a race that was lost is looked at again without delay; later ones wait
ever longer. A race is decided within a few of them: who is not through by the last one stands before a store
that says one thing to a put and another to a read. Not here: what does not answer (retry.py),
what is put (its callers).
"""

from __future__ import annotations

import asyncio
from typing import Final

from millrace.runtime.objectstore import StoreContradicts

EXISTS: Final = "a put is told that it exists"
NOT_THERE: Final = "a read that there is no such object"
ROUNDS_MAX: Final = 16
AT_ONCE: Final = 5
FIRST_WAIT_MS: Final = 50
LONGEST_WAIT_MS: Final = 1_000


class Rounds:
    def __init__(self) -> None:
        self.count = 1  # the one under way counted in

    async def again(self) -> bool:
        """Whether there is a further round, after a pause. Cancelling loses nothing."""
        if self.count == ROUNDS_MAX:
            return False
        wait_ms = pause_ms(self.count)
        self.count += 1
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)
        return True


def pause_ms(done_count: int) -> int:
    """Before the round that follows so many."""
    return 0 if done_count < AT_ONCE else min(FIRST_WAIT_MS << (done_count - AT_ONCE), LONGEST_WAIT_MS)


def contradiction(key: str, first: str, then: str, count: int) -> StoreContradicts:
    """`first`, `then`: what the store said to whom, in words, in so many rounds."""
    return StoreContradicts(key, f"{first}, {then} (asked {count} times)")
