"""Somebody else who wants the loop: how often it had it tells whether what ran meanwhile gave way."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Others:
    """`async with Others() as others`: `others.turns` grows by one for each iteration of the loop; set it to
    0 to count anew."""

    def __init__(self) -> None:
        self.turns = 0

    async def __aenter__(self) -> Others:
        self._task = asyncio.ensure_future(self._count())
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turns += 1
