"""Opening a partition: its small states are read, then the headers of what was appended behind the last
checkpoint.

After a clean close nothing lies behind it. Not here: who may open what and when (directory.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from millrace.broker.partitions.meta_stream import MetaCorrupt, MetaStream, Room, Spawn
from millrace.broker.partitions.partition import Partition, PartitionStreams
from millrace.broker.partitions.replaying import replay
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
from millrace.protocol.dataclass import dataclass
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Corrupt
from millrace.runtime.objectstore import ObjectMissing
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap
from millrace.s3stream.ids import StreamRole
from millrace.s3stream.stream import Stream

log = logging.getLogger(__name__)

# Of cold producers, some milliseconds.
BLOCKS_PER_CHUNK = 8
RANGES_TOLD_MAX = 20
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
    *,
    is_skipping: bool = False,
    is_copy: bool = False,
) -> Partition:
    """Nothing is written, but for a log that was cut (state.py) and for damage that is given up. `memory` is
    charged for producers' states. `is_skipping`: producers are served though batches of theirs cannot be
    read; else there are doubts, and they are not. `is_copy`: for readers alone, of what `streams` have; then
    nothing at all is written. Raises StateCorrupt, and what the engine's reads raise but
    for damaged records; the streams stay open then."""
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
        given_up = await replay(data, meta, state, settings, found)
        if is_copy:
            log.debug("%s-%d is open for readers alone", leadership.topic_name, leadership.index)
        elif not is_skipping and any(one not in given_up for one in state.doubts):
            _stop_producers(leadership, state)
        elif state.is_cut or state.doubts:
            await _give_up(leadership, meta, state, found, is_damaged=state.doubts != given_up)
    except BaseException as error:
        state.producers.release()
        if isinstance(error, Corrupt) and not isinstance(
            error, MetaCorrupt | ObjectCorrupt | OffsetGap | ObjectMissing
        ):
            raise StateCorrupt(leadership.topic_name, leadership.index, str(error)) from None
        raise
    state.epochs.raise_start(state.log_start_offset)
    if state.unsaved_bytes and not is_copy:
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
    if is_copy:
        partition.become_copy()
    else:
        partition.trim_streams()
    return partition


async def _adopt_cold(meta: MetaStream, state: PartitionState, found: Found) -> None:
    digests, meta.digests = meta.digests, {}
    heads = {number: head for (kind, number), head in digests.items() if kind == COLD_BLOCK}
    for number, _ in enumerate(state.adopt_cold(heads, meta.get(KEY_COLD_INDEX), found), 1):
        if number % BLOCKS_PER_CHUNK == 0:
            await asyncio.sleep(0)


async def _give_up(
    leadership: Leadership, meta: MetaStream, state: PartitionState, found: Found, *, is_damaged: bool
) -> None:
    """Durable on return. `is_damaged`: what is in doubt is so by damage, not by a log that was given up."""
    if state.is_cut:
        log.warning(
            "%s-%d: what is stored of the partition tells of records or index entries that its log has lost "
            "(it ends at %d): given up, "
            "and the rest is served; producers whose last batches were lost may go on at any sequence",
            leadership.topic_name,
            leadership.index,
            found.data_end,
        )
    if state.doubts and not is_damaged:
        log.warning(
            "%s-%d: offsets %s were given up with a write-ahead log, and the rest is served; producers that "
            "may have written there may go on at any sequence",
            leadership.topic_name,
            leadership.index,
            _ranges(state),
        )
    elif state.doubts:
        log.error(
            "damaged data was given up: %s-%d offsets %s cannot be read, nor which producers wrote there. As "
            "objects.corruption=skip says, all "
            "that may have go on at any sequence: a batch that one of them sends again may be written twice. "
            "Offsets stay, and an "
            "object that is put back is read again",
            leadership.topic_name,
            leadership.index,
            _ranges(state),
        )
    await meta.put_durably(
        state.give_up(leadership.leader_epoch, found.data_end, found.time_end, found.tick_ms)
    )


def _stop_producers(leadership: Leadership, state: PartitionState) -> None:
    """None is known, so that nothing is written of them; a log that was cut is cut again by the next
    opening."""
    state.producers.forget_all()
    log.error(
        "damaged data stops producers: %s-%d offsets %s cannot be read, nor which producers wrote there: a "
        "batch that is sent again could be "
        "written twice, so none is taken; all else is read. Restore the objects from a copy or an earlier "
        "version of them (millrace fsck lists all "
        "damage), and batches are taken at once; or start with objects.corruption=skip until the log says "
        "that this was given up",
        leadership.topic_name,
        leadership.index,
        _ranges(state),
    )


def _ranges(state: PartitionState) -> str:
    told = ", ".join(f"{start} to {end - 1}" for start, end in state.doubts[:RANGES_TOLD_MAX])
    more_count = len(state.doubts) - RANGES_TOLD_MAX
    return f"{told} and {more_count} more ranges" if more_count > 0 else told
