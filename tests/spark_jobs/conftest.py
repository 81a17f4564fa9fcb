"""The SparkSession that all tests of a run share, and a live broker for the pipelines."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live import LiveBroker
from tests.spark_jobs.first_start import FirstStart, record_first_start
from tests.spark_jobs.shared_session import shared_session, stop_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    yield shared_session()
    stop_session()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("broker"), {"num.partitions": "3"}) as broker:
        yield broker


@pytest.fixture(scope="session")
def first_start(broker: LiveBroker, tmp_path_factory: pytest.TempPathFactory) -> FirstStart:
    return record_first_start(broker, tmp_path_factory.mktemp("first-start"), "recorded")


@pytest.fixture
def signals() -> Iterator[None]:
    """The handlers that were there are there again."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)
