"""Connections that share little memory, at random: arrivals in pieces, late answers, readers that stop, ends.
What the machine says holds."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from millrace.broker.network.connection import Connection, ConnectionParts
from millrace.broker.network.connection_machine import ConnectionState
from millrace.broker.network.loop_turns import LoopTurns
from millrace.broker.network.memory import RequestBudget
from millrace.broker.network.receiver import Receiver
from millrace.broker.requests.dispatch import Dispatcher
from millrace.broker.requests.request import RequestContext
from millrace.protocol.apis import API
from millrace.protocol.codec import encode_request
from millrace.runtime.scheduling.yield_queue import YieldQueue

HEARTBEAT, LEAVE, COMMIT = 12, 13, 8  # answered at once, late, and late with others held behind it
VERSIONS = {HEARTBEAT: 4, LEAVE: 3, COMMIT: 7}
HIGH_BYTES = 300
MEMORY_BYTES = (6_000, 60_000, 1 << 20)
BURST = 100  # requests: more than one turn begins
COUNT = 6
STEPS = 300


class Transport:
    """Takes what is written, says when that is too much, and is read or not."""

    connection: Connection

    def __init__(self) -> None:
        self.sent = bytearray()
        self.unsent_bytes = 0
        self.is_read = True
        self.is_full = self.is_closed = False

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 9092) if name in ("sockname", "peername") else None

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def writelines(self, parts: list[Any]) -> None:
        assert not self.is_closed
        for part in parts:
            self.sent += part
            self.unsent_bytes += len(part)
        if self.unsent_bytes > HIGH_BYTES and not self.is_full:
            self.is_full = True
            self.connection.pause_writing()

    def drain(self) -> None:
        self.unsent_bytes = 0
        if self.is_full:
            self.is_full = False
            self.connection.resume_writing()

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Crowd:
    """Some connections, what their peers have to send yet, and what is to be answered late."""

    def __init__(self, chance: random.Random) -> None:
        loop = asyncio.get_running_loop()
        self.chance = chance
        self.clock_s = 0.0
        self.late: list[tuple[asyncio.Future[Any], Any]] = []
        self.reasons: list[str] = []
        self.budget = RequestBudget(chance.choice(MEMORY_BYTES), loop.call_soon)
        self.receiver = Receiver()
        handlers = {HEARTBEAT: self.at_once, LEAVE: self.later, COMMIT: self.later}
        self.parts = ConnectionParts(
            Dispatcher(handlers, loop.create_task, YieldQueue()),
            self.budget,
            self.receiver,
            YieldQueue(),
            LoopTurns(self.step_clock, loop.call_soon),
            1 << 20,
            on_made=lambda connection: None,
            on_ended=lambda connection, reason: self.reasons.append(reason),
            on_lost=lambda connection: None,
        )
        self.transports = [self.connected(number) for number in range(COUNT)]
        self.unsent: list[bytes] = [b""] * COUNT
        self.asked_counts = [0] * COUNT

    def step_clock(self) -> float:
        """Some requests take all of a turn."""
        self.clock_s += 0.003 * (self.chance.random() < 0.1)
        return self.clock_s

    def connected(self, number: int) -> Transport:
        transport = Transport()
        transport.connection = Connection(self.parts, number, "P")
        transport.connection.connection_made(transport)  # type: ignore[arg-type]
        return transport

    def at_once(self, context: RequestContext, request: Any) -> Any:
        return API[context.api_key].response_type()

    def later(self, context: RequestContext, request: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self.late.append((future, self.at_once(context, request)))
        return future

    def ask(self, number: int) -> None:
        """Some requests more, for `send` to bring in pieces."""
        keys, sizes = self.chance.choice(
            (((HEARTBEAT,), (1,)), ((HEARTBEAT, HEARTBEAT, LEAVE, COMMIT), (1, 10, 3_000, 20_000)))
        )
        for _ in range(self.chance.choice((1, 3, BURST))):
            key = self.chance.choice(keys)
            self.asked_counts[number] += 1
            client_id = "c" * self.chance.choice(sizes)
            api = API[key]
            frame = encode_request(
                api, VERSIONS[key], self.asked_counts[number], client_id, api.request_type()
            )
            self.unsent[number] += frame

    def send(self, number: int, most_bytes: int) -> None:
        """As far as the broker reads."""
        transport = self.transports[number]
        while self.unsent[number] and transport.is_read and not transport.is_closed:
            piece = self.unsent[number][: self.chance.randint(1, most_bytes)]
            memory = self.receiver.lend()
            piece = piece[: len(memory)]
            memory[: len(piece)] = piece
            del memory
            self.unsent[number] = self.unsent[number][len(piece) :]
            transport.connection.buffer_updated(len(piece))

    def answer(self) -> None:
        if self.late:
            future, response = self.late.pop(self.chance.randrange(len(self.late)))
            future.set_result(response)

    def end(self, number: int) -> None:
        transport = self.transports[number]
        self.chance.choice((transport.connection.drain, transport.connection.abort))()

    async def step(self) -> None:
        number = self.chance.randrange(COUNT)
        act = self.chance.choice(
            (
                lambda: self.ask(number),
                lambda: self.send(number, self.chance.choice((20, 500, 20_000))),
                lambda: self.send(number, 20_000),
                self.answer,
                self.answer,
                self.transports[number].drain,
                lambda: self.end(number) if self.chance.random() < 0.1 else None,
            )
        )
        act()
        self.check()
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)
            self.check()

    def check(self) -> None:
        """The transport is read in one state alone, and no connection met a defect."""
        assert self.reasons == []
        for transport in self.transports:
            state = transport.connection._machine.state
            assert transport.is_read is (state is ConnectionState.READING) or transport.is_closed

    async def finish(self) -> None:
        """Everything is sent, answered and read."""
        for _ in range(5_000):
            for number, transport in enumerate(self.transports):
                self.send(number, 20_000)
                transport.drain()
            while self.late:
                self.answer()
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_all_is_answered_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event comes in a state that does not know it, who goes on is answered whole and in order, and the
    memory is given back."""
    monkeypatch.setattr("millrace.broker.network.connection.WRITE_HIGH_BYTES", HIGH_BYTES)

    async def scenario() -> None:
        crowd = Crowd(random.Random(seed))
        for _ in range(STEPS):
            await crowd.step()
        await crowd.finish()
        crowd.check()
        for transport, asked_count in zip(crowd.transports, crowd.asked_counts, strict=True):
            replies = correlation_ids(bytes(transport.sent))
            assert replies == list(range(1, len(replies) + 1))
            if transport.connection._machine.state < ConnectionState.DRAINING:
                assert len(replies) == asked_count
            transport.connection.connection_lost(None)
        assert [part.used_bytes for part in crowd.budget.parts.values()] == [0] * len(crowd.budget.parts)

    asyncio.run(scenario())


def correlation_ids(sent: bytes) -> list[int]:
    found, position = [], 0
    while position < len(sent):
        length = int.from_bytes(sent[position : position + 4], "big")
        found.append(int.from_bytes(sent[position + 4 : position + 8], "big"))
        position += 4 + length
    return found
