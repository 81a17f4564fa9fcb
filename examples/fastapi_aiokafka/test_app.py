"""The service over HTTP, with a real broker behind it."""

import pytest
from app import app
from fastapi.testclient import TestClient

from millrace.testing import Broker


def test_an_order_is_published(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    with TestClient(app) as client:
        answer = client.post("/orders", json={"id": 7})
        assert (answer.status_code, answer.json()) == (202, {"offset": 0})
    (record,) = kafka.wait_for_records("orders", 1)
    assert (record.key, record.json()) == (b"orders", {"id": 7})


def test_a_slow_broker_is_waited_for(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.create_topic("orders")
    kafka.slow("Produce", 300)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    with TestClient(app) as client:
        assert client.post("/orders", json={"id": 7}).status_code == 202
    assert len(kafka.records("orders")) == 1
