"""The pytest plugin: fixtures `kafka` and `kafka_broker`, there as soon as millrace is installed (entry point
pytest11).

    kafka           the session's broker; topics and groups that the test made are gone after it. Under
                    pytest-xdist each worker has one.
    kafka_broker    a broker of the test's own
    kafka_settings  override it in a conftest.py: broker settings of both

Loaded in every run of pytest, so it imports nothing before a test asks for a broker.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millrace.testing.broker import Broker


class ClientLeftRunning(pytest.PytestWarning):
    """A test ended with a member of its group still joined: it can take records from a later test that uses
    the same names."""


_BROKERS = pytest.StashKey["list[Broker]"]()  # of the test
MARKER = (
    "kafka_unserved: the test may use what the broker does not serve (transactions, compaction, ...); "
    "else it fails"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """A fixture that failed of what is not served has the sentence, too."""
    item.stash[_BROKERS] = []
    with _noted(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test whose client asked for what is not served fails with a sentence that says so; one that failed of
    it has the sentence, too."""
    with _noted(item):
        result = yield
    found = _unserved(item)
    if found and item.get_closest_marker("kafka_unserved") is None:
        pytest.fail("\n".join([*found, "(a test that may: @pytest.mark.kafka_unserved)"]), pytrace=False)
    return result


@contextmanager
def _noted(item: pytest.Item) -> Iterator[None]:
    """Whatever ends the test takes its sentences along: none is left to the next one. pytest's own failures
    are no Exceptions."""
    try:
        yield
    except BaseException as error:
        for sentence in _unserved(item):
            error.add_note(sentence)
        raise


def _unserved(item: pytest.Item) -> list[str]:
    found = []
    for broker in item.stash.get(_BROKERS, []):
        broker.resume()  # it is asked after the test
        found += broker.unserved()
    return found


@pytest.fixture(scope="session")
def kafka_settings() -> Mapping[str, str]:
    """Broker settings by their Kafka names: override this fixture to have other ones."""
    return {}


@pytest.fixture(scope="session")
def kafka_session(kafka_settings: Mapping[str, str]) -> Iterator[Broker]:
    """The session's broker, started when it is first asked for. What a test of this fixture leaves stays: ask
    for `kafka`."""
    from millrace.testing.broker import Broker

    with Broker(kafka_settings) as broker:
        yield broker


@pytest.fixture
def kafka(kafka_session: Broker, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A live broker. What existed before the test stays, and the topics and groups that the test made are
    gone after it. `kafka.aio` is the same for asynchronous tests."""
    kafka_session.start()
    before = kafka_session.snapshot()
    request.node.stash.setdefault(_BROKERS, []).append(kafka_session)
    yield kafka_session
    for client in kafka_session.restore(before):
        warnings.warn(f"the test left a client running: {client}", ClientLeftRunning, stacklevel=1)


@pytest.fixture
def kafka_broker(kafka_settings: Mapping[str, str], request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of the test's own, gone after it."""
    from millrace.testing.broker import Broker

    with Broker(kafka_settings) as broker:
        request.node.stash.setdefault(_BROKERS, []).append(broker)
        yield broker
