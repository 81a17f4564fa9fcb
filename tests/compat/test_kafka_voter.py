"""A controller of Apache Kafka in our quorum where voters stand in the log (kraft.version 1, KIP-853): found
by bootstrap servers, added, moved and removed by Kafka's tool and by ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.kraft.log.log_store import FOLDER
from millrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from tests.compat.kafka_controller import NEVER, KafkaController
from tests.compat.test_kafka_controller import segments
from tests.compat.test_tools_voters import QUORUM, tool
from tests.live import free_port
from tests.live.client import Client
from tests.live.cluster import CLUSTER, offset_of
from tests.live.test_controllers import QUICK
from tests.live.voters import LiveVoters
from tests.patience import until

KAFKA = 3
FETCHES_MS = 5_000
SNAPSHOT_BYTES = 50_000
TOPICS = 400  # metadata for several snapshots
PLAIN = "tests.compat.plain_node"


class PlainVoters(LiveVoters):
    """Nodes 1 and 2 at millrace.version 0."""

    def __init__(self, folder: Path) -> None:
        small = {"metadata.log.max.record.bytes.between.snapshots": str(SNAPSHOT_BYTES)}
        super().__init__(folder, 2, QUICK | small, is_formatted=False)
        for node_id, node in self.brokers.items():
            node.module = PLAIN
            self.format(node_id, "--standalone" if node_id == 1 else "--no-initial-controllers")

    def create(self, *topics: str) -> None:
        running = next(node for node in self.brokers.values() if node.is_running())
        with Client(running.address) as client:
            for topic in topics:
                client.create(topic, 3)

    def log_of(self, node_id: int) -> bytes:
        return segments(self.metadata_dir(node_id) / FOLDER, 0)

    def ids(self) -> tuple[list[int], list[int]]:
        """Voters, and observers that have fetched of late."""
        part = self.described().topics[0].partitions[0]
        newest_ms = max(one.last_fetch_timestamp for one in part.current_voters)
        observers = [one for one in part.observers if one.last_fetch_timestamp > newest_ms - FETCHES_MS]
        voters = sorted(one.replica_id for one in part.current_voters)
        return voters, sorted(one.replica_id for one in observers)

    def endpoints(self, node_id: int) -> list[tuple[str, int]]:
        """Of a voter, as the log has them."""
        nodes = self.described().nodes
        return [(at.host, at.port) for node in nodes if node.node_id == node_id for at in node.listeners]

    def described(self) -> DescribeQuorumResponse:
        topic = DescribeQuorumRequestTopicData("__cluster_metadata", [DescribeQuorumRequestPartitionData(0)])
        running = next(node for node in self.brokers.values() if node.is_running())
        with Client(running.address) as client:
            found: DescribeQuorumResponse = client.ask("DescribeQuorum", DescribeQuorumRequest([topic]))
        return found


def kafka_beside(members: PlainVoters, folder: Path) -> KafkaController:
    servers = ",".join(members.controllers.values())
    quorum = {"controller.quorum.bootstrap.servers": servers}
    words = ("--no-initial-controllers",)
    return KafkaController(folder / "kafka", CLUSTER, KAFKA, free_port(), quorum, words)


def kafkas_log(kafka: KafkaController) -> bytes:
    return segments(kafka.log_dir / FOLDER, 0)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[PlainVoters]:
    with PlainVoters(tmp_path) as found:
        yield found


@pytest.fixture
def kafka(tmp_path: Path, members: PlainVoters) -> Iterator[KafkaController]:
    """An observer at first."""
    with kafka_beside(members, tmp_path) as found:
        yield found


def has_all(members: PlainVoters, kafka: KafkaController) -> None:
    """Returns when Kafka's log is ours."""
    leader = members.leader()
    until(
        lambda: kafkas_log(kafka) == members.log_of(leader),
        f"Kafka's log is not ours: {kafka.output.read_text()[-2000:]}",
    )


def added_by_kafkas_tool(members: PlainVoters, kafka: KafkaController) -> None:
    kafka.wait_for_listener()
    asked = QUORUM, "--bootstrap-controller", members.controllers[1]
    said = tool(*asked, "--command-config", str(kafka.settings_path), "add-controller")
    assert f"Added controller {KAFKA} with directory id {kafka.directory_id()}" in said


