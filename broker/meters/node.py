"""What the broker measures and shows on /metrics, by names of its own; docs/metrics.md maps them to those of
Kafka's JMX and of kafka_exporter.

What only grows is a counter and its name ends in `_total`, so that `rate` and `increase` may be asked of it;
what goes up and down is a gauge. Both read the parts when they are printed; nothing here is on a request's
path but the store's own meter. What has a series for each topic or group is in topics.py, the process
in process.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millrace.broker.background.compaction import CompactionTask
from millrace.broker.background.outage_watch import OutageWatch
from millrace.broker.identity.ownership import Owner
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.network.memory import RequestBudget
from millrace.broker.network.server import Server
from millrace.broker.requests.dispatch import Route
from millrace.broker.state_memory import StateMemory
from millrace.broker.stores import NodeStores
from millrace.kraft.bucket.writer import MetadataBackup
from millrace.kraft.image.image import MetadataImage
from millrace.runtime.metrics import Counter, Histogram, Registry
from millrace.s3stream.block_cache import BlockCache
from millrace.s3stream.compaction.counts import SKIP_REASONS
from millrace.s3stream.limiter import Tier
from millrace.s3stream.storage import Storage
from millrace.wal.log import HedgeCounts, HedgedLog, WriteAheadLog

# Shown from an API's first request on: to Prometheus the first value of a series is no increase, so one error
# that is the first would pass unseen.
ALERTED_ERRORS = ("KAFKA_STORAGE_ERROR", "UNKNOWN_SERVER_ERROR")


class StoreCounts:
    """Requests, bytes and latency of the object store by operation: a StoreMeter."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._requests: dict[tuple[str, str], Counter] = {}
        self._seconds: dict[str, Histogram] = {}
        self._sent = registry.counter("millrace_store_sent_bytes_total", "Bytes put into the object store")
        self._received = registry.counter(
            "millrace_store_received_bytes_total", "Bytes read from the object store"
        )

    def on_operation(
        self, operation: str, outcome: str, sent_bytes: int, received_bytes: int, elapsed_ms: float
    ) -> None:
        counter = self._requests.get((operation, outcome))
        if counter is None:
            counter = self._registry.counter(
                "millrace_store_requests_total", "Object store requests", operation=operation, outcome=outcome
            )
            self._requests[operation, outcome] = counter
        seconds = self._seconds.get(operation)
        if seconds is None:
            seconds = self._registry.histogram(
                "millrace_store_request_duration_seconds",
                "Latency of object store requests",
                operation=operation,
            )
            self._seconds[operation] = seconds
        counter.inc()
        seconds.observe(elapsed_ms / 1000)
        self._sent.inc(sent_bytes)
        self._received.inc(received_bytes)


def show_owner(registry: Registry, owner: Owner) -> None:
    age = (
        "Seconds since the store was last seen to know no newer owner of this node; grows while the store "
        "does not answer"
    )
    registry.gauge("millrace_owner_verified_age_seconds", age, lambda: owner.age_s)
    failed = "Checks for a newer owner that the store did not answer"
    registry.counter("millrace_owner_unanswered_checks_total", failed, lambda: owner.unanswered_count)
    halts = (
        "Times that this process stood still for so long that another may have taken its node over meanwhile"
    )
    registry.counter("millrace_owner_halts_total", halts, lambda: owner.halt_count)
    held = (
        "Seconds that acknowledgements have waited, since a halt of this process, for the store to say who "
        "owns the node; "
        "0: they do not wait"
    )
    registry.gauge("millrace_owner_acknowledgements_held_seconds", held, lambda: owner.held_s)


def show_outages(registry: Registry, outages: OutageWatch) -> None:
    wal = (
        "Seconds that the write-ahead log has waited for its store, with nothing acknowledged; 0: it does "
        "not wait"
    )
    registry.gauge("millrace_wal_blocked_seconds", wal, outages.wal.seconds)
    uploads = "Seconds that uploads of data or metadata have waited for the store; 0: they do not wait"
    registry.gauge("millrace_upload_blocked_seconds", uploads, outages.uploads.seconds)


