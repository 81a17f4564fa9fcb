"""What the demo judges, in short and without Spark: that it did what it tells of, and that its digests tell
records and orders apart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench.report import exit_code, table
from tests.demo.__main__ import CLIENTS, Demo, at_least
from tests.demo.consume import verdict
from tests.demo.digest import Digest, Headers, mark_of
from tests.demo.reading import Reading
from tests.demo.sending import Sending
from tests.demo.victim import kill_between_batches
from tests.patience import PATIENCE_S

MEGABYTES = 4
HEADERS: Headers = [("a", b"1"), ("b", b"")]
RECORD = (b"key", b"value", 1_000, HEADERS)


def test_too_little_is_no_demo(tmp_path: Path) -> None:
    """Both clients' records come back from caches and, after a restart, from objects; the same run is a
    failure where it had to be 1 GB, or where a topic holds its last record twice."""
    demo, topics = Demo(tmp_path), [f"short-{client}" for client in CLIENTS]
    with demo.broker:
        produced = demo.produce("short", topics, MEGABYTES, MEGABYTES, kills=False)
        demo.read("short", topics, produced, kills=False)
        assert exit_code(demo.rows) == 0, table(demo.rows)
        cold = next(row for row in demo.rows if row.what == "short: of it from objects")
        assert cold.is_met
        put_again(demo.broker.address, topics[1])
        demo.read_back("short again", "beginning", topics, produced, kills=False)
        assert demo.rows[-1].is_met is False
    assert exit_code(demo.rows) == 1
    assert exit_code([at_least("short: produced", MEGABYTES, 1000, "MB")]) == 1


def put_again(address: str, topic: str) -> None:
    """The last record of partition 0, as a producer does that does not know what it was told."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    from tests.demo.consume import ends_of

    consumer = Consumer({"bootstrap.servers": address, "group.id": "again"})
    consumer.assign([TopicPartition(topic, 0, ends_of(address, topic)[0] - 1)])
    (message,) = consumer.consume(1, 30)
    consumer.close()
    producer = Producer({"bootstrap.servers": address})
    time_ms = message.timestamp()[1]
    producer.produce(topic, message.value(), message.key(), 0, timestamp=time_ms, headers=message.headers())
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.parametrize(
    "other",
    [
        (b"kez", b"value", 1_000, HEADERS),
        (b"key", b"valuf", 1_000, HEADERS),
        (b"keyv", b"alue", 1_000, HEADERS),
        (b"key", b"value", 1_001, HEADERS),
        (b"key", b"value", 1_000, HEADERS[:1]),
        (b"key", b"value", 1_000, HEADERS[::-1]),
        (b"key", b"value", 1_000, [("a", b"1b"), ("", b"")]),
    ],
)
def test_a_record_of_another_content_has_another_mark(other: tuple[bytes, bytes, int, Headers]) -> None:
    """In its key, value, time, headers, or in where one ends and the next begins."""
    assert mark_of(*RECORD) == mark_of(*RECORD)
    assert mark_of(*other) != mark_of(*RECORD)


def digest_of(*records: tuple[int, str]) -> str:
    digest = Digest()
    for partition, name in records:
        digest.add(partition, mark_of(name.encode(), b"", 0, []), 1)
    return str(digest)


def test_a_digest_tells_orders_apart() -> None:
    """Within a partition; partitions may take turns. One that is missing, there twice or in another partition
    shows."""
    sent = digest_of((0, "a"), (1, "x"), (0, "b"))
    assert digest_of((1, "x"), (0, "a"), (0, "b")) == sent
    for others in ("ba", "a", "abb", "aab"):
        assert digest_of((1, "x"), *((0, other) for other in others)) != sent
    assert digest_of((1, "a"), (1, "x"), (0, "b")) != sent


def reading_of(*places: tuple[int, bytes]) -> Reading:
    """Of one partition with three records."""
    reading = Reading({0: 3})
    for offset, mark in places:
        reading.add(0, offset, mark.ljust(16), 1)
    return reading


def test_what_comes_again_has_to_be_the_same() -> None:
    """A group may read again and out of turn, and its digest goes by offsets; a reader on its own may not.
    Another record at a known offset, one beyond the end and one that never came are failures for both."""
    plain = reading_of((0, b"a"), (1, b"b"), (2, b"c"))
    assert plain.is_complete
    assert verdict("beginning", plain) == verdict("group", plain) == ""
    turned = reading_of((1, b"b"), (1, b"b"), (0, b"a"), (2, b"c"), (0, b"a"))
    assert str(turned.digest) == str(plain.digest)
    assert verdict("group", turned) == ""
    assert verdict("beginning", turned) == "2 repeated, 1 out of order"
    assert verdict("group", reading_of((0, b"a"), (1, b"b"), (0, b"z"), (2, b"c"))) == "1 changed"
    assert verdict("group", reading_of((0, b"a"), (2, b"c"), (2, b"z"), (1, b"b"))) == "1 changed"
    assert verdict("group", reading_of((0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"))) == "1 changed"
    assert verdict("group", reading_of((0, b"a"), (2, b"c"))) == "2 missing"


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ([(0, 0), (1, 1)], ""),
        ([(0, 0), (1, None)], ""),
        ([(1, 0), (0, 1)], "record 0 of partition 7 after 1"),
        ([(0, 0), (1, 2)], "record 1 of partition 7 is at offset 2"),
        ([(0, 0)], "1 records were not delivered"),
    ],
)
def test_what_a_producer_is_told_has_to_fit(told: list[tuple[int, int | None]], wrong: str) -> None:
    """In order of sending, each at the offset after the one before where that is known, and all of them."""
    sending = Sending()
    for _ in range(2):
        sending.begin(b"key", b"value")
    for number, offset in told:
        sending.on_acknowledged(number, 7, offset)
    if not wrong:
        sending.check_ended()
        return
    with pytest.raises(RuntimeError, match=wrong):
        sending.check_ended()


WORKER = """
import pathlib, sys, time
commits = pathlib.Path(sys.argv[1]) / "commits"
commits.mkdir(parents=True)
for batch in range(int(sys.argv[2])):
    (commits / f".{batch}.crc").touch()
    (commits / str(batch)).touch()
time.sleep(float(sys.argv[3]))
(commits / "ended").touch()
"""


def worker(checkpoint: Path, batches: int, lingers_s: float) -> int | None:
    command = [sys.executable, "-c", WORKER, str(checkpoint), str(batches), str(lingers_s)]
    return kill_between_batches(command, checkpoint, 3.0 if lingers_s and not batches else 60.0)


def test_a_pipeline_is_killed_in_the_middle_of_its_work(tmp_path: Path) -> None:
    """After a batch, before its end; one that had ended, or has done nothing yet, was not."""
    assert worker(tmp_path / "works", 1, 3600) == 1
    assert not (tmp_path / "works" / "commits" / "ended").exists()
    assert worker(tmp_path / "idles", 0, 3600) is None
    assert worker(tmp_path / "ends", 0, 0) is None
