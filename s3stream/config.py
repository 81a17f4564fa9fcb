"""Settings of the stream engine: values only, no collaborators.

The node's one number for memory is split above (broker/config.py) and arrives here as `log_cache_bytes` and
`block_cache_bytes`. Relations between settings are asserted here; what depends on the WAL's size as well is
computed in storage.py.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.s3stream.objects.writer import BLOCK_BYTES_MAX

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """How much may pass between this node and its store: bytes a second each way, None for no limit.
    `is_shared`: both ways together have twice that. Beyond it compaction and reads wait; uploads and the WAL
    are charged and never do."""

    bandwidth_bytes: int | None = None
    is_shared: bool = False

    def __post_init__(self) -> None:
        if self.bandwidth_bytes is not None and self.bandwidth_bytes <= 0:
            raise ValueError(f"bandwidth_bytes {self.bandwidth_bytes} is not above zero")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    # Recent entries, confirmed and not yet uploaded or still kept for readers. When what is not yet uploaded
    # fills it, producers wait.
    log_cache_bytes: int = 192 * MIB
    # Blocks read from objects, least recently used first to go; read-ahead for one reader never takes more
    # than half of it.
    block_cache_bytes: int = 96 * MIB
    # An upload begins when this much waits for it (never more than a third of the log cache or of the WAL).
    # Larger: fewer objects, a longer recovery after a crash.
    upload_threshold_bytes: int = 500_000_000
    # ... or when the oldest entry has waited this long: bounds the requests an hour at low rates.
    upload_interval_ms: int = 60_000
    # A stream with this much in one upload gets an object of its own, the others share one.
    stream_object_split_bytes: int = 8 * MIB
    # Where a stream's data is cut inside an object: the unit of reading and of the block cache.
    block_bytes: int = BLOCK_BYTES_MAX
    # Objects above this are put in parts of this size.
    object_part_bytes: int = 32 * MIB
    # Blocks of the log cache under upload at once, and single puts (or parts) in flight at once.
    uploads_in_flight: int = 4
    puts_in_flight: int = 8
    # An object that is not committed this long after its id was given is deleted; a slower upload takes a new
    # id.
    prepare_ttl_ms: int = 3_600_000
    # Indexes of objects, kept so that a read of history costs one request.
    index_cache_bytes: int = 16 * MIB
    # Blocks that lie side by side are read with one request of at most this size.
    read_merge_bytes: int = 4 * MIB
    # What a sequential reader is read ahead, first and at most.
    readahead_bytes_min: int = 512 << 10
    readahead_bytes_max: int = 64 * MIB
    # Streams that one upload may hold.
    streams_per_upload: int = 20_000

    def __post_init__(self) -> None:
        faults = [name for name in self.__dataclass_fields__ if getattr(self, name) <= 0]
        if faults:
            raise ValueError(f"must be above zero: {', '.join(faults)}")
        if self.object_part_bytes < 5 * MIB:
            raise ValueError(
                f"object_part_bytes {self.object_part_bytes} is below the stores' least part, 5 MiB"
            )
        if self.readahead_bytes_max < self.readahead_bytes_min:
            raise ValueError(
                f"readahead_bytes_max {self.readahead_bytes_max} is below readahead_bytes_min "
                f"{self.readahead_bytes_min}"
            )
