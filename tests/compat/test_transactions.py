"""Transactions are not served: each client ends at once, with what the broker says or a code that it does not
ask again after, and the broker's log says for whom and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TransactionalIdAuthorizationFailed
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as PythonKafkaError
from kafka.errors import KafkaTimeoutError

from millrace.broker.requests.transaction_refusals import TEXT
from tests.compat.jvm import run_source
from tests.live import LiveBroker
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("transactions"), wal="4MiB") as broker:
        yield broker


def told(broker: LiveBroker, client_id: str) -> list[str]:
    return [
        line
        for line in broker.log_path.read_text().splitlines()
        if f"transactions: client '{client_id}' at " in line
    ]


def test_librdkafka(broker: LiveBroker) -> None:
    """confluent-kafka: a fatal error that holds the broker's own words. With any other code it would ask
    until its time is over."""
    config = {
        "bootstrap.servers": broker.address,
        "client.id": "confluent",
        "transactional.id": "t",
        "log_level": 0,
    }
    producer = Producer(config)
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(PATIENCE_S)
    error = raised.value.args[0]
    assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert error.fatal()
    assert TEXT in error.str()
    (line,) = told(broker, "confluent")
    assert (
        "is refused the transactional id 't': this broker serves no transactions, and no right is missing"
        in line
    )
    assert "WARNING" in line


def test_kafka_python(broker: LiveBroker) -> None:
    """An error that is not a timeout."""
    producer = KafkaProducer(
        bootstrap_servers=broker.address,
        client_id="python",
        transactional_id="t",
        max_block_ms=1000 * PATIENCE_S,
    )
    with pytest.raises(PythonKafkaError) as raised:
        producer.init_transactions()
    assert not isinstance(raised.value, KafkaTimeoutError)
    producer.close(timeout=0)
    assert len(told(broker, "python")) == 1


def test_aiokafka(broker: LiveBroker) -> None:
    """Its start fails."""

    async def main() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.address, client_id="aio", transactional_id="t")
        with pytest.raises(TransactionalIdAuthorizationFailed):
            await asyncio.wait_for(producer.start(), PATIENCE_S)
        await producer.stop()

    asyncio.run(main())
    assert len(told(broker, "aio")) == 1


def test_java(broker: LiveBroker) -> None:
    """The broker's own words in the exception that ends `initTransactions`; the log has one line, however
    often it is tried."""
    for _ in range(2):
        answer = run_source("Transactions.java", broker.address)
        assert answer.strip().endswith(TEXT), answer
        assert "Timeout" not in answer
        assert "uthoriz" not in answer
    assert len(told(broker, "ledger")) == 1
