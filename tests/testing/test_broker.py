"""What a test may ask of its broker, blocking and not; and how it lives: killed, restarted, paused."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka import TopicPartition as KafkaPartition

from millrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from millrace.testing import (
    AsyncBroker,
    Broker,
    BrokerNotStarted,
    NotEnoughRecords,
    Refused,
    TopicPartition,
    operations,
)
from tests.patience import PATIENCE_S
from tests.testing.member import joined


def test_values_keys_headers_and_times_come_back(kafka: Broker) -> None:
    """Text is UTF-8, dictionaries and lists are JSON, None is null."""
    kafka.create_topic("orders", partitions=3)
    kafka.produce(
        "orders",
        "ü",
        b"\xff",
        {"id": 1},
        [1],
        None,
        partition=1,
        headers={"h": "x", "n": None},
        timestamp=1_700_000_000_000,
    )
    found = kafka.records("orders")
    assert [record.value for record in found] == ["ü".encode(), b"\xff", b'{"id":1}', b"[1]", None]
    assert [record.offset for record in found] == [0, 1, 2, 3, 4]
    assert {(record.topic, record.partition, record.timestamp) for record in found} == {
        ("orders", 1, 1_700_000_000_000)
    }
    assert found[0].headers == (("h", b"x"), ("n", None))
    assert (found[0].text, found[2].json()) == ("ü", {"id": 1})
    with pytest.raises(ValueError, match="orders-1 at 4 is null"):
        _ = found[4].text


def test_a_key_goes_where_a_client_puts_it(kafka: Broker) -> None:
    """kafka-python partitions by the rule of Kafka's Java producer."""
    kafka.create_topic("keyed", partitions=7)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"abcde", "ключ".encode(), bytes(range(255))]
    theirs = [producer.send("keyed", b"", key).get(10).partition for key in keys]
    producer.close()
    assert [kafka.produce("keyed", "", key=key)[0].partition for key in keys] == theirs


def test_more_than_one_fetch_is_read(kafka: Broker) -> None:
    """A topic larger than an answer comes whole."""
    kafka.create_topic("large", config={"max.message.bytes": "4000000"})
    for number in range(4):
        kafka.produce("large", bytes([number]) * 3_000_000)
    assert [(record.value or b"")[:1] for record in kafka.records("large")] == [b"\0", b"\1", b"\2", b"\3"]


def test_waiting_ends_with_what_there_is(kafka: Broker) -> None:
    """Too few records fail the test with those that came; a topic that is made later is waited for."""
    kafka.produce("few", "only")
    with pytest.raises(
        NotEnoughRecords, match=r"after 0.05 s topic few holds 1 of 2 records\n  0@0: b'only'"
    ):
        kafka.wait_for_records("few", 2, timeout=0.05)
    with pytest.raises(AssertionError, match="topic never holds 0 of 1 records"):
        kafka.wait_for_records("never", 1, timeout=0.05)
    assert kafka.topics() == ["few"], "asking for a topic made it"

    async def late() -> None:
        waiting = asyncio.ensure_future(kafka.aio.wait_for_records("late", 2))
        await kafka.aio.produce("late", "a")
        await kafka.aio.produce("late", "b")
        assert [record.text for record in await waiting] == ["a", "b"]

    asyncio.run(late())


