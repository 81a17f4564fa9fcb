"""Settings of compaction: values only."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass

MIB = 1 << 20
PART_BYTES_MIN = 5 * MIB
MEMORY_BYTES_MIN = 4 * MIB
SMALL_BYTES = 8 * MIB
MERGE_OBJECTS = 4
PARTS_MAX = 9_000  # of an object: stores take 10,000
SHORT_RUN_COUNT = 6


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    # After a start, whose first moments belong to others.
    begin_ms: int = 1_000
    # Pauses between two looks at this node's stream-set objects, and at the objects of its streams. Nothing
    # is looked at that did not change.
    set_interval_ms: int = 5 * 60_000
    stream_interval_ms: int = 30 * 60_000
    # A broker that has been gone for so long does not come back soon: whoever is its heir compacts its
    # stream-set objects from then on.
    inherit_after_ms: int = 10 * 60_000
    # A stream with this much in the objects that are merged gets an object of its own.
    split_bytes: int = 24 * MIB
    # A stream-set object with data this old is looked into, and again after this long: written anew when half
    # of it is trimmed or large by now.
    force_split_ms: int = 120 * 60_000
    # Stream-set objects of about one size that are merged, at least: with fewer each byte is written more
    # often.
    run_count_min: int = 8
    # Objects below this count as this where runs of a size are chosen: a few requests, whatever they hold.
    size_floor_bytes: int = MIB
    # Stream-set objects that one compaction reads, and streams that its new one may hold.
    sources_max: int = 500
    streams_per_set_max: int = 20_000
    # Stream objects that one commit may make.
    stream_objects_per_commit_max: int = 10_000
    # A composite links no more than this, and objects of a stream are merged up to it.
    object_bytes_max: int = 10 << 30
    # Memory: what is read ahead of the copying, the open parts, and what is being put.
    memory_bytes: int = 256 * MIB
    # Objects above this are put in parts of this size; smaller where memory is short.
    part_bytes: int = 32 * MIB
    # One read is at most this, unless one block is larger.
    read_bytes_max: int = 32 * MIB
    # Blocks that continue each other are joined up to this, the unit of reading.
    block_bytes: int = MIB
    # Objects that are not committed this long after their ids were given are deleted: a compaction that takes
    # longer was in vain.
    prepare_ttl_ms: int = 6 * 3_600_000

    def __post_init__(self) -> None:
        faults = [name for name in self.__dataclass_fields__ if getattr(self, name) < 0]
        if faults or self.memory_bytes < MEMORY_BYTES_MIN:
            raise ValueError(f"out of bounds: {faults or 'memory_bytes'}")

    @property
    def is_short(self) -> bool:
        """Memory is too small for windows of eight sources and an object of `split_bytes`, and large enough
        for less of both."""
        return 4 * self.part_bytes <= self.memory_bytes < 8 * self.part_bytes

    @property
    def run_count(self) -> int:
        """How many stream-set objects make a run."""
        return max(
            2,
            min(
                SHORT_RUN_COUNT if self.is_short else self.run_count_min, self.run_count_min, self.sources_max
            ),
        )

    @property
    def own_bytes_min(self) -> int:
        """A stream with this much in the objects that are merged gets an object of its own, which is put
        whole."""
        if not self.is_short:
            return self.split_bytes
        return min(self.split_bytes, self.part_bytes // 2, self.whole_bytes_max * 2 // 3)

    @property
    def small_bytes(self) -> int:
        """An object of one stream below this is small, and merged."""
        return min(self.split_bytes, SMALL_BYTES)

    @property
    def merge_bytes_max(self) -> int:
        """Stream-set objects that are merged have no more than this together: a compaction that fails was in
        vain, and an object has so many parts at most."""
        return min(MERGE_OBJECTS * self.object_bytes_max, PARTS_MAX * self.open_part_bytes)

    @property
    def reading_bytes(self) -> int:
        """For reading, whatever is written."""
        return self.memory_bytes * 6 // 10 - self.known_rows_bytes_max

    def reading_bytes_of(self, *, has_set: bool, has_split: bool) -> int:
        """Of a part of a set one is gathered and one on its way; of objects of streams a whole one each."""
        written_bytes = 2 * (min(self.part_bytes, self.whole_bytes_max) if has_set else self.whole_bytes_max)
        spare_bytes = self.memory_bytes - self.known_rows_bytes_max - written_bytes
        return self.reading_bytes if has_set and has_split else max(self.reading_bytes, spare_bytes)

    @property
    def known_rows_bytes_max(self) -> int:
        return self.memory_bytes // 32

    @property
    def open_part_bytes(self) -> int:
        """How much of a large object is gathered before it is put."""
        return max(PART_BYTES_MIN, min(self.part_bytes, self.memory_bytes // 10))

    @property
    def whole_bytes_max(self) -> int:
        """An object up to this is put at once: in parts it would be twice as many requests."""
        return self.open_part_bytes * 3 // 2

    def part_bytes_of(self, size_bytes: int, *, is_alone: bool = False) -> int:
        """Parts for an object of about this size: equal ones, so that the last is not a scrap. `is_alone`: no
        other is in the making."""
        if size_bytes <= self.whole_bytes_max:
            return 2 * self.whole_bytes_max
        bytes_max = min(self.part_bytes, self.whole_bytes_max) if is_alone else self.open_part_bytes
        count = -(-size_bytes // bytes_max)
        part_bytes = min(bytes_max, -(-size_bytes // count) + self.block_bytes)
        return max(PART_BYTES_MIN, part_bytes, -(-size_bytes // PARTS_MAX))

    def whole_source_bytes_max(self, sources_count: int) -> int:
        """A source up to this comes with its index, and is held until the end."""
        return min(self.read_bytes_max, self.reading_bytes // (sources_count + 2))

    def reads_well(self, sizes_bytes: int) -> bool:
        """Whether windows are large enough for sources of which the first WINDOW_BYTES_MIN of each come to
        this together."""
        return sizes_bytes + 3 * self.window_bytes_min <= 2 * self.reading_bytes

    @property
    def window_bytes_min(self) -> int:
        """Sources that would have to be read in smaller pieces are not all merged at once."""
        if self.is_short:
            return min(self.read_bytes_max, 2 * self.reading_bytes // (SHORT_RUN_COUNT + 3))
        return max(self.block_bytes, min(self.read_bytes_max * 3 // 4, self.reading_bytes // 6))
