"""Requests of every API with some of their fields changed: each is answered with a code of Kafka's, and
disturbs nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from millrace.protocol.apis import API
from millrace.protocol.error_codes import ErrorCode
from tests.live import LiveBroker
from tests.live.changed import changed
from tests.live.client import Client
from tests.live.every_request import NAME, ROWS, Scene
from tests.live.fitting import codes_in, fit
from tests.live.test_every_version import ask
from tests.live.wire import Wire

REQUESTS = 400
PRODUCE, DELETE_TOPICS = 0, 20


@pytest.mark.parametrize("seed", range(3))
def test_a_changed_request_is_answered(tmp_path: Path, seed: int) -> None:
    """Doubled items, empty lists, nulls, edges of numbers and odd names where a sound request has others: no
    accident, no trace in the log, and what is made beside them goes on."""
    chance = random.Random(seed)
    settings = {"num.partitions": "1", "offsets.topic.num.partitions": "2"}
    with LiveBroker(tmp_path, settings, wal="64MiB") as broker, Client(broker.address) as client:
        scene = Scene(client)
        for _ in range(REQUESTS):
            key = chance.choice(list(ROWS))
            version = chance.randint(API[key].min_version, API[key].max_stable_version)
            request = changed(
                chance, fit(ROWS[key].make(scene), version), version, chance.choice((0.1, 0.3, 0.6))
            )
            if key == DELETE_TOPICS and any(
                name in str(request) for name in ("__consumer_offsets", repr(NAME))
            ):
                continue  # taken as Kafka takes it, and the scene stands on them
            if key == PRODUCE and request.acks == 0:
                continue  # has no answer
            with Wire(broker.address) as wire:
                assert ErrorCode.UNKNOWN_SERVER_ERROR not in codes_in(ask(wire, key, version, request)), (
                    request
                )
        log = broker.log_path.read_text()
    assert "Traceback" not in log
    assert " ERROR " not in log
