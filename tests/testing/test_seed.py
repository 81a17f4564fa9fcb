"""Records from JSON lines: what is read, what is refused, and where it ends up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.testing import Broker, Refused
from millrace.testing.seed import RECORDS_A_BATCH, read_seed


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2: Expecting"),
        ("[]", "line 2: is no JSON object"),
        ('{"value": 1}', 'line 2: has no "topic"'),
        ('{"topic": ""}', 'line 2: has no "topic"'),
        ('{"topic": "a", "partition": -1}', 'line 2: "partition" is no whole number'),
        ('{"topic": "a", "timestamp": true}', 'line 2: "timestamp" is no whole number'),
        (
            '{"topic": "a", "timestamp": 9223372036854775808}',
            'line 2: "timestamp" is no whole number from 0 to 9223372036854775807',
        ),
        (
            '{"topic": "a", "partition": 2147483648}',
            'line 2: "partition" is no whole number from 0 to 2147483647',
        ),
        ('{"topic": "a", "value": ' + "[" * 100_000 + "]" * 100_000 + "}", "line 2: is nested too deeply"),
        ('{"topic": "\\ud800"}', "line 2: holds half a letter"),
        ('{"topic": "a", "value": "\\ud800"}', "line 2: holds half a letter"),
        ('{"topic": "a", "headers": []}', 'line 2: "headers" is no JSON object'),
        ('{"topic": "a", "valu": 1}', "line 2: has unknown fields valu"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, reason: str) -> None:
    """By its number, with what is wrong; the blank line before it counts."""
    with pytest.raises(ValueError) as told:
        list(read_seed(["\n", line]))
    assert str(told.value).startswith(reason)


def test_records_keep_their_order_over_batches(kafka: Broker) -> None:
    """More than a batch of them, of two topics in turn, in the partitions of their keys."""
    kafka.create_topic("keyed", partitions=4)
    count = RECORDS_A_BATCH + 1
    lines = [f'{{"topic": "plain", "value": {number}, "timestamp": 5}}' for number in range(count)]
    lines += [
        '{"topic": "keyed", "key": "k", "value": "ü", "headers": {"a": null}}',
        '{"topic": "keyed", "partition": 3}',
    ]
    assert kafka.seed(lines) == count + 2
    assert [record.json() for record in kafka.records("plain")] == list(range(count))
    (place,) = kafka.produce("keyed", "x", key="k")
    first = next(record for record in kafka.records("keyed") if record.key == b"k")
    assert (first.partition, first.text, first.headers) == (place.partition, "ü", (("a", None),))
    assert any(record.partition == 3 and record.value is None for record in kafka.records("keyed"))


def test_a_file_of_windows_is_read(tmp_path: Path) -> None:
    """Line ends and the mark at its beginning; one in another encoding is said to be so."""
    written = tmp_path / "seed.jsonl"
    text = '{"topic": "a", "value": 1}\r\n\r\n{"topic": "a", "value": 2}\r\n'
    written.write_bytes(text.encode("utf-8-sig"))
    with written.open(encoding="utf-8") as lines:
        assert [(each.line, each.record.value) for each in read_seed(lines)] == [(1, b"1"), (3, b"2")]
    written.write_bytes(text.encode("utf-16"))
    with (
        written.open(encoding="utf-8") as lines,
        pytest.raises(ValueError, match="line 1 or near it: is not UTF-8"),
    ):
        list(read_seed(lines))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"topic": "a b"}', "line 2: topic a b: INVALID_TOPIC_EXCEPTION"),
        (
            '{"topic": "a", "partition": 9}',
            "records from line 2 on: produce to a-9: UNKNOWN_TOPIC_OR_PARTITION",
        ),
    ],
)
def test_a_record_that_the_broker_refuses_is_named(line: str, reason: str, kafka: Broker) -> None:
    """By its line; the code is Kafka's."""
    with pytest.raises(Refused, match=reason):
        kafka.seed(['{"topic": "a"}', line])


def test_lines_are_read_as_they_are_written(kafka: Broker) -> None:
    """A long file is never in memory: when its last line is read, all batches but the one that waits have
    been written."""
    count = 3 * RECORDS_A_BATCH + 1

    def lines() -> Iterator[str]:
        for number in range(count):
            if number == count - 1:
                assert len(kafka.records("long")) == 2 * RECORDS_A_BATCH
            yield f'{{"topic": "long", "value": {number}}}'

    assert kafka.seed(lines()) == count
