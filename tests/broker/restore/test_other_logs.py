"""What a restore says of the logs of other brokers: which of them somebody has to recover."""

from __future__ import annotations

import pytest

from millrace.broker.restore.other_logs import SeenLog, log_text
from millrace.kraft.tables.wals import NodeWal, WalState
from tests.kraft.tables.test_owed_ranges import moved_twice


@pytest.mark.parametrize(
    ("node_id", "reason", "said"),
    [
        (1, "", "no stream is open in it, and it owes some of 1 streams that others went on with; it is "
         "there, and is recovered by node 1, or by another that reaches it"),
        (1, "away", "where it is lost: millrace cluster give-up 1 --accept-loss"),
        (3, "", "1 streams are open in it; it is there, and is recovered by node 3, or by another that "
         "reaches it"),
        (3, "away", "where it is lost: millrace cluster give-up 3 --accept-loss"),
        (4, "", "no stream is open in it; it is there"),
        (4, "away", "no stream is open in it; what it took of streams that it opened after the bucket's "
         "newest metadata is not known; it is not seen from here (away)"),
    ],
)  # fmt: skip
def test_a_log_that_owes_is_one_to_be_recovered(node_id: int, reason: str, said: str) -> None:
    """As one in which streams are open."""
    wal = NodeWal(node_id, b"w" * 16, "block", "file:///w", 1, bytes(16), 0, WalState.RECOVERING)
    text = log_text(moved_twice().image, wal, SeenLog(reason))
    assert text.startswith(f"node {node_id}: the block log {wal.wal_id.hex()} at file:///w: ")
    assert text.endswith(said), text
