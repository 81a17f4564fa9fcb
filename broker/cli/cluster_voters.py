"""`millrace cluster add-voter` and `remove-voter`: the quorum's voters, while it runs (KIP-853).

Not here: what is judged (kraft/commands/voters.py), options (cluster.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from millrace.broker.cluster.view import METADATA_TOPIC, QUORUM_S
from millrace.broker.settings.addresses import split_host_port
from millrace.protocol.errors import KafkaError
from millrace.protocol.ids import uuid_bytes, uuid_text
from millrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from millrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    ReplicaState,
)
from millrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest

if TYPE_CHECKING:
    from millrace.broker.cluster.client import ClusterClient

ANSWER_S = 40.0  # longer than the controller gives a change
NO_DIRECTORY = bytes(16)
FETCHES_MS = 2_000  # who has not fetched for longer than another of its id does not run


async def change_voters(client: ClusterClient, given: argparse.Namespace) -> int:
    """Raises Unavailable, WireError, KafkaError, ValueError with a sentence."""
    cluster_id = (await client.describe()).cluster_id
    quorum = await describe(client)
    part = quorum.topics[0].partitions[0]
    key = given.node_id, given.directory
    if given.command == "add-voter":
        host, port = split_host_port(given.at)
        voters = [one.replica_id for one in part.current_voters]
        listener = given.listener or listener_in(quorum, voters)
        directory = directory_of(*key, part.observers, why_not_added(given.node_id, part.current_voters))
        request = AddRaftVoterRequest(
            cluster_id, int(given.timeout * 1000), given.node_id, directory, [Listener(listener, host, port)]
        )
        response = await client.change(request, ANSWER_S)
    else:
        directory = directory_of(*key, part.current_voters, "it is no voter")
        removal = RemoveRaftVoterRequest(cluster_id, given.node_id, directory)
        response = await client.change(removal, ANSWER_S)
    if response.error_code:
        raise KafkaError(response.error_code, response.error_message or "")
    done = "added" if given.command == "add-voter" else "removed"
    print(f"voter {given.node_id} (directory {uuid_text(directory)}) is {done}")
    return 0


async def describe(client: ClusterClient) -> DescribeQuorumResponse:
    """Raises KafkaError where nobody leads."""
    asked = DescribeQuorumRequestTopicData(METADATA_TOPIC, [DescribeQuorumRequestPartitionData()])
    response: DescribeQuorumResponse = await client.ask(DescribeQuorumRequest([asked]), QUORUM_S)
    code = response.error_code or response.topics[0].partitions[0].error_code
    if code:
        raise KafkaError(code, "nobody leads the quorum")
    return response


def directory_of(node_id: int, given: str | None, replicas: Iterable[ReplicaState], why_none: str) -> bytes:
    """As given, or the one that the quorum knows of the node: of several the one that fetches, for a leader
    remembers who does no more. Raises ValueError with a sentence."""
    if given is not None:
        try:
            return uuid_bytes(given)
        except ValueError:
            raise ValueError(f"--directory {given} is no directory id, 22 characters of base64") from None
    found = [one for one in replicas if one.replica_id == node_id]
    newest_ms = max((one.last_fetch_timestamp for one in found), default=0)
    named = [
        one.replica_directory_id
        for one in found
        if one.replica_directory_id != NO_DIRECTORY and one.last_fetch_timestamp >= newest_ms - FETCHES_MS
    ]
    if len(named) > 1:
        texts = ", ".join(map(uuid_text, named))
        raise ValueError(f"node {node_id} has several directories: say one by --directory: {texts}")
    if found and not named:
        raise ValueError(f"node {node_id} has no directory that is known: kraft.version is 0")
    if not named:
        raise ValueError(f"node {node_id}: {why_none}; or say its directory.id by --directory")
    return named[0]


def why_not_added(node_id: int, voters: Iterable[ReplicaState]) -> str:
    """Where no other directory of the node follows: it may be that it was added before."""
    found = [one.replica_directory_id for one in voters if one.replica_id == node_id]
    if not found:
        return "no node of that id follows the quorum yet"
    if found[0] == NO_DIRECTORY:
        return "it is a voter, as the list says (kraft.version 0)"
    return (
        f"it is a voter already, with directory {uuid_text(found[0])}; where it has another by now, remove "
        "that first, and start it"
    )


def listener_in(quorum: DescribeQuorumResponse, voters: list[int]) -> str:
    """By which voters reach each other."""
    names = [node.listeners[0].name for node in quorum.nodes if node.node_id in voters and node.listeners]
    return names[0] if names else "CONTROLLER"
