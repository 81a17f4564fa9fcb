"""kcat beside producing and reading whole topics (test_records.py): metadata, offsets by time, positions, groups."""

from __future__ import annotations

import json

from tests.compat.clients.kcat import kcat
from tests.compat.wire import Wire
from tests.live import LiveBroker


def test_metadata(broker: LiveBroker, wire: Wire) -> None:
    """-L shows the broker, the topic and its partitions."""
    wire.create("listed", partitions=3)
    shown = json.loads(kcat("-b", broker.address, "-L", "-J", "-t", "listed"))
    assert [(each["id"], each["name"]) for each in shown["brokers"]] == [(1, broker.address)]
    assert [each["partition"] for each in shown["topics"][0]["partitions"]] == [0, 1, 2]


def test_offsets_by_time(broker: LiveBroker, wire: Wire) -> None:
    """-Q finds the first record at or after a time, and the end; -o s@ reads from there."""
    wire.create("timed")
    address = ("-b", broker.address, "-t", "timed")
    kcat(*address, "-P", given=b"one\ntwo\nthree\n")
    times = [int(line) for line in kcat(*address, "-C", "-e", "-q", "-f", "%T\n").split()]
    assert kcat("-b", broker.address, "-Q", "-t", f"timed:0:{times[0]}") == b"timed [0] offset 0\n"
    assert kcat("-b", broker.address, "-Q", "-t", "timed:0:-1") == b"timed [0] offset 3\n"
    assert kcat(*address, "-C", "-e", "-q", "-o", f"s@{times[0]}") == b"one\ntwo\nthree\n"


def test_positions(broker: LiveBroker, wire: Wire) -> None:
    """-o takes offsets from the beginning and from the end; -c stops."""
    wire.create("placed")
    address = ("-b", broker.address, "-t", "placed")
    kcat(*address, "-P", "-z", "zstd", given=b"".join(b"%d\n" % number for number in range(10)))
    assert kcat(*address, "-C", "-e", "-q", "-o", "7") == b"7\n8\n9\n"
    assert kcat(*address, "-C", "-e", "-q", "-o", "-2") == b"8\n9\n"
    assert kcat(*address, "-C", "-q", "-o", "beginning", "-c", "2") == b"0\n1\n"


def test_group(broker: LiveBroker, wire: Wire) -> None:
    """-G reads as a group, commits at its end, and goes on from there."""
    wire.create("together")
    address, words = ("-b", broker.address), ("-G", "cats", "-q", "-X", "auto.offset.reset=earliest", "together")
    kcat(*address, "-P", "-t", "together", given=b"one\ntwo\n")
    assert kcat(*address, "-e", *words) == b"one\ntwo\n"
    kcat(*address, "-P", "-t", "together", given=b"three\n")
    assert kcat(*address, "-e", *words) == b"three\n"
