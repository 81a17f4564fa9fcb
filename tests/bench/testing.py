"""A broker for tests, beside Apache Kafka's own jars started for one: `python -m tests.bench.testing
[--rounds 5] [--alone]`.

Ready: from the start of the process (of Kafka: with the format of its folder, and looked at each half second)
until clients are served. A first record: from a client that is made to the record in its consumer, of a new
topic, through a group nobody has used; both brokers let it rebalance without delay. The broker's share of
that is the same requests without a client. Isolation: what the plugin does before and behind a test that made
two topics and a group, twenty a round. Each figure is a median over the rounds, in the state that the round
before left. Both have one partition of __consumer_offsets.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from millrace.testing import Broker, Refused, operations
from millrace.testing.isolation import Snapshot, restore, take_snapshot
from millrace.testing.operations import Call, Conversation, check, message
from millrace.testing.wire import run_blocking
from tests.bench.report import Row, exit_code, table
from tests.compat.peer.apache_kafka import ApacheKafka

T = TypeVar("T")
READY_S, SHARE_S, ISOLATION_S, MEMORY_MIB = 0.25, 0.050, 0.010, 60
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
FIND_RETRY_S = 0.005
ISOLATED_TESTS = 20  # a round
COMING = (14, 15, 16)
LEADER_COMING = (3, 6)


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker that runs. `memory_mib` is asked at the end. `broker`: where it is one of ours."""

    address: str
    ready_s: float
    memory_mib: Callable[[], float]
    broker: Broker | None = None

    def ask(self, conversation: Conversation[T]) -> T:
        host, _, port = self.address.rpartition(":")
        return run_blocking(conversation, host, int(port))

    def snapshot(self) -> Snapshot:
        return self.ask(take_snapshot()) if self.broker is None else self.broker.snapshot()

    def restore(self, before: Snapshot) -> None:
        """Of ours as the plugin does it, with what clients asked for and the end of faults."""
        if self.broker is None:
            self.ask(restore(before))
        else:
            self.broker.unserved()
            self.broker.restore(before)


@contextmanager
def ours() -> Iterator[Peer]:
    began = time.perf_counter()
    with Broker() as broker:
        ready_s = time.perf_counter() - began
        yield Peer(
            broker.bootstrap_servers, ready_s, lambda: broker.process.memory_bytes() / (1 << 20), broker
        )


@contextmanager
def apache() -> Iterator[Peer]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with ApacheKafka(Path(folder), SETTINGS) as kafka:
            ready_s = time.perf_counter() - began
            yield Peer(kafka.address, ready_s, kafka.memory_mib)


def with_kafka_python(address: str, topic: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address)
    producer.send(topic, b"x").get(30)
    consumer = KafkaConsumer(
        topic, bootstrap_servers=address, group_id=f"group-{topic}", auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"x"
    consumer.close()
    producer.close()


def with_aiokafka(address: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=address) as producer:
            await producer.send_and_wait(topic, b"x")
        group = f"group-{topic}"
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest"
        ) as consumer:
            assert (await consumer.getone()).value == b"x"

    asyncio.run(run())


def with_confluent(address: str, topic: str) -> None:
    from confluent_kafka import Consumer, Producer

    producer = Producer({"bootstrap.servers": address})
    producer.produce(topic, b"x")
    producer.flush()
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": f"group-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    while (found := consumer.poll(1.0)) is None or found.error():
        pass
    assert found.value() == b"x"
    consumer.close()


CLIENTS = {"kafka-python": with_kafka_python, "aiokafka": with_aiokafka, "confluent-kafka": with_confluent}


def first_record(topic: str) -> Conversation[None]:
    """Of a new topic. Apache Kafka tells of its leader before the leader itself may know: as every client
    does, it is tried again."""
    while True:
        try:
            yield from operations.produce(topic, ["x"], None, {}, None, None)
            return
        except Refused as error:
            if error.code not in LEADER_COMING:
                raise
        yield FIND_RETRY_S


