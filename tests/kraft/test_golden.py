"""The metadata log's bytes, pinned: tests/golden/metadata_log_v4.txt, rewritten with MILLRACE_REWRITE=1 when
a version is added.

metadata_log_v1.txt, v2 and v3 are of millrace.version 0, 1 and 2, which are read and written on until a level
is finalized.

A directory that an earlier build wrote must be read by every later one; what this build writes must be what
it wrote.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.kraft.commands.decision import Decision
from millrace.kraft.commands.refusals import refuse_whole
from millrace.kraft.commands.table import Command
from millrace.kraft.node import ControllerNode
from millrace.kraft.tables.objects import ObjectState
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.seal_streams import SealStreamsRequest, StreamSeal
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest
from millrace.protocol.stream_records import EndFailoverRecord, FailoverRecord, LoseOwedRangeRecord
from millrace.s3stream.ids import LOST_RANGE, OWED_RANGE, ObjectId, StreamId
from tests.kraft.build import NODE, Broker, open_node, run, sim_disk
from tests.kraft.check import check_image
from tests.sim.disk import SimDisk, SimFile

FOLDER = Path(__file__).parent.parent / "golden"
GOLDEN = FOLDER / "metadata_log_v4.txt"
EVERY_VERSION = (*(FOLDER / f"metadata_log_v{version}.txt" for version in (1, 2, 3)), GOLDEN)
FAILOVERS = Command(
    lambda context, request: Decision(
        None, [FailoverRecord(7, -1, [4], "gone"), FailoverRecord(8, 9), EndFailoverRecord(8)]
    ),
    refuse_whole,
)
LOSSES = Command(lambda context, request: Decision(None, [LoseOwedRangeRecord(0, NODE)]), refuse_whole)
LEFT_OUT = ("/data/metadata.reserve", "/data/.lock")


async def seal(node: ControllerNode, broker: Broker, stream_id: int, end: int) -> None:
    request = SealStreamsRequest(NODE, broker.epoch, [StreamSeal(stream_id, 0, 0, end)])
    assert [one.error_code for one in (await node.channel.send(request)).streams] == [0]


async def write(disk: SimDisk) -> None:
    """Every sort of record of ours, and most of Kafka's that we write."""
    node = await open_node(disk, cluster_id="AAAAAAAAAAAAAAAAAAAAAQ")
    broker = await Broker.register(node)
    topic_id = await broker.create("kept", 2, **{"cleanup.policy": "compact"})
    gone = await broker.create("gone", 1)
    await broker.open(topic_id, 0, (0, 1))
    await broker.open(gone, 0, (1,))
    first = await broker.prepare(4)
    assert await broker.commit(first, [(0, 0, 10), (1, 0, 300), (2, 0, 7)], [(first + 1, 1, 300, 310)]) == 0
    await node.channel.send(TrimStreamsRequest(NODE, broker.epoch, [StreamTrim(0, 0, 10)]))
    await node.channel.send(DeleteTopicsRequest([DeleteTopicState("gone")]))
    await node.controller.take(FAILOVERS, None)
    await seal(node, broker, 1, 320)
    await node.snapshot()
    assert await broker.commit(first + 2, [(0, 10, 12)]) == 0
    await seal(node, broker, 0, 15)
    await node.controller.take(LOSSES, None)
    await node.close()


def check(node: ControllerNode, *, is_newest: bool) -> None:
    image = node.publisher.image
    check_image(image)
    assert [topic.name for topic in image.topics] == ["kept"]
    assert dict(image.configs.topic("kept")) == {"cleanup.policy": "compact"}
    ends = (15, 320) if is_newest else (12, 310)
    assert [(s.start, s.end) for s in image.streams.by_id.values()] == [(10, ends[0]), (0, ends[1])]
    owed = [(one.stream_id, one.start, one.end, one.node_id) for one in image.streams.owed]
    assert owed == ([(1, 310, 320, NODE)] if is_newest else [])
    hints = image.objects.candidates(image.streams.by_id[StreamId(1)], 0, 9)
    assert [hint.object_id for hint in hints] == [0, 1, *[OWED_RANGE] * is_newest]
    hints = image.objects.candidates(image.streams.by_id[StreamId(0)], 10, 9)
    assert [hint.object_id for hint in hints][1:] == [LOST_RANGE] * is_newest
    assert image.objects.by_id[ObjectId(3)].state is ObjectState.PREPARED
    assert (image.streams.next_id, image.objects.next_id) == (3, 4)


def shown(disk: SimDisk) -> str:
    lines = []
    for path, file in sorted(disk.files.items()):
        if path not in LEFT_OUT:
            data = bytes(file.durable).hex()
            lines += [path, *(data[at : at + 120] for at in range(0, len(data), 120)), ""]
    return "\n".join(lines)


def from_shown(text: str) -> SimDisk:
    disk = sim_disk()
    for part in text.split("\n\n"):
        path, *lines = part.strip().split("\n")
        data = bytes.fromhex("".join(lines))
        disk.files[path] = SimFile(bytearray(data), bytearray(data))
    return disk


def test_what_is_written_is_what_was_written() -> None:
    """The same commands make the same bytes."""
    disk = sim_disk()
    run(write(disk))
    if os.environ.get("MILLRACE_REWRITE"):
        GOLDEN.write_text(shown(disk))
    assert shown(disk) == GOLDEN.read_text()


@pytest.mark.parametrize("golden", EVERY_VERSION, ids=lambda path: path.stem)
def test_what_was_written_can_be_read(golden: Path) -> None:
    """From the snapshot and the log behind it; and from the log alone."""

    async def read(disk: SimDisk) -> None:
        node = await open_node(disk)
        check(node, is_newest=golden == GOLDEN)
        await node.close()

    run(read(from_shown(golden.read_text())))
    without = from_shown(golden.read_text())
    for path in [path for path in without.files if path.endswith(".checkpoint")]:
        del without.files[path]
    run(read(without))
