"""Damage in the write-ahead log at one start, and an operator who decides what to give up: `wal.corruption`
skip, or truncate.

    sound --a start finds damage--> damaged --refused by WalCorrupt--> chosen --a start serves--> over
                        `--nobody needs it, a start serves--> over

With refuse nothing may be lost and the start names the damage. With skip exactly the damaged records may be
gone, with truncate all from there on; where skip is refused, a stream has to go on behind the damage, and the
operator truncates. What may be gone is worked out here from the log as it was before the damage, and cut from
the history (`History.give_up`): all else is looked for as ever. Leader epochs of the partitions that lost
records have to rise, and what the former one is said to end at (`EpochsEnd`) is where they were cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millrace.kraft.image.image import MetadataImage
from millrace.runtime.rand import Rand
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap
from millrace.s3stream.ids import StreamId, StreamRole
from millrace.s3stream.objects.format import decode_entry
from millrace.wal.block.layout import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    RING_START,
    BlockHeader,
    Geometry,
    choose_device_header,
    decode_block_header,
)
from millrace.wal.config import BlockWalSettings, ObjectWalSettings
from millrace.wal.errors import WalCorrupt
from millrace.wal.object.layout import HEADER_BYTES, Kind, decode_header, log_prefix, parse_key
from millrace.wal.record import RECORD_HEADER_BYTES
from tests.sim.history import History, Place
from tests.sim.settings import WAL_FILE

if TYPE_CHECKING:
    from tests.sim.node import SimNode

OFFSETS_TOPIC = "__consumer_offsets"
SOUND, DAMAGED, CHOSEN, OVER = "sound", "damaged", "chosen", "over"


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry of a stream that lies in the log."""

    stream_id: int
    base: int
    end: int
    at: int  # where its record begins, in its block or object
    record_bytes: int
    epoch: int  # of the stream


class Salvage:
    def __init__(self, node: SimNode, history: History, rand: Rand) -> None:
        self._node = node
        self._history = history
        self._rand = rand
        self.state = SOUND
        self._policy = ("skip", "truncate")[rand.below(2)]
        self._damaged: list[Kept] = []
        self._behind: list[Kept] = []  # what follows it in the log
        self._lost: list[Kept] = []
        self._epochs: dict[Place, int] = {}  # of leaders, before anything was given up
        self._given_up_before: dict[Place, dict[int, int]] = {}  # by another loss: ends of leader epochs

    # The node is down.

    def damage(self) -> None:
        """Once: where damage can be told from a write that never was. Nothing where the log has no such place
        now."""
        node = self._node
        is_of_others = node.replaced is not None or node.rival is not None or bool(node.world.bucket.late)
        is_of_others = is_of_others or (node.strange is not None and not node.strange.is_over)
        if self.state != SOUND or is_of_others:  # what they still write is not known here
            return
        is_of_objects = isinstance(node.settings.wal_settings, ObjectWalSettings)
        if not (self._damage_object() if is_of_objects else self._damage_block()):
            return
        self.state = DAMAGED
        node.world.hits["salvage: damaged"] += 1

    def _damage_block(self) -> bool:
        node = self._node
        file = node.disk.files.get(WAL_FILE)
        device = None if file is None else choose_device_header(
            bytes(file.durable[:BLOCK_BYTES]), bytes(file.durable[BLOCK_BYTES:RING_START])
        )  # fmt: skip
        if file is None or device is None or node.rotten is not None:
            return False
        geometry = Geometry.of(device.capacity_bytes)
        blocks = [
            one for one in blocks_from(file.durable, geometry, device.head) if one.position >= device.head
        ]
        certain = max([device.confirmed, *(block.confirmed for block in blocks)])
        sure = [block for block in blocks if block.end <= certain]
        if not sure:
            return False
        block = sure[self._rand.below(len(sure))]
        kept = [list(entries_of_block(file.durable, geometry, one)) for one in blocks]
        index = blocks.index(block)
        self._damaged, self._behind = kept[index], [one for more in kept[index + 1 :] for one in more]
        node.disk.flip(WAL_FILE, geometry.physical(block.position) + self._rand.below(block.length))
        node.world.trace.note(node.name, "rot", WAL_FILE, geometry.physical(block.position))
        return True

    def _damage_object(self) -> bool:
        """Of those that hold records. Where the object's header is damaged all of it may go; else the damaged
        record, and what follows it in the object where its header is."""
        node, bucket = self._node, self._node.world.bucket
        prefix = log_prefix(node.cluster_id, node.node_id)
        found = {}
        for key, (content, _) in sorted(bucket.objects.items()):
            place = parse_key(prefix, key) if key.startswith(prefix) else None
            if place is not None and len(content) > HEADER_BYTES + RECORD_HEADER_BYTES:
                found[place] = key
        places = sorted(found)
        if not places or node.rotten_object is not None:
            return False
        place = places[self._rand.below(len(places))]
        content = bucket.objects[found[place]][0]
        at = self._rand.below(HEADER_BYTES if self._rand.below(3) == 0 else len(content))
        held = list(entries_of_object(content))
        self._damaged, rest = damaged_of(held, at)
        later = (bucket.objects[found[one]][0] for one in places if one > place)
        self._behind = rest + [one for more in later for one in entries_of_object(more)]
        bucket.rot(found[place], at)
        node.rotten_object = found[place], at, bucket.objects[found[place]]
        node.world.trace.note(node.name, "rot", found[place], at)
        return True

    def judge(self, error: BaseException | None) -> bool:
        """Whether a start that ended so was right to; the operator has chosen by then."""
        if self.state == DAMAGED and isinstance(error, WalCorrupt):
            self.state = CHOSEN
            self._node.world.hits["salvage: refused"] += 1
            self._choose(self._policy)
            return True
        if self.state == CHOSEN and self._policy == "skip" and isinstance(error, OffsetGap):
            if not any(one.stream_id == error.stream_id for one in self._behind):
                self._history.find(
                    "skip-refused", f"{error!r}, and nothing of the stream lies behind the damage"
                )
            self._node.world.hits["salvage: skip leaves a hole"] += 1
            self._choose("truncate")
            return True
        if self.state == CHOSEN and isinstance(error, WalCorrupt) and self._node.mend():
            # No object of an owner can be read: nobody could say what of its objects counts, and none of them
            # is given up.
            self._node.world.hits["salvage: no policy helps"] += 1
            self._set("refuse")
            self.state = OVER
            for log in self._history.logs.values():
                log.ends_of_epochs.clear()
            return True
        return False

    @property
    def is_under_way(self) -> bool:
        return self.state in (DAMAGED, CHOSEN)

    def _choose(self, policy: str) -> None:
        node = self._node
        assert node.image is not None
        self._policy = policy
        self._set(policy)
        lost = self._damaged if policy == "skip" else [*self._damaged, *self._behind]
        streams = node.image.streams
        self._lost = [
            one
            for one in lost
            if (stream := streams.get(StreamId(one.stream_id))) is not None and one.end > stream.end
        ]
        if not self._epochs:
            self._epochs = leader_epochs(node.image)
            self._given_up_before = {
                place: dict(log.ends_of_epochs) for place, log in self._history.logs.items()
            }
        node.given_up.update({(one.stream_id, one.end): None for one in lost})
        give_up(node.image, self._lost, self._history)
        node.world.trace.note(node.name, "salvage", policy, len(self._lost))

    def _set(self, policy: str) -> None:
        settings = self._node.settings
        wal = settings.wal_settings
        assert isinstance(wal, BlockWalSettings | ObjectWalSettings)
        self._node.settings = replace(settings, wal_settings=replace(wal, corruption=policy))

    # It serves.

    def settle(self) -> None:
        """After a start that serves: the setting is for one."""
        if not self.is_under_way:
            return
        if self.state == CHOSEN:
            self._set("refuse")
            self._node.world.hits[f"salvage: {self._policy}"] += 1
            self._node.world.hits["salvage: records given up"] += bool(self._lost)
            self._check_epochs()
        self.state = OVER

    def _check_epochs(self) -> None:
        image = self._node.image
        assert image is not None
        now = leader_epochs(image)
        for place in self._epochs:
            ends = self._history.log(place).ends_of_epochs
            if place not in now or ends == self._given_up_before.get(place, {}):
                continue
            self._node.world.hits["salvage: leader epochs looked at"] += 1
            if now[place] <= self._epochs[place]:
                self._history.find(
                    "epoch-stays", f"{place[0].hex()[:8]}-{place[1]} lost records, and is in {now[place]}"
                )


