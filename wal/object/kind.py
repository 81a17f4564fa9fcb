"""The object WAL as a kind: objects in a store. Not here: the log (log.py) and looking at it (inspection.py),
imported when they are needed."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.runtime.errors import Unavailable
from millrace.wal.config import ObjectWalSettings
from millrace.wal.errors import WalStoreUnfit
from millrace.wal.identity import WalIdentity
from millrace.wal.kind import WalKind, WalPlace, WalReport, WalWords
from millrace.wal.log import WalOwner, WriteAheadLog

if TYPE_CHECKING:
    from millrace.runtime.objectstore.address import StoreAddress
    from millrace.runtime.objectstore.retry import RetryingObjectStore

log = logging.getLogger(__name__)

ARENAS_AHEAD = 2
LONGEST_WAIT_MS = 2_000
LOGGED_EVERY = 10  # attempts at a store that does not answer


def read_settings(words: WalWords) -> ObjectWalSettings:
    """Under AutoMQ's names where it has them; other parameters are the store's."""
    default = ObjectWalSettings()
    return replace(
        default,
        capacity_bytes=words.number("capacity", default.capacity_bytes),
        batch_interval_ms=_interval(words),
        batch_bytes_max=words.number("maxBytesInBatch", default.batch_bytes_max),
        unflushed_bytes_max=words.number("maxUnflushedBytes", default.unflushed_bytes_max),
        uploads_max=words.number("maxInflightUploadCount", default.uploads_max),
        ahead_bytes=words.number("readaheadDataSize", default.ahead_bytes),
        fence=words.text("fence", default.fence),
        hedge=words.text("hedge", default.hedge),
        corruption=words.corruption,
        arenas_ahead=ARENAS_AHEAD,
    )


def _interval(words: WalWords) -> int | None:
    is_given = words.text("batchInterval", "")
    return words.number("batchInterval", 0, "a number of milliseconds") if is_given else None


async def _open(place: WalPlace, owner: WalOwner) -> WriteAheadLog:
    from millrace.wal.object.log import ObjectWal

    settings: ObjectWalSettings = place.settings
    if place.address.scheme == "s3" and settings.fence == "conditional":
        await _check_conditions(place)
    settings = settle(settings, place.address)
    return await ObjectWal.open(await place.open_store(place.address), settings, owner, place.rand)


def settle(settings: ObjectWalSettings, address: StoreAddress) -> ObjectWalSettings:
    """What was left to the place: requests to a directory cost nothing, and a second write to the same disk
    is late for the same reason."""
    if address.scheme != "file":
        return replace(settings, batch_interval_ms=settings.interval_ms)
    interval_ms = 0 if settings.batch_interval_ms is None else settings.batch_interval_ms
    return replace(
        settings, batch_interval_ms=interval_ms, hedge="off" if settings.hedge == "auto" else settings.hedge
    )


async def _check_conditions(place: WalPlace) -> None:
    """The fence stands on conditional puts, and there are stores that take the header and ignore it. Waits
    for one that does not answer."""
    from millrace.runtime.objectstore.probe import conditional_put_fault

    store = await _open_patiently(place)
    try:
        fault = await conditional_put_fault(
            store, f"millrace-test-{place.rand.split('wal conditions').uuid().hex()}/"
        )
    finally:
        await store.close()
    if fault is not None:
        raise WalStoreUnfit(
            f"the store of the WAL {place.address} {fault}, so a replaced owner could not be kept from "
            "acknowledging: "
            "add fence=reservation to s3.wal.path, or keep the WAL on a disk"
        )


async def _open_patiently(place: WalPlace) -> RetryingObjectStore:
    """A store of one's own that is asked until it answers, and says in the log that it does not."""
    from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy

    def on_retry(operation: str, attempts: int, error: Unavailable) -> None:
        if attempts % LOGGED_EVERY == 1:
            log.warning("the WAL's store does not answer (%s, %d attempts): %s", operation, attempts, error)

    policy = RetryPolicy(attempts_max=None, longest_wait_ms=LONGEST_WAIT_MS)
    bare = await place.open_store(place.address)
    return RetryingObjectStore(bare, place.rand.split("wal conditions"), policy, on_retry)


async def _identify(place: WalPlace, node_id: int) -> WalIdentity | None:
    """Waits for a store that does not answer."""
    from millrace.wal.object.log import identify

    store = await _open_patiently(place)
    try:
        return await identify(store, node_id, place.rand.split("wal identity"))
    finally:
        await store.close()


async def _inspect(place: WalPlace, cluster_id: str, node_id: int, reads_data: bool) -> WalReport:
    from millrace.wal.object.inspection import LogInspection

    store = await place.open_store(place.address)
    try:
        found = await LogInspection(store, cluster_id, node_id, place.rand).run(reads_data=reads_data)
    finally:
        await store.close()
    return found.report()


OBJECT = WalKind(
    read_settings,
    _open,
    _identify,
    name="object",
    mend="restore the object",
    verify="millrace wal verify",
    inspect=_inspect,
)