def added_by_our_command(members: PlainVoters, kafka: KafkaController) -> None:
    kafka.wait_for_listener()
    said = members.command("add-voter", str(KAFKA), "--at", listener_of(kafka))
    assert f"voter {KAFKA}" in said


def test_a_kafka_controller_follows_votes_and_goes(members: PlainVoters, kafka: KafkaController) -> None:
    """Its fetches make a majority with one of us alone, its vote makes another of us the leader, its log has
    our bytes at each step."""
    assert "voter 2" in members.add(2)
    members.create("early")
    until(lambda: members.ids() == ([1, 2], [KAFKA]), "Kafka does not follow")
    has_all(members, kafka)
    added_by_kafkas_tool(members, kafka)
    assert members.ids() == ([1, 2, KAFKA], [])
    first = members.leader()
    other = 3 - first
    members.brokers[other].kill()
    members.create("late")  # committed by Kafka and one of us
    has_all(members, kafka)
    members.brokers[other].start()
    until(lambda: offset_of(members.brokers[other]) == offset_of(members.brokers[first]), "it lags")
    kafka.kill()  # who follows a leader, and never gives it up, votes for nobody
    members.brokers[first].kill()
    kafka.start()
    until(lambda: members.leader() == other, "Kafka does not vote")
    members.create("last")
    has_all(members, kafka)
    assert kafka.is_running()
    members.brokers[first].start()
    gone = "remove-controller", "--controller-id", str(KAFKA), "--controller-directory-id"
    tool(QUORUM, "--bootstrap-server", members.brokers[other].address, *gone, kafka.directory_id())
    assert members.ids() == ([1, 2], [KAFKA])
    members.create("without")
    has_all(members, kafka)


def test_a_kafka_voter_that_has_moved_says_so(members: PlainVoters, kafka: KafkaController) -> None:
    """Added and removed by our own command; started on another port it sends UpdateRaftVoter, a fetch
    time-out after its start."""
    until(lambda: members.ids() == ([1], [2, KAFKA]), "they do not follow")
    port = free_port()
    added_by_our_command(members, kafka)
    assert "voter 2" in members.add(2)
    kafka.kill()
    moved = f"CONTROLLER://127.0.0.1:{port}"
    kafka.override({"listeners": moved, "advertised.listeners": moved})
    kafka.override({"controller.quorum.fetch.timeout.ms": "5000"})
    kafka.start()
    at = [("127.0.0.1", port)]
    until(lambda: members.endpoints(KAFKA) == at, "nobody is told that it has moved")
    has_all(members, kafka)
    kafka.kill()
    kafka.override(NEVER)
    kafka.start()
    assert "removed" in members.command("remove-voter", str(KAFKA))
    until(lambda: members.ids() == ([1, 2], [KAFKA]), "it is no observer")
    members.create("without")
    has_all(members, kafka)


def test_a_kafka_controller_that_comes_late_loads_our_snapshot(tmp_path: Path) -> None:
    """Which names the voters (KIP-853): the log before it is gone. It is added, and commits with us."""
    with PlainVoters(tmp_path) as members:
        members.create(*(f"early-{number}" for number in range(TOPICS)))
        folder = members.metadata_dir(1) / FOLDER
        until(lambda: first_segment(folder) > 0, "the log is whole still")
        with kafka_beside(members, tmp_path) as kafka:
            until(lambda: KAFKA in members.ids()[1], "Kafka does not follow")
            until(lambda: newest_checkpoint(kafka) > 0, "Kafka takes no snapshot")
            added_by_our_command(members, kafka)
            members.create("late")  # committed by both
            until(lambda: is_end_of(kafkas_log(kafka), segments(folder, 0)), "Kafka's log is not ours")


def first_segment(folder: Path) -> int:
    return min(int(one.stem) for one in folder.glob("*.log"))


def newest_checkpoint(kafka: KafkaController) -> int:
    found = (kafka.log_dir / FOLDER).glob("*.checkpoint")
    return max((int(one.name.partition("-")[0]) for one in found), default=0)


def is_end_of(part: bytes, whole: bytes) -> bool:
    return bool(part) and whole.endswith(part)


def listener_of(kafka: KafkaController) -> str:
    lines = dict(line.split("=", 1) for line in kafka.settings_path.read_text().splitlines())
    return lines["listeners"].partition("://")[2]
