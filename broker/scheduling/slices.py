"""Work for what a request names by the thousands, in slices: between any two the loop serves others, and the
slices of several such requests take turns (runtime/steps.py). What has begun holds what it has built until
its answer is encoded, and turns alone would let all of it grow at once: of one API's large requests
LARGE_AT_ONCE are at work, and the others wait before they build more than a slice (`LargeWork`).

Not here: how much is a slice. Who asks gives a count that takes two or three milliseconds at most; a request
of one slice never waits here, and a handler that answers at once answers it at once. Others change what is
looked at between two slices: who looks at what must hold together takes it before the first (an image never
changes).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from millrace.broker.scheduling.places import Places
from millrace.runtime.steps import line_of

T = TypeVar("T")
LARGE_AT_ONCE = 2


class InSlices(Generic[T]):
    """`async for part in ...`: lists of at most `count` items, in their order, none empty. The first comes at
    once, each other one after a turn of others. With `weigh` a list ends with the item that brings its weight
    to `count`. Giving it up half-way loses nothing."""

    __slots__ = ("_count", "_is_begun", "_items", "_weigh")

    def __init__(self, items: Iterator[T], count: int, weigh: Callable[[T], int] | None) -> None:
        self._items = items
        self._count = count
        self._weigh = weigh
        self._is_begun = False

    def __aiter__(self) -> InSlices[T]:
        return self

    async def __anext__(self) -> Sequence[T]:
        part = list(islice(self._items, self._count)) if self._weigh is None else self._weighed(self._weigh)
        if not part:
            raise StopAsyncIteration
        if self._is_begun:
            await pause()
        self._is_begun = True
        return part

    def _weighed(self, weigh: Callable[[T], int]) -> list[T]:
        part: list[T] = []
        left = self._count
        for item in self._items:
            part.append(item)
            left -= weigh(item)
            if left <= 0:
                break
        return part


def in_slices(items: Iterable[T], count: int, weigh: Callable[[T], int] | None = None) -> InSlices[T]:
    return InSlices(iter(items), count, weigh)


def unmet(part: Iterable[T], met: set[Hashable], key: Callable[[T], Hashable]) -> list[T]:
    """Those whose key was not met before, in order; `met` knows them from now on. A question that is asked
    again in the same request is answered once: a few bytes of a name may ask for megabytes."""
    found = []
    for item in part:
        named = key(item)
        if named not in met:
            met.add(named)
            found.append(item)
    return found


class LargeWork:
    """What a task does from its first pause on, or from `begin`, until the block is left: in one of an API's
    places."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._has_place = False

    async def __aenter__(self) -> LargeWork:
        task = asyncio.current_task()
        assert task is not None
        _WORK[task] = self
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        del _WORK[task]
        self.end()

    def end(self) -> None:
        """What follows may wait for anything, and needs a place only with its next pause."""
        if self._has_place:
            self._has_place = False
            self._places.leave()

    async def begin(self) -> None:
        if not self._has_place:
            await self._places.take()
            self._has_place = True


_WORK: WeakKeyDictionary[asyncio.Task[object], LargeWork] = WeakKeyDictionary()


def large_places() -> Places:
    return Places(LARGE_AT_ONCE, 0)


async def pause() -> None:
    """Others have the loop, one large piece of work a turn. The first pause of a request's work waits for a
    place, too."""
    task = asyncio.current_task()
    work = None if task is None else _WORK.get(task)
    if work is not None:
        await work.begin()
    await line_of(asyncio.get_running_loop()).turn()
