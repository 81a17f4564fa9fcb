"""What may be made durable by one sync, before it is written."""

from __future__ import annotations

import pytest

from millrace.kraft.driver import groups
from millrace.kraft.image.records import Proposal
from millrace.kraft.log.log_store import SYNCED_TOGETHER_BYTES_MAX
from millrace.kraft.raft.log_view import Entry
from millrace.kraft.raft.ready import LeaderChange

MANY = 8 * SYNCED_TOGETHER_BYTES_MAX
HALF = SYNCED_TOGETHER_BYTES_MAX // 2


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([10, 10, 10], [3]),
        ([HALF, HALF, 1], [2, 1]),
        ([HALF + 1, HALF, HALF], [1, 2]),
        ([MANY, 1, 1], [1, 2]),
        ([1, MANY, 1], [1, 1, 1]),
    ],
)
def test_a_leaders_batches_share_a_sync_within_a_bound(sizes: list[int], expected: list[int]) -> None:
    """A start takes no more than that for what a power cut left (log_store.py). One batch may be larger."""
    entries = [Entry(number, 1, 1, bytes(size)) for number, size in enumerate(sizes)]
    found = groups(entries, MANY)
    assert [len(group) for group in found] == expected
    assert [entry for group in found for entry in group] == entries


def test_proposals_share_a_batch_within_an_epoch() -> None:
    """Which is torn as one. A record of this node's own stands alone."""
    proposals = [Entry(number, 1, 1 + number // 4, Proposal([bytes(HALF)], 0)) for number in range(6)]
    own = Entry(6, 1, 2, LeaderChange(1, (1,), (1,)), is_control=True)
    assert [len(group) for group in groups([*proposals, own], MANY)] == [4, 2, 1]
