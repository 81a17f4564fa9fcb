"""A store that refuses, is slow, or is away, under a whole engine: producers wait and lose nothing, uploads
slow down and speed up again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from itertools import pairwise

import pytest

from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import StoreUnavailable
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.config import StreamSettings, TrafficSettings
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.limiter import Tier
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.storage import Storage
from millrace.s3stream.stream import Stream
from millrace.s3stream.traffic import EngineStores, Traffic
from tests.s3stream.build import CLUSTER_ID, MemoryCatalog, MemoryWal, append
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.objectstore import SimBucket, SimObjectStore, StoreFaults

MIB = 1 << 20
RETRIES = RetryPolicy(attempts_max=4, longest_wait_ms=2_000, attempt_timeout_ms=20_000)


class Node:
    """An engine on a simulated store, its WAL of 8 MiB in memory. A second one on the same world is the next
    start."""

    def __init__(self, wal: MemoryWal, catalog: MemoryCatalog, bucket: SimBucket) -> None:
        self.wal = wal
        self.catalog = catalog
        self.sim = SimObjectStore(bucket, Rand(b"troubles"))
        self.traffic = Traffic(TrafficSettings())
        self.failures: list[BaseException] = []
        tiers = (Tier.UPLOAD, Tier.TAIL, Tier.CATCH_UP)
        stores = EngineStores(
            *(RetryingObjectStore(self.sim, Rand(b"r"), RETRIES, gate=self.traffic.gate(t)) for t in tiers),
            YieldQueue(),
        )
        settings = StreamSettings(
            log_cache_bytes=8 * MIB,
            block_cache_bytes=4 * MIB,
            upload_threshold_bytes=MIB,
            upload_interval_ms=5_000,
            stream_object_split_bytes=MIB // 2,
            read_merge_bytes=MIB // 2,
        )
        self.engine = Storage(wal, stores, catalog, catalog, settings, CLUSTER_ID, self.failures.append)


def new_node() -> Node:
    return Node(MemoryWal(8 * MIB), MemoryCatalog(), SimBucket(SystemClock()))


def payload(offset: int, size_bytes: int = 20_000) -> bytes:
    return b"%07d" % offset + bytes([offset % 251]) * (size_bytes - 7)


async def produce(node: Node, stream: Stream, count: int) -> float:
    """As a patient producer: room first, then the append, one after the other. How long the longest wait
    was."""
    loop, longest_s = asyncio.get_running_loop(), 0.0
    for _ in range(count):
        began = loop.time()
        if node.engine.room_bytes < 20_000:
            await node.engine.wait_for_room(20_000)
        await append(stream, payload(stream.next_offset))
        longest_s = max(longest_s, loop.time() - began)
        await asyncio.sleep(0.01)
    return longest_s


def compact(node: Node, number: int) -> None:
    """One of stream 1's objects gets another id, and the old file goes at once: no grace, which is worse than
    life."""
    objects, files = node.catalog.streams[1].objects, node.sim.bucket.objects
    place = number % len(objects)
    old = objects[place]
    objects[place] = new = dataclasses.replace(old, object_id=ObjectId(10_000 + number))
    files[object_key(CLUSTER_ID, new.object_id)] = files.pop(object_key(CLUSTER_ID, old.object_id))


async def check_all(node: Node, stream: Stream) -> None:
    """Every offset is read back from the objects, once, in order and unchanged."""
    assert await node.engine.upload_all(3_600_000)
    node.engine.drop_caches()
    offset = 0
    while offset < stream.confirmed_end:
        for entry in await stream.fetch(offset, stream.confirmed_end, MIB):
            assert entry.base_offset == offset
            assert bytes(entry.data) == payload(offset)
            offset = entry.end


@pytest.mark.parametrize(
    "faults",
    [
        StoreFaults(throttled=1000),
        StoreFaults(refused=700, throttled=250, latency_ms=(0, 200)),
        StoreFaults(lost_request=500, lost_answer=400, timeout_ms=5_000),
        StoreFaults(requests_per_s_max=1),
    ],
    ids=["all SlowDown", "mostly refused", "time-outs", "one a second"],
)
def test_a_store_in_trouble_is_back_pressure_and_no_failure(faults: StoreFaults) -> None:
    """Two minutes of refusals or time-outs under load: the WAL fills, the producer waits, nothing fails and
    nothing is lost; when it is over, producing is as quick as before and the pace has no limit."""

    async def main(loop: SimLoop) -> None:
        node = new_node()
        await node.engine.start()
        stream = node.engine.open_stream(node.catalog.open(1))
        assert await produce(node, stream, 300) < 1
        node.sim.faults = faults
        loop.call_later(120, setattr, node.sim, "faults", StoreFaults())
        longest_s = await produce(node, stream, 2000)
        assert longest_s > 1, "the producer felt it"
        assert node.traffic.pace.pace.cuts > 0
        await asyncio.sleep(120)
        assert await produce(node, stream, 500) < 1
        assert node.traffic.pace.tiers.bytes_per_s is None
        assert not node.failures
        await check_all(node, stream)
        await node.engine.close(60_000)
        assert not node.sim.bucket.unfinished_uploads()

    run_simulation(main)


def test_recovery_outlives_a_store_that_refuses() -> None:
    """An hour of 503 while the WAL is recovered: the start waits, says why, and then has everything."""

    async def main(loop: SimLoop) -> None:
        first = new_node()
        await first.engine.start()
        stream = first.engine.open_stream(first.catalog.open(1))
        await produce(first, stream, 30)
        assert not first.catalog.commits
        node = Node(first.wal.crash(0), first.catalog, first.sim.bucket)
        await first.engine._stop()
        node.sim.faults = StoreFaults(throttled=1000)
        loop.call_later(3600, setattr, node.sim, "faults", StoreFaults())
        starting = asyncio.create_task(node.engine.start())
        await asyncio.sleep(3000)
        assert not starting.done()
        assert "THROTTLED" in node.engine.upload_blocked_reason
        await starting
        assert loop.time() < 1000 + 3600 + 60
        assert node.engine.upload_blocked_reason == ""
        again = node.engine.open_stream(node.catalog.open(1))
        assert again.confirmed_end == 30
        await check_all(node, again)

    run_simulation(main)


def test_waiting_producers_do_not_make_a_burst_of_uploads() -> None:
    """While the WAL is full and a hundred producers wait, each upload that is forced is a large one: room
    comes by blocks, not by crumbs."""

    async def main(loop: SimLoop) -> None:
        node = new_node()
        node.sim.faults = StoreFaults(latency_ms=(400, 400))
        await node.engine.start()
        streams = [node.engine.open_stream(node.catalog.open(number)) for number in range(1, 101)]
        await asyncio.gather(*(produce(node, stream, 20) for stream in streams))
        assert await node.engine.upload_all(600_000)
        produced_bytes = 100 * 20 * 20_000
        assert len(node.catalog.commits) <= 2 * produced_bytes / MIB
        assert not node.failures

    run_simulation(main)


def test_puts_that_failed_together_do_not_come_again_together() -> None:
    """The uploader's own pauses are spread: of eight puts that fail at one instant no two are tried again at
    the same time."""

    async def main(loop: SimLoop) -> None:
        node = new_node()
        times: list[float] = []

        class Refusing(SimObjectStore):
            async def put(self, key: str, parts: object) -> None:
                times.append(loop.time())
                raise StoreUnavailable(key, "SlowDown")

        refusing = EngineStores.same(Refusing(node.sim.bucket, Rand(b"refusing")))
        settings = StreamSettings(stream_object_split_bytes=1)
        engine = Storage(
            node.wal, refusing, node.catalog, node.catalog, settings, CLUSTER_ID, node.failures.append
        )
        await engine.start()
        for number in range(1, 9):
            await append(engine.open_stream(node.catalog.open(number)), b"x")
        engine._force()
        await asyncio.sleep(1)
        first, second = times[:8], sorted(times[8:16])
        assert len(set(first)) == 1
        assert all(later - earlier > 1e-4 for earlier, later in pairwise(second))
        await engine._stop()

    run_simulation(main)


def test_a_reader_survives_compaction_under_a_store_that_refuses() -> None:
    """Every tenth GET fails and the object is replaced under the reader each few reads: each read gets what
    it asked for."""

    async def main(loop: SimLoop) -> None:
        node = new_node()
        await node.engine.start()
        stream = node.engine.open_stream(node.catalog.open(1))
        await produce(node, stream, 200)
        assert await node.engine.upload_all(60_000)
        node.sim.faults = StoreFaults(refused=100, latency_ms=(0, 20))

        async def replace() -> None:
            for number in range(1000):
                await asyncio.sleep(0.05)
                compact(node, number)

        replacing = asyncio.create_task(replace())
        for turn in range(60):
            node.engine.drop_caches()
            offset = turn * 3
            entries = await stream.fetch(offset, 200, 100_000)
            assert [entry.base_offset for entry in entries] == list(range(offset, offset + len(entries)))
            assert all(bytes(entry.data) == payload(entry.base_offset) for entry in entries)
            await asyncio.sleep(0.03)
        replacing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await replacing

    run_simulation(main)


def test_a_stream_in_many_small_objects_is_read_several_at_a_time() -> None:
    """Forty objects, 50 ms a GET: a read of all of them and a sequential reader take the time of a few
    rounds, not of eighty GETs."""

    async def main(loop: SimLoop) -> None:
        node = new_node()
        await node.engine.start()
        stream = node.engine.open_stream(node.catalog.open(1))
        for _ in range(40):
            await produce(node, stream, 2)
            assert await node.engine.upload_all(60_000)
        assert len(node.catalog.commits) == 40
        node.engine.drop_caches()
        node.sim.faults = StoreFaults(latency_ms=(50, 50))
        began = loop.time()
        assert len(await stream.fetch(0, 80, 4 * MIB)) == 80
        assert loop.time() - began < 1.2
        node.engine.drop_caches()
        began, offset = loop.time(), 0
        while offset < 80:
            offset = (await stream.fetch(offset, 80, 40_000))[-1].end
        assert loop.time() - began < 2

    run_simulation(main)


def test_what_comes_before_damage_is_read_first() -> None:
    """A flipped byte in the middle: a fetch across it gives what lies before, at once; the one that begins
    there is told, those behind it read."""

    async def main(loop: SimLoop) -> None:
        node = new_node()
        await node.engine.start()
        stream = node.engine.open_stream(node.catalog.open(1))
        await produce(node, stream, 150)
        assert await node.engine.upload_all(60_000)
        node.engine.drop_caches()
        bucket = node.sim.bucket
        [(key, place)] = [
            (key, data.find(payload(75))) for key, (data, _) in bucket.objects.items() if payload(75) in data
        ]
        bucket.rot(key, place + 500)
        began, entries = loop.time(), await stream.fetch(0, 150, 4 * MIB)
        assert 0 < entries[-1].end <= 75
        assert loop.time() - began < 0.1
        with pytest.raises(ObjectCorrupt, match=key):
            await stream.fetch(75, 150, MIB)
        assert (await stream.fetch(149, 150, MIB))[0].base_offset == 149

    run_simulation(main)
