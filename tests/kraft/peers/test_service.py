"""What a member believes of where the leader is: what the leader of this epoch says, or of a later one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.kraft.peers.places import Places
from millrace.kraft.peers.service import QuorumService
from millrace.kraft.peers.wire import Member
from millrace.kraft.raft.messages import BeginEpochReply, Message
from millrace.kraft.raft.voters import VoterSet
from millrace.protocol.messages import begin_quorum_epoch as begin

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
EPOCH, LEADER = 5, 2
TOLD = {node_id: (f"told-{node_id}", 9093) for node_id in (2, 3)}


@pytest.mark.parametrize(
    ("epoch", "leader", "is_believed"),
    [(EPOCH, LEADER, True), (EPOCH + 1, 3, True), (EPOCH - 1, LEADER, False), (EPOCH, 3, False)],
    ids=["this epoch", "a later one", "an earlier one", "another beside the leader"],
)
def test_where_the_leader_is_the_leader_says(epoch: int, leader: int, is_believed: bool) -> None:
    """What a former leader sent before comes late; its address, or another's in its name, is not taken for
    that of who leads."""
    places = Places(TOLD, (), VoterSet, "CONTROLLER")

    def step(message: Message) -> None:
        reply = BeginEpochReply(1, message.source, EPOCH, LEADER)
        reply.request_id = message.request_id
        service.deliver(reply)

    pieces: Any = None  # no snapshot is asked for
    service = QuorumService(Member(CLUSTER, 1, bytes(16)), pieces, step, lambda: (EPOCH, LEADER), places)
    asked = begin.BeginQuorumEpochRequestPartitionData(0, bytes(16), leader, epoch)
    topic = begin.BeginQuorumEpochRequestTopicData("__cluster_metadata", [asked])
    endpoints = [begin.LeaderEndpoint("CONTROLLER", "said", 9093)]
    asyncio.run(service.answer(begin.BeginQuorumEpochRequest(CLUSTER, 1, [topic], endpoints)))
    assert places.of(leader) == (("said", 9093) if is_believed else TOLD[leader])