def damaged_of(held: list[Kept], at: int) -> tuple[list[Kept], list[Kept]]:
    """Of an object's entries: what is gone with the byte there, and what is sound behind it."""
    if at < HEADER_BYTES:
        return held, []
    index = next(number for number, one in enumerate(held) if at < one.at + one.record_bytes)
    end = index + 1 if at >= held[index].at + RECORD_HEADER_BYTES else len(held)
    return held[index:end], held[end:]


def leader_epochs(image: MetadataImage) -> dict[Place, int]:
    return {
        (topic.topic_id, index): partition.leader_epoch
        for topic in image.topics
        for index, partition in enumerate(topic.partitions)
    }


def give_up(image: MetadataImage, lost: Iterable[Kept], history: History) -> None:
    """What clients were told of these entries binds nobody any more."""
    for one in lost:
        stream = image.streams.get(StreamId(one.stream_id))
        topic = None if stream is None else image.topics.by_id(stream.topic_id)
        if stream is None or topic is None:
            continue
        if topic.name == OFFSETS_TOPIC:
            history.give_up_groups()
        else:
            epoch = topic.partitions[stream.partition].leader_epoch
            place = stream.topic_id, stream.partition
            history.give_up(place, (epoch, one.base) if stream.role is StreamRole.DATA else None)


def blocks_from(data: bytearray, geometry: Geometry, position: int) -> list[BlockHeader]:
    """The blocks that follow one another from there on, as far as their headers are sound."""
    found: list[BlockHeader] = []
    stop, has_skipped = position + geometry.ring_bytes, False
    while position < stop:
        at = geometry.physical(position)
        header = decode_block_header(memoryview(data)[at : at + BLOCK_BYTES], 0)
        if header is not None and header.position == position:
            found.append(header)
            position, has_skipped = header.end, False
        elif has_skipped or position % geometry.ring_bytes == 0:
            break
        else:
            position, has_skipped = (
                geometry.lap_end(position),
                True,
            )  # the rest of a lap may have been skipped
    return found


def entries_of_block(ring: bytearray, geometry: Geometry, block: BlockHeader) -> Iterator[Kept]:
    start = geometry.physical(block.position)
    yield from _entries(bytes(ring[start : start + block.length]), BLOCK_HEADER_BYTES, block.record_count)


def entries_of_object(content: bytes) -> Iterator[Kept]:
    header = decode_header(content, 0)
    if header.kind is Kind.RECORDS:
        yield from _entries(content, HEADER_BYTES, header.record_count)


def _entries(data: bytes, at: int, count: int) -> Iterator[Kept]:
    view = memoryview(data)
    try:
        for _ in range(count):
            header, _, end = decode_entry(view, at + RECORD_HEADER_BYTES)
            yield Kept(header.stream_id, header.base_offset, header.end, at, end - at, header.epoch)
            at = end
    except ObjectCorrupt:
        return
