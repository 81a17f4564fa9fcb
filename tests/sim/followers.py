"""Who takes part where records are given up twice over: a writer that goes on for as long as that takes, and
consumers that check leader epochs.

A consumer says with each fetch which leader epoch it knows, as Kafka's do. Where the broker has another one,
it asks where the epoch of what it read last ended, and goes back to there. What it read below that is what
the partition holds (`FollowersNotice`): it never goes on past other records than those that it read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millrace.protocol.error_codes import ErrorCode
from millrace.runtime.errors import Unavailable
from tests.sim import asking
from tests.sim.asking import GONE, PASSING, PAUSE_S
from tests.sim.history import Place
from tests.sim.workload import Actor, Plain

RESTS_MS = (
    20,
    600,
    2_500,
)  # at most, between two fetches: one who was away finds that the log has grown past what it read
OTHER_EPOCH = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)


class Steady(Plain):
    async def run_until(self, places: list[Place], is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self.run([places[self.rand.below(len(places))]], 1)
            await self.pause(80)


class Follower(Actor):
    """Of one partition. `_epoch`: of the leader, as it knows it; `_read_epoch`: of the batch that it read
    last."""

    async def follow(self, place: Place, is_over: Callable[[], bool]) -> None:
        self._place, self._offset = place, 0
        self._epoch = self._read_epoch = -1
        self._read = self.history.followed.setdefault(place, {})
        rest_ms = RESTS_MS[self.rand.below(len(RESTS_MS))]
        while not is_over():
            await self._step()
            await self.pause(rest_ms)
        while await self._step():  # to the end
            pass

    async def _step(self) -> bool:
        """False where there is nothing more for now."""
        try:
            if self._epoch < 0:
                await self._learn_epoch()
            part = await asking.fetch(self.client, self._place, self._offset, 100, leader_epoch=self._epoch)
        except Unavailable:
            part = None
        if part is None or part.error_code in (*PASSING, *GONE):
            await asyncio.sleep(PAUSE_S)
            return True
        if part.error_code in OTHER_EPOCH:
            await self._check_epoch()
            return True
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start, end = await asking.list_offsets(self.client, self._name, self._place[1])
            self._go_to(max(start, min(self._offset, end)))
            return True
        assert not part.error_code, part
        found = asking.records_of(part, self._offset)
        self._read.update(found)
        if found:
            self._offset = found[-1][0] + 1
            self._read_epoch = asking.last_epoch_of(part)
        return bool(found)

    @property
    def _name(self) -> str:
        return self.history.topics[self._place[0]].name

    async def _learn_epoch(self) -> None:
        self._epoch = await asking.leader_epoch(self.client, self._name, self._place[1])

    async def _check_epoch(self) -> None:
        known = self._epoch
        try:
            await self._learn_epoch()
            if self._epoch == known or self._read_epoch < 0:
                return
            end = await asking.end_of_epoch(self.client, self._name, self._place[1], self._read_epoch)
        except Unavailable:
            self._epoch = known
            return
        if end < self._offset:
            self._go_to(max(0, end))

    def _go_to(self, offset: int) -> None:
        for gone in [one for one in self._read if one >= offset]:
            del self._read[gone]
        self._offset = offset
