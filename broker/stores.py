"""The object store as each part of a node is given it: one store underneath, and around it what counts,
hedges, retries, and lets wait.

    part -> retries (a gate before each attempt: s3stream/traffic.py) -> hedged GETs -> meter
        -> the store itself

Uploads and the log put data; what everybody else puts may take of the room that a full store keeps for making
more (KeepsRoom). Not here: what any of them does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.broker.identity.ownership import ATTEMPT_MS
from millrace.protocol.dataclass import dataclass
from millrace.runtime.objectstore import ObjectStore, StoreDate, data_store_of, last_date_of
from millrace.runtime.objectstore.hedge import Hedges, HedgingObjectStore
from millrace.runtime.objectstore.metered import MeteredObjectStore, StoreMeter
from millrace.runtime.objectstore.retry import OnRetry, Retries, RetryingObjectStore, RetryPolicy
from millrace.runtime.objectstore.watched import StoreWatch, WatchedObjectStore
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.config import TrafficSettings
from millrace.s3stream.limiter import Tier
from millrace.s3stream.traffic import EngineStores, Traffic
from millrace.wal.kind import WalPlace

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.runtime.bundle import Runtime
    from millrace.runtime.objectstore.address import StoreAddress

# A start waits for its stores however long they take.
START_RETRIES = RetryPolicy(attempts_max=None, longest_wait_ms=2_000)
# One attempt is bounded by the store's own timeouts. Reads fail after these; the uploader, beyond them, asks
# again for ever.
STORE_RETRIES = RetryPolicy(attempts_max=4, longest_wait_ms=2_000)
# The log repeats what has no answer itself.
WAL_RETRIES = RetryPolicy(attempts_max=1)
# A look for a newer owner is over soon, whatever comes of it.
LOOK_RETRIES = RetryPolicy(attempts_max=1, attempt_timeout_ms=ATTEMPT_MS)


@dataclass(frozen=True, slots=True)
class NodeStores:
    """`plain` is for small things that are nobody's traffic: binding the bucket, deletions. `wal` is put
    around the store that the log opens for itself. `last_date`: what the data store's own clock said last,
    where it has one."""

    plain: ObjectStore
    looks: ObjectStore  # for a newer owner's claim (ownership.py)
    engine: EngineStores
    compaction: ObjectStore
    wal: Callable[[ObjectStore], ObjectStore]
    traffic: Traffic
    hedges: Hedges
    last_date: Callable[[], StoreDate | None]


def stack_stores(
    bare: ObjectStore,
    meter: StoreMeter,
    rand: Rand,
    settings: TrafficSettings,
    on_retry: OnRetry,
    yield_queue: YieldQueue,
) -> NodeStores:
    hedging = HedgingObjectStore(MeteredObjectStore(bare, meter))
    of_data = hedging.over(MeteredObjectStore(data_store_of(bare), meter))
    traffic = Traffic(settings)

    def of(tier: Tier, hedged: HedgingObjectStore = hedging) -> ObjectStore:
        gate = traffic.gate(tier)
        return RetryingObjectStore(hedged.told(gate.on_received), rand, STORE_RETRIES, on_retry, gate)

    def of_wal(own: ObjectStore) -> ObjectStore:
        metered = MeteredObjectStore(data_store_of(own), meter)
        return RetryingObjectStore(metered, rand, WAL_RETRIES, gate=traffic.gate(Tier.WAL))

    return NodeStores(
        plain=RetryingObjectStore(hedging, rand, STORE_RETRIES, on_retry),
        looks=RetryingObjectStore(hedging, rand, LOOK_RETRIES),
        engine=EngineStores(of(Tier.UPLOAD, of_data), of(Tier.TAIL), of(Tier.CATCH_UP), yield_queue),
        compaction=of(Tier.COMPACTION),
        wal=of_wal,
        traffic=traffic,
        hedges=hedging.hedges,
        last_date=lambda: last_date_of(bare),
    )


def wal_place(settings: BrokerSettings, runtime: Runtime, stores: NodeStores, watch: StoreWatch) -> WalPlace:
    """Where the WAL is opened or looked at. Its store is counted and watched, and not repeated: the log
    repeats what has no answer itself. It has connections of its own, which no upload holds up."""
    retries = Retries(runtime.rand.split("WAL store opening"), START_RETRIES)

    async def open_once(address: StoreAddress) -> ObjectStore:
        with watch.attempt("open"):
            return await runtime.open_store(address, runtime.clock)

    async def open_store(address: StoreAddress) -> ObjectStore:
        bare = await retries.attempt("open", lambda: open_once(address))
        return WatchedObjectStore(stores.wal(bare), watch)

    return WalPlace(settings.wal, runtime.disk, open_store, runtime.rand.split("wal"), settings.wal_settings)
