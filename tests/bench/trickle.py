"""What the store is asked at a trickle, uploads and compaction: `python -m tests.bench.trickle [--hours N]
[--partitions N ...] [--memory MIB]`.

A small entry a minute for every partition, uploaded by age, in virtual time; what is older than six hours is
trimmed. Requests an hour do not grow with partitions: what is little stays in objects that hold a part of
each, however old. Deletions are counted by object; a store takes up to a thousand with one request.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from millrace.s3stream.compaction.config import MIB, CompactionSettings
from millrace.s3stream.ids import StreamId
from tests.bench.compaction_steady import LOOK_S, LOOKS_A_STREAM_ROUND, Load
from tests.bench.report import Row, table

UPLOADS_A_LOOK = LOOK_S // 60
LOOKS_AN_HOUR = 3600 // LOOK_S
ENTRY_BYTES = 200
KEPT_MINUTES = 360
MEMORY_MIB = 64
# 60 uploads, a GET and a DELETE for each when they are merged by eights, and as much again.
REQUESTS_AN_HOUR_MAX = 300
OBJECTS_MAX = 40


async def trickle(partitions: int, hours: int, memory_mib: int = MEMORY_MIB) -> list[Row]:
    load = Load(partitions, CompactionSettings(memory_bytes=memory_mib * MIB))
    cpu, objects_count = time.process_time(), 0
    for look in range(1, hours * LOOKS_AN_HOUR + 1):
        for _ in range(UPLOADS_A_LOOK):
            await load.upload(ENTRY_BYTES, 1)
        for stream_id in range(partitions):
            stream = load.catalog.streams[stream_id]
            await load.catalog.trim(StreamId(stream_id), stream.epoch, max(0, stream.end - KEPT_MINUTES))
        await load.look(is_stream_round=look % LOOKS_A_STREAM_ROUND == 0)
        objects_count = max(objects_count, len(load.catalog.live))
    assert not load.work.counts.skipped, load.work.counts
    uploads = UPLOADS_A_LOOK * LOOKS_AN_HOUR
    puts, gets = sum(load.meter.puts.values()) / hours, sum(load.meter.gets.values()) / hours
    deletes = load.deleted_count / hours
    by_verb = f"{uploads} PUT of uploads; of compaction {puts:.0f} PUT, {gets:.0f} GET, {deletes:.0f} DELETE"
    total = uploads + puts + gets + deletes
    cost = f"{time.process_time() - cpu:.0f} s of CPU"
    return [
        Row(
            f"trickle, {partitions} partitions, {hours} h",
            f"{total:.0f} requests an hour",
            by_verb,
            f"{REQUESTS_AN_HOUR_MAX}",
            total <= REQUESTS_AN_HOUR_MAX,
        ),
        Row("  objects at most", f"{objects_count}", cost, f"{OBJECTS_MAX}", objects_count <= OBJECTS_MAX),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--partitions", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--memory", type=int, default=MEMORY_MIB)
    options = parser.parse_args()
    rows = [asyncio.run(trickle(count, options.hours, options.memory)) for count in options.partitions]
    print(table([row for some in rows for row in some]))


if __name__ == "__main__":
    main()
