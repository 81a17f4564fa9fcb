"""A probe of a cluster that has just been troubled: whether everything goes on, and how soon.

    probe = Probe(cluster, traffic, topic, partitions)
    went_on = probe.wait(bound_s)      AssertionError with what does not go on, and why

That is: every node is there and tells the same leaders; every partition takes a record from a client that
knows nothing yet; the group has read and committed it. A node that ended by itself is started again, and must
have said why.

What is written is judged with the rest of the traffic. Each attempt writes another value, for what is not
acknowledged may come late.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import LiveNodes
from tests.live.traffic import Traffic

ANSWER_S = 5.0
PAUSE_S = 0.1
NOBODY = -1
SAYS_WHY = re.compile(r"cannot go on[^\n]*|cannot start[^\n]*")


@dataclass
class WentOn:
    """Seconds since the probe began."""

    written_s: float
    agreed_s: float
    read_s: float


class Probe:
    def __init__(self, cluster: LiveNodes, traffic: Traffic, topic: str, partitions: int) -> None:
        self._cluster = cluster
        self._traffic = traffic
        self._topic = topic
        self._partitions = partitions
        self._value = traffic.prober
        self._attempts = 0
        self.ended: Counter[str] = Counter()  # nodes that ended by themselves, by what they said

    def wait(self, bound_s: float) -> WentOn:
        began_s = time.monotonic()
        ends_s = began_s + bound_s
        offsets = [self._write(partition, ends_s) for partition in range(self._partitions)]
        written_s = time.monotonic() - began_s
        self._until_agreed(ends_s)
        agreed_s = time.monotonic() - began_s
        self._until_committed(offsets, ends_s)
        return WentOn(written_s, agreed_s, time.monotonic() - began_s)

    def start_ended(self) -> None:
        """Nodes that ended by themselves; they are not waited for."""
        for node_id, node in self._cluster.brokers.items():
            if node.is_running():
                continue
            log_text = node.run_log()
            code = node.wait_end()
            said = SAYS_WHY.findall(log_text)
            assert said, f"node {node_id} ended with {code}, and did not say why:\n{log_text[-4000:]}"
            self.ended[re.sub(r"\d+", "N", said[-1])] += 1
            node.begin()

    def _write(self, partition: int, ends_s: float) -> int:
        """The offset of a record that a partition took."""
        why = ""
        while True:
            assert time.monotonic() < ends_s, f"partition {partition} takes no writes: {why}"
            self.start_ended()
            try:
                offset, why = self._try(partition)
                if not why:
                    return offset
            except OSError as error:
                why = repr(error)
            time.sleep(PAUSE_S)

    def _try(self, partition: int) -> tuple[int, str]:
        """The offset, and why there is none."""
        self._attempts += 1
        nodes = list(self._cluster.brokers.values())
        asked = nodes[self._attempts % len(nodes)]
        leader = self._leaders(asked).get(partition, NOBODY)
        if leader == NOBODY:
            return 0, f"{asked.address} knows no leader"
        self._value += self._traffic.lanes
        with Client(self._cluster.brokers[leader].address, ANSWER_S) as client:
            sent = client.send(self._topic, [b"%d" % self._value], partition, timeout_ms=int(ANSWER_S * 1000))
        if sent.error_code:
            return 0, f"node {leader}, of which {asked.address} says that it leads: " + (
                ErrorCode(sent.error_code).name
            )
        with self._traffic.lock:
            self._traffic.told.acknowledged[partition][self._value] = sent.base_offset
        return sent.base_offset, ""

    def _leaders(self, node: LiveBroker) -> dict[int, int]:
        with Client(node.address, ANSWER_S) as client:
            answer = client.ask("Metadata", MetadataRequest(topics=[MetadataRequestTopic(name=self._topic)]))
        return {one.partition_index: one.leader_id for one in answer.topics[0].partitions}

    def _until_agreed(self, ends_s: float) -> None:
        while True:
            told: dict[int, dict[int, int] | str] = {}
            for node_id, node in self._cluster.brokers.items():
                try:
                    told[node_id] = self._leaders(node)
                except OSError as error:
                    told[node_id] = repr(error)
            first = next(iter(told.values()))
            is_led = isinstance(first, dict) and [*first.values()].count(NOBODY) == 0
            if is_led and len(first) == self._partitions and all(one == first for one in told.values()):
                return
            assert time.monotonic() < ends_s, f"the nodes do not agree who leads: {told}"
            self.start_ended()
            time.sleep(PAUSE_S)

    def _until_committed(self, offsets: list[int], ends_s: float) -> None:
        while True:
            with self._traffic.lock:
                committed = dict(self._traffic.told.committed)
            behind = [at for at, offset in enumerate(offsets) if committed.get(at, 0) <= offset]
            if not behind:
                return
            assert time.monotonic() < ends_s, (
                f"the group does not go on: written {offsets}, committed {committed}, "
                f"assigned {self._traffic.told.assigned}; "
                + "; ".join(self._read_of(at, committed.get(at, 0)) for at in behind)
            )
            self.start_ended()
            time.sleep(PAUSE_S)

    def _read_of(self, partition: int, offset: int) -> str:
        """What each node says of the partition's leader, and gives to who reads there."""
        found = []
        for node_id, node in self._cluster.brokers.items():
            try:
                leader = self._leaders(node)[partition]
                with Client(node.address, ANSWER_S) as client:
                    answer = client.fetch([(self._topic, partition, offset)])[self._topic, partition]
                code = ErrorCode(answer.error_code).name
                found.append(f"node {node_id}: node {leader} leads, {code}, ends at {answer.high_watermark}")
            except (OSError, KeyError) as error:
                found.append(f"node {node_id}: {error!r}")
        return f"partition {partition}: " + ", ".join(found)