def test_a_refusal_names_what_was_refused(kafka: Broker) -> None:
    """By the code that Kafka has for it."""
    kafka.create_topic("there")
    with pytest.raises(Refused, match="create topic there: TOPIC_ALREADY_EXISTS") as told:
        kafka.create_topic("there")
    assert (told.value.code, told.value.code_name) == (36, "TOPIC_ALREADY_EXISTS")
    with pytest.raises(Refused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        kafka.produce("there", "x", partition=5)
    assert kafka.records("nowhere") == []


def test_committed_offsets_and_lag(kafka: Broker) -> None:
    """A partition that the group committed nothing of counts whole; an unknown group has nothing."""
    kafka.create_topic("orders", partitions=2)
    kafka.produce("orders", "a", "b", "c", partition=0)
    kafka.produce("orders", "d", partition=1)
    assert (kafka.committed("billing"), kafka.lag("billing"), kafka.lag("billing", "orders")) == ({}, 0, 4)
    with joined(kafka, "orders", "billing", "worker-1") as consumer:
        while [consumer.position(KafkaPartition("orders", number)) for number in (0, 1)] != [3, 1]:
            consumer.poll(1_000)
        consumer.commit()
        assert kafka.committed("billing") == {TopicPartition("orders", 0): 3, TopicPartition("orders", 1): 1}
        assert kafka.groups() == {"billing": "Stable"}
        kafka.produce("orders", "e", partition=1)
        assert kafka.lag("billing") == 1


def test_a_member_is_expired_by_any_of_its_names(kafka: Broker) -> None:
    """The group is without it at once; a name that nobody has is an error that lists those there are."""
    kafka.create_topic("orders")
    with joined(kafka, "orders", "billing", "worker-1"):
        with pytest.raises(LookupError, match=r"group billing has no member 'worker-2': .*worker-1"):
            kafka.expire_member("billing", "worker-2")
        kafka.expire_member("billing", "worker-1")
        assert kafka.groups() == {"billing": "Empty"}


@pytest.mark.parametrize("name", ["id-1", "instance-1", "client-1"])
def test_each_name_of_a_member_is_looked_for(name: str) -> None:
    """Its member id, its group.instance.id and its client.id; the others of the group stay."""
    present = [
        DescribedGroupMember(f"id-{number}", f"instance-{number}", f"client-{number}", "", b"", b"")
        for number in (1, 2)
    ]
    conversation = operations.expire_member("billing", name)
    assert next(conversation).request.groups == ["billing"]  # type: ignore[union-attr]
    leaving = conversation.send(
        DescribeGroupsResponse(groups=[DescribedGroup(0, None, "billing", members=present)])
    )
    assert [each.member_id for each in leaving.request.members] == ["id-1"]  # type: ignore[union-attr]


def test_what_was_acknowledged_outlives_kill_and_restart(kafka_broker: Broker) -> None:
    """At the same address, orderly and not; between the two nobody answers."""
    address = kafka_broker.bootstrap_servers
    kafka_broker.produce("kept", "before the kill")
    kafka_broker.kill()
    with pytest.raises(ConnectionError):
        kafka_broker.records("kept")
    kafka_broker.start()
    kafka_broker.produce("kept", "before the restart")
    kafka_broker.restart()
    assert kafka_broker.bootstrap_servers == address
    assert [record.text for record in kafka_broker.records("kept")] == [
        "before the kill",
        "before the restart",
    ]
    assert kafka_broker.log_text.count("test mode: nothing is kept") == 3


def test_a_paused_broker_keeps_its_connections(kafka: Broker) -> None:
    """A request that it was sent meanwhile is answered when it goes on."""

    async def ask() -> None:
        await kafka.aio.create_topic("paused")
        await kafka.aio.pause()
        waiting = asyncio.ensure_future(kafka.aio.topics())
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        await kafka.aio.resume()
        assert "paused" in await waiting

    asyncio.run(ask())


def test_a_broker_that_cannot_start_says_why() -> None:
    """The end of its log is in the error, and its folder is gone."""
    broker = Broker({"num.partitions": "none"})
    with pytest.raises(BrokerNotStarted, match=r"num\.partitions"):
        broker.start()
    with pytest.raises(BrokerNotStarted, match="was not started"):
        _ = broker.bootstrap_servers


def test_the_broker_has_none_of_what_is_the_tests_own(tmp_path: Path) -> None:
    """Modules of their folder, settings and flags in their environment: none of these becomes the
    broker's."""
    for name in ("signal", "wal"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of the tests')")
    words = [
        sys.executable,
        "-P",
        "-c",
        "from millrace.testing import Broker\nwith Broker() as kafka: print(kafka.topics())",
    ]
    env = {**os.environ, "PYTHONOPTIMIZE": "1", "KAFKA_NUM_PARTITIONS": "none"}
    done = subprocess.run(
        words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_start_without_files_leaves_no_folder(tmp_path: Path) -> None:
    """It is made behind its guard, which needs some: none can be left that nobody removes."""
    script = """
import os, resource, tempfile
from millrace.testing import Broker
tempfile.gettempdir()  # tried once, with a file
broker, used = Broker(), []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        used.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    broker.start()
except OSError as error:
    print(error.strerror)
"""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "Too many open files\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_setting_without_effect_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that the broker does not know, with the one that was meant; where warnings are errors, no broker
    stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = r"unknown key num\.partition .*has no effect; did you mean num\.partitions\?"
    with pytest.warns(UserWarning, match=told), Broker({"num.partition": "3"}) as kafka:
        assert kafka.topics() == []
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error", UserWarning
        )  # others are of what other tests left unclosed, collected just now
        with pytest.raises(UserWarning), Broker({"num.partition": "3"}):
            pass
    assert list(tmp_path.iterdir()) == []


def test_the_asynchronous_form_has_every_call() -> None:
    """With the parameters and defaults of the blocking one; not what fixtures alone need."""

    def calls(kind: type) -> dict[str, list[str]]:
        found = {
            name: member
            for name, member in vars(kind).items()
            if inspect.isfunction(member) and name[0] != "_"
        }
        return {
            name: list(map(str, inspect.signature(member).parameters.values()))
            for name, member in found.items()
        }

    blocking = calls(Broker)
    assert {name: blocking.pop(name) for name in ("snapshot", "restore")}
    assert calls(AsyncBroker) == blocking


def test_the_asynchronous_form_is_a_context_of_its_own() -> None:
    """`async with`, and everything asked with `await`."""

    async def use() -> None:
        async with Broker({"num.partitions": "2"}) as kafka:
            await kafka.create_topic("a", 3)
            await kafka.produce("b", "x", partition=1)
            assert await kafka.topics() == ["a", "b"]
            assert [record.partition for record in await kafka.records("b")] == [1]
            await kafka.kill()
            await kafka.start()
            assert await kafka.lag("nobody", "b") == 1
            assert (await kafka.groups(), await kafka.committed("nobody")) == ({}, {})

    asyncio.run(use())
