"""A block WAL as a power cut leaves it, which can be cut anew: every write of the ring is known, and what lay
there before it.

Two shapes. On the *first lap* zeros lie behind the end. A *wrapped* ring was gone round before: recovery
begins in its middle, the end lies before that place, at the front, and behind any cut lie sound blocks of the
lap before, of the same owner, in the same places and with records of the same sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from millrace.protocol.batch_build import build_batch
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.records import Record
from millrace.wal.block.layout import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    RING_START,
    BlockHeader,
    DeviceHeader,
    Geometry,
    align_up,
    choose_device_header,
    decode_block_header,
    decode_device_header,
)
from millrace.wal.block.log import BlockWal
from millrace.wal.config import BlockWalSettings
from millrace.wal.log import WalOwner
from millrace.wal.record import RECORD_HEADER_BYTES
from tests.sim import asking
from tests.sim.disk import SECTOR_BYTES, SimDisk, keep
from tests.sim.history import History, Place, TopicStory
from tests.sim.loop import SimLoop
from tests.sim.node import SimNode
from tests.sim.settings import WAL, node_settings
from tests.sim.workload import Actor
from tests.sim.world import World

WAL_PATH = "/data/wal"
KEYS = {
    "s3_wal_upload_interval_ms": "3600000",
    "s3_wal_cache_size": "8MiB",
    "s3_wal_upload_threshold": "8MiB",
}
FIRST_LAP_BYTES, WRAPPED_BYTES = 2 << 20, 512 << 10
HEAD_LAPS, END_LAPS = 1.83, 2.13  # less than a third of the ring between them: more is uploaded by itself
NEVER_LIVE = 0.15, 0.7  # of a lap
UPLOAD_BYTES = 64 << 10
UPLOAD_MS = 60_000
LARGE_BYTES = 3 * BLOCK_BYTES


@dataclass(slots=True)
class Block:
    """One write of the ring: where in the file, what it was, and what lay there before."""

    place: int
    header: BlockHeader
    content: bytes
    before: bytes

    @property
    def content_end(self) -> int:
        return self.header.position + self.header.length

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(position, payload) of each, by the lengths alone."""
        at = BLOCK_HEADER_BYTES
        while at < self.header.length:
            body_at = at + RECORD_HEADER_BYTES
            end = body_at + int.from_bytes(self.content[at + 4 : at + 8], "big")
            yield self.header.position + at, self.content[body_at:end]
            at = end


