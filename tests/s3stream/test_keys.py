"""Keys of objects: shape, spread, and that they can be read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.keys import object_key, objects_prefix, parse_object_key

CLUSTER = "a1b2-c3"


@pytest.mark.parametrize(
    ("object_id", "key"),
    [
        (0, "a1b2-c3/objects/00000000/0"),
        (1, "a1b2-c3/objects/10000000/1"),
        (0x123ABC, "a1b2-c3/objects/cba32100/1194684"),
        (2**32 - 1, "a1b2-c3/objects/ffffffff/4294967295"),
        (2**32 + 1, "a1b2-c3/objects/10000000/4294967297"),
    ],
)
def test_a_key_has_the_cluster_first_then_the_spread(object_id: int, key: str) -> None:
    """These keys are in buckets: they never change."""
    assert object_key(CLUSTER, ObjectId(object_id)) == key


def test_consecutive_ids_differ_in_the_first_character() -> None:
    """Sixteen ids in a row fall under sixteen prefixes."""
    first = len(objects_prefix(CLUSTER))
    assert len({object_key(CLUSTER, ObjectId(number))[first] for number in range(1000, 1016)}) == 16


@given(st.integers(0, 2**63 - 1))
def test_a_key_is_read_back(object_id: int) -> None:
    """The id comes out of its key, for this cluster alone."""
    key = object_key(CLUSTER, ObjectId(object_id))
    assert key.startswith(objects_prefix(CLUSTER))
    assert parse_object_key(CLUSTER, key) == object_id
    assert parse_object_key("a1b2", key) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a1b2-c3/objects/10000000/",
        "a1b2-c3/objects/10000000/x",
        "a1b2-c3/objects/10000000/2",
        "a1b2-c3/objects/10000000/01",
        "a1b2-c3/objects/10000000/-1",
        "a1b2-c3/objects/10000000/\u0661",
        "a1b2-c3/objects/1000000/1",
        "a1b2-c3/wal/10000000/1",
        "x/a1b2-c3/objects/10000000/1",
    ],
)
def test_what_is_no_key_of_ours_is_none(key: str) -> None:
    """Strays in a bucket are told from objects by their exact shape."""
    assert parse_object_key(CLUSTER, key) is None
