"""Opening a partition: its small states are read, then the headers of what was appended behind the last checkpoint.

After a clean close nothing lies behind it. Not here: who may open what and when (directory.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from millrace.broker.partitions.meta_stream import MetaCorrupt, MetaStream, Room, Spawn
from millrace.broker.partitions.partition import Partition, PartitionStreams
from millrace.broker.partitions.reviving import bring_back
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.state import (
    COLD_BLOCK,
    FAR_KINDS,
    KEY_COLD_INDEX,
    SEGMENT,
    Found,
    PartitionState,
    restore,
)
from millrace.broker.state_memory import StateMemory
from millrace.protocol.batches import BatchHeader
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Corrupt
from millrace.runtime.objectstore import ObjectMissing
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap
from millrace.s3stream.ids import StreamRole
from millrace.s3stream.stream import Stream

log = logging.getLogger(__name__)

# Small enough that the headers in it, however many, do not hold up the loop.
REPLAY_BYTES = 256 << 10
# Of cold producers, some milliseconds.
BLOCKS_A_TURN = 8
ROLES = (StreamRole.META, StreamRole.DATA, StreamRole.TIME)


class StateCorrupt(Corrupt):
    """What a partition's meta stream says cannot be: which partition, and what it says."""

    def __init__(self, topic_name: str, index: int, why: str) -> None:
        super().__init__(topic_name, index, why)
        self.topic_name = topic_name
        self.index = index
        self.why = why


class EngineRoom(Room, Protocol):
    """Room for data, and the room that is kept for small states."""

    @property
    def state_room(self) -> Room: ...


@dataclass(frozen=True, slots=True)
class Leadership:
    """Which partition is led, and in which epoch."""

    topic_id: bytes
    topic_name: str
    index: int
    leader_epoch: int


async def open_partition(
    leadership: Leadership,
    streams: Mapping[StreamRole, Stream],
    settings: TopicSettings,
    room: EngineRoom,
    spawn: Spawn,
    clock: Clock,
    memory: StateMemory | None = None,
) -> Partition:
    """Nothing is written, but for a log that was cut (state.py). `memory` is charged for producers' states. Raises
    StateCorrupt, and what the engine's reads raise; the streams stay open then."""
    meta = MetaStream(streams[StreamRole.META], room.state_room, spawn, FAR_KINDS)
    data, time = streams[StreamRole.DATA], streams[StreamRole.TIME]
    await meta.load()
    tick_ms = int(asyncio.get_running_loop().time() * 1000)
    epoch = leadership.leader_epoch
    found = Found(data.start, data.confirmed_end, time.next_offset, clock.wall_ms(), tick_ms, epoch)
    try:
        state = restore(meta.get, meta.of_kind(SEGMENT), found, memory)
    except Corrupt as error:
        raise StateCorrupt(leadership.topic_name, leadership.index, str(error)) from None
    try:
        await _adopt_cold(meta, state, found)
        await _replay(data, meta, state, settings, found)
        if state.is_cut:
            await _give_up(leadership, meta, state, found)
    except BaseException as error:
        state.producers.release()
        if isinstance(error, Corrupt) and not isinstance(
            error, MetaCorrupt | ObjectCorrupt | OffsetGap | ObjectMissing
        ):
            raise StateCorrupt(leadership.topic_name, leadership.index, str(error)) from None
        raise
    state.epochs.raise_start(state.log_start_offset)
    if state.unsaved_bytes:
        log.info(
            "%s-%d: read %d bytes again after an unclean stop",
            leadership.topic_name,
            leadership.index,
            state.unsaved_bytes,
        )
    partition = Partition(
        leadership.topic_id,
        leadership.topic_name,
        leadership.index,
        leadership.leader_epoch,
        settings,
        PartitionStreams(meta, data, time),
        state,
        room,
        spawn,
    )
    partition.trim_streams()
    return partition


async def _adopt_cold(meta: MetaStream, state: PartitionState, found: Found) -> None:
    digests, meta.digests = meta.digests, {}
    heads = {number: head for (kind, number), head in digests.items() if kind == COLD_BLOCK}
    for number, _ in enumerate(state.adopt_cold(heads, meta.get(KEY_COLD_INDEX), found), 1):
        if number % BLOCKS_A_TURN == 0:
            await asyncio.sleep(0)


async def _give_up(leadership: Leadership, meta: MetaStream, state: PartitionState, found: Found) -> None:
    """Durable on return."""
    log.warning(
        "%s-%d: what is stored of the partition tells of records or index entries that its log has lost (it ends at %d): given up, "
        "and the rest is served; producers whose last batches were lost may go on at any sequence",
        leadership.topic_name,
        leadership.index,
        found.data_end,
    )
    await meta.put_durably(state.give_up(leadership.leader_epoch, found.data_end, found.time_end, found.tick_ms))


async def _replay(data: Stream, meta: MetaStream, state: PartitionState, settings: TopicSettings, found: Found) -> None:
    offset = state.saved_end
    producers = state.producers
    while offset < found.data_end:
        for entry in await data.fetch(offset, found.data_end, REPLAY_BYTES):
            header = BatchHeader(entry.data)
            if producers.cold is not None and producers.is_cold(header.producer_id):
                await bring_back(meta, producers, header.producer_id)
            state.replay(header, entry.end, found.now_ms, found.tick_ms, settings, settings.segment_ms)
            offset = entry.end
        await asyncio.sleep(0)
