"""The note of a start that was killed between its claim and its look at the bucket, and what becomes of it
under another kind of log."""

from __future__ import annotations

from pathlib import Path

from millrace.kraft.log.claim_basis import FILE, ClaimBasis, encode_claim_basis
from tests.live import LiveBroker


def test_a_start_with_a_log_of_objects_that_was_given_up_refuses_no_later_one(tmp_path: Path) -> None:
    """Killed with a log of objects, at work with a block log again: what that puts into the bucket is the
    node's own, and the next change of the log is like the first."""
    with LiveBroker(tmp_path, wal="64MiB"):
        (properties,) = (tmp_path / "data").rglob("meta.properties")
    note = properties.parent / FILE
    note.write_bytes(encode_claim_basis(ClaimBasis(1, 1000)))  # of the first epoch's end
    with LiveBroker(tmp_path, wal="64MiB"):
        assert not note.exists()
    with LiveBroker(tmp_path, {"s3.wal.path": f"0@file://{tmp_path}/wal-objects/?capacity=64MiB"}):
        assert not note.exists()
