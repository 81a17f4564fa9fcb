"""A user's side of the broker in a container: `python -m tests.docker.client COMMAND ADDRESS`, run where its
published ports are reached.

fill      writes records to three partitions, all of them acknowledged, and prints how many
observe   prints as JSON what there is: the cluster's id, each topic's records as a digest of their places and
          contents, each group's offsets
cluster   prints as JSON whom it tells of: the cluster's id, its brokers' addresses in the order of their ids
pages     prints as JSON what the admin listener answers: status and text, by path
"""

from __future__ import annotations

import hashlib
import json
import sys
import urllib.error
import urllib.request
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from tests.patience import PATIENCE_S

TOPIC, PARTITIONS, COUNT = "filled", 3, 3000
PATHS = ("/health/live", "/health/ready", "/metrics")


def fill(address: str) -> int:
    admin = KafkaAdminClient(bootstrap_servers=address)
    if TOPIC not in admin.list_topics():
        admin.create_topics({TOPIC: {"num_partitions": PARTITIONS, "replication_factor": 1}})
    admin.close()
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    sent = [
        producer.send(
            TOPIC, f"{number}".encode() * 50, key=f"{number}".encode(), partition=number % PARTITIONS
        )
        for number in range(COUNT)
    ]
    for acknowledged in sent:
        acknowledged.get(30)
    producer.close()
    return len(sent)


def observe(address: str) -> dict[str, Any]:
    admin = KafkaAdminClient(bootstrap_servers=address)
    topics = sorted(name for name in admin.list_topics() if not name.startswith("__"))
    groups = sorted(group["group_id"] for group in admin.list_groups())
    found = {
        "cluster": admin.describe_cluster()["cluster_id"],
        "topics": {topic: digest(address, topic) for topic in topics},
        "groups": {group: offsets(admin, group) for group in groups},
    }
    admin.close()
    return found


def cluster(address: str) -> dict[str, Any]:
    admin = KafkaAdminClient(bootstrap_servers=address)
    found = admin.describe_cluster()
    admin.close()
    brokers = sorted(found["brokers"], key=lambda one: int(one["broker_id"]))
    return {
        "cluster": found["cluster_id"],
        "brokers": [f"{one['host']}:{one['port']}" for one in brokers],
    }


def offsets(admin: KafkaAdminClient, group: str) -> dict[str, int]:
    found = admin.list_group_offsets(group)
    return {f"{place.topic}-{place.partition}": entry.offset for place, entry in sorted(found[group].items())}


def digest(address: str, topic: str) -> str:
    """How many records, and a hash over place, time, key and value of each, partition by partition."""
    consumer = KafkaConsumer(bootstrap_servers=address)
    found, count = hashlib.sha256(), 0
    for partition in sorted(consumer.partitions_for_topic(topic)):
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        while consumer.position(place) < end:
            for record in consumer.poll(timeout_ms=1000).get(place, ()):
                found.update(
                    repr((partition, record.offset, record.timestamp, record.key, record.value)).encode()
                )
                count += 1
    consumer.close()
    return f"{count} records, {found.hexdigest()}"


def pages(address: str) -> dict[str, tuple[int, str]]:
    found = {}
    for path in PATHS:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE_S) as answer:
            found[path] = answer.status, answer.read().decode()
    return found


def main(command: str, address: str) -> int:
    asked = {"fill": fill, "observe": observe, "cluster": cluster, "pages": pages}
    print(json.dumps(asked[command](address)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