def show_engine(registry: Registry, wal: WriteAheadLog, storage: Storage) -> None:
    registry.gauge("millrace_wal_used_bytes", "Bytes in the WAL that are not trimmed", lambda: wal.used_bytes)
    registry.gauge("millrace_wal_capacity_bytes", "Size of the WAL", lambda: wal.capacity_bytes)
    if isinstance(wal, HedgedLog):
        show_hedging(registry, wal.hedging)
    registry.gauge(
        "millrace_storage_room_bytes", "Bytes that may be appended now", lambda: storage.room_bytes
    )
    lag = "Age of the oldest acknowledged record that is not in the data store yet; 0 where all are"
    registry.gauge("millrace_upload_lag_seconds", lag, lambda: storage.upload_lag_s)
    interval = "Age at which a record's upload begins at the latest, s3.wal.upload.interval.ms"
    registry.gauge("millrace_upload_interval_seconds", interval, lambda: storage.upload_interval_s)
    phases = "Seconds of the recovery at start, by phase"
    for phase, seconds in storage.recovered.phases.items():
        registry.gauge("millrace_storage_recovery_seconds", phases, _constant(seconds), phase=phase)
    registry.gauge(
        "millrace_log_cache_used_bytes", "Bytes of the log cache in use", lambda: storage.log_cache.size_bytes
    )
    reads = "Entries read, by where they were found"
    registry.counter(
        "millrace_storage_reads_total", reads, lambda: storage.reads_from_log_cache, source="log_cache"
    )
    cache = storage.block_cache
    registry.counter(
        "millrace_storage_reads_total", reads, lambda: cache.reads_from_block_cache, source="block_cache"
    )
    registry.counter(
        "millrace_storage_reads_total", reads, lambda: cache.reads_from_objects, source="objects"
    )
    show_block_cache(registry, cache)


def show_states(registry: Registry, memory: StateMemory) -> None:
    held = "Memory charged for clients' states: groups, committed offsets, producers"
    registry.gauge("millrace_states_memory_bytes", held, lambda: memory.used_bytes)
    registry.gauge("millrace_states_memory_max_bytes", "Bound of that memory", lambda: memory.limit_bytes)
    hot = "The part of it that producers' states take that are not in the log"
    registry.gauge("millrace_states_producers_bytes", hot, lambda: memory.hot_bytes)
    refused = "New states refused, since their client held most"
    registry.counter("millrace_states_refusals_total", refused, lambda: memory.refused_count)


def show_hedging(registry: Registry, counts: HedgeCounts) -> None:
    """Duplicates are among the store's requests too: the one that is given up is `cancelled` there."""
    registry.counter(
        "millrace_wal_hedges_total",
        "Objects of an object WAL put a second time, since the first put was late",
        lambda: counts.begun,
    )
    registry.counter(
        "millrace_wal_won_hedges_total",
        "Second puts of an object WAL that answered first",
        lambda: counts.won,
    )
    registry.counter(
        "millrace_wal_hedged_bytes_total", "Bytes of second puts of an object WAL", lambda: counts.begun_bytes
    )


def show_block_cache(registry: Registry, cache: BlockCache) -> None:
    size, loader = "Bytes in the block cache, and on their way into it", cache.loader
    registry.gauge("millrace_block_cache_used_bytes", size, lambda: cache.size_bytes, state="cached")
    registry.gauge("millrace_block_cache_used_bytes", size, lambda: cache.reserved_bytes, state="loading")
    registry.counter("millrace_block_cache_evictions_total", "Blocks evicted", lambda: cache.evicted_count)
    registry.counter("millrace_block_cache_gets_total", "GETs for blocks", lambda: loader.gets)
    registry.counter(
        "millrace_index_cache_gets_total", "GETs for indexes of objects", lambda: cache.finder.index_gets
    )
    registry.gauge(
        "millrace_index_cache_used_bytes", "Bytes of indexes kept", lambda: cache.finder.size_bytes
    )
    got = "Bytes of GETs for blocks; wasted: between blocks that were merged into one GET"
    registry.counter(
        "millrace_block_cache_get_bytes_total",
        got,
        lambda: loader.get_bytes - loader.wasted_bytes,
        use="wanted",
    )
    registry.counter("millrace_block_cache_get_bytes_total", got, lambda: loader.wasted_bytes, use="wasted")
    registry.counter("millrace_readahead_read_bytes_total", "Bytes read ahead", lambda: cache.readahead_bytes)
    unused = "Blocks that were read ahead and evicted before anybody used them"
    registry.counter("millrace_readahead_unused_blocks_total", unused, lambda: cache.unused_readahead_evicted)


