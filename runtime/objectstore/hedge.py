"""Wrapper: a GET that takes longer than almost all others of its size lately is sent a second time; the first
answer counts, the other is cancelled.

    sent --p99 of its size class--> sent again --either answers--> done

A store's slowest answers are chance more often than load: a second attempt is likely to be quick. When it is
load, more requests make it worse, so there is a budget: one hedge for so many GETs, and only a few under way.
Under the retry wrapper, above the meter: each attempt is counted, and one that was cancelled shows as
cancelled. Whoever bounds traffic is told of the second one's bytes, which do not wait. ObjectMissing is an
answer. An attempt that fails while the other is under way is forgotten. Not here: writes, which are not sent
twice at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore import (
    Keys,
    Lend,
    MultipartUpload,
    ObjectEntry,
    ObjectStore,
    UnfinishedUpload,
)

T = TypeVar("T")

SAMPLES_MAX = 200
SAMPLES_MIN = 50
HEDGES_IN_FLIGHT_MAX = 4
# One hedge is earned by so many GETs; a few may be saved up.
GETS_A_HEDGE = 20
SAVED_MAX = 4
# Beyond the percentile by so much, for the clock's own grain: among equals nobody is late.
MARGIN = 1.1
# Below this a second request costs more than it can save.
DELAY_S_MIN = 0.01


class GetTimes:
    """How long GETs took lately, by size class (powers of four), and when one is late."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self._late: dict[int, float] = {}
        self._since: dict[int, int] = {}

    def late_after_s(self, size_bytes: int) -> float | None:
        """The 99th percentile of its class and a little; None while too few were seen."""
        return self._late.get(_class_of(size_bytes))

    def note(self, size_bytes: int, elapsed_s: float) -> None:
        kind = _class_of(size_bytes)
        samples = self._samples.get(kind)
        if samples is None:
            samples = self._samples[kind] = deque(maxlen=SAMPLES_MAX)
        samples.append(elapsed_s)
        # Sorting 200 numbers costs 10 us: once in a while is enough, and often at first.
        self._since[kind] = self._since.get(kind, 0) + 1
        if len(samples) >= SAMPLES_MIN and (kind not in self._late or self._since[kind] >= SAMPLES_MIN // 2):
            self._since[kind] = 0
            self._late[kind] = max(DELAY_S_MIN, MARGIN * sorted(samples)[len(samples) * 99 // 100])


def _class_of(size_bytes: int) -> int:
    return (size_bytes.bit_length() + 1) // 2


class Hedges:
    """What is known of a store, and the budget: of all who share it."""

    def __init__(self) -> None:
        self.times = GetTimes()
        self.in_flight = 0
        self.earned = 0.0
        self.begun = 0
        self.won = 0

    @property
    def is_allowed(self) -> bool:
        return self.in_flight < HEDGES_IN_FLIGHT_MAX and self.earned >= 1


class HedgingObjectStore:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._on_hedge: Callable[[int], None] = lambda size_bytes: None
        self.hedges = Hedges()

    def told(self, on_hedge: Callable[[int], None]) -> HedgingObjectStore:
        """The same store and budget for one who is told how many bytes each second attempt of its own asks
        for."""
        other = self.over(self._store)
        other._on_hedge = on_hedge
        return other

    def over(self, store: ObjectStore) -> HedgingObjectStore:
        """Another way to the same store, with the same budget."""
        other = HedgingObjectStore(store)
        other.hedges = self.hedges
        return other

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._get(end - start, lambda: self._store.get_range(key, start, end))

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        return await self._get(end - start, lambda: self._store.get_into(key, start, end, lend))

    async def _get(self, size_bytes: int, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        hedges = self.hedges
        late_after_s = hedges.times.late_after_s(size_bytes)
        answer = await (ask() if late_after_s is None else self._hedged(ask, late_after_s, size_bytes))
        hedges.earned = min(SAVED_MAX, hedges.earned + 1 / GETS_A_HEDGE)
        hedges.times.note(size_bytes, loop.time() - began)
        return answer

    async def _hedged(
        self, ask: Callable[[], Coroutine[Any, Any, T]], late_after_s: float, size_bytes: int
    ) -> T:
        hedges = self.hedges
        first: asyncio.Future[T] = asyncio.ensure_future(ask())
        attempts = [first]
        try:
            await asyncio.wait(attempts, timeout=late_after_s)
            if first.done() or not hedges.is_allowed:
                return await first
            hedges.earned -= 1
            hedges.in_flight += 1
            hedges.begun += 1
            self._on_hedge(size_bytes)
            try:
                attempts.append(asyncio.ensure_future(ask()))
                winner = await _first_answer(attempts)
            finally:
                hedges.in_flight -= 1
            hedges.won += winner is not first
            return winner.result()
        finally:
            for attempt in attempts:
                attempt.add_done_callback(_retrieve)
                attempt.cancel()

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._store.put(key, parts)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._store.put_if_absent(key, parts)

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        await self._store.replace(key, parts, before)

    async def get(self, key: str) -> bytes:
        return await self._store.get(key)

    async def head(self, key: str) -> ObjectEntry | None:
        return await self._store.head(key)

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        return self._store.list(prefix, after)

    async def delete(self, keys: Sequence[str]) -> Keys:
        return await self._store.delete(keys)

    async def start_multipart(self, key: str) -> MultipartUpload:
        return await self._store.start_multipart(key)

    def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        return self._store.list_uploads(prefix)

    async def close(self) -> None:
        await self._store.close()


async def _first_answer(attempts: Sequence[asyncio.Future[T]]) -> asyncio.Future[T]:
    """The first that is not Unavailable; the last one, when all are. In the order of the attempts when
    several are done."""
    left = list(attempts)
    while True:
        await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for attempt in [attempt for attempt in left if attempt.done()]:
            if len(left) == 1 or not isinstance(attempt.exception(), Unavailable):
                return attempt
            left.remove(attempt)


def _retrieve(attempt: asyncio.Future[Any]) -> None:
    """What became of the loser is nobody's."""
    if not attempt.cancelled():
        attempt.exception()
