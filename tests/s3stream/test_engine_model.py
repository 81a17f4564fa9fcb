"""The engine against a dictionary: random appends, confirmations, uploads, trims, reads, faults, compactions,
closes and crashes.

The model knows, stream by stream, what was confirmed and what only appended. After every step the coverage
invariant is checked: what the catalog has committed and what the WAL still holds are, together and without a
gap, all that was confirmed.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millrace.runtime.objectstore import StoreFull, StoreUnavailable
from millrace.s3stream.errors import OffsetBeyondEnd, OffsetTrimmed
from millrace.s3stream.ids import ObjectHint, ObjectId, ObjectKind
from millrace.s3stream.objects.format import Entry, decode_entry
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.reader import ObjectReader
from millrace.s3stream.objects.writer import ObjectWriter
from millrace.s3stream.stream import Append, Stream
from tests.s3stream.build import CLUSTER_ID, VirtualLoop, World, open_stream

SLOTS_COUNT = 4
SLOTS = st.integers(0, SLOTS_COUNT - 1)
GENERATION = 10  # a stream that is deleted is followed by one whose id is higher by this
SIZES = st.sampled_from([1, 60, 700, 1500, 4000, 9000])
SETTINGS = {
    "log_cache_bytes": 48 << 10,
    "block_cache_bytes": 24 << 10,
    "stream_object_split_bytes": 6 << 10,
    "block_bytes": 2 << 10,
    "index_cache_bytes": 4 << 10,
    "read_merge_bytes": 4 << 10,
    "readahead_bytes_min": 1 << 10,
    "readahead_bytes_max": 8 << 10,
    "upload_interval_ms": 60_000,
    "prepare_ttl_ms": 30_000,
}

Piece = tuple[int, int, bytes]  # base offset, count, data


@dataclass
class ModelStream:
    stream_id: int
    start: int = 0
    confirmed: list[Piece] = field(default_factory=list)
    handle: Stream | None = None

    @property
    def end(self) -> int:
        return self.confirmed[-1][0] + self.confirmed[-1][1] if self.confirmed else 0


class EngineModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.world = World(512 << 10, is_auto=False)
        self.streams: dict[int, ModelStream] = {}
        self.unconfirmed: list[tuple[int, Piece]] = []
        self.next_ids = {slot: slot for slot in range(SLOTS_COUNT)}
        self.serial = 0
        self.faults = 0
        self.lost_answers = 0
        self.refused = 0
        self.counted: Counter[str] = Counter()
        self.world.store.fault = self.store_fault
        self.world.catalog.after_commit = self.commit_fault
        self.engine = self.go(self.world.started(**SETTINGS))
        self.open_all()

    def open_all(self) -> None:
        for slot in range(SLOTS_COUNT):
            self.open(slot)

    def go(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def confirm(self, count: int | None = None) -> None:
        async def on_the_loop() -> None:
            self.world.wal.confirm(count)

        self.go(on_the_loop())

    def store_fault(self, operation: str, key: str) -> None:
        if operation == "put" and self.faults:
            self.faults -= 1
            raise StoreFull if self.faults % 2 else StoreUnavailable

    def commit_fault(self) -> None:
        if self.lost_answers:
            self.lost_answers -= 1
            raise StoreUnavailable

    # -- what a broker does

    @rule(slot=SLOTS)
    def open(self, slot: int) -> None:
        model = self.streams.get(slot)
        if model is None:
            model = self.streams[slot] = ModelStream(self.next_ids[slot])
        if model.handle is None:
            model.handle = open_stream(self.world, self.engine, model.stream_id)
            assert model.handle.next_offset == model.end

    @rule(slot=SLOTS, count=st.integers(1, 5), size=SIZES, times=st.integers(1, 6))
    def append(self, slot: int, count: int, size: int, times: int) -> None:
        model = self.streams.get(slot)
        for _ in range(times):
            if model is None or model.handle is None:
                return
            if self.engine.room_bytes < size:
                self.refused += 1
                return
            self.serial += 1
            data = (b"%d." % self.serial * size)[:size]
            made = model.handle.append(count, [data[: size // 2], data[size // 2 :]], self.on_done)
            self.unconfirmed.append((slot, (made.base_offset, count, data)))

    def on_done(self, append: Append) -> None:
        """Confirmations come in the order of the appends, and the bytes are readable when they come."""
        slot, piece = self.unconfirmed.pop(0)
        model = self.streams[slot]
        assert (append.stream.stream_id, append.base_offset) == (model.stream_id, piece[0])
        assert model.end == piece[0]
        model.confirmed.append(piece)
        assert append.stream.confirmed_end >= append.end
        found = append.stream.read_cached(append.base_offset, append.end, 0)
        assert found is not None
        assert [bytes(entry.data) for entry in found] == [piece[2]]

    @rule(sizes=st.lists(st.tuples(SLOTS, SIZES), min_size=4, max_size=12))
    def append_many(self, sizes: list[tuple[int, int]]) -> None:
        for slot, size in sizes:
            self.append(slot, 1 + size % 3, size, 2)
        self.confirm()

    @rule(count=st.integers(1, 8))
    def confirm_some(self, count: int) -> None:
        self.confirm(count)

    @rule()
    def confirm_all(self) -> None:
        self.confirm()

    @rule(ms=st.sampled_from([0, 20, 1000, 70_000]))
    def let_time_pass(self, ms: int) -> None:
        self.go(self.pause(ms))

    async def pause(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)
        for _ in range(20):
            await asyncio.sleep(0)

    @rule(
        slot=SLOTS,
        at=st.floats(0, 1),
        length=st.integers(0, 40),
        max_bytes=st.sampled_from([0, 100, 5000, 1 << 20]),
    )
    def fetch(self, slot: int, at: float, length: int, max_bytes: int) -> None:
        model = self.streams.get(slot)
        if model is None or model.handle is None:
            return
        start = model.start + int((model.end - model.start) * at)
        end = min(model.end, start + length)
        found = model.handle.read_cached(start, end, max_bytes)
        if found is not None:
            self.check(model, start, end, max_bytes, found, is_whole=True)
        self.check(
            model, start, end, max_bytes, self.go(model.handle.fetch(start, end, max_bytes)), is_whole=False
        )

    @rule(slot=SLOTS)
    def read_all(self, slot: int) -> None:
        """A sequential reader, with read-ahead."""
        model = self.streams.get(slot)
        if model is None or model.handle is None:
            return
        offset = model.start
        while offset < model.end:
            found = self.go(model.handle.fetch(offset, model.end, 3000))
            self.check(model, offset, model.end, 3000, found, is_whole=False)
            offset = found[-1].end
            self.go(self.pause(0))

    def check(
        self, model: ModelStream, start: int, end: int, max_bytes: int, found: list[Entry], *, is_whole: bool
    ) -> None:
        expected: list[Piece] = []
        left = max_bytes
        for base, count, data in model.confirmed:
            if base + count <= start:
                continue
            if base >= end or start >= end or (expected and len(data) > left):
                break
            expected.append((base, count, data))
            left -= len(data)
        got = [(entry.base_offset, entry.count, bytes(entry.data)) for entry in found]
        if is_whole or not expected:
            assert got == expected
        else:
            assert got
            assert got == expected[: len(got)]

    @rule(slot=SLOTS)
    def read_out_of_range(self, slot: int) -> None:
        model = self.streams.get(slot)
        if model is None or model.handle is None:
            return
        with pytest.raises(OffsetBeyondEnd):
            self.go(model.handle.fetch(model.end + 1, model.end + 2, 1))
        if model.start:
            with pytest.raises(OffsetTrimmed):
                model.handle.read_cached(model.start - 1, model.end, 1)

    @rule(slot=SLOTS, at=st.floats(0, 1))
    def trim(self, slot: int, at: float) -> None:
        model = self.streams.get(slot)
        if model is None or model.handle is None:
            return
        model.start += int((model.end - model.start) * at * at)
        self.go(model.handle.trim(model.start))

    @rule(slot=SLOTS)
    def close_stream(self, slot: int) -> None:
        model = self.streams.get(slot)
        if model is None or model.handle is None:
            return
        self.confirm()
        handle, model.handle = model.handle, None
        self.go(handle.close())
        assert self.world.catalog.streams[model.stream_id].end == model.end

    @rule(slot=SLOTS)
    def delete_stream(self, slot: int) -> None:
        model = self.streams.get(slot)
        if model is None or model.handle is None or any(other == slot for other, _ in self.unconfirmed):
            return
        self.go(self.engine.drop_streams([model.handle.stream_id]))
        self.world.catalog.delete(model.stream_id)
        del self.streams[slot]
        self.next_ids[slot] += GENERATION

    # -- what the world does

    @rule()
    def upload_all(self) -> None:
        self.confirm()
        assert self.go(self.engine.upload_all(600_000))
        assert self.world.wal.used_bytes == 0

    @rule()
    def drop_caches(self) -> None:
        self.engine.drop_caches()

    @rule(count=st.integers(1, 4))
    def store_fails(self, count: int) -> None:
        self.faults = count

    @rule()
    def commit_answer_is_lost(self) -> None:
        self.lost_answers = 1

    @rule(slot=SLOTS)
    def compact(self, slot: int) -> None:
        """All objects of a stream become one, and those that nobody else needs disappear from the store at
        once."""
        model = self.streams.get(slot)
        if model is not None and len(self.world.catalog.streams[model.stream_id].objects) > 1:
            self.go(self.merge_objects(model.stream_id))

    async def merge_objects(self, stream_id: int) -> None:
        world, stream = self.world, self.world.catalog.streams[stream_id]
        writer = ObjectWriter(3 << 10)
        for info in stream.objects:
            reader = ObjectReader(world.store, object_key(CLUSTER_ID, info.object_id), info.size_bytes)
            refs = await reader.find(stream_id, info.start, info.end, 1 << 30)
            for entries in await reader.read_blocks(refs):
                writer.add(stream_id, entries)
        finished = writer.finish()
        object_id = await world.catalog.prepare(1, 1000)
        del world.catalog.prepared[object_id]
        faults, self.faults = self.faults, 0
        await world.store.put(object_key(CLUSTER_ID, object_id), finished.parts)
        self.faults = faults
        old = [info.object_id for info in stream.objects]
        start, end = stream.objects[0].start, stream.objects[-1].end
        stream.objects = [ObjectHint(ObjectId(object_id), ObjectKind.STREAM, finished.size_bytes, start, end)]
        used = {info.object_id for other in world.catalog.streams.values() for info in other.objects}
        await world.store.delete([object_key(CLUSTER_ID, key) for key in old if key not in used])

    @rule(unconfirmed_count=st.integers(0, 5))
    def crash(self, unconfirmed_count: int) -> None:
        self.go(self.world.crash(self.engine, unconfirmed_count))
        for slot, piece in self.unconfirmed[:unconfirmed_count]:
            self.streams[slot].confirmed.append(piece)
        self.restart()

    @rule(timeout_ms=st.sampled_from([0, 30, 600_000]))
    def stop(self, timeout_ms: int) -> None:
        self.confirm()
        self.go(self.engine.close(timeout_ms))
        self.world.wal = self.world.wal.crash()
        if timeout_ms > 1000:
            assert self.world.wal.used_bytes == 0
            assert not any(stream.is_open for stream in self.world.catalog.streams.values())
        self.restart()

    def restart(self) -> None:
        self.unconfirmed.clear()
        self.count_engine()
        self.engine = self.go(self.world.started(**SETTINGS))
        assert self.world.wal.used_bytes == 0
        for model in self.streams.values():
            stream = self.world.catalog.streams[model.stream_id]
            assert not stream.is_open
            assert stream.end == model.end
            # What was trimmed and not yet told may be readable again; the partition keeps its own start.
            assert stream.start <= model.start
            model.start = stream.start
            model.handle = None
        self.open_all()

    # -- what holds after every step

    @invariant()
    def nothing_is_lost(self) -> None:
        in_wal: dict[int, int] = {}
        for record in self.world.wal.records:
            header, _, _ = decode_entry(record.payload, 0)
            if record.end <= self.world.wal.confirmed_end:
                start = in_wal.setdefault(header.stream_id, header.base_offset)
                assert start <= header.base_offset
        for model in self.streams.values():
            committed = self.world.catalog.streams[model.stream_id].end
            assert committed <= model.end
            if committed < model.end:
                assert in_wal.get(model.stream_id, model.end) <= committed, (
                    f"{model} has a hole at {committed}"
                )

    @invariant()
    def the_engine_is_well(self) -> None:
        assert not self.world.failures
        cache = self.engine.log_cache
        assert cache.held_bytes <= SETTINGS["log_cache_bytes"] + (32 << 10)
        for model in self.streams.values():
            if model.handle is not None:
                assert model.handle.confirmed_end == model.end
                assert model.handle.committed_end <= model.end
                cached = cache.start_of(model.handle.stream_id)
                if model.handle.committed_end < model.end:
                    assert cached is not None
                    assert cached <= model.handle.committed_end

    def count_engine(self) -> None:
        """How often each tier and path was used; the long runs show that none was left out."""
        engine, blocks = self.engine, self.engine.block_cache
        self.counted.update(
            {
                "log cache": engine.reads_from_log_cache,
                "objects": blocks.reads_from_objects,
                "block cache": blocks.reads_from_block_cache,
                "read ahead": blocks.readahead_bytes,
                "blocks evicted": blocks.evicted_count,
                "log cache evicted": engine.log_cache.evicted_count,
                "retries": engine.uploader.retries,
                "recovered": engine.recovered.accepted_count,
                "committed before": engine.recovered.committed_count,
            }
        )

    def count_catalog(self) -> None:
        commits = self.world.catalog.commits
        self.counted["stream sets"] += sum(1 for commit in commits if commit.ranges)
        self.counted["stream objects"] += sum(len(commit.stream_objects) for commit in commits)
        self.counted["trims"] += len(self.world.catalog.trims)

    def teardown(self) -> None:
        self.faults = self.lost_answers = 0
        self.confirm()
        self.read_everything_cold()
        self.go(self.engine.close(600_000))
        self.loop.close()

    def read_everything_cold(self) -> None:
        """Caches emptied and the WAL trimmed: the objects are what is read."""
        assert self.go(self.engine.upload_all(600_000))
        self.engine.drop_caches()
        self.open_all()
        for slot in self.streams:
            self.read_all(slot)


EngineModel.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
TestEngineModel = EngineModel.TestCase

WEIGHTS: dict[str, int] = {
    "append_many": 30,
    "append": 10,
    "confirm_some": 5,
    "let_time_pass": 6,
    "fetch": 20,
    "read_all": 6,
    "read_out_of_range": 1,
    "trim": 2,
    "close_stream": 1,
    "open": 3,
    "delete_stream": 1,
    "upload_all": 3,
    "drop_caches": 4,
    "store_fails": 2,
    "commit_answer_is_lost": 1,
    "compact": 2,
    "crash": 1,
    "stop": 1,
}


def arguments(action: str, chance: random.Random) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "slot": chance.randrange(SLOTS_COUNT),
        "count": chance.randint(1, 5),
        "size": chance.choice([1, 60, 700, 1500, 4000, 9000]),
        "sizes": [(chance.randrange(SLOTS_COUNT), chance.choice([1, 60, 700, 1500, 4000])) for _ in range(8)],
        "times": chance.randint(1, 6),
        "ms": chance.choice([0, 20, 1000, 70_000]),
        "at": chance.random(),
        "length": chance.randint(0, 60),
        "max_bytes": chance.choice([0, 100, 5000, 1 << 20]),
        "unconfirmed_count": chance.randint(0, 5),
        "timeout_ms": chance.choice([0, 30, 600_000]),
    }
    return {
        name: drawn[name]
        for name in inspect.signature(getattr(EngineModel, action)).parameters
        if name != "self"
    }


def test_long_runs() -> None:
    """Longer lives than hypothesis draws, in which history, eviction, read-ahead and back-pressure all come
    up."""
    counted: Counter[str] = Counter()
    for seed in range(12):
        counted += long_run(random.Random(seed))
    print(counted)
    rare = {name: count for name, count in counted.items() if count < 5}
    assert len(counted) == 13
    assert not rare


def long_run(chance: random.Random) -> Counter[str]:
    model = EngineModel()
    actions, weights = list(WEIGHTS), list(WEIGHTS.values())
    for _ in range(250):
        action = chance.choices(actions, weights)[0]
        getattr(model, action)(**arguments(action, chance))
        model.nothing_is_lost()
        model.the_engine_is_well()
    model.count_engine()
    model.count_catalog()
    model.counted["no room"] = model.refused
    model.teardown()
    return model.counted
