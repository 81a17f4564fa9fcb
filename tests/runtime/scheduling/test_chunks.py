"""Chunks: what they hold, and who runs between them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from millrace.runtime.scheduling.chunks import in_chunks
from millrace.runtime.scheduling.yield_queue import YieldQueue


@pytest.mark.parametrize(
    ("count", "parts"),
    [(0, []), (1, [[0]]), (3, [[0, 1, 2]]), (4, [[0, 1, 2], [3]]), (7, [[0, 1, 2], [3, 4, 5], [6]])],
)
def test_items_come_in_order_and_others_run_between(count: int, parts: list[list[int]]) -> None:
    """Nothing but full chunks and a rest; the first at once, and an iteration of the loop for others before
    each other one."""

    async def scenario() -> None:
        iterations: list[int] = []
        found: list[list[int]] = []
        seen_before: list[int] = []

        async def another() -> None:
            while True:
                iterations.append(len(found))
                await asyncio.sleep(0)

        other = asyncio.ensure_future(another())
        async for part in in_chunks(range(count), 3, YieldQueue()):
            seen_before.append(len(iterations))
            found.append(list(part))
        other.cancel()
        assert found == parts
        assert seen_before[:1] == [0] * min(1, len(parts))
        assert all(later > before for before, later in pairwise(seen_before))

    asyncio.run(scenario())


def test_what_is_large_in_one_queue_alternates() -> None:
    """Two requests advance side by side, a chunk each."""

    async def scenario() -> None:
        order: list[str] = []
        queue = YieldQueue()

        async def work(name: str) -> None:
            async for _ in in_chunks(range(9), 3, queue):
                order.append(name)

        await asyncio.gather(work("a"), work("b"))
        assert order == ["a", "b"] * 3

    asyncio.run(scenario())
