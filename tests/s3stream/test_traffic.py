"""The gates before the store: who waits for bandwidth, how uploads slow down for a store that refuses, and
that nothing runs when nobody waits."""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.clock import SystemClock
from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy
from millrace.runtime.rand import Rand
from millrace.s3stream.config import TrafficSettings
from millrace.s3stream.limiter import WAITING_MAX, Tier
from millrace.s3stream.pace import PACE_MIN
from millrace.s3stream.traffic import Traffic
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.objectstore import SimBucket, SimObjectStore, StoreFault, StoreFaults

MIB = 1 << 20


class Bench:
    def __init__(self, **limits: int | bool) -> None:
        self.traffic = Traffic(TrafficSettings(**limits))  # type: ignore[arg-type]
        self.sim = SimObjectStore(SimBucket(SystemClock()), Rand(b"traffic"))

    def store(self, tier: Tier, attempts_max: int | None = None) -> RetryingObjectStore:
        policy = RetryPolicy(attempts_max=attempts_max, attempt_timeout_ms=5_000)
        return RetryingObjectStore(self.sim, Rand(b"retry"), policy, gate=self.traffic.gate(tier))


async def seconds(*calls: object) -> list[float]:
    """When each was done, from now."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one(call: object) -> float:
        await call  # type: ignore[misc]
        return loop.time() - began

    return await asyncio.gather(*map(one, calls))


def timers(loop: SimLoop) -> int:
    return sum(not handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]


def test_reads_wait_for_inbound_bandwidth_by_tier() -> None:
    """Beyond the burst: tail reads first, then read-ahead, each when the rate allows; afterwards no timer is
    left."""

    async def main(loop: SimLoop) -> None:
        bench = Bench(bandwidth_bytes=10 * MIB)
        await bench.store(Tier.UPLOAD).put("a", [bytes(4 * MIB)])
        tail, ahead = bench.store(Tier.TAIL), bench.store(Tier.CATCH_UP)
        slow, fast = await seconds(
            asyncio.gather(*(ahead.get_range("a", 0, 4 * MIB) for _ in range(5))),
            asyncio.gather(*(tail.get_range("a", 0, 4 * MIB) for _ in range(5))),
        )
        assert 1.6 < fast < 2.1
        assert 3.2 < slow < 4.1
        count = bench.traffic.inbound.tiers.counts[Tier.CATCH_UP]
        assert (count.bytes, count.requests) == (20 * MIB, 5)
        assert count.waits == 5
        assert timers(loop) == 0

    run_simulation(main)


def test_uploads_and_the_wal_do_not_wait_for_bandwidth() -> None:
    """They are charged: what waits afterwards waits for them too, as long as the way is shared."""

    async def main(loop: SimLoop) -> None:
        for is_shared, least_s in ((False, 0.0), (True, 1.9)):
            bench = Bench(bandwidth_bytes=5 * MIB, is_shared=is_shared)
            upload, wal = bench.store(Tier.UPLOAD), bench.store(Tier.WAL)
            assert await seconds(upload.put("a", [bytes(20 * MIB)]), wal.put("b", [bytes(20 * MIB)])) == [
                0.0,
                0.0,
            ]
            [waited_s] = await seconds(bench.store(Tier.TAIL).get_range("a", 0, 4 * MIB))
            assert least_s <= waited_s <= 4.1
            assert bench.traffic.outbound.tiers.counts[Tier.UPLOAD].bytes == 20 * MIB

    run_simulation(main)


def test_waiting_is_no_failure_of_the_store() -> None:
    """A wait for bandwidth that is longer than an attempt's time does not fail the attempt, and is no reason
    to slow down."""

    async def main(loop: SimLoop) -> None:
        bench = Bench(bandwidth_bytes=MIB)
        [waited_s] = await seconds(bench.store(Tier.COMPACTION, attempts_max=1).put("a", [bytes(30 * MIB)]))
        assert waited_s > 20
        assert bench.traffic.pace.pace.cuts == 0

    run_simulation(main)


def test_who_gives_up_leaves_the_line() -> None:
    """A cancelled read frees its place, keeps nothing, and the timer ends with the last who waits."""

    async def main(loop: SimLoop) -> None:
        bench = Bench(bandwidth_bytes=MIB)
        line = bench.traffic.inbound
        line.charge(Tier.UPLOAD, 100 * MIB)
        await line.wait(Tier.TAIL, MIB)
        reads = [asyncio.create_task(line.wait(Tier.CATCH_UP, 8 * MIB)) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert len(line.tiers) == 3
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        assert not line.tiers
        assert not line._futures
        await asyncio.sleep(10)
        assert timers(loop) == 0

    run_simulation(main)


def test_too_many_are_refused_as_unavailable() -> None:
    """The line is bounded: the last in it is told that the store is not to be had now, and may ask again."""

    async def main(loop: SimLoop) -> None:
        bench = Bench(bandwidth_bytes=MIB)
        line = bench.traffic.inbound
        line.charge(Tier.UPLOAD, 100 * MIB)
        reads = [asyncio.create_task(line.wait(Tier.CATCH_UP, 2 * MIB)) for _ in range(WAITING_MAX + 5)]
        tail = asyncio.create_task(line.wait(Tier.TAIL, MIB))
        await asyncio.sleep(0.01)
        refused = [read for read in reads if read.done() and read.exception() is not None]
        assert len(refused) >= 4
        assert all(isinstance(read.exception(), Unavailable) for read in refused)
        await tail
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    run_simulation(main)


def test_throttling_slows_writes_down_and_quiet_speeds_them_up() -> None:
    """Ten puts meet SlowDown: the pace falls, puts wait their turn and none fails; when the store takes all
    again, so does the pace."""

    async def main(loop: SimLoop) -> None:
        bench = Bench()
        store, pace = bench.store(Tier.UPLOAD), bench.traffic.pace
        for second in range(12):
            bench.sim.plan("put", *[StoreFault.THROTTLED] * (10 if second < 6 else 0))
            await asyncio.gather(*(store.put(f"{second}-{number}", [bytes(MIB)]) for number in range(4)))
            await asyncio.sleep(1)
        assert pace.pace.cuts >= 4
        limit = pace.tiers.bytes_per_s
        assert limit is not None
        assert PACE_MIN <= limit < 20 * MIB
        assert pace.tiers.counts[Tier.UPLOAD].waits > 0
        await asyncio.sleep(120)
        [at_once] = await seconds(
            asyncio.gather(*(store.put(f"late{number}", [bytes(MIB)]) for number in range(60)))
        )
        assert at_once == 0.0
        assert len(bench.sim.bucket.objects) == 48 + 60
        assert timers(loop) == 0

    run_simulation(main)


def test_uploads_go_before_compaction_when_the_store_refuses() -> None:
    """Under the pace what was produced goes first; compaction is put off, not starved."""

    async def main(loop: SimLoop) -> None:
        bench = Bench()
        pace = bench.traffic.pace
        for _ in range(8):
            pace.on_end(0, Unavailable("SlowDown"))
            await asyncio.sleep(1.01)
        compaction, upload = bench.store(Tier.COMPACTION), bench.store(Tier.UPLOAD)
        await upload.put("burst", [bytes(2 * MIB)])
        late, early = await seconds(
            asyncio.gather(*(compaction.put(f"c{number}", [bytes(MIB)]) for number in range(3))),
            asyncio.gather(*(upload.put(f"u{number}", [bytes(MIB)]) for number in range(3))),
        )
        assert early < late < 30

    run_simulation(main)


@pytest.mark.parametrize("fault", [StoreFault.THROTTLED, StoreFault.REFUSED, StoreFault.LOST_ANSWER])
def test_any_write_without_an_answer_lowers_the_pace(fault: StoreFault) -> None:
    """503, 5xx and time-outs alike; a read that fails does not."""

    async def main(loop: SimLoop) -> None:
        bench = Bench()
        bench.sim.faults = StoreFaults(timeout_ms=1000)
        bench.sim.plan("put", fault)
        await bench.store(Tier.UPLOAD).put("a", [b"x"])
        assert bench.traffic.pace.pace.cuts == 1
        bench.sim.plan("get", fault)
        await bench.store(Tier.TAIL).get_range("a", 0, 1)
        assert bench.traffic.pace.pace.cuts == 1

    run_simulation(main)


def test_the_hook_of_compaction_charges_both_ways() -> None:
    """Who has no gate of its own awaits the hook: its bytes are counted as read and as written, and wait for
    both."""

    async def main(loop: SimLoop) -> None:
        bench = Bench(bandwidth_bytes=4 * MIB)
        throttle = bench.traffic.throttle(Tier.COMPACTION)
        waited_s = (await seconds(throttle(30 * MIB)))[0]
        assert 6 < waited_s < 15
        for line in (bench.traffic.inbound, bench.traffic.outbound):
            assert line.tiers.counts[Tier.COMPACTION].bytes == 30 * MIB

    run_simulation(main)
