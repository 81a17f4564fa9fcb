"""Names moves that wait for a broker that is gone, and counts partitions that wait for one. Pure.

    who led a partition before is gone, and has      the move is under way: the next leader is added, who is
    it open still, or owes small states to open it   gone is removed
    the log of a broker that is gone owes other      likewise, with nobody to be added: the next one leads
    parts of it

So a reassignment is told as replicas are (broker/told_replicas.py). It ends when the log is recovered, or
given up. Where only who is gone could lead, a move may be taken back; where another leads since, that would
lose what that one took. Not here: how a log is given up (partitions.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from millrace.kraft.commands.failovers import waiting_nodes
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.topics import PartitionState
from millrace.protocol.dataclass import dataclass
from millrace.runtime.scheduling.yielding import Yielding

LOOKED_PER_CHUNK: Final = 1_000  # streams; two milliseconds
Key = tuple[bytes, int]  # topic id, index


@dataclass(frozen=True, slots=True)
class Move:
    """`former`: brokers that are gone and hold some of the partition. `is_led`: by the next one already."""

    target: int
    former: tuple[int, ...]
    is_led: bool


def move_of(image: MetadataImage, topic_id: bytes, index: int, state: PartitionState) -> Move | None:
    """None where the partition waits for nobody but its leader."""
    gone = [failover.node_id for failover in image.failovers if failover.node_id != state.leader]
    if not gone:
        return None
    former: dict[int, None] = {}
    for stream in image.streams.of_partition(topic_id, index):
        if stream.is_open and stream.node_id in gone:
            former[stream.node_id] = None
        owed = image.streams.owed.of_stream(stream.stream_id)
        former |= {one.node_id: None for one in owed if one.node_id in gone}
    if not former:
        return None
    return Move(state.leader, tuple(former), not any(image.streams.waits_for(topic_id, index, gone)))


def holder_of(image: MetadataImage, topic_id: bytes, index: int) -> int | None:
    """Who is gone and has all of the partition open that is open at all; None where it is not one."""
    open_at = {one.node_id: None for one in image.streams.of_partition(topic_id, index) if one.is_open}
    holder = next(iter(open_at), None)
    return holder if len(open_at) == 1 and holder is not None and image.failovers.get(holder) else None


def partitions_in_logs_of(image: MetadataImage, node_ids: Iterable[int]) -> Yielding[list[Key]]:
    """In order: those of which one of the nodes has a stream open, or owes a range."""
    found: dict[Key, None] = {}
    for number, key in enumerate(_in_logs_of(image, node_ids), 1):
        found[key] = None
        if number % LOOKED_PER_CHUNK == 0:
            yield
    return sorted(key for key in found if image.topics.partition(*key) is not None)


def waiting_partition_count(image: MetadataImage) -> Yielding[int]:
    """Of those that cannot be opened before the log of a broker is recovered which nobody can recover."""
    waiting, count = waiting_nodes(image), 0
    keys = yield from partitions_in_logs_of(image, sorted(waiting))
    for number, key in enumerate(keys, 1):
        count += any(True for _ in image.streams.waits_for(*key, waiting))
        if number % LOOKED_PER_CHUNK == 0:
            yield
    return count


def _in_logs_of(image: MetadataImage, node_ids: Iterable[int]) -> Iterator[Key]:
    streams = image.streams
    for node_id in node_ids:
        for stream in streams.open_on(node_id):
            yield stream.topic_id, stream.partition
        for owed in streams.owed.of_node(node_id):
            stream = streams.by_id[owed.stream_id]
            yield stream.topic_id, stream.partition
