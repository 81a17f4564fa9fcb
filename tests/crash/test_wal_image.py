"""A node started on an image of its WAL: cut at every block and at random bytes, or with a byte flipped.

Everything acknowledged is in the WAL and nowhere else; each acknowledgement is noted with how much of the WAL was durable by then. An
image that ends at some byte is what a power cut would have left that came before the bytes behind it, so what was acknowledged below
it has to be there, once and in order. A flipped byte is damage wherever a later block proves that its block was durable: then the start
is refused, and names the block. In the last block nothing tells it from a tail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from millrace.runtime.rand import Rand
from millrace.wal.block.layout import BLOCK_BYTES, RING_START, decode_block_header
from millrace.wal.errors import WalCorrupt
from tests.sim import asking
from tests.sim.checkers import AcknowledgedIsThere, Checker, OnceInOrder
from tests.sim.disk import SimDisk, keep
from tests.sim.history import History, Place, TopicStory
from tests.sim.look import look
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.node import SimNode, StartFailed
from tests.sim.settings import WAL, node_settings
from tests.sim.workload import Actor
from tests.sim.world import World

WAL_PATH = "/data/wal"
KEYS = {"s3_wal_upload_interval_ms": "3600000", "s3_wal_cache_size": "8MiB", "s3_wal_upload_threshold": "8MiB"}


@dataclass
class Loaded:
    """A node whose power went, and what it had acknowledged: (end of the durable part of the WAL's file by then, place, offset, values)."""

    node: SimNode
    topics: list[TopicStory]
    sent: dict[Place, list[bytes]]
    acknowledged: list[tuple[int, Place, int, list[bytes]]]
    blocks: list[int]  # places in the file where blocks begin, and the end of the last
    payload_ends: list[int]  # of each block, before its padding

    def told(self, file_end: int) -> History:
        """What clients would have been told, had the WAL ended there."""
        history = History()
        for story in self.topics:
            history.topics[story.topic_id] = story
        for place, values in self.sent.items():
            history.on_sent(place, "producer", values)
        for durable_end, place, offset, values in self.acknowledged:
            if durable_end <= file_end:
                history.on_acknowledged(place, offset, values)
        return history

    def image(self) -> SimDisk:
        return self.node.disk.restart(keep)


async def load(loop: SimLoop, batches: int = 16) -> Loaded:
    """Two topics, batches acknowledged one by one, then a power cut with nothing under way."""
    world = World(loop, "image")
    settings = node_settings(1, "10.0.0.1", **KEYS)
    node = SimNode(world, 1, replace(settings, wal_settings=replace(WAL, capacity_bytes=2 << 20, fill_ahead_bytes=0)))
    await node.start()
    client = world.client("producer", node.address)
    stories = [TopicStory(name, await asking.create_topic(client, name, 1, {}), 1) for name in ("one", "two")]
    actor = Actor(client, History(), world.rand, world.clock)
    loaded = Loaded(node, stories, {}, [], [], [])
    for number in range(batches):
        place = stories[number % 2].topic_id, 0
        batch = actor.batch(place)
        loaded.sent.setdefault(place, []).extend(batch.values)
        response = await client.ask(0, asking.produce_request(place, batch.frame))
        part = response.responses[0].partition_responses[0]
        assert part.error_code == 0
        loaded.acknowledged.append((content_end(node), place, part.base_offset, batch.values))
    node.cut_power()
    find_blocks(loaded)
    return loaded


def content_end(node: SimNode) -> int:
    """Where the written part of the ring ends in the file; nothing is under way."""
    assert not node.disk.pending()
    return len(bytes(node.disk.files[WAL_PATH].durable).rstrip(b"\0"))


def find_blocks(loaded: Loaded) -> None:
    data = memoryview(loaded.node.disk.files[WAL_PATH].durable)
    at = RING_START
    while (header := decode_block_header(data, at)) is not None:
        loaded.blocks.append(at)
        loaded.payload_ends.append(at + header.length)
        at = RING_START + header.end
    loaded.blocks.append(at)
    assert at - BLOCK_BYTES < loaded.acknowledged[-1][0] <= at


async def check_sound(loaded: Loaded, disk: SimDisk, file_end: int) -> None:
    """The node starts on it and has what was acknowledged below `file_end`; also from objects, after another start."""
    twin = loaded.node.twin(disk)
    history = loaded.told(file_end)
    checkers: list[Checker] = [AcknowledgedIsThere(), OnceInOrder()]
    for _ in range(2):
        await twin.start()
        found = await look(twin.world.client("reader", twin.address), history)
        for checker in checkers:
            assert checker.check(history, found) == [], file_end
        await twin.stop()
    assert checkers[0].count == 2 * sum(len(log.acknowledged) for log in history.logs.values())


def cut_at(disk: SimDisk, end: int, rest: bytes | None = None) -> SimDisk:
    """From `end` on the file holds zeros, or `rest`, as far as it was written."""
    file = disk.files[WAL_PATH]
    for data in (file.durable, file.visible):
        size_bytes = max(0, len(bytes(data).rstrip(b"\0")) - end)
        data[end : end + size_bytes] = bytes(size_bytes) if rest is None else rest[:size_bytes].ljust(size_bytes, b"\0")
    return disk


def test_cut_at_every_block() -> None:
    """An image that ends with a block has all that was acknowledged by then."""

    async def main(loop: SimLoop) -> None:
        loaded = await load(loop)
        assert len(loaded.blocks) > 16
        for end in loaded.blocks:
            await check_sound(loaded, cut_at(loaded.image(), end), end)

    run_simulation(main)


def test_cut_at_random_bytes() -> None:
    """An image that ends within a block, with zeros, noise or old blocks behind, has all that was acknowledged before that block."""

    async def main(loop: SimLoop) -> None:
        loaded = await load(loop)
        rand = Rand(b"bytes")
        whole = bytes(loaded.node.disk.files[WAL_PATH].durable)
        for turn in range(30):
            number = rand.below(len(loaded.payload_ends))
            start, stop = loaded.blocks[number], loaded.payload_ends[number]
            end = start + rand.below(stop - start)
            older = whole[RING_START + (end - RING_START) % BLOCK_BYTES :]
            rest = (None, rand.uuid() * 8000, older)[turn % 3]
            await check_sound(loaded, cut_at(loaded.image(), end, rest), start)

    run_simulation(main)


def test_a_flipped_byte_below_what_was_confirmed() -> None:
    """In every block but the last, in its header or its records: the start is refused and names the block's position. In the padding
    it is nothing."""

    async def main(loop: SimLoop) -> None:
        loaded = await load(loop)
        rand = Rand(b"flips")
        for start, stop, following in zip(loaded.blocks, loaded.payload_ends, loaded.blocks[1:], strict=False):
            for at in (start + rand.below(64), start + 64 + rand.below(stop - start - 64)):
                disk = loaded.image()
                disk.flip(WAL_PATH, at, 1 << rand.below(8))
                if following == loaded.blocks[-1]:
                    await check_sound(loaded, disk, start)
                    continue
                with pytest.raises(StartFailed) as refused:
                    await loaded.node.twin(disk).start()
                assert isinstance(refused.value.__cause__, WalCorrupt)
                assert refused.value.__cause__.position == start - RING_START
            if stop < following:
                disk = loaded.image()
                disk.flip(WAL_PATH, following - 1)
                await check_sound(loaded, disk, loaded.blocks[-1])

    run_simulation(main)


def test_a_start_that_is_refused_changes_nothing() -> None:
    """Refused twice in the same words, the image is byte for byte what it was; with the flip undone the node has everything."""

    async def main(loop: SimLoop) -> None:
        loaded = await load(loop, 6)
        disk = loaded.image()
        disk.flip(WAL_PATH, RING_START + 100)
        before = bytes(disk.files[WAL_PATH].durable)
        twin = loaded.node.twin(disk)
        causes = []
        for _ in range(2):
            with pytest.raises(StartFailed) as refused:
                await twin.start()
            causes.append(repr(refused.value.__cause__))
        assert causes[0] == causes[1]
        assert bytes(twin.disk.files[WAL_PATH].durable) == before
        twin.disk.flip(WAL_PATH, RING_START + 100)
        await check_sound(loaded, twin.disk.restart(keep), loaded.blocks[-1])

    run_simulation(main)
