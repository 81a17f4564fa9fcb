"""One live broker, one JVM and one Spark session for all of tests/compat. `full/` is collected when
MILLRACE_COMPAT=full (`make compat`), `cluster/` when it is cluster (`make compat-cluster`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pytest

from tests.compat.clients.aiokafka import AioKafka
from tests.compat.clients.client import Client
from tests.compat.clients.confluent import Confluent
from tests.compat.clients.console import Console
from tests.compat.clients.java import Java
from tests.compat.clients.kafka_python import KafkaPython
from tests.compat.clients.kcat import Kcat
from tests.compat.clients.spark import Spark
from tests.compat.jvm import Jvm
from tests.compat.wire import Wire
from tests.live import LiveBroker
from tests.spark_jobs.shared_session import shared_session, stop_session

ASKED = os.environ.get("MILLRACE_COMPAT")
IS_FULL = ASKED in ("full", "cluster")
collect_ignore = [name for name in ("full", "cluster") if name != ASKED]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker
        assert broker.is_running(), broker.log_path.read_text()[-4000:]


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    jvm = Jvm(tmp_path_factory.mktemp("jvm") / "log")
    yield jvm
    jvm.close()


@pytest.fixture
def wire(broker: LiveBroker) -> Iterator[Wire]:
    with Wire(broker.address) as wire:
        yield wire


class Clients:
    """By name, each made when it is first asked for."""

    NAMES = ("kafka-python", "aiokafka", "confluent-kafka", "java", "console", "kcat", "spark")

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self.named = cache(self._make)

    def _make(self, name: str) -> Client:
        if name in ("java", "console"):
            jvm = self._request.getfixturevalue("jvm")
            return Java(jvm) if name == "java" else Console(jvm)
        if name == "spark":
            self._request.addfinalizer(stop_session)
            return Spark(shared_session())
        return {
            "kafka-python": KafkaPython,
            "aiokafka": AioKafka,
            "confluent-kafka": Confluent,
            "kcat": Kcat,
        }[name]()


@pytest.fixture(scope="session")
def clients(request: pytest.FixtureRequest) -> Clients:
    return Clients(request)
