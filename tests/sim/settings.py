"""Settings of simulated nodes: everything small, so that a short run passes through uploads, snapshots,
rolls, laps and back-pressure.

VARIANTS change some of them; a plan names the ones it wants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from millrace.broker.config import BrokerSettings, load
from millrace.broker.settings.source import Given
from millrace.s3stream.compaction.config import CompactionSettings
from millrace.s3stream.config import StreamSettings
from millrace.wal.config import BlockWalSettings, ObjectWalSettings

KIB, MIB = 1 << 10, 1 << 20
PORT = 9092
WAL_FILE = "/data/wal"
OBJECT_GRACE_MS = 15_000  # longer than a read takes in any weather

KEYS = {
    "s3.data.buckets": "0@mem://sim",
    "s3.wal.path": "0@file:///data/wal?capacity=512KiB",
    "s3.wal.cache.size": "256KiB",
    "s3.block.cache.size": "64KiB",
    "s3.wal.upload.threshold": "24KiB",
    "s3.wal.upload.interval.ms": "250",
    "s3.stream.object.split.size": "16KiB",
    "s3.object.block.size": "4KiB",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "400",
    "memory.max.bytes": "128MiB",
    "admin.listener": "",
    "clock.unconfirmed.gap.max.ms": "0",
}

WAL = BlockWalSettings(
    capacity_bytes=512 * KIB,
    block_soft_bytes=16 * KIB,
    max_record_bytes=64 * KIB,
    eager_bytes=256,
    window_bytes=64 * KIB,
    arena_bytes=128 * KIB,
    fill_ahead_bytes=64 * KIB,
)


OBJECT_WAL: dict[str, Any] = {
    "max_record_bytes": 64 * KIB,
    "batch_bytes_max": 64 * KIB,
    "batch_interval_ms": 30,
    "uploads_max": 8,
    "ahead_bytes": 64 * KIB,
    "arena_bytes": 128 * KIB,
    "trim_wait_ms": 100,
    "arenas_ahead": 0,  # they would be made in a thread
}


COMPACTION = {
    "begin_ms": 50,
    "set_interval_ms": 250,
    "stream_interval_ms": 350,
    "split_bytes": 8 * KIB,
    "force_split_ms": 1_500,
    "inherit_after_ms": 800,
    "sources_max": 6,
    "object_bytes_max": 64 * KIB,
    "memory_bytes": 4 * MIB,
    "read_bytes_max": 8 * KIB,
    "block_bytes": 8 * KIB,
    "prepare_ttl_ms": 12_000,
}


@dataclass(frozen=True, slots=True)
class Variant:
    keys: Mapping[str, str] = field(default_factory=dict)
    wal: Mapping[str, Any] = field(default_factory=dict)
    object_wal: Mapping[str, Any] = field(default_factory=dict)
    streams: Mapping[str, Any] = field(default_factory=dict)
    controller: Mapping[str, Any] = field(default_factory=dict)
    compaction: Mapping[str, Any] = field(default_factory=dict)
    has_small_parts: bool = False
    states_bytes: int = 0  # below what the key takes; 0: as the key says


PART_BYTES = 3 * KIB  # where they are small: stores want 5 MiB at least, for all but the last


class SmallUploadParts(StreamSettings):
    """Objects of a few KiB are put in parts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "object_part_bytes", PART_BYTES)


class SmallCompactionParts(CompactionSettings):
    @property
    def open_part_bytes(self) -> int:
        return PART_BYTES

    def part_bytes_of(self, size_bytes: int, *, is_alone: bool = False) -> int:
        return PART_BYTES if size_bytes > PART_BYTES else MIB


