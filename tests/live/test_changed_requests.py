"""Requests of every API with some of their fields changed: each is answered with a code of Kafka's, and disturbs nothing else."""

from __future__ import annotations

import random
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from millrace.protocol.apis import API
from millrace.protocol.declare import WireField, wire_fields
from millrace.protocol.error_codes import ErrorCode
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.every_request import NAME, ROWS, Scene
from tests.live.fitting import codes_in, fit
from tests.live.test_every_version import ask
from tests.live.wire import Wire
from tests.protocol.values import scalar

REQUESTS = 400
WORDS = (
    NAME,
    "",
    "x",
    "a b",
    "..",
    "__consumer_offsets",
    "__cluster_metadata",
    "é",
    "a" * 249,
    "a" * 300,
    "1",
    "-1",
    "range",
)
PRODUCE, DELETE_TOPICS = 0, 20


@pytest.mark.parametrize("seed", range(3))
def test_a_changed_request_is_answered(tmp_path: Path, seed: int) -> None:
    """Doubled items, empty lists, nulls, edges of numbers and odd names where a sound request has others: no accident, no trace in the log, and
    what is made beside them goes on."""
    chance = random.Random(seed)
    settings = {"num.partitions": "1", "offsets.topic.num.partitions": "2"}
    with LiveBroker(tmp_path, settings, wal="64MiB") as broker, Client(broker.address) as client:
        scene = Scene(client)
        for _ in range(REQUESTS):
            key = chance.choice(list(ROWS))
            version = chance.randint(API[key].min_version, API[key].max_stable_version)
            request = changed(chance, fit(ROWS[key].make(scene), version), version, chance.choice((0.1, 0.3, 0.6)))
            if key == DELETE_TOPICS and "__consumer_offsets" in str(request):
                continue  # taken as Kafka takes it, and the scene has a group there
            if key == PRODUCE and request.acks == 0:
                continue  # has no answer
            with Wire(broker.address) as wire:
                assert ErrorCode.UNKNOWN_SERVER_ERROR not in codes_in(ask(wire, key, version, request)), request
        log = broker.log_path.read_text()
    assert "Traceback" not in log
    assert " ERROR " not in log


def changed(chance: random.Random, message: Any, version: int, rate: float) -> Any:
    """A copy in which each field that `version` carries is changed at that rate."""
    values = {}
    for field in wire_fields(type(message)):
        value = getattr(message, field.name)
        if field.is_in(version):
            value = _changed_field(chance, field, value, version, rate)
        values[field.name] = value
    return replace(message, **values)


def _changed_field(chance: random.Random, field: WireField, value: Any, version: int, rate: float) -> Any:
    if chance.random() >= rate:
        if isinstance(value, list):
            return [changed(chance, item, version, rate) if is_dataclass(item) else item for item in value]
        return changed(chance, value, version, rate) if is_dataclass(value) else value
    if field.type.kind in ("records", "struct"):
        return value
    if field.type.kind == "array":
        doubled = [*value, *[chance.choice(value)] * 2] if value else []
        return chance.choice((doubled, doubled, [], None if field.is_nullable(version) else []))
    if field.is_nullable(version) and chance.random() < 0.2:
        return None
    return chance.choice(WORDS) if field.type.kind == "string" else scalar(chance, field.type.kind)
