"""What partitions store, against golden bytes: a change of layout is a new version, beside a new file."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.broker.partitions.epochs import Epochs
from millrace.broker.partitions.meta_stream import MetaStream, decode_values
from millrace.broker.partitions.producers import Producers, WrittenBatch
from millrace.broker.partitions.segments import Segments
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.state import KEY_PRODUCERS, SEGMENT, Found, PartitionState, restore
from millrace.broker.partitions.time_index import find_in_chunk, is_chunk
from millrace.protocol.batches import ProduceRules
from millrace.runtime.errors import Corrupt
from tests.broker.partitions.build import Fixture, run
from tests.s3stream.build import open_stream

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "partition_streams_v1.hex"
SETTINGS = TopicSettings(rules=ProduceRules(segment_bytes=1000), index_interval_bytes=300)


def golden() -> tuple[bytes, bytes]:
    """The meta stream's entry and the time stream's chunk of the file."""
    found = []
    for part in GOLDEN.read_text(encoding="utf-8").split("---\n"):
        found.append(bytes.fromhex("".join(line.partition("#")[0] for line in part.splitlines())))
    meta, time = found
    return meta, time


def state() -> PartitionState:
    made = PartitionState(Segments.starting_at(100, 5000, 0), Epochs(), Producers(), 100, 100)
    made.begin_epoch(3, 100)
    for number in range(5):
        made.add(110 + 10 * number, 400, 6000 + number, 7000 + number, SETTINGS, 10**9)
    made.begin_epoch(4, 150)
    for number in range(6):
        batch = WrittenBatch(
            10 * number, 10 * number + 9, 100 + 10 * number, 109 + 10 * number, 6000 + number
        )
        made.producers.written(77, 2, batch, 7000)
    return made


async def stored() -> tuple[bytes, bytes]:
    fixture = await Fixture().start()
    meta = MetaStream(open_stream(fixture.world, fixture.engine, 1), fixture.engine, fixture.spawn)
    made = state()
    checkpoint = made.checkpoint(150, 64, 8000)
    meta.put({**made.raise_log_start(105, 8000), **checkpoint.values})
    await fixture.settle()
    (entry,) = await meta.stream.fetch(0, 1, 1 << 20)
    return bytes(entry.data), b"".join(checkpoint.chunks)


def test_what_is_stored_is_what_the_golden_file_has() -> None:
    """Byte for byte: other versions of the broker read it."""

    async def scenario() -> None:
        assert await stored() == golden()

    run(scenario())


def test_the_golden_file_is_understood() -> None:
    """Segments, epochs, windows, ages and the log's start come back from it, and its index finds times."""
    meta, time = golden()
    values = dict(decode_values(memoryview(meta)))
    segments = {
        number: value for (kind, number), value in values.items() if kind == SEGMENT and value is not None
    }
    restored = restore(values.get, segments, Found(100, 150, 64 + len(time), 9000, 1_000_000))
    assert (restored.log_start_offset, restored.saved_end) == (105, 150)
    assert restored.epochs.entries == ((3, 100), (4, 150))
    assert repr(restored.segments) == repr(state_after().segments)
    assert repr(restored.producers) == (
        "77@2 seen 999000: [10..19]=110..119 [20..29]=120..129 [30..39]=130..139 [40..49]=140..149 "
        "[50..59]=150..159"
    )
    assert is_chunk(time[:20])
    assert find_in_chunk(time[:20], 100, 6001) == 110


def state_after() -> PartitionState:
    made = state()
    made.checkpoint(150, 64, 8000)
    return made


def test_an_empty_snapshot_of_producers_is_damage() -> None:
    """A value that is there and says nothing is refused, not taken for one that was never written."""
    with pytest.raises(Corrupt, match="cut off"):
        restore({KEY_PRODUCERS: b""}.get, {}, Found(0, 0, 0, 0, 0))