FEW_HOT = "few hot producers"  # a crowd of producers comes with it
VARIANTS = {
    "small uploads": Variant({"s3.wal.upload.threshold": "4KiB", "s3.wal.upload.interval.ms": "40"}),
    "large uploads": Variant({"s3.wal.upload.threshold": "96KiB", "s3.wal.upload.interval.ms": "3000"}),
    "own objects": Variant({"s3.stream.object.split.size": "700"}),
    "shared objects": Variant({"s3.stream.object.split.size": "10MiB"}),
    "few streams": Variant({"s3.max.stream.num.per.stream.set.object": "2"}),
    "small log cache": Variant({"s3.wal.cache.size": "128KiB"}),
    "small block cache": Variant({"s3.block.cache.size": "8KiB"}, streams={"index_cache_bytes": 2 * KIB}),
    "small wal": Variant(
        {"s3.wal.path": "0@file:///data/wal?capacity=384KiB"}, wal={"capacity_bytes": 384 * KIB}
    ),
    "one write": Variant(wal={"writes_in_flight": 1}),
    "many writes": Variant(wal={"writes_in_flight": 12, "eager_bytes": 0, "window_bytes": 128 * KIB}),
    "not filled": Variant(wal={"fill_ahead_bytes": 0}),
    "small blocks": Variant(wal={"block_soft_bytes": 8 * KIB, "arena_bytes": 16 * KIB}),
    "many snapshots": Variant(
        controller={"snapshot_records": 12, "snapshot_records_at_close": 1, "segment_bytes": 2 * KIB}
    ),
    "short promises": Variant(streams={"prepare_ttl_ms": 1_500}, controller={"expiry_interval_ms": 200}),
    "page cache": Variant({"wal.direct.io": "never"}),
    "no compaction": Variant(compaction={"begin_ms": 3_600_000}),
    "early splits": Variant(compaction={"force_split_ms": 200, "split_bytes": 1 * KIB}),
    "small merges": Variant(
        compaction={"sources_max": 2, "object_bytes_max": 12 * KIB, "block_bytes": 2 * KIB}
    ),
    "small parts": Variant(has_small_parts=True),
    "late compaction": Variant(compaction={"prepare_ttl_ms": 300, "set_interval_ms": 900}),
    "object wal": Variant({"s3.wal.path": "0@mem://wal?capacity=512KiB"}),
    "quick object wal": Variant(
        {"s3.wal.path": "0@mem://wal?capacity=384KiB"},
        object_wal={"batch_interval_ms": 0, "trim_wait_ms": 20},
    ),
    "reserved object wal": Variant(
        {"s3.wal.path": "0@mem://wal?capacity=512KiB&fence=reservation"},
        object_wal={"uploads_max": 3, "batch_interval_ms": 120},
    ),
    FEW_HOT: Variant(states_bytes=96 * KIB),
}


def values_of(settings: Any) -> dict[str, Any]:
    return {one.name: getattr(settings, one.name) for one in fields(settings)}


def _small(wal: Any) -> Any:
    """As small as all else here, where the kind is one of ours."""
    if isinstance(wal, BlockWalSettings):
        return replace(WAL, direct=wal.direct, fencing=wal.fencing)
    return replace(wal, **OBJECT_WAL) if isinstance(wal, ObjectWalSettings) else wal


def node_settings(node_id: int, host: str, variants: Sequence[str] = (), **keys: str) -> BrokerSettings:
    """`variants` by name, then `keys`, with underscores for dots. What has no key of its own is set below."""
    chosen = [VARIANTS[name] for name in variants]
    given = {**KEYS, "node.id": str(node_id), "listeners": f"PLAINTEXT://{host}:{PORT}"}
    for variant in chosen:
        given |= variant.keys
    given |= {name.replace("_", "."): value for name, value in keys.items()}
    loaded = load(
        {name: Given(value, "override", "the simulator") for name, value in given.items()},
        data_dir="/data",
        machine_bytes=1 << 30,
    )
    settings = loaded.settings
    controller = replace(
        settings.controller,
        reserve_bytes=32 * KIB,
        segment_bytes=8 * KIB,
        snapshot_records=60,
        snapshot_records_at_close=20,
    )
    streams = replace(
        settings.streams,
        read_merge_bytes=8 * KIB,
        readahead_bytes_min=4 * KIB,
        readahead_bytes_max=16 * KIB,
    )
    wal = _small(settings.wal_settings)
    states_bytes = settings.memory.states_bytes
    compaction = replace(settings.compaction, **COMPACTION)
    for variant in chosen:
        own = variant.wal if isinstance(wal, BlockWalSettings) else variant.object_wal
        wal = replace(wal, **own) if own else wal
        streams = replace(streams, **variant.streams)
        controller = replace(controller, **variant.controller)
        states_bytes = variant.states_bytes or states_bytes
        compaction = replace(compaction, **variant.compaction)
    if any(variant.has_small_parts for variant in chosen):
        streams = SmallUploadParts(**values_of(streams))
        compaction = SmallCompactionParts(**values_of(compaction))
    return replace(
        settings,
        wal_settings=wal,
        compaction=compaction,
        controller=controller,
        streams=streams,
        memory=replace(settings.memory, states_bytes=states_bytes),
        object_grace_ms=OBJECT_GRACE_MS,
    )
