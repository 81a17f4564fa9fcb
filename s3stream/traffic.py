"""The traffic between this node and its store: which tier each caller's belongs to, who waits for bandwidth,
how fast objects are put.

    caller's store = RetryingObjectStore(store, gate=traffic.gate(tier))

A gate stands before each attempt, outside its time-out: so repeats are counted and wait as well, and waiting
is no failure of the store. It asks up to three lines (limiter.py): inbound, outbound, and the pace of writes
(pace.py), which has no limit while the store takes all that comes. UPLOAD does not wait for bandwidth, but
obeys the pace: then the WAL fills, and producers wait for room. WAL waits for nothing. A timer runs only
while somebody waits. Cancelling a wait gives the place up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from millrace.protocol.dataclass import dataclass
from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore import ObjectStore, StoreUnavailable
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.config import TrafficSettings
from millrace.s3stream.limiter import Ticket, Tier, TierQueue
from millrace.s3stream.pace import WritePace

NEVER_WAIT = (Tier.WAL, Tier.UPLOAD)


@dataclass(frozen=True, slots=True)
class EngineStores:
    """The store as each part of the engine is given it, and where what is large of what comes yields."""

    upload: ObjectStore
    reads: ObjectStore
    read_ahead: ObjectStore
    yield_queue: YieldQueue

    @staticmethod
    def same(store: ObjectStore) -> EngineStores:
        return EngineStores(store, store, store, YieldQueue())


class AwaitedQueue:
    """A TierQueue whose requests are awaited."""

    def __init__(self, bytes_per_s: int | None) -> None:
        self.tiers = TierQueue(bytes_per_s)
        self._futures: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def charge(self, tier: Tier, size_bytes: int) -> None:
        self.tiers.charge(tier, size_bytes, now_us())

    async def wait(self, tier: Tier, size_bytes: int) -> None:
        """Unavailable when the line is too long for one of this tier."""
        if self.tiers.bytes_per_s is None:
            return self.charge(tier, size_bytes)
        ticket, settled = self.tiers.ask(tier, size_bytes, now_us())
        self._settle([other for other in settled if other is not ticket])
        if ticket.is_refused:
            raise _refusal(ticket)
        if ticket.has_passed:
            return None
        future = self._futures[ticket] = asyncio.get_running_loop().create_future()
        self._wind()
        try:
            await future
        except asyncio.CancelledError:
            self._futures.pop(ticket, None)
            self.tiers.leave(ticket, now_us())
            raise

    def set_rate(self, bytes_per_s: int | None) -> None:
        if bytes_per_s != self.tiers.bytes_per_s:
            self.tiers.set_rate(bytes_per_s, now_us())
            if self.tiers:
                self._wind()

    def _settle(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            future = self._futures.pop(ticket, None)
            if future is None or future.done():
                continue
            if ticket.is_refused:
                future.set_exception(_refusal(ticket))
            else:
                future.set_result(None)

    def _wind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wait_us = self.tiers.wakes_in_us()
        if wait_us is not None:
            self._timer = asyncio.get_running_loop().call_later(wait_us / 1e6, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._settle(self.tiers.pass_due(now_us()))
        self._wind()


class PaceQueue(AwaitedQueue):
    """Its rate is the pace's, which rises with time: asked anew whenever somebody comes, and by the timer
    while somebody waits."""

    def __init__(self) -> None:
        super().__init__(None)
        self.pace = WritePace()

    async def wait(self, tier: Tier, size_bytes: int) -> None:
        self._follow()
        await super().wait(tier, size_bytes)

    def on_end(self, size_bytes: int, error: Unavailable | None) -> None:
        if error is None:
            self.pace.on_written(size_bytes, now_us())
        else:
            self.pace.on_refused(now_us())
        self._follow()

    def _follow(self) -> None:
        self.set_rate(self.pace.limit(now_us()))

    def _on_timer(self) -> None:
        self._follow()
        super()._on_timer()


class Traffic:
    def __init__(self, settings: TrafficSettings) -> None:
        bandwidth = settings.bandwidth_bytes
        if settings.is_shared and bandwidth is not None:
            self.inbound = self.outbound = AwaitedQueue(2 * bandwidth)
        else:
            self.inbound, self.outbound = AwaitedQueue(bandwidth), AwaitedQueue(bandwidth)
        self.pace = PaceQueue()

    def gate(self, tier: Tier) -> TierGate:
        return TierGate(self, tier)

    def throttle(self, tier: Tier) -> Callable[[int], Awaitable[None]]:
        """For who reads and writes so many bytes by a store that has no gate: awaited before."""
        gate = self.gate(tier)

        async def wait(size_bytes: int) -> None:
            await gate.enter(size_bytes, size_bytes)

        return wait


class TierGate:
    """A StoreGate (runtime/objectstore/retry.py)."""

    def __init__(self, traffic: Traffic, tier: Tier) -> None:
        self._traffic = traffic
        self._tier = tier

    async def enter(self, sent_bytes: int, received_bytes: int) -> None:
        traffic, tier = self._traffic, self._tier
        for line, size_bytes in ((traffic.inbound, received_bytes), (traffic.outbound, sent_bytes)):
            if not size_bytes:
                continue
            if tier in NEVER_WAIT:
                line.charge(tier, size_bytes)
            else:
                await line.wait(tier, size_bytes)
        if sent_bytes and tier is not Tier.WAL:
            await traffic.pace.wait(tier, sent_bytes)

    def on_end(self, sent_bytes: int, error: Unavailable | None) -> None:
        if sent_bytes:
            self._traffic.pace.on_end(sent_bytes, error)

    def on_received(self, size_bytes: int) -> None:
        self._traffic.inbound.charge(self._tier, size_bytes)


def now_us() -> int:
    return int(asyncio.get_running_loop().time() * 1e6)


def _refusal(ticket: Ticket) -> StoreUnavailable:
    return StoreUnavailable(ticket.tier.name.lower(), "too many wait for the store's bandwidth")