class Loaded:
    """A node whose power went with nothing under way, and what clients were told by each position of its
    log."""

    def __init__(self, loop: SimLoop, capacity_bytes: int) -> None:
        world = World(loop, "image")
        settings = node_settings(1, "10.0.0.1", ["no compaction"], **KEYS)
        wal = replace(WAL, capacity_bytes=capacity_bytes, fill_ahead_bytes=0)
        self.node = SimNode(world, 1, replace(settings, wal_settings=wal))
        self.node.disk.on_write = self._on_write
        self.client = world.client("producer", self.node.address)
        self.actor = Actor(self.client, History(), world.rand, world.clock)
        self.ring_bytes = Geometry.of(capacity_bytes).ring_bytes
        self.topics: list[TopicStory] = []
        self.sent: dict[Place, list[bytes]] = {}
        # durable with the log below the first number
        self.acknowledged: list[tuple[int, Place, int, list[bytes]]] = []
        self.blocks: list[Block] = []  # once the power went: those that recovery begins with, and on

    async def start(self) -> None:
        await self.node.start()
        for name in ("one", "two"):
            self.topics.append(TopicStory(name, await asking.create_topic(self.client, name, 1, {}), 1))

    def _on_write(self, path: str, place: int, content: bytes) -> None:
        if path == WAL_PATH and place >= RING_START:
            header = decode_block_header(memoryview(content), 0)
            assert header is not None
            before = bytes(self.node.disk.files[path].durable[place : place + len(content)])
            self.blocks.append(Block(place, header, content, before))

    @property
    def end(self) -> int:
        return self.blocks[-1].content_end if self.blocks else 0

    @property
    def cuts(self) -> list[int]:
        """Positions where blocks begin, and the end of the last."""
        return [*(block.header.position for block in self.blocks), align_up(self.end)]

    async def send(self, frames: dict[Place, tuple[bytes, list[bytes]]]) -> None:
        """Batches of several partitions in one request: records of one block."""
        parts = {
            place: [PartitionProduceData(place[1], memoryview(frame))] for place, (frame, _) in frames.items()
        }
        topics = [TopicProduceData(topic_id=place[0], partition_data=part) for place, part in parts.items()]
        for place, (_, values) in frames.items():
            self.sent.setdefault(place, []).extend(values)
        response = await self.client.ask(0, ProduceRequest(None, -1, 5_000, topics))
        assert not self.node.disk.pending()
        for answer in response.responses:
            place = bytes(answer.topic_id), 0
            (part,) = answer.partition_responses
            assert part.error_code == 0
            self.acknowledged.append((self.end, place, part.base_offset, frames[place][1]))

    async def send_any(self, number: int) -> None:
        """One to four records to one of the topics."""
        place = self.topics[number % 2].topic_id, 0
        batch = self.actor.batch(place)
        await self.send({place: (batch.frame, batch.values)})

    async def send_sized(self, number: int, value_bytes: int) -> None:
        """A record of this size to each topic."""
        frames: dict[Place, tuple[bytes, list[bytes]]] = {}
        for story in self.topics:
            value = f"{story.name}/{number}.".encode().ljust(value_bytes, b"x")
            frames[story.topic_id, 0] = (
                build_batch([Record(None, value, self.actor.clock.wall_ms())]),
                [value],
            )
        await self.send(frames)

    async def upload(self) -> None:
        """All that is in the log goes into objects, and the log is trimmed."""
        assert self.node.broker is not None
        assert self.node.broker.storage is not None
        assert await self.node.broker.storage.upload_all(UPLOAD_MS)

    def cut_power(self) -> None:
        """From here on `blocks` are those that no header speaks of: any of them may be the last. (Headers
        that were written since the last trim, for partitions that were opened, are as if they had been
        written right after it.)"""
        self.node.cut_power()
        file = self.node.disk.files[WAL_PATH]
        for at in (0, BLOCK_BYTES):
            copy = decode_device_header(bytes(file.durable[at : at + BLOCK_BYTES]))
            if copy is not None:
                file.durable[at : at + BLOCK_BYTES] = replace(copy, confirmed=copy.head).encode()
        header = self.header
        self.blocks = [block for block in self.blocks if block.header.position >= header.head]
        assert header.confirmed <= header.head == self.blocks[0].header.previous_end

    @property
    def header(self) -> DeviceHeader:
        data = self.node.disk.files[WAL_PATH].durable
        header = choose_device_header(bytes(data[:BLOCK_BYTES]), bytes(data[BLOCK_BYTES:RING_START]))
        assert header is not None
        return header

    def is_alike(self, block: Block) -> bool:
        """Whether a lap ago the same place held a block of the same owner with two records of the same sizes,
        too."""
        older = decode_block_header(memoryview(block.before), 0)
        if older is None or block.header.record_count != 2:
            return False
        there = older.epoch, older.position + self.ring_bytes, older.length, older.record_count
        return there == (block.header.epoch, block.header.position, block.header.length, 2)

    def told(self, end: int) -> History:
        """What clients would have been told, had the log ended there."""
        history = History()
        for story in self.topics:
            history.topics[story.topic_id] = story
        for place, values in self.sent.items():
            history.on_sent(place, "producer", values)
        for durable_end, place, offset, values in self.acknowledged:
            if durable_end <= end:
                history.on_acknowledged(place, offset, values)
        return history

    def image(self, number: int | None = None, torn: bytes = b"") -> SimDisk:
        """What the power cut left; or as it was before the write of block `number` and all that came later,
        with `torn` of that one."""
        disk = self.node.disk.restart(keep)
        if number is not None:
            for block in reversed(self.blocks[number:]):
                disk.files[WAL_PATH].put(block.place, block.before)
        if torn:
            assert number is not None
            disk.files[WAL_PATH].put(self.blocks[number].place, torn)
        return disk

    async def recovered(self, disk: SimDisk) -> list[tuple[int, bytes]]:
        """(position, payload) of what the log itself gives its next owner on this disk, which stays as it
        is."""
        header, settings = self.header, self.node.settings.wal_settings
        assert isinstance(settings, BlockWalSettings)
        owner = WalOwner(header.cluster_id, header.node_id, header.epoch + 1)
        wal = await BlockWal.open(disk.restart(keep), WAL_PATH, settings, owner)
        found = [(record.position, bytes(record.payload)) async for record in wal.recover()]
        await wal.close()
        return found

    def records_below(self, end: int) -> list[tuple[int, bytes]]:
        return [record for block in self.blocks if block.content_end <= end for record in block.records()]