def show_traffic(registry: Registry, stores: NodeStores) -> None:
    """Of every tier, each way (`pace`: the line of writes while the store wants fewer): what passed, who
    waited, and for how long."""
    traffic = stores.traffic
    lines = {"in": traffic.inbound, "out": traffic.outbound, "pace": traffic.pace}
    for way, line in lines.items():
        for tier in Tier:
            labels = {"tier": tier.name.lower(), "way": way}
            count = line.tiers.counts[tier]
            for name, field, text in (
                ("passed_bytes", "bytes", "Bytes let through to and from the store"),
                ("requests", "requests", "Requests that asked to pass"),
                ("waits", "waits", "Requests that had to wait"),
                ("refusals", "refused", "Requests refused because too many waited"),
            ):
                registry.counter(f"millrace_traffic_{name}_total", text, _reader(count, field), **labels)
            waiting = "Requests that wait now"
            registry.gauge("millrace_traffic_waiting_requests", waiting, _reader(count, "waiting"), **labels)
            seconds = "Seconds that requests waited, in all"
            waited = _scaled(count, "wait_us", 1e-6)
            registry.counter("millrace_traffic_wait_seconds_total", seconds, waited, **labels)
    pace = traffic.pace.tiers
    registry.gauge(
        "millrace_traffic_write_pace_bytes_per_second",
        "Bytes a second that writes keep to; 0: no limit",
        lambda: pace.bytes_per_s or 0,
    )
    hedges = stores.hedges
    registry.counter("millrace_store_hedges_total", "GETs sent a second time", lambda: hedges.begun)
    registry.counter("millrace_store_won_hedges_total", "Second GETs that answered first", lambda: hedges.won)


def show_compaction(registry: Registry, task: CompactionTask) -> None:
    counts = task.counts
    rounds = "Looks at what there is to compact"
    registry.counter("millrace_compaction_rounds_total", rounds, lambda: counts.set_rounds, kind="sets")
    registry.counter("millrace_compaction_rounds_total", rounds, lambda: counts.stream_rounds, kind="streams")
    registry.counter(
        "millrace_compaction_rounds_total", rounds, lambda: counts.reclaim_rounds, kind="reclaim"
    )
    moved = "Bytes that compaction read and wrote"
    registry.counter(
        "millrace_compaction_copied_bytes_total", moved, lambda: counts.read_bytes, direction="read"
    )
    registry.counter(
        "millrace_compaction_copied_bytes_total", moved, lambda: counts.written_bytes, direction="written"
    )
    objects = "Objects that compaction replaced and made"
    registry.counter("millrace_compaction_objects_total", objects, lambda: counts.objects_in, direction="in")
    registry.counter(
        "millrace_compaction_objects_total", objects, lambda: counts.objects_out, direction="out"
    )
    composites = "Objects made that link others"
    registry.counter("millrace_compaction_composite_objects_total", composites, lambda: counts.composites)
    skipped = "Compactions that were put off or left objects out, by reason"
    for reason in SKIP_REASONS:
        registry.counter(
            "millrace_compaction_skips_total", skipped, _count_reader(counts.skipped, reason), reason=reason
        )
    damaged = "Damaged blocks that compaction carried over as they are; millrace fsck names them"
    registry.counter("millrace_compaction_damaged_blocks_total", damaged, lambda: counts.damaged_blocks)
    aside = "Objects that compaction leaves alone for now, since they cannot be read"
    registry.gauge("millrace_compaction_quarantined_objects", aside, lambda: task.quarantined_count)


def _count_reader(counts: Mapping[str, int], name: str) -> Callable[[], float]:
    return lambda: counts.get(name, 0)


