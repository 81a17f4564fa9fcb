"""QuorumNews: what a node knows of its quorum from one moment to the next, for who waits for it.

    news.leader, news.epoch, news.is_active, news.voters, news.applied
    await news.reach(offset)        all below `offset` is in the published image
    await news.changed()            another leads, or nobody; this node takes commands, or no more; other
                                    voters are in force
    await news.told()               anything may have come: a fetch of a follower, a commit, a tick

The driver tells; nothing here polls. Not here: deciding who leads (kraft/raft/core.py), applying
(kraft/image/applier.py). Kept true: `applied` never falls; who waits is woken in the order of offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from millrace.kraft.raft.messages import NOBODY
from millrace.kraft.raft.voters import VoterSet


class QuorumNews:
    """`on_change` is called for each change, before those who wait for one run."""

    def __init__(self, applied: int = 0) -> None:
        self.leader = NOBODY
        self.epoch = 0
        self.is_active = False  # this node leads, and takes commands
        self.voters = VoterSet()  # in force, committed or not
        self.applied = applied  # all below is in the published image
        self.on_change: list[Callable[[], None]] = []
        self._change: asyncio.Future[None] | None = None
        self._telling: asyncio.Future[None] | None = None
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = 0  # of those who ever waited: equal offsets stay in order

    def tell(
        self, epoch: int, leader: int, applied: int, *, is_active: bool, voters: VoterSet | None = None
    ) -> None:
        """Told by the driver whenever it has carried something out. None: the same voters."""
        self.applied = applied
        telling, self._telling = self._telling, None
        if telling is not None:
            _settle(telling)
        voters = self.voters if voters is None else voters
        waiting = self._waiting
        while waiting and waiting[0][0] <= applied:
            _settle(heappop(waiting)[2])
        if (epoch, leader, is_active, voters) == (self.epoch, self.leader, self.is_active, self.voters):
            return
        self.epoch, self.leader, self.is_active, self.voters = epoch, leader, is_active, voters
        for call in self.on_change:
            call()
        change, self._change = self._change, None
        if change is not None:
            _settle(change)

    async def reach(self, offset: int) -> None:
        """Returns when all below `offset` is in the published image."""
        if self.applied >= offset:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heappush(self._waiting, (offset, self._number, reached))
        await reached

    async def told(self) -> None:
        """Returns when the driver has told next. For who waits for what stands in the core, and seldom: it is
        woken often."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._telling])  # one of several that wait is cancelled alone

    def changed(self) -> asyncio.Future[None]:
        """Done at the next change from now on; several may wait for it."""
        if self._change is None or self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        return self._change


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