async def first_lap(loop: SimLoop, batches: int = 16) -> Loaded:
    """Batches acknowledged one by one into a new ring."""
    loaded = Loaded(loop, FIRST_LAP_BYTES)
    await loaded.start()
    for number in range(batches):
        await loaded.send_any(number)
    loaded.cut_power()
    assert loaded.header.head == 0
    return loaded


async def wrapped(loop: SimLoop) -> Loaded:
    """The third lap has begun; all up to late in the second is uploaded and trimmed."""
    loaded = Loaded(loop, WRAPPED_BYTES)
    await loaded.start()
    filler = Filler(loaded, await sector_sized(loaded))
    head = int(HEAD_LAPS * loaded.ring_bytes)
    while loaded.end < head:
        await filler.fill(min(UPLOAD_BYTES, head - loaded.end))
        await loaded.upload()
    await filler.fill(int(END_LAPS * loaded.ring_bytes) - loaded.end)
    loaded.cut_power()
    check_wrapped(loaded)
    return loaded


async def sector_sized(loaded: Loaded) -> int:
    """A size of values with which the second record of a block begins where a sector does."""
    await loaded.send_sized(0, 700)
    first = next(payload for _, payload in loaded.blocks[-1].records())
    return 700 + -(BLOCK_HEADER_BYTES + RECORD_HEADER_BYTES + len(first)) % SECTOR_BYTES


@dataclass(slots=True)
class Filler:
    """Where blocks will be live: such of two records and of one size, some of any, and a large one where a
    lap ends, so that its rest is skipped. Elsewhere large ones."""

    loaded: Loaded
    value_bytes: int
    count: int = 1

    async def fill(self, wanted_bytes: int) -> None:
        stop = self.loaded.end + wanted_bytes
        while self.loaded.end < stop:
            rest_bytes = -align_up(self.loaded.end) % self.loaded.ring_bytes
            laps = self.loaded.end / self.loaded.ring_bytes
            if 0 < rest_bytes <= LARGE_BYTES or NEVER_LIVE[0] < laps % 1 < NEVER_LIVE[1]:
                await self.loaded.send_sized(self.count, LARGE_BYTES)
            elif self.count % 9:
                await self.loaded.send_sized(self.count, self.value_bytes)
            else:
                await self.loaded.send_any(self.count)
            self.count += 1


def check_wrapped(loaded: Loaded) -> None:
    """It is what it is called, for as long as blocks are laid out as they are."""
    first, last = loaded.blocks[0], loaded.blocks[-1]
    assert RING_START + loaded.ring_bytes // 3 < first.place
    assert RING_START < last.place < first.place - loaded.ring_bytes // 3
    assert any(block.header.previous_end < block.header.position for block in loaded.blocks)
    assert sum(map(loaded.is_alike, loaded.blocks)) > len(loaded.blocks) // 2