def fresh_group(topic: str) -> Conversation[None]:
    """A new topic, a record, and a new group that reads it: every request that a client cannot do without."""
    yield from first_record(topic)
    group = f"group-{topic}"
    while True:
        response = yield Call(
            "FindCoordinator",
            4,
            message("find_coordinator", "FindCoordinatorRequest", coordinator_keys=[group]),
        )
        if response.coordinators[0].error_code not in COMING:
            break
        yield FIND_RETRY_S
    protocol = message("join_group", "JoinGroupRequestProtocol", name="range", metadata=b"")
    joining = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
    }
    member = ""
    while True:
        response = yield Call(
            "JoinGroup",
            5,
            message("join_group", "JoinGroupRequest", **joining, member_id=member, protocols=[protocol]),
        )
        member = response.member_id
        if response.error_code in COMING:
            yield FIND_RETRY_S
        elif not response.error_code:
            break
    generation = {"group_id": group, "generation_id": response.generation_id, "member_id": member}
    assignment = message("sync_group", "SyncGroupRequestAssignment", member_id=member, assignment=b"")
    response = yield Call(
        "SyncGroup", 3, message("sync_group", "SyncGroupRequest", **generation, assignments=[assignment])
    )
    check("sync", response.error_code)
    assert (yield from operations.committed(group)) == {}
    assert len((yield from operations.records(topic))) == 1
    leaving = message("leave_group", "MemberIdentity", member_id=member)
    yield Call(
        "LeaveGroup", 5, message("leave_group", "LeaveGroupRequest", group_id=group, members=[leaving])
    )


def isolated_test(peer: Peer, name: str) -> float:
    """Seconds before and behind a test."""
    began = time.perf_counter()
    before = peer.snapshot()
    spent = time.perf_counter() - began
    peer.ask(first_record(f"other-{name}"))
    peer.ask(fresh_group(f"isolated-{name}"))
    began = time.perf_counter()
    peer.restore(before)
    return spent + time.perf_counter() - began


def seconds_of(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def measure(peer: Peer, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, client in CLIENTS.items():
            key = f"first record through a fresh group, {name}"
            topic = f"{name}-{number}"
            found.setdefault(key, []).append(seconds_of(partial(client, peer.address, topic)))
        key = "its requests without a client"
        found.setdefault(key, []).append(seconds_of(partial(peer.ask, fresh_group(f"raw-{number}"))))
        isolated = [isolated_test(peer, f"{number}-{test}") for test in range(ISOLATED_TESTS)]
        found.setdefault("isolation of a test", []).extend(isolated)
    return found


def measure_all(kind: Callable[[], AbstractContextManager[Peer]], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"ready": [], "memory": [], "very first group": []}
    for number in range(rounds):
        with kind() as peer:
            found["ready"].append(peer.ready_s)
            found["very first group"].append(seconds_of(lambda: peer.ask(fresh_group("first"))))
            if number == rounds - 1:
                found |= measure(peer, rounds)
            found["memory"].append(peer.memory_mib())
    return found


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.bench.testing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    given = parser.parse_args()
    mine = measure_all(ours, given.rounds)
    theirs = {} if given.alone else measure_all(apache, given.rounds)
    targets = {
        "ready": READY_S,
        "its requests without a client": SHARE_S,
        "very first group": None,
        "isolation of a test": ISOLATION_S,
        "memory": MEMORY_MIB,
    }
    rows = []
    for name, figures in mine.items():
        unit, factor = ("MiB", 1.0) if name == "memory" else ("ms", 1_000.0)
        figure, target = statistics.median(figures), targets.get(name)
        beside = f"{statistics.median(theirs[name]) * factor:.0f} {unit}" if name in theirs else ""
        shown = "" if target is None else f"{target * factor:.0f} {unit}"
        is_met = None if target is None else figure <= target
        rows.append(
            Row(name, f"{figure * factor:.1f} {unit} ({min(figures) * factor:.1f})", beside, shown, is_met)
        )
    print("median (least), beside Apache Kafka's\n" + table(rows))
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
