"""The first start of a voter of several whose log directory was restored from the bucket: before it speaks to
anybody it asks for the operator's word where records are missing, claims the metadata log, and looks once
more whether the bucket has grown since it was read.

    restored-from there, not yet compared
        ─► lost=1: wal.lost.accept=true, or it is refused
        ─► claim the series of the metadata log's writer      whoever led the old quorum finds it, and ends
        ─► compare the bucket with what was read              grown: refused, nothing is served

The incarnation that claims is in the restored metadata (broker/identity/restored_claim.py), for nobody leads
yet who could record one; so each voter that comes to lead knows it. Others fetch the restored metadata from
this node alone, and have nothing before this is through. Not here: a broker that is its own quorum (app.py),
which claims and compares once it leads.
"""

from __future__ import annotations

import logging

from millrace.broker.config import BrokerSettings
from millrace.broker.identity.claim_format import OwnerClaim
from millrace.broker.identity.claims import Claimant, OnFull, are_conditions_kept, when_there_is_room
from millrace.broker.identity.metadata_check import check_restored_from
from millrace.broker.identity.restored_claim import prepared_in
from millrace.broker.identity.wal_start import is_loss_restored
from millrace.kraft.log.restored_from import read_restored_from
from millrace.kraft.node import ControllerNode
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.protocol.ids import uuid_bytes
from millrace.runtime.bundle import Runtime
from millrace.runtime.objectstore import ObjectStore

log = logging.getLogger(__name__)


async def is_to_be_compared(settings: BrokerSettings, runtime: Runtime) -> bool:
    """Whether `compare_restored` has something to ask, and needs the bucket for it. Raises LogCorrupt."""
    basis = await read_restored_from(runtime.disk, settings.controller.log_dir)
    return basis is not None and not basis.is_compared


async def compare_restored(
    node: ControllerNode, settings: BrokerSettings, runtime: Runtime, store: ObjectStore, on_full: OnFull
) -> None:
    """To be awaited before the node starts; of any other log directory nothing is done. On return the claim
    is in the bucket, and the directory remembers that it was compared. Raises BindingRefused, with nothing
    served, where a loss was not accepted, somebody else has claimed the metadata log since, or the bucket has
    grown; and what the store raises. Cancelled or killed, the next start asks again."""
    await is_loss_restored(settings, runtime.disk)
    if not await is_to_be_compared(settings, runtime):
        return
    bucket, image = str(settings.data), node.publisher.image
    incarnation = prepared_in(image, uuid_bytes(node.meta.directory_id))
    if incarnation is not None:  # else an earlier build restored it
        at = store, bucket, node.cluster_id, incarnation
        has_conditions = await when_there_is_room(
            "a conditional put", lambda: are_conditions_kept(*at), on_full
        )
        claimant = Claimant(*at, has_conditions, runtime.clock, lambda: image, _is_recorded, on_full)
        await claimant.claim(METADATA_SERIES)
    await check_restored_from(store, bucket, node.cluster_id, runtime.disk, settings.controller.log_dir)
    log.info("restored: %s holds what this log directory was restored from, and no more", bucket)


async def _is_recorded(series: int, number: int, newest: OwnerClaim | None) -> None:
    """The incarnation is in the metadata that was restored."""
