"""Opens a node of a quorum that others belong to: a voter, or a broker that only follows.

    node, transport = await open_member(settings, runtime, known.believed, on_failed)
    await look_into_bucket(node, store)
    await known.open(newest_of(node))
    await node.start()
    await catch_up(node)        of a broker: its image holds all that was committed when it asked
    await until_current(node)   of a voter: it leads, or has what whoever leads knew to be committed
    await node.close(), await transport.close()

Not here: the controller listener (listener.py), what a broker does with its image.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from millrace.broker.config import BrokerSettings
from millrace.broker.identity.binding import MARKER_KEY
from millrace.broker.identity.claim_format import ClaimCorrupt
from millrace.broker.identity.claims import read_newest_claim
from millrace.broker.settings.of_parts import config_checks
from millrace.kraft.bucket.reader import survey
from millrace.kraft.errors import CommandLost, ProposalDropped
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.transport import QuorumTransport
from millrace.kraft.raft.roles import has_caught_up, heard_in
from millrace.kraft.raft.voters import STATIC
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.protocol.messages.describe_quorum import DescribeQuorumRequest
from millrace.runtime.bundle import Runtime
from millrace.runtime.clock import Clock
from millrace.runtime.errors import MillraceError, in_words
from millrace.runtime.objectstore import ObjectStore

log = logging.getLogger(__name__)
NOBODY_LEADS: Final = "no controller leads: a majority of the voters has to run and reach one another"
LOOK_S: Final = 3.0  # a start with a log waits for the bucket's word so long


def why_nobody_leads(node: ControllerNode) -> str:
    """As far as this node hears; "" while one leads."""
    raft = node.driver.raft
    return "" if heard_in(raft.role, raft.node_id) >= 0 else NOBODY_LEADS


async def open_member(
    settings: BrokerSettings,
    runtime: Runtime,
    clock: Clock,
    on_failed: Callable[[BaseException], None],
) -> tuple[ControllerNode, QuorumTransport]:
    """The node is recovered and speaks to nobody before its `start`. Raises what opening its log does."""
    quorum = settings.quorum
    check_broker_config, check_other_config = config_checks(settings)
    transport = QuorumTransport(runtime.net, quorum.voters, quorum.request_s)
    node = await ControllerNode.open(
        runtime.disk,
        clock,
        runtime.rand.split("controller"),
        settings.controller,
        check_broker_config=check_broker_config,
        check_other_config=check_other_config,
        on_failed=on_failed,
        send=transport.send,
        snapshots=transport,
    )
    transport.start(node)
    return node, transport


async def ask_time(opening: AbstractAsyncContextManager[ObjectStore]) -> None:
    """On return a store that tells the time and answers at once has told it: without its word a wall clock
    that is wrong by less than a day would be believed."""
    with contextlib.suppress(TimeoutError, MillraceError):
        async with asyncio.timeout(LOOK_S), opening as store:
            await store.head(MARKER_KEY)


async def look_into_bucket(node: ControllerNode, opening: AbstractAsyncContextManager[ObjectStore]) -> str:
    """To be awaited before the node starts. A voter whose log is empty, or an older copy, may be one that is
    added to a cluster that is there, or has lost its disk, or was put back: with others like it it would
    elect a log that lacks what is committed. Where the bucket holds metadata of the cluster it neither stands
    nor votes for who knows less than that; and what it has itself of that it gives up to nobody. Why nobody
    may lead, then, for as long as it `still_lacks` that; "" of a voter that has all. Who has a log waits for
    the store for a moment alone. Whoever is asked nothing else is asked for the time."""
    raft = node.driver.raft
    is_list_of_one = raft.is_alone and raft.voter_set.kraft_version == STATIC  # nobody can be followed
    if not raft.is_voter or (is_list_of_one and raft.log.end > 0):
        await ask_time(opening)
        return ""
    if raft.log.end == 0:
        async with opening as store:
            highest = await _known(node, store)
    else:
        highest = await _known_soon(node, opening)
    if highest is None:
        return ""
    end, epoch = highest
    if raft.log.end > 0 and raft.log.history.has(end, epoch):
        raft.expect_committed(end)
        return ""
    if raft.log.reaches((epoch, end)):
        return ""
    raft.require(epoch, end)
    if raft.is_alone:  # by an older log: all of it was committed, and is in the image
        raft.expect_committed(raft.log.end)
    own = f"ends at offset {raft.log.end} of epoch {raft.log.last_epoch}" if raft.log.end else "is empty"
    reason = (
        f"the metadata log of this voter {own}, and the bucket knows metadata up to offset {end} of epoch "
        f"{epoch}: it follows a voter that has it. Where none has, put the log directory of one back from a "
        "copy, or build it with `millrace restore`"
    )
    log.info("%s", reason)
    return reason


def still_lacks(node: ControllerNode) -> bool:
    """Whether it lacks what the bucket knew when it started."""
    raft = node.driver.raft
    return not raft.log.reaches(raft.least)


async def _known_soon(
    node: ControllerNode, opening: AbstractAsyncContextManager[ObjectStore]
) -> tuple[int, int] | None:
    """As `_known`. None also where the store does not say in time: one that is away keeps nobody from
    voting."""
    try:
        async with asyncio.timeout(LOOK_S), opening as store:
            return await _known(node, store)
    except (TimeoutError, MillraceError) as error:
        why = in_words(error) if isinstance(error, MillraceError) else f"no answer within {LOOK_S:.0f} s"
        log.warning("the bucket does not say what it knows of the metadata, and is not waited for: %s", why)
        return None


async def _known(node: ControllerNode, store: ObjectStore) -> tuple[int, int] | None:
    """Where what the bucket knows of the log ends: what is put there, without what a writer put that was
    replaced, and what was committed when the newest claim was made. None where there is nothing. A claim that
    is damaged says nothing here; whoever leads is told of it. Raises what the store raises."""
    known_number = node.publisher.image.claims.highest(METADATA_SERIES)
    claim = None
    try:
        claim = await read_newest_claim(store, node.cluster_id, METADATA_SERIES, known_number)
    except ClaimCorrupt as error:
        log.warning("the newest claim of the metadata log does not say where that ended: %s", error)
    found = await survey(store, node.cluster_id)
    claimed = (0, -1) if claim is None else (claim.metadata_end, claim.metadata_epoch)
    names = [name for name in (*found.names, claimed) if name[1] >= claimed[1] and name[0]]
    return max(names, key=lambda name: name[::-1], default=None)


async def catch_up(node: ControllerNode) -> None:
    """Returns when the node's image holds all that was committed when this was called, however long nobody
    leads: the answer to any question is one that its image has reached."""
    while True:
        try:
            await node.channel.send(DescribeQuorumRequest())
        except (CommandLost, ProposalDropped) as error:
            log.info("asks the active controller again: %s", error)
        else:
            break
    node.history_at_open = node.driver.raft.log.history
    node.epoch_at_open = node.driver.raft.log.last_epoch


async def until_current(node: ControllerNode) -> None:
    """Returns when the node takes commands, or its image holds what whoever leads knew to be committed when
    it answered. Nobody is asked: a controller of Apache Kafka that leads would not answer."""
    raft, news = node.driver.raft, node.driver.news
    while not (news.is_active or (has_caught_up(raft.role) and news.applied >= raft.high_watermark)):
        await news.told()
