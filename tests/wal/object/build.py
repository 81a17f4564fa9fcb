"""Object WALs for tests, every option defaulted, on a simulated store."""

from __future__ import annotations

import copy
from typing import Any

from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.rand import Rand
from millrace.wal.config import ObjectWalSettings
from millrace.wal.log import WalOwner, WalRecord
from millrace.wal.object.log import ObjectWal
from tests.sim.objectstore import SimBucket, SimObjectStore, StoreFaults
from tests.wal.build import KIB, Journal, owner

QUICK = StoreFaults(latency_ms=(1, 9))


class StillClock:
    def wall_ms(self) -> int:
        return 1

    def asleep_ms(self) -> int:
        return 0

    def elapsed_ms(self) -> int:
        return 0


def small_settings(**changes: Any) -> ObjectWalSettings:
    """Half a MiB at most, in objects of 64 KiB, so that all bounds are near; latency first."""
    defaults: dict[str, Any] = {
        "capacity_bytes": 512 * KIB,
        "batch_bytes_max": 64 * KIB,
        "batch_interval_ms": 0,
        "unflushed_bytes_max": 256 * KIB,
        "uploads_max": 6,
        "ahead_bytes": 100 * KIB,
        "max_record_bytes": 40 * KIB,
        "arena_bytes": 32 * KIB,
        "trim_wait_ms": 20,
        "close_wait_ms": 60_000,
    }
    return ObjectWalSettings(**{**defaults, **changes})


def make_bucket() -> SimBucket:
    return SimBucket(StillClock())


def copy_of(bucket: SimBucket) -> SimBucket:
    """As it is at this instant."""
    other = make_bucket()
    other.objects = copy.copy(bucket.objects)
    return other


def store_on(bucket: SimBucket, name: str = "store", faults: StoreFaults = QUICK) -> SimObjectStore:
    return SimObjectStore(bucket, Rand(name.encode()), faults)


async def open_wal(
    bucket: SimBucket, who: WalOwner, store: ObjectStore | None = None, **changes: Any
) -> ObjectWal:
    """Neither recovered nor started."""
    name = f"{who.cluster_id} {who.node_id} {who.epoch}"
    return await ObjectWal.open(
        store or store_on(bucket, name), small_settings(**changes), who, Rand(f"wal {name}".encode())
    )


async def recover_wal(
    bucket: SimBucket, who: int | WalOwner, store: ObjectStore | None = None, **changes: Any
) -> tuple[ObjectWal, list[WalRecord]]:
    """`who`: an owner, or the epoch of one that brings no id."""
    wal = await open_wal(bucket, owner(who) if isinstance(who, int) else who, store, **changes)
    return wal, [record async for record in wal.recover()]


async def start_wal(
    bucket: SimBucket, who: int | WalOwner, store: ObjectStore | None = None, **changes: Any
) -> tuple[ObjectWal, list[bytes], Journal]:
    """Started, with the payloads it recovered."""
    wal, records = await recover_wal(bucket, who, store, **changes)
    journal = Journal()
    wal.start(journal.on_confirmed, journal.on_failed)
    return wal, [bytes(record.payload) for record in records], journal
