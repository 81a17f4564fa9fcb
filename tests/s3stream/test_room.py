"""Who waits for room is let through in the order of asking."""

from __future__ import annotations

import asyncio
import gc

import pytest

from millrace.runtime.errors import Closed
from millrace.s3stream.room import RoomQueue
from tests.s3stream.build import run


def test_first_come_first_served() -> None:
    """A small request does not pass a large one that came before; a grant is reserved until the one who
    waited has run."""

    async def scenario() -> None:
        room = RoomQueue(lambda: None)
        order: list[int] = []

        async def ask(needed: int) -> None:
            await room.ask(needed)
            order.append(needed)

        tasks = [asyncio.create_task(ask(needed)) for needed in (50, 10, 20)]
        await asyncio.sleep(0)
        room.grant(40)
        assert (len(room), room.granted_bytes) == (3, 0)
        room.grant(70)
        assert (len(room), room.granted_bytes) == (1, 60)
        room.grant(70)
        assert len(room) == 1, "what is granted is not granted again"
        await asyncio.sleep(0)
        assert (order, room.granted_bytes) == ([50, 10], 0)
        room.grant(70)
        await asyncio.gather(*tasks)
        assert order == [50, 10, 20]

    run(scenario())


def test_those_who_gave_up_hold_nobody_up() -> None:
    """A cancelled request is passed over; the rest is refused with one error."""

    async def scenario() -> None:
        released: list[int] = []
        room = RoomQueue(lambda: released.append(1))
        first, second, third = room.ask(500), room.ask(10), room.ask(30)
        first.cancel()
        room.grant(10)
        assert second.done()
        await asyncio.sleep(0)
        assert released == [1]
        room.refuse(Closed("ended"))
        with pytest.raises(Closed):
            await third
        assert len(room) == 0

    run(scenario())


def test_a_refusal_that_nobody_waits_for_is_not_complained_of() -> None:
    """Who asked has gone for another reason before the engine failed: no warning of an exception that nobody
    took."""
    warned: list[str] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: warned.append(context["message"]))
        room = RoomQueue(lambda: None)
        room.ask(10)
        room.refuse(Closed("the engine failed"))
        gc.collect()

    run(scenario())
    assert warned == []
