"""Which partition a group belongs to, as Java computes it."""

from __future__ import annotations

import pytest

from millrace.broker.coordinators.runtime.partitioning import java_hash, partition_for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(1 << 31)),
        ("console-consumer-12345", 158455506),
        ("группа", 1749938458),
        ("😀", 1772899),
    ],
)
def test_java_hash(text: str, expected: int) -> None:
    """String.hashCode of texts, computed by a JVM (and by hand for the short ones)."""
    assert java_hash(text) == expected


def test_the_hash_without_an_absolute_value_is_zero() -> None:
    """Kafka's abs maps the least int to 0, others to their absolute value."""
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("hello", 50) == 99162322 % 50
    assert partition_for("console-consumer-12345", 50) == 158455506 % 50