def show_metadata(registry: Registry, cache: MetadataCache, is_active: Callable[[], bool]) -> None:
    def image() -> MetadataImage:
        return cache.image

    registry.gauge("millrace_metadata_topics", "Topics", lambda: len(image().topics))
    registry.gauge(
        "millrace_metadata_partitions",
        "Partitions",
        lambda: image().topics.partition_count,
    )
    active = "1: this node is the active controller, as a quorum of one always is"
    registry.gauge("millrace_metadata_active_controllers", active, is_active)
    registry.gauge("millrace_metadata_brokers", "Registered brokers", lambda: len(image().brokers))
    registry.gauge("millrace_metadata_streams", "Streams in metadata", lambda: len(image().streams))
    objects = "Objects in metadata, by state"
    registry.gauge(
        "millrace_metadata_objects", objects, lambda: image().objects.committed_count, state="committed"
    )
    registry.gauge(
        "millrace_metadata_objects", objects, lambda: len(image().objects.deadlines), state="prepared"
    )
    registry.gauge(
        "millrace_metadata_objects",
        objects,
        lambda: len(image().objects.pending_deletions),
        state="pending_deletion",
    )
    registry.gauge(
        "millrace_metadata_objects_bytes",
        "Bytes in committed objects",
        lambda: image().objects.committed_bytes,
    )
    registry.gauge(
        "millrace_metadata_applied_offset", "End of the applied metadata log", lambda: image().offset
    )


def show_backup(registry: Registry, backup: MetadataBackup) -> None:
    registry.gauge(
        "millrace_metadata_backup_age_seconds",
        "Age of the oldest committed metadata that is not in the bucket; 0 where all is",
        backup.age_s,
    )
    registry.gauge(
        "millrace_metadata_backup_offset", "The bucket has all metadata below", lambda: backup.saved_end
    )
    registry.counter(
        "millrace_metadata_backup_pieces_total", "Pieces of the metadata log put", lambda: backup.pieces_put
    )
    registry.counter(
        "millrace_metadata_backup_snapshots_total", "Metadata snapshots put", lambda: backup.snapshots_put
    )
    registry.counter(
        "millrace_metadata_backup_bytes_total", "Bytes of metadata put", lambda: backup.bytes_put
    )


def show_edge(registry: Registry, server: Server, budget: RequestBudget) -> None:
    registry.gauge("millrace_broker_connections", "Open client connections", lambda: len(server.connections))
    registry.gauge(
        "millrace_request_memory_bytes", "Memory held by requests in flight", lambda: budget.used_bytes
    )
    registry.gauge(
        "millrace_request_wide_bytes",
        "Memory of what is decoded and built of requests of many elements, roughly",
        lambda: server.dispatcher.wide.used_bytes,
    )
    for name, part in budget.parts.items():
        held = "Memory for requests and replies in use, by part (of queued.max.request.bytes)"
        registry.gauge("millrace_request_memory_part_bytes", held, _reader(part, "used_bytes"), part=name)
        slow = (
            "Connections ended since they sent or read too slowly while others waited for the memory "
            "that "
            "they held, by its part"
        )
        if name in server.relief.looked_at:
            ended = _count_of(server.relief.ended_counts, name)
            registry.counter("millrace_broker_slow_connections_total", slow, ended, part=name)
    registry.counter(
        "millrace_request_memory_waits_total", "Times a request waited for memory", lambda: budget.waits_count
    )

    def on_route(route: Route) -> None:
        name = route.api.name
        registry.counter(
            "millrace_broker_requests_total",
            "Requests begun, by API",
            _reader(route, "requests_count"),
            request=name,
        )
        taken = (
            "Seconds from the beginning of a request until its reply could leave, by API: with what a fetch "
            "waits for records, without what a "
            "request waits for memory; those without a reply are not counted"
        )
        route.seconds = registry.histogram("millrace_request_duration_seconds", taken, request=name)
        errors = (
            "Errors that clients were told, by API and Kafka's name of the code, one for each place of an "
            "answer that has one; UNANSWERED: the "
            "connection was closed instead"
        )

        def on_new_error(code: str) -> None:
            count = _count_of(route.error_counts, code)
            registry.counter("millrace_request_errors_total", errors, count, request=name, code=code)

        route.on_new_error = on_new_error
        for code in ALERTED_ERRORS:
            route.show_error(code)

    server.dispatcher.on_route = on_route


def _reader(owner: object, name: str) -> Callable[[], float]:
    return lambda: float(getattr(owner, name))


def _count_of(counts: Mapping[str, int], name: str) -> Callable[[], float]:
    return lambda: float(counts.get(name, 0))


def _constant(value: float) -> Callable[[], float]:
    return lambda: value


def _scaled(owner: object, name: str, factor: float) -> Callable[[], float]:
    return lambda: float(getattr(owner, name)) * factor
