"""Slices: what they hold, and who runs between them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from millrace.broker.scheduling.slices import in_slices


@pytest.mark.parametrize(
    ("count", "parts"),
    [(0, []), (1, [[0]]), (3, [[0, 1, 2]]), (4, [[0, 1, 2], [3]]), (7, [[0, 1, 2], [3, 4, 5], [6]])],
)
def test_items_come_in_order_and_others_run_between(count: int, parts: list[list[int]]) -> None:
    """Nothing but full slices and a rest; the first at once, and a turn of the loop for others before each
    other one."""

    async def scenario() -> None:
        turns: list[int] = []
        found: list[list[int]] = []
        seen_before: list[int] = []

        async def another() -> None:
            while True:
                turns.append(len(found))
                await asyncio.sleep(0)

        other = asyncio.ensure_future(another())
        async for part in in_slices(range(count), 3):
            seen_before.append(len(turns))
            found.append(list(part))
        other.cancel()
        assert found == parts
        assert seen_before[:1] == [0] * min(1, len(parts))
        assert all(later > before for before, later in pairwise(seen_before))

    asyncio.run(scenario())


def test_large_requests_take_turns() -> None:
    """Two of them on one loop advance side by side, a slice each."""

    async def scenario() -> None:
        order: list[str] = []

        async def work(name: str) -> None:
            async for _ in in_slices(range(9), 3):
                order.append(name)

        await asyncio.gather(work("a"), work("b"))
        assert order == ["a", "b"] * 3

    asyncio.run(scenario())
