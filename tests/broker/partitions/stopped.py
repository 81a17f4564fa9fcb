"""An offload whose work ends when a test says so: what a thread does meanwhile is nothing, and nobody but the
loop has the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class StoppedOffload:
    """`asked` are the names of all functions by now, `held` how many have not ended."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held: list[asyncio.Future[None]] = []

    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(function.__name__)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append(end)
        await end
        self.held.remove(end)
        return function(*args, **kwargs)

    async def close(self) -> None:
        pass

    async def go_on(self, count: int = 1) -> None:
        """Ends the oldest `count`, each when it is there."""
        for _ in range(count):
            await settle(lambda: any(not end.done() for end in self.held))
            next(end for end in self.held if not end.done()).set_result(None)
        await turns(5)

    async def go_on_until(self, future: asyncio.Future[Any]) -> None:
        while not future.done():
            for end in self.held:
                if not end.done():
                    end.set_result(None)
            await asyncio.sleep(0)


async def turns(count: int) -> None:
    """That many iterations of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settle(is_true: Callable[[], bool]) -> None:
    """Until it is so, within a bound of turns."""
    for _ in range(2000):
        if is_true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come to be")
