"""The power goes at every write, and at every write of a restart: nothing that was answered is lost or
changed.

A workload runs once without faults, which gives the image at every offset; then once for each of its writes,
cut there. What the disk kept of what was not synced is all, nothing, or any sectors of it. The image that the
next start finds must be the faultless one of its offset, and reach at least as far as the last answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.node import ControllerNode
from millrace.protocol.messages.close_streams import CloseStreamsRequest, StreamClose
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest
from millrace.runtime.rand import Rand
from tests.kraft.build import NODE, Broker, create_topic, open_node, run
from tests.kraft.check import check_image
from tests.sim.disk import Cut, Fate, SimDisk, drop, keep, tear

FATES: dict[str, Callable[[], Fate]] = {
    "drop": lambda: drop,
    "keep": lambda: keep,
    "tear": lambda: tear(Rand(b"tear")),
}


class Workload:
    """Commands one after another; what was answered is noted by the offset of the image that it was answered
    from."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.images: dict[int, MetadataImage] = {}
        self.answered = 0
        self.node: ControllerNode | None = None

    async def run(self) -> None:
        node = self.node = await open_node(self.disk, segment_bytes=2_000)
        self.note(node)
        node.publisher.subscribe(lambda delta, image: self.images.__setitem__(image.offset, image))
        broker = await Broker.register(node)
        self.note(node)
        for number in range(3):
            topic_id = await broker.create(f"t{number}", 2)
            self.note(node)
            streams = (await broker.open(topic_id, 0, (0, 1, 2))).streams
            self.note(node)
            ids = [stream.stream_id for stream in streams]
            first = await broker.prepare(3)
            self.note(node)
            await broker.commit(first, [(ids[0], 0, 10), (ids[1], 0, 20)], [(first + 1, ids[2], 0, 5)])
            self.note(node)
            await node.channel.send(TrimStreamsRequest(NODE, broker.epoch, [StreamTrim(ids[2], 0, 5)]))
            self.note(node)
            await node.snapshot()
            await node.channel.send(CloseStreamsRequest(NODE, broker.epoch, [StreamClose(ids[0], 0)]))
            self.note(node)
        await node.channel.send(DeleteTopicsRequest([DeleteTopicState("t1")]))
        self.note(node)
        await asyncio.gather(*(create_topic(node, f"g{number}") for number in range(4)))
        self.note(node)
        await node.close()

    def note(self, node: ControllerNode) -> None:
        self.answered = node.publisher.image.offset
        self.images[self.answered] = node.publisher.image


async def run_until_cut(workload: Workload) -> None:
    """Runs it to its end or to the power cut, whichever comes first; the process is then no more."""
    work = asyncio.ensure_future(workload.run())
    cut = asyncio.ensure_future(workload.disk.was_cut.wait())
    await asyncio.wait([work, cut], return_when=asyncio.FIRST_COMPLETED)
    assert workload.disk.was_cut.is_set() or not work.exception()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait([work, cut])


def same(one: MetadataImage, other: MetadataImage) -> bool:
    return replace(one, offset=0, epoch=0) == replace(other, offset=0, epoch=0)


async def check_restart(disk: SimDisk, answered: int, epochs: int = 1) -> None:
    """The next start finds a faultless image that reaches as far as the last answer, and goes on from
    there."""
    node = await open_node(disk, segment_bytes=2_000)
    found = node.publisher.image
    check_image(found)
    recovered = found.offset - 1  # without the new epoch's record
    assert recovered >= answered, (recovered, answered)
    if answered == 0:
        assert recovered <= 4, "a new cluster's first records, met halfway"
    elif epochs == 1:
        assert same(found, IMAGES[recovered]), recovered
    else:  # each start in between has added a record or none
        assert any(
            same(found, IMAGES[recovered - more]) for more in range(epochs) if recovered - more in IMAGES
        )
    await create_topic(node, "after")
    await node.close()


def faultless() -> tuple[int, dict[int, MetadataImage]]:
    workload = Workload(SimDisk(Rand(b"power"), hops=0))
    run(workload.run())
    return workload.disk.write_count, workload.images


WRITES, IMAGES = faultless()


@pytest.mark.parametrize("fate", FATES)
def test_nothing_answered_is_lost(fate: str) -> None:
    """The power goes at each write of the workload in turn."""

    async def cut_at(number: int) -> None:
        workload = Workload(SimDisk(Rand(b"power"), hops=0))
        workload.disk.at_write(number, Cut())
        await run_until_cut(workload)
        await check_restart(workload.disk.restart(FATES[fate]()), workload.answered)

    assert WRITES > 60
    for number in range(1, WRITES + 1):
        run(cut_at(number))


def test_a_restart_can_be_cut_too() -> None:
    """The power goes during the workload, and again at each write of the start after it."""

    async def cut_twice(number: int) -> bool:
        workload = Workload(SimDisk(Rand(b"power"), hops=0))
        workload.disk.at_write(WRITES // 2 + 1, Cut())
        await run_until_cut(workload)
        disk = workload.disk.restart(tear(Rand(b"tear")))
        disk.at_write(number, Cut())
        again = Workload(disk)

        async def start() -> None:
            again.node = await open_node(disk, segment_bytes=2_000)

        again.run = start  # type: ignore[method-assign]
        await run_until_cut(again)
        was_cut = disk.was_cut.is_set()
        await check_restart(disk.restart(tear(Rand(b"torn"))), workload.answered, epochs=2)
        return was_cut

    cuts = [run(cut_twice(number)) for number in range(1, 8)]
    assert sum(cuts) >= 4
