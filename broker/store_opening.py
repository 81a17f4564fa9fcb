"""Opens the data bucket of a node, as its parts use it.

Not here: the layers (stores.py), what is asked of them.
"""

from __future__ import annotations

from millrace.broker.background.start_watch import RetryLog
from millrace.broker.config import BrokerSettings
from millrace.broker.identity.binding import BindingRefused
from millrace.broker.meters.node import StoreCounts, show_traffic
from millrace.broker.stores import START_RETRIES, NodeStores, stack_stores
from millrace.runtime.bundle import Runtime
from millrace.runtime.metrics import Registry
from millrace.runtime.objectstore import ObjectMissing
from millrace.runtime.objectstore.retry import OnRetry, Retries


async def open_stores(
    settings: BrokerSettings, runtime: Runtime, registry: Registry, on_retry: OnRetry
) -> NodeStores:
    """The data bucket, however long it takes to open, and as each part uses it: it fails what is not answered
    after a few attempts; who must not fail asks again. Raises BindingRefused for what can be no bucket."""
    address = settings.data
    retries = Retries(runtime.rand.split("store opening"), START_RETRIES, on_retry)
    try:
        bare = await retries.attempt("open", lambda: runtime.open_store(address, runtime.clock))
    except (ObjectMissing, ValueError) as error:
        raise BindingRefused(f"{address} cannot be the data bucket: {error}") from error
    meter, rand = StoreCounts(registry), runtime.rand.split("store retries")
    stores = stack_stores(bare, meter, rand, settings.traffic, RetryLog().on_retry, runtime.yield_queue)
    show_traffic(registry, stores)
    return stores
