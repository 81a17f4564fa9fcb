"""Settings of compaction: values only."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
PART_BYTES_MIN = 5 * MIB
MEMORY_BYTES_MIN = 4 * MIB


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    # After a start, whose first moments belong to others.
    begin_ms: int = 1_000
    # Pauses between two looks at this node's stream-set objects, and at the objects of its streams. Nothing is looked at that did not change.
    set_interval_ms: int = 5 * 60_000
    stream_interval_ms: int = 30 * 60_000
    # A stream with this much in the objects that are merged gets an object of its own; an object of a stream below it is small, and merged.
    split_bytes: int = 8 * MIB
    # What has been in a stream-set object this long leaves it for objects of its streams, however small.
    force_split_ms: int = 120 * 60_000
    # Stream-set objects that one compaction reads, and streams that its new one may hold.
    sources_max: int = 500
    streams_per_set_max: int = 20_000
    # Stream objects that one commit may make.
    stream_objects_per_commit_max: int = 10_000
    # A composite links no more than this, and a stream-set object that is larger is merged no further.
    object_bytes_max: int = 10 << 30
    # Memory: what is read ahead of the copying, what is being put, and the open parts.
    memory_bytes: int = 64 * MIB
    # Objects above this are put in parts of this size; smaller where memory is short.
    part_bytes: int = 32 * MIB
    # One read is at most this, unless one block is larger.
    read_bytes_max: int = 16 * MIB
    # Index rows of blocks that lie side by side are joined up to this, the unit of reading.
    block_bytes: int = MIB
    # Objects that are not committed this long after their ids were given are deleted: a compaction that takes longer was in vain.
    prepare_ttl_ms: int = 6 * 3_600_000

    def __post_init__(self) -> None:
        faults = [name for name in self.__dataclass_fields__ if getattr(self, name) < 0]
        if faults or self.memory_bytes < MEMORY_BYTES_MIN:
            raise ValueError(f"out of bounds: {faults or 'memory_bytes'}")

    @property
    def open_part_bytes(self) -> int:
        """How much of an object is gathered before it is put."""
        return max(PART_BYTES_MIN, min(self.part_bytes, self.memory_bytes // 8))

    @property
    def putting_bytes_max(self) -> int:
        return max(self.open_part_bytes, self.memory_bytes // 4)

    def window_bytes(self, sources_count: int) -> int:
        """One read of one source, with one held of each and two on their way."""
        return min(self.read_bytes_max, self.memory_bytes // (2 * (sources_count + 2)))

    @property
    def large_sources_max(self) -> int:
        """Sources of a block and more that are read at once: one read of each is held, of one block at least."""
        return max(2, self.memory_bytes // (2 * self.block_bytes))
