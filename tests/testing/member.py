"""A kafka-python consumer that is sure to own its partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaConsumer

from millrace.testing import Broker
from tests.patience import PATIENCE_S


@contextmanager
def joined(kafka: Broker, topic: str, group: str, client_id: str) -> Iterator[KafkaConsumer]:
    """Yields a consumer with an assignment, closes it without a commit. It sees the topic before it joins:
    kafka-python 3.0 may otherwise assign nothing until it looks at metadata again, five minutes later."""
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        client_id=client_id,
        auto_offset_reset="earliest",
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not consumer.partitions_for_topic(topic):
            assert time.monotonic() < deadline, f"{client_id} never saw topic {topic}"
        consumer.subscribe([topic])
        while not consumer.assignment():
            assert time.monotonic() < deadline, f"{client_id} was assigned nothing of topic {topic}"
            consumer.poll(1_000, max_records=1)
        yield consumer
    finally:
        consumer.close(autocommit=False)
