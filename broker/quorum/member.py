"""Opens a node of a quorum that others belong to: a voter, or a broker that only follows.

    node, transport = await open_member(settings, runtime, on_failed)
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
from millrace.kraft.errors import CommandLost, ProposalDropped
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.transport import QuorumTransport
from millrace.protocol.messages.describe_quorum import DescribeQuorumRequest
from millrace.runtime.bundle import Runtime
from millrace.s3stream.uploader import no_wait

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


class NoBackup:
    """In the place of a metadata backup, of a broker that keeps no metadata but its own copy."""

    blocked_reason = ""
    is_full = False
    on_full: Callable[[], None]
    reach_committed = staticmethod(no_wait)
