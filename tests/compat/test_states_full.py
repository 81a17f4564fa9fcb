"""Members of a group at the bound of memory for states: refused to join, later refused their assignments, and
at work once there is room.

Somebody at the same address holds what one address may hold. A client's member is started then, and has to go
on asking; when its topic gets more partitions than there is memory for in an assignment, it has to go on
again. It must neither end nor stay out of the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from millrace.protocol.messages.delete_groups import DeleteGroupsRequest
from tests.attack.test_group_memory import REFUSED, Commits, wait_for_coordinator
from tests.compat.takeover import Member, member_command
from tests.live import LiveBroker
from tests.live.client import Client
from tests.patience import PATIENCE_S, until

OFFSETS_MAX = 40  # of one group
PARTITIONS = 600  # an assignment of them takes more than the 1 KiB that is never refused
REFUSALS = 3  # in a row: it comes again and again
SETTINGS = {"states.memory.max.bytes": "1MiB", "offsets.topic.num.partitions": "4"}


class Bound:
    """Fills the memory for states, and makes room in it."""

    def __init__(self, broker: LiveBroker) -> None:
        self._broker = broker
        self._flood = Commits(broker, "127.0.0.1")
        self._groups: list[str] = []
        self._made = 0

    def fill(self) -> None:
        """With groups until a new one is refused, then with offsets of groups that there are until one more
        is."""
        while self._is_taken(f"flood-{self._made}", 0):
            self._groups.append(f"flood-{self._made}")
            self._made += 1
        rows = ((group, partition) for partition in range(1, OFFSETS_MAX) for group in self._groups)
        assert not all(self._is_taken(*row) for row in rows), "the memory for states did not fill"

    def _is_taken(self, group: str, partition: int) -> bool:
        (answer,) = self._flood.commit([group], 1, partition)
        assert answer in ((0, 0), (REFUSED, 1000)), answer
        return answer == (0, 0)

    def make_room(self) -> None:
        half, self._groups = self._groups[::2], self._groups[1::2]
        with Client(self._broker.address) as client:
            answer = client.ask("DeleteGroups", DeleteGroupsRequest(half))
        assert {one.error_code for one in answer.results} == {0}

    def refused(self) -> float:
        return self._broker.metrics()["millrace_states_refusals_total"]

    def wait_refused(self) -> None:
        before = self.refused()
        until(lambda: self.refused() >= before + REFUSALS)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[LiveBroker]:
    """One for each client: a member that was killed gives its memory back later, when its session is over."""
    with LiveBroker(tmp_path, SETTINGS, wal="64MiB") as broker:
        with Client(broker.address) as client:
            client.create("t", OFFSETS_MAX)
            wait_for_coordinator(client)
        yield broker


@pytest.fixture
def java_settings(tmp_path: Path) -> Path:
    path = tmp_path / "java.properties"
    path.write_text("metadata.max.age.ms=500\n")
    return path


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka", "confluent-kafka", "java"])
def test_a_refused_member_goes_on_asking(full: LiveBroker, java_settings: Path, client: str) -> None:
    """It joins when there is room, reads; has its larger assignment refused, again and again; and reads of
    the last partition after that."""
    options = {
        "kafka-python": "metadata_max_age_ms=500",
        "aiokafka": "metadata_max_age_ms=500",
        "confluent-kafka": "topic.metadata.refresh.interval.ms=500",
        "java": f"--command-config {java_settings} --reset-policy earliest",
    }
    topic = f"of-{client}"
    bound = Bound(full)
    with Client(full.address) as sender:
        sender.create(topic)
        sender.produce(topic, [b"first"])
        bound.fill()
        member = Member(*member_command(f"{client} {options[client]}", 0, full.address, topic))
        try:
            bound.wait_refused()
            assert (member.is_alive(), member.seen) == (True, {}), member.said()
            bound.make_room()
            until(lambda: (0, 0) in member.seen)
            bound.fill()
            more = AdminClient({"bootstrap.servers": full.address, "log_level": 0})
            more.create_partitions([NewPartitions(topic, PARTITIONS)])[topic].result(PATIENCE_S)
            bound.wait_refused()
            sender.produce(topic, [b"last"], PARTITIONS - 1)
            bound.make_room()
            until(lambda: (PARTITIONS - 1, 0) in member.seen)
            assert member.is_alive(), member.said()
        finally:
            member.kill()
