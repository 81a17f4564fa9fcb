"""Work on thousands of items in chunks: the caller yields between any two.

Not here: how much is a chunk. Who asks gives a count that takes two or three milliseconds at most; work of
one chunk never waits here. Others change what is looked at between two chunks: who looks at what must hold
together takes it before the first (an image never changes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Yielder(Protocol):
    """A YieldQueue, or what waits for more before it yields there."""

    async def yield_now(self) -> None: ...


class InChunks(Generic[T]):
    """`async for chunk in ...`: lists of at most `count` items, in their order, none empty. The first comes
    at once, each other one after a yield. With `weigh` a list ends with the item that brings its weight to
    `count`. Giving it up half-way loses nothing."""

    __slots__ = ("_count", "_is_begun", "_items", "_weigh", "_yielder")

    def __init__(
        self, items: Iterator[T], count: int, yielder: Yielder, weigh: Callable[[T], int] | None
    ) -> None:
        self._items = items
        self._count = count
        self._yielder = yielder
        self._weigh = weigh
        self._is_begun = False

    def __aiter__(self) -> InChunks[T]:
        return self

    async def __anext__(self) -> Sequence[T]:
        chunk = list(islice(self._items, self._count)) if self._weigh is None else self._weighed(self._weigh)
        if not chunk:
            raise StopAsyncIteration
        if self._is_begun:
            await self._yielder.yield_now()
        self._is_begun = True
        return chunk

    def _weighed(self, weigh: Callable[[T], int]) -> list[T]:
        chunk: list[T] = []
        left = self._count
        for item in self._items:
            chunk.append(item)
            left -= weigh(item)
            if left <= 0:
                break
        return chunk


def in_chunks(
    items: Iterable[T], count: int, yielder: Yielder, weigh: Callable[[T], int] | None = None
) -> InChunks[T]:
    return InChunks(iter(items), count, yielder, weigh)
