"""A store whose requests take effect one at a time, in an order that somebody chooses: for walking through
every interleaving.

Objects of a WAL never change: to read one that is there gives the same at any later time, so such a read
takes its turn at once and is no choice.

`Turnstile` holds the requests of all its stores; `run` lets one through whenever nobody moves any more.
`explore` runs a scene again and again, each time with the next sequence of choices, until there is none left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import Keys, Lend, MultipartUpload, ObjectEntry, fill
from tests.sim.objectstore import SimBucket

# So many iterations of the loop without a new request mean that everybody waits for one.
QUIET_TURNS = 6


class Turnstile:
    """`choose(n)` says which of n requests goes next, in the order of their coming."""

    def __init__(self, bucket: SimBucket, choose: Callable[[int], int]) -> None:
        self.bucket = bucket
        self.waiting: list[tuple[str, Callable[[], Any], asyncio.Future[Any]]] = []
        # actors whose requests under way at once are taken in the order of their coming
        self.in_order: tuple[str, ...] = ()
        self.choose = choose

    def store(self, name: str) -> TurnstileStore:
        return TurnstileStore(self, name)

    async def pass_through(self, name: str, effect: Callable[[], Any]) -> Any:
        future = asyncio.get_running_loop().create_future()
        entry = (name, effect, future)
        self.waiting.append(entry)
        try:
            return await future
        finally:
            if entry in self.waiting:
                self.waiting.remove(entry)

    async def run(self, until: Sequence[asyncio.Future[Any]] = ()) -> None:
        """Lets requests through until there are none and all of `until` are done."""
        while True:
            await self._quiet()
            if not self.waiting:
                if all(future.done() for future in until):
                    return
                await asyncio.sleep(0.02)  # somebody waits for a timer
                continue
            _, effect, future = self.waiting.pop(self._pick())
            try:
                future.set_result(effect())
            except Exception as error:
                future.set_exception(error)

    def _pick(self) -> int:
        for place, (name, _, _) in enumerate(self.waiting):
            if " get " in name:
                key = name.rpartition(" ")[2]
                if any(known.endswith(key) for known in self.bucket.objects):
                    return place
        options = self._options()
        return options[self.choose(len(options)) if len(options) > 1 else 0]

    def _options(self) -> list[int]:
        """Who may go: of those in `in_order` only their first."""
        options, seen = [], []
        for place, (name, _, _) in enumerate(self.waiting):
            actor = name.partition(" ")[0]
            if actor not in seen:
                options.append(place)
            if actor in self.in_order:
                seen.append(actor)
        return options

    async def _quiet(self) -> None:
        turns, count = 0, len(self.waiting)
        while turns < QUIET_TURNS:
            await asyncio.sleep(0)
            turns = turns + 1 if len(self.waiting) == count else 0
            count = len(self.waiting)


class TurnstileStore:
    def __init__(self, turnstile: Turnstile, name: str) -> None:
        self._pass = turnstile.pass_through
        self._bucket = turnstile.bucket
        self._name = name

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)
        await self._pass(f"{self._name} put {key[-41:]}", lambda: self._bucket.put(key, content))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)
        await self._pass(
            f"{self._name} put_if_absent {key[-41:]}", lambda: self._bucket.put_if_absent(key, content)
        )

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        found: bytes = await self._pass(
            f"{self._name} get {key[-41:]}", lambda: self._bucket.get(key)[start:end]
        )
        return found

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        return fill(lend(), await self.get_range(key, start, end))

    async def get(self, key: str) -> bytes:
        found: bytes = await self._pass(f"{self._name} get {key[-41:]}", lambda: self._bucket.get(key))
        return found

    async def head(self, key: str) -> ObjectEntry | None:
        return self._bucket.head(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        for entry in await self._pass(f"{self._name} list", lambda: self._bucket.page(prefix, after)):
            yield entry

    async def delete(self, keys: Sequence[str]) -> Keys:
        return self._bucket.delete(keys)

    async def start_multipart(self, key: str) -> MultipartUpload:
        raise AssertionError("a WAL needs no parts")

    async def close(self) -> None:
        pass


class Choices:
    """Follows a prefix and then takes the first of each; notes how many there were."""

    def __init__(self, prefix: Sequence[int]) -> None:
        self.taken = list(prefix)
        self.counts: list[int] = []

    def __call__(self, count: int) -> int:
        if len(self.counts) == len(self.taken):
            self.taken.append(0)
        self.counts.append(count)
        return self.taken[len(self.counts) - 1]

    def next_prefix(self) -> list[int] | None:
        taken = self.taken[: len(self.counts)]
        while taken and taken[-1] + 1 >= self.counts[len(taken) - 1]:
            taken.pop()
        if not taken:
            return None
        taken[-1] += 1
        return taken


def explore(scene: Callable[[Callable[[int], int]], Coroutine[Any, Any, None]]) -> Iterator[Awaitable[None]]:
    """One coroutine an interleaving; await each before asking for the next."""
    prefix: list[int] | None = []
    while prefix is not None:
        choices = Choices(prefix)
        yield scene(choices)
        prefix = choices.next_prefix()
