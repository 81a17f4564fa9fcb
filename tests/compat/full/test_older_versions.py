"""Clients of older Kafka releases, by kafka-python told to speak as to one: every kind of record, in every
codec of that release."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compat.clients.kafka_python import KafkaPython
from tests.compat.records import CODECS, MAX_MESSAGE_BYTES, sample
from tests.compat.wire import Wire
from tests.live import LiveBroker

RELEASES = ((0, 11), (1, 0), (2, 0), (2, 1), (2, 8), (3, 5), (3, 9), (4, 0), (4, 3))
ZSTD_SINCE = (2, 1)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: ".".join(map(str, release)))
def test_a_client_of_that_release(broker: LiveBroker, wire: Wire, release: tuple[int, int]) -> None:
    """It writes and reads all that it could then; from 0.11 on, as every 4.x broker serves."""
    topic = f"of-release-{release[0]}.{release[1]}"
    wire.create(topic, max_message_bytes=MAX_MESSAGE_BYTES)
    client = KafkaPython(api_version=release)
    sent = []
    for codec in CODECS:
        if codec != "zstd" or release >= ZSTD_SINCE:
            records = [record for record in sample(codec) if client.can_send(record)]
            client.produce(broker.address, topic, codec, records)
            sent += records
    read = client.read(broker.address, [topic])[topic]
    stored = [record for batch in wire.batches(topic) for record in batch.records]
    assert read == stored
    assert [
        replace(record, offset=-1, timestamp=each.timestamp)
        for record, each in zip(stored, sent, strict=True)
    ] == sent
