"""Opens a node of a quorum that others belong to: a voter, or a broker that only follows.

    node, transport = await open_member(settings, runtime, on_failed)
    await look_into_bucket(node, store)
    await node.start()
    await catch_up(node)        of a broker: its image holds all that was committed when it asked
    await node.close(), await transport.close()

Not here: the controller listener (listener.py), what a broker does with its image.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millrace.broker.config import BrokerSettings
from millrace.broker.settings.of_parts import config_checks
from millrace.kraft.bucket.reader import survey
from millrace.kraft.errors import CommandLost, ProposalDropped
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.transport import QuorumTransport
from millrace.protocol.messages.describe_quorum import DescribeQuorumRequest
from millrace.runtime.bundle import Runtime
from millrace.runtime.objectstore import ObjectStore

log = logging.getLogger(__name__)


async def open_member(
    settings: BrokerSettings, runtime: Runtime, on_failed: Callable[[BaseException], None]
) -> tuple[ControllerNode, QuorumTransport]:
    """The node is recovered and speaks to nobody before its `start`. Raises what opening its log does."""
    quorum = settings.quorum
    check_broker_config, check_other_config = config_checks(settings)
    transport = QuorumTransport(runtime.net, quorum.voters, quorum.request_s)
    node = await ControllerNode.open(
        runtime.disk,
        runtime.clock,
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


async def look_into_bucket(node: ControllerNode, store: ObjectStore) -> str:
    """To be awaited before the node starts. A voter whose log is empty may be one that is added to a cluster
    that is there, or has lost its disk: with others like it it would elect a log that knows nothing. Where
    the bucket holds metadata of the cluster it neither stands nor votes for who knows less than that. Why
    nobody may lead, then; "" of any other node."""
    raft = node.driver.raft
    if not raft.is_voter or raft.log.end > 0:
        return ""
    highest = (await survey(store, node.cluster_id)).highest
    if highest is None:
        return ""
    end, epoch = highest
    raft.require(epoch, end)
    reason = (
        f"this voter is empty, and the bucket knows metadata up to offset {end} of epoch {epoch}: it follows "
        "a voter that has it. Where none has, build the log directory of one with `millrace restore`"
    )
    log.info("%s", reason)
    return reason


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
