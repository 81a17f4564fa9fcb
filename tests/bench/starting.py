"""How long a broker takes to be ready: first, with data, after kill -9, with thousands of partitions. For
bench.py."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.bench.extent import Extent
from tests.bench.produce_load import PRODUCE_VERSION, ProduceLoad, ask, batch_of, make_topic, produce_frame
from tests.live import LiveBroker

TOPIC, PARTITIONS = "data", 8
WRITTEN_EACH = 10


@dataclass
class Starts:
    """Seconds until the ready line, of every start; `bare` is what the interpreter and the loop alone
    take."""

    bare: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    with_data: list[float] = field(default_factory=list)
    killed: list[float] = field(default_factory=list)
    idle_bytes: int = 0
    lost_bytes: list[int] = field(default_factory=list)  # in the WAL at each kill


async def measure_starts(folder: Path, extent: Extent) -> Starts:
    starts = Starts()
    for number in range(extent.starts):
        starts.bare.append(bare_start_s())
        broker = LiveBroker(folder / f"start{number}", wal=extent.wal)
        with broker:
            starts.fresh.append(broker.ready_seconds)
            if number == 0:
                await asyncio.sleep(extent.stretch(1))
                starts.idle_bytes = broker.memory_bytes()
        shutil.rmtree(broker.folder)
    with LiveBroker(folder / "filled", wal=extent.wal) as broker:
        await make_topic(broker.port, TOPIC, PARTITIONS)
        await fill(broker.port, extent.filled_bytes)
        for _ in range(extent.starts):
            assert broker.stop() == 0
            starts.with_data.append(broker.start().ready_seconds)
        for _ in range(extent.kills):
            await fill(broker.port, extent.filled_bytes)
            starts.lost_bytes.append(int(broker.metrics()["millrace_wal_used_bytes"]))
            broker.kill()
            starts.killed.append(broker.start().ready_seconds)
    shutil.rmtree(broker.folder)
    return starts


async def fill(port: int, bytes_min: int) -> None:
    batch = batch_of(16, 1000)
    load = await ProduceLoad(
        port, [produce_frame(TOPIC, index, batch) for index in range(PARTITIONS)], 2
    ).start()
    while load.result.bytes_count < bytes_min:
        await asyncio.sleep(0.02)
        load.raise_failure()
    await load.stop()


@dataclass(frozen=True, slots=True)
class Many:
    """Of a broker with thousands of partitions, a record in every tenth."""

    created_s: float
    written_count: int
    ready_s: float
    killed_s: float
    memory_bytes: int
    idle_percent: float


async def measure_many(folder: Path, extent: Extent) -> Many:
    """Made and written to; an orderly restart, a kill -9 and a start; then nothing."""
    with LiveBroker(folder / "partitions", wal=extent.wal) as broker:
        began = time.perf_counter()
        for name in names(extent):
            topic = CreatableTopic(name, num_partitions=extent.topic_partitions, replication_factor=-1)
            response = await ask(broker.port, 19, 5, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
            assert response.topics[0].error_code == 0, response.topics[0]
        created_s = time.perf_counter() - began
        written = await write_some(broker.port, extent)
        assert broker.stop() == 0
        ready_s = broker.start().ready_seconds
        assert await write_some(broker.port, extent) == written
        broker.kill()
        killed_s = broker.start().ready_seconds
        await asyncio.sleep(extent.stretch(1))
        before, began = broker.cpu_seconds(), time.perf_counter()
        await asyncio.sleep(extent.stretch(5))
        used = 100 * (broker.cpu_seconds() - before) / (time.perf_counter() - began)
        found = Many(created_s, written, ready_s, killed_s, broker.memory_bytes(), used)
    shutil.rmtree(broker.folder)
    return found


def names(extent: Extent) -> Iterator[str]:
    return (f"idle-{number}" for number in range(extent.topics))


async def write_some(port: int, extent: Extent) -> int:
    """A record to every tenth partition; how many those are."""
    batch, written = batch_of(1, 100), 0
    for name in names(extent):
        places = range(0, extent.topic_partitions, WRITTEN_EACH)
        data = TopicProduceData(name, partition_data=[PartitionProduceData(place, batch) for place in places])
        response = await ask(
            port, 0, PRODUCE_VERSION, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
        )
        answers = response.responses[0].partition_responses
        assert all(answer.error_code == 0 for answer in answers), answers
        written += len(answers)
    return written


def bare_start_s() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import asyncio, uvloop"], check=True)
    return time.perf_counter() - began
