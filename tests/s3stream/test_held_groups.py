"""Groups that are durable while the gate is closed: nobody sees them, and they go on in order once it opens,
or never."""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.errors import Closed, Fenced
from millrace.s3stream.errors import OffsetBeyondEnd
from millrace.s3stream.storage import Storage
from tests.s3stream.build import World, open_stream, run


class HandGate:
    def __init__(self) -> None:
        self.is_open = True
        self.refusal: Exception | None = None
        self.asked_count = 0
        self._changed = asyncio.Event()

    def may_acknowledge(self) -> bool:
        self.asked_count += 1
        return self.is_open

    async def wait_to_acknowledge(self) -> None:
        while not self.is_open:
            if self.refusal is not None:
                raise self.refusal
            await self._changed.wait()

    def turn(self, *, is_open: bool, refusal: Exception | None = None) -> None:
        self.is_open, self.refusal = is_open, refusal
        self._changed.set()
        self._changed.clear()


class Held:
    """An engine with a gate; `made` holds the appends that were told, by number."""

    def __init__(self) -> None:
        self.world = World(is_auto=False)
        self.gate = HandGate()
        self.world.make_engine = lambda *parts, **named: Storage(*parts, **named, gate=self.gate)  # type: ignore[misc]
        self.made: list[int] = []

    async def start(self) -> None:
        self.engine = await self.world.started()
        self.stream = open_stream(self.world, self.engine, 1)

    def append(self, number: int) -> None:
        self.stream.append(1, [b"%d" % number], lambda made: self.made.append(number))

    def confirm(self, *numbers: int) -> None:
        for number in numbers:
            self.append(number)
        self.world.wal.confirm()


def test_held_groups_are_unseen_and_come_in_order() -> None:
    """Room stays taken; a group that comes while others are let through stands behind them; the gate is asked
    once a group, not a record."""

    async def scenario() -> None:
        held = Held()
        await held.start()
        held.confirm(0, 1, 2, 3)
        assert (held.made, held.gate.asked_count) == ([0, 1, 2, 3], 1)
        room_bytes = held.engine.room_bytes
        held.gate.turn(is_open=False)
        held.confirm(4, 5)
        held.confirm(6)
        await asyncio.sleep(600)
        assert held.made == [0, 1, 2, 3]
        assert held.stream.confirmed_end == 4
        assert held.engine.log_cache.end_of(1) == 4
        with pytest.raises(OffsetBeyondEnd):
            await held.stream.fetch(5, 6, 100)
        assert held.engine.room_bytes < room_bytes
        held.gate.turn(is_open=True)
        await asyncio.sleep(0)
        held.confirm(7)
        assert 7 not in held.made
        await asyncio.sleep(1)
        assert held.made == list(range(8))
        held.confirm(8)
        assert held.made == list(range(9)), "nothing is held: at once again"
        await held.engine.close(1000)
        assert held.world.failures == []

    run(scenario())


def test_a_gate_that_closes_between_two_held_groups_holds_the_second() -> None:
    async def scenario() -> None:
        held = Held()
        await held.start()
        held.gate.turn(is_open=False)
        held.confirm(0)
        held.confirm(1)
        held.stream.on_advance = lambda moved: held.gate.turn(is_open=False)
        held.gate.turn(is_open=True)
        await asyncio.sleep(1)
        assert held.made == [0]
        held.gate.turn(is_open=True)
        await asyncio.sleep(1)
        assert held.made == [0, 1]
        await held.engine.close(1000)

    run(scenario())


def test_what_a_replaced_owner_held_is_never_told() -> None:
    """The engine ends once, groups that the log still confirms are held too, and nothing of them counts as
    acknowledged."""

    async def scenario() -> None:
        held = Held()
        await held.start()
        held.confirm(0)
        held.gate.turn(is_open=False)
        held.confirm(1)
        held.append(2)
        await asyncio.sleep(1)
        refusal = Fenced("replaced")
        held.gate.turn(is_open=False, refusal=refusal)
        await asyncio.sleep(1)
        held.world.wal.confirm()
        await asyncio.sleep(1)
        assert held.world.failures == [refusal]
        assert held.made == [0]
        assert [(one.start, one.end) for one in held.engine.not_uploaded()[0]] == [(0, 1)]
        with pytest.raises(Closed):
            held.append(3)
        await held.engine.close(1000)
        assert held.made == [0]

    run(scenario())


def test_an_engine_that_closes_while_groups_are_held_leaves_them_to_the_next_start() -> None:
    """Within its bound, and without a failure; they are in the log."""

    async def scenario() -> None:
        held = Held()
        await held.start()
        held.gate.turn(is_open=False)
        held.confirm(0)
        began_s = asyncio.get_running_loop().time()
        await held.engine.close(5000)
        assert asyncio.get_running_loop().time() - began_s < 6
        assert (held.made, held.world.failures) == ([], [])
        assert len(held.world.wal.records) == 1
        held.gate.turn(is_open=False, refusal=Closed("the looks have ended"))

    run(scenario())


def test_a_callback_that_fails_on_release_ends_the_engine() -> None:
    async def scenario() -> None:
        held = Held()
        await held.start()
        held.gate.turn(is_open=False)

        def fail(made: object) -> None:
            raise Closed("a bug")

        held.stream.append(1, [b"x"], fail)
        held.world.wal.confirm()
        held.gate.turn(is_open=True)
        await asyncio.sleep(1)
        assert [str(error) for error in held.world.failures] == ["a bug"]
        await held.engine.close(1000)

    run(scenario())
