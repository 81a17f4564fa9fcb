"""What DescribeConfigs says of a broker and of topics beside Apache Kafka: value, source, synonyms, kind,
whether it is read-only, and the order.

Kept true: a difference is in `INTENDED` with its reason, or it is reported; and a reason that nothing needs
is reported, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from millrace.protocol.messages import describe_configs, incremental_alter_configs
from tests.live.client import Client
from tests.live.wire import Wire

BROKER, TOPIC = 4, 2
# Whatever a node is told for itself: ports, folders, the replicas that one node of Kafka's can have.
SETTINGS = {"log.retention.hours": "100", "num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
DYNAMIC = {
    "1": {"log.retention.ms": "5000", "message.max.bytes": "2000000"},
    "": {"log.segment.bytes": "20000000"},
}


class Said(NamedTuple):
    value: str | None
    read_only: bool
    source: int
    is_sensitive: bool
    kind: int
    synonyms: tuple[tuple[str, str | None, int], ...]


Answers = Mapping[str, tuple[int, str | None, Mapping[str, Said]]]  # by scene: code, message, by key


@dataclass(frozen=True, slots=True)
class Difference:
    scene: str
    key: str
    ours: object
    kafkas: object
    why: str  # empty: nobody knows

    def __str__(self) -> str:
        return f"{self.scene}: {self.key}: {self.ours} here, {self.kafkas} from Kafka"


ORDER = "the order of keys"
OWN_PLACE = "each node has its own"
ONE_COPY = "one node of Kafka's is told so; the store keeps the copies here"
SECRET = "a secret that nothing reads yet is not stored"
SESSIONS = "a silent broker is fenced sooner here, since that moves no replicas"
REFUSED = "plug-ins are refused here"
INTENDED: Mapping[str, str] = {
    ORDER: "Kafka's is a hash table's; here it is that of names",
    "advertised.listeners": OWN_PLACE,
    "broker.heartbeat.interval.ms": SESSIONS,
    "broker.id": OWN_PLACE,
    "broker.session.timeout.ms": SESSIONS,
    "config.providers": REFUSED,
    "controller.listener.names": OWN_PLACE,
    "controller.quorum.bootstrap.servers": OWN_PLACE,
    "listener.security.protocol.map": OWN_PLACE,
    "listeners": OWN_PLACE,
    "log.dir": OWN_PLACE,
    "log.dirs": OWN_PLACE,
    "log.retention.hours": "what holds is shown, also where log.retention.ms hides it: Kafka shows the "
    "default there",
    "metadata.log.segment.bytes": "a smaller segment is enough for metadata that is saved to the bucket",
    "node.id": OWN_PLACE,
    "offsets.topic.replication.factor": ONE_COPY,
    "principal.builder.class": REFUSED,
    "process.roles": OWN_PLACE,
    "queued.max.request.bytes": "memory for requests is bounded here",
    "sasl.jaas.config": SECRET,
    "share.coordinator.state.topic.min.isr": ONE_COPY,
    "share.coordinator.state.topic.replication.factor": ONE_COPY,
    "socket.listen.backlog.size": "a longer line is kept for clients that come back all at once",
    "ssl.key.password": SECRET,
    "ssl.keystore.certificate.chain": SECRET,
    "ssl.keystore.key": SECRET,
    "ssl.keystore.password": SECRET,
    "ssl.truststore.certificates": SECRET,
    "ssl.truststore.password": SECRET,
    "transaction.state.log.min.isr": ONE_COPY,
    "transaction.state.log.replication.factor": ONE_COPY,
}


def describe(address: str, settles_s: float = 0.0) -> Answers:
    """Of a broker without data, started with SETTINGS: before and after DYNAMIC is set. `settles_s`: what a
    change takes to be seen."""
    with Client(address) as client:
        client.create("plain")
        client.create("own", 1, **{"retention.ms": "1000", "cleanup.policy": "compact"})
    time.sleep(settles_s)
    found = dict(_ask(address, "at the start"))
    for name, values in DYNAMIC.items():
        changes = [incremental_alter_configs.AlterableConfig(key, 0, value) for key, value in values.items()]
        resource = incremental_alter_configs.AlterConfigsResource(BROKER, name, changes)
        with Wire(address) as wire:
            done = wire.ask(44, 1, incremental_alter_configs.IncrementalAlterConfigsRequest([resource]))
        assert done.responses[0].error_code == 0, done
    time.sleep(settles_s)
    found |= _ask(address, "after a change")
    return found


def _ask(address: str, when: str) -> Iterator[tuple[str, tuple[int, str | None, Mapping[str, Said]]]]:
    scenes = {
        "broker 1": (BROKER, "1"),
        "topic plain": (TOPIC, "plain"),
        "topic own": (TOPIC, "own"),
        "brokers": (BROKER, ""),
    }
    for name, resource in scenes.items():
        request = describe_configs.DescribeConfigsRequest(
            [describe_configs.DescribeConfigsResource(*resource, None)], True
        )
        with Wire(address) as wire:
            (result,) = wire.ask(32, 4, request).results
        said = {
            one.name: Said(
                one.value,
                one.read_only,
                one.config_source,
                one.is_sensitive,
                one.config_type,
                tuple((synonym.name, synonym.value, synonym.source) for synonym in one.synonyms),
            )
            for one in result.configs
        }
        yield f"{name} {when}", (result.error_code, result.error_message, said)


def compare_configs(ours: Answers, kafkas: Answers) -> list[Difference]:
    """Of keys that Kafka has, and their order; ours may have more."""
    found = []
    used = set()
    for scene, (code, message, theirs) in kafkas.items():
        our_code, our_message, mine = ours[scene]
        if (code, message) != (our_code, our_message):
            found.append(Difference(scene, "the error", (our_code, our_message), (code, message), ""))
        order = [key for key in mine if key in theirs], [key for key in theirs if key in mine]
        if order[0] != order[1]:
            used.add(ORDER)
            found.append(Difference(scene, ORDER, *order, INTENDED.get(ORDER, "")))
        for key, said in theirs.items():
            if mine.get(key) != said:
                used.add(key)
                found.append(Difference(scene, key, mine.get(key), said, INTENDED.get(key, "")))
    stale = sorted(INTENDED.keys() - used)
    return [*found, *(Difference("every scene", key, "the same", "the same", "") for key in stale)]
