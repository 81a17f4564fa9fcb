"""Opening a partition: its small states are read, then the headers of what was appended behind the last checkpoint.

After a clean close nothing lies behind it. Not here: who may open what and when (directory.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from millrace.broker.partitions.meta_stream import MetaStream, Room, Spawn
from millrace.broker.partitions.partition import Partition, PartitionStreams
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.state import SEGMENT, Found, PartitionState, restore
from millrace.protocol.batches import BatchHeader
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Corrupt
from millrace.s3stream.ids import StreamRole
from millrace.s3stream.stream import Stream

log = logging.getLogger(__name__)

# Small enough that the headers in it, however many, do not hold up the loop.
REPLAY_BYTES = 256 << 10
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
) -> Partition:
    """Nothing is written. Raises StateCorrupt, and what the engine's reads raise; the streams stay open then."""
    meta = MetaStream(streams[StreamRole.META], room.state_room, spawn)
    data, time = streams[StreamRole.DATA], streams[StreamRole.TIME]
    await meta.load()
    tick_ms = int(asyncio.get_running_loop().time() * 1000)
    found = Found(data.start, data.confirmed_end, time.next_offset, clock.wall_ms(), tick_ms)
    try:
        state = restore(meta.get, meta.of_kind(SEGMENT), found)
    except Corrupt as error:
        raise StateCorrupt(leadership.topic_name, leadership.index, str(error)) from None
    await _replay(data, state, settings, found)
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


async def _replay(data: Stream, state: PartitionState, settings: TopicSettings, found: Found) -> None:
    offset = state.saved_end
    while offset < found.data_end:
        for entry in await data.fetch(offset, found.data_end, REPLAY_BYTES):
            state.replay(BatchHeader(entry.data), entry.end, found.now_ms, found.tick_ms, settings, settings.segment_ms)
            offset = entry.end
        await asyncio.sleep(0)
