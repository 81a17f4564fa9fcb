"""Settings of simulated nodes: everything small, so that a short run passes through uploads, snapshots, rolls, laps and back-pressure."""

from __future__ import annotations

from dataclasses import replace

from millrace.broker.config import BrokerSettings, load
from millrace.broker.config_source import Given
from millrace.wal.config import BlockWalSettings

KIB, MIB = 1 << 10, 1 << 20
PORT = 9092

KEYS = {
    "s3.data.buckets": "0@mem://sim",
    "s3.wal.path": "0@file:///data/wal?capacity=512KiB",
    "s3.wal.cache.size": "192KiB",
    "s3.block.cache.size": "64KiB",
    "s3.wal.upload.threshold": "24KiB",
    "s3.wal.upload.interval.ms": "250",
    "s3.stream.object.split.size": "16KiB",
    "s3.object.block.size": "4KiB",
    "s3.object.delete.retention.minutes": "1",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "400",
    "memory.max.bytes": "128MiB",
    "admin.listener": "",
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


def node_settings(node_id: int, host: str, **keys: str) -> BrokerSettings:
    """`keys` with underscores for dots. What has no key of its own is set below."""
    given = {**KEYS, "node.id": str(node_id), "listeners": f"PLAINTEXT://{host}:{PORT}"}
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
    return replace(settings, block_wal=WAL, controller=controller, streams=streams)
