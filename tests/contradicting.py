"""A store that contradicts itself about some keys: a conditional put is told that they exist, a read that
they do not, a list leaves them out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from millrace.runtime.clock import Clock
from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import ObjectEntry, ObjectMissing, PreconditionFailed
from millrace.runtime.objectstore.memory import MemoryObjectStore


class Contradicting(MemoryObjectStore):
    """`is_refused` and `is_hidden` tell the keys, nothing at first; `refused`: of each refusal the key and
    the loop's time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.is_refused: Callable[[str], bool] = lambda key: False
        self.is_hidden: Callable[[str], bool] = lambda key: False
        self.is_listed = False  # what is hidden
        self.refused: list[tuple[str, float]] = []

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        if self.is_refused(key):
            self.refused.append((key, asyncio.get_running_loop().time()))
            await asyncio.sleep(0)
            raise PreconditionFailed(key)
        await super().put_if_absent(key, parts)

    async def get(self, key: str) -> bytes:
        if self.is_hidden(key):
            await asyncio.sleep(0)
            raise ObjectMissing(key)
        return await super().get(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        async for entry in super().list(prefix, after):
            if self.is_listed or not self.is_hidden(entry.key):
                yield entry
