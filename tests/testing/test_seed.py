"""Records from JSON lines: what is read, what is refused, and where it ends up."""

from __future__ import annotations

import pytest

from millrace.testing import Broker
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
        ('{"topic": "a", "headers": []}', 'line 2: "headers" is no JSON object'),
        ('{"topic": "a", "valu": 1}', "line 2: has unknown fields valu"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, reason: str) -> None:
    """By its number, with what is wrong; the blank line before it counts."""
    with pytest.raises(ValueError) as told:
        read_seed(["\n", line])
    assert str(told.value).startswith(reason)


def test_records_keep_their_order_over_batches(kafka: Broker) -> None:
    """More than a batch of them, of two topics in turn, in the partitions of their keys; a mistake writes nothing."""
    kafka.create_topic("keyed", partitions=4)
    count = RECORDS_A_BATCH + 1
    lines = [f'{{"topic": "plain", "value": {number}, "timestamp": 5}}' for number in range(count)]
    lines += [
        '{"topic": "keyed", "key": "k", "value": "ü", "headers": {"a": null}}',
        '{"topic": "keyed", "partition": 3}',
    ]
    with pytest.raises(ValueError, match="line 1004"):
        kafka.seed([*lines, "{"])
    assert kafka.records("plain") == []
    assert kafka.seed(lines) == count + 2
    assert [record.json() for record in kafka.records("plain")] == list(range(count))
    (place,) = kafka.produce("keyed", "x", key="k")
    first = next(record for record in kafka.records("keyed") if record.key == b"k")
    assert (first.partition, first.text, first.headers) == (place.partition, "ü", (("a", None),))
    assert any(record.partition == 3 and record.value is None for record in kafka.records("keyed"))
