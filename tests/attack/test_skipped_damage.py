"""Rotten blocks in the write-ahead log, and a start with `wal.corruption`: what was given up is given up
everywhere, the rest is served.

What outlives the records (a checkpoint, a log start) lies behind them in the log, and tells of offsets above
the end that is left. Before, such a partition did not open any more, for good.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace.broker.partitions.partition import CHECKPOINT_BYTES
from tests.attack import IS_FULL
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.test_damage import flip

RECORD_BYTES = 900_000
RECORDS = CHECKPOINT_BYTES // RECORD_BYTES + 1  # the last one brings the partition to a checkpoint
GIVEN_UP = "what is stored of the partition tells of records or index entries that its log has lost"
CHECKED, DELETED, OTHER = "checked", "deleted", "other"


@dataclass(frozen=True, slots=True)
class Left:
    """What a topic still has."""

    first: int
    values: Sequence[bytes]


def broker_on(folder: Path, policy: str = "refuse") -> LiveBroker:
    return LiveBroker(folder, {"wal.corruption": policy}, wal="64MiB", is_warm=True)


def damage(folder: Path, content: bytes) -> None:
    """One bit of a record that only the log has."""
    wal = folder / "data" / "wal"
    position = wal.read_bytes().find(content)
    assert position > 0, "the record is not in the log"
    flip(wal, position)


def killed_broker(folder: Path) -> dict[str, list[bytes]]:
    """The last record of one topic has a checkpoint behind it, that of another the deletion of all; a third
    has records to the end."""
    values = {
        CHECKED: [os.urandom(RECORD_BYTES) for _ in range(RECORDS)],
        DELETED: [os.urandom(20_000) for _ in range(5)],
        OTHER: [os.urandom(100) for _ in range(10)],
    }
    with broker_on(folder) as broker, Client(broker.address) as client:
        for topic in values:
            client.create(topic)
        for value in values[OTHER][:5]:
            client.produce(OTHER, [value])
        for topic in (CHECKED, DELETED):
            for value in values[topic]:
                client.produce(topic, [value])
        assert client.delete_records(DELETED, 5) == 0
        time.sleep(0.2)
        for value in values[OTHER][5:]:
            client.produce(OTHER, [value])
        broker.kill()
    return values


def check_goes_on(folder: Path, policy: str, left: Mapping[str, Left]) -> int:
    """A start with the policy serves what is left and takes more, and so does every later start without the
    setting. How many partitions gave up what was stored of them."""
    with broker_on(folder, policy) as broker, Client(broker.address) as client:
        for topic, one in left.items():
            check_read(client, topic, one.first, one.values)
            assert client.produce(topic, [b"new"]) == one.first + len(one.values)
        given_up = broker.log_path.read_text().count(GIVEN_UP)
        broker.kill()
    with broker_on(folder) as broker, Client(broker.address) as client:
        for topic, one in left.items():
            check_read(client, topic, one.first, [*one.values, b"new"])
        assert "does not open" not in broker.log_path.read_text()
    return given_up


def check_read(client: Client, topic: str, first: int, values: Sequence[bytes]) -> None:
    assert client.offset(topic, -2) == first
    assert client.read(topic, start=first) == list(values)


@pytest.mark.parametrize("policy", ["skip", "truncate"] if IS_FULL else ["skip"])
def test_lost_records_with_more_behind_them(tmp_path: Path, policy: str) -> None:
    """Two records are rotten. Stepped over: two partitions end before them, deleted records stay deleted, a
    third one is whole. The log cut at the first one: all that came later is gone, deletions too, and nothing
    tells of it."""
    values = killed_broker(tmp_path)
    damage(tmp_path, values[CHECKED][-1][-1000:])
    damage(tmp_path, values[DELETED][-1])
    if policy == "skip":
        left = {CHECKED: Left(0, values[CHECKED][:-1]), DELETED: Left(4, []), OTHER: Left(0, values[OTHER])}
    else:
        left = {
            CHECKED: Left(0, values[CHECKED][:-1]),
            DELETED: Left(0, []),
            OTHER: Left(0, values[OTHER][:5]),
        }
    given_up = check_goes_on(tmp_path, policy, left)
    assert given_up == (2 if policy == "skip" else 0)
    print(
        f"wal.corruption={policy}: {given_up} partitions gave up what was stored behind lost records, all "
        "are served"
    )
