"""kcat beside producing and reading whole topics (test_records.py): metadata, offsets by time, positions,
groups. What reads is run hot, and cold: of objects, after a restart of the broker that emptied its caches."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext

import pytest

from tests.compat.clients.kcat import kcat
from tests.compat.wire import Wire
from tests.live import LiveBroker


def reads(broker: LiveBroker, is_cold: bool) -> AbstractContextManager[None]:
    return broker.cold_reads() if is_cold else nullcontext()


def test_metadata(broker: LiveBroker, wire: Wire) -> None:
    """-L shows the broker, the topic and its partitions."""
    wire.create("listed", partitions=3)
    shown = json.loads(kcat("-b", broker.address, "-L", "-J", "-t", "listed"))
    assert [(each["id"], each["name"]) for each in shown["brokers"]] == [(1, broker.address)]
    assert [each["partition"] for each in shown["topics"][0]["partitions"]] == [0, 1, 2]


@pytest.mark.parametrize("is_cold", [False, True], ids=["hot", "cold"])
def test_offsets_by_time(broker: LiveBroker, wire: Wire, is_cold: bool) -> None:
    """-Q finds the first record at or after a time, and the end; -o s@ reads from there."""
    topic = f"timed-{is_cold:d}"
    wire.create(topic)
    address = ("-b", broker.address, "-t", topic)
    kcat(*address, "-P", given=b"one\ntwo\nthree\n")
    with reads(broker, is_cold):
        times = [int(line) for line in kcat(*address, "-C", "-e", "-q", "-f", "%T\n").split()]
        found = f"{topic} [0] offset".encode()
        assert kcat("-b", broker.address, "-Q", "-t", f"{topic}:0:{times[0]}") == found + b" 0\n"
        assert kcat("-b", broker.address, "-Q", "-t", f"{topic}:0:-1") == found + b" 3\n"
        assert kcat(*address, "-C", "-e", "-q", "-o", f"s@{times[0]}") == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("is_cold", [False, True], ids=["hot", "cold"])
def test_positions(broker: LiveBroker, wire: Wire, is_cold: bool) -> None:
    """-o takes offsets from the beginning and from the end; -c stops."""
    topic = f"placed-{is_cold:d}"
    wire.create(topic)
    address = ("-b", broker.address, "-t", topic)
    kcat(*address, "-P", "-z", "zstd", given=b"".join(b"%d\n" % number for number in range(10)))
    with reads(broker, is_cold):
        assert kcat(*address, "-C", "-e", "-q", "-o", "7") == b"7\n8\n9\n"
        assert kcat(*address, "-C", "-e", "-q", "-o", "-2") == b"8\n9\n"
        assert kcat(*address, "-C", "-q", "-o", "beginning", "-c", "2") == b"0\n1\n"


@pytest.mark.parametrize("is_cold", [False, True], ids=["hot", "cold"])
def test_group(broker: LiveBroker, wire: Wire, is_cold: bool) -> None:
    """-G reads as a group, commits at its end, and goes on from there."""
    topic = f"together-{is_cold:d}"
    wire.create(topic)
    address, words = (
        ("-b", broker.address),
        ("-G", f"cats-{is_cold:d}", "-q", "-X", "auto.offset.reset=earliest", topic),
    )
    kcat(*address, "-P", "-t", topic, given=b"one\ntwo\n")
    with reads(broker, is_cold):
        assert kcat(*address, "-e", *words) == b"one\ntwo\n"
    kcat(*address, "-P", "-t", topic, given=b"three\n")
    with reads(broker, is_cold):
        assert kcat(*address, "-e", *words) == b"three\n"
