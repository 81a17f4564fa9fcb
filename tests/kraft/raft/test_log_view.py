"""The log as raft sees it: which places it can tell about."""

from __future__ import annotations

from millrace.kraft.raft.log_view import LogView


def test_a_log_that_ends_where_its_snapshot_does_is_not_an_older_one() -> None:
    """A start reads no epochs below the newest snapshot: what a WAL was told there is not held against the
    log. Above it is."""
    log = LogView(182, 221, 221, [])
    log.snapshot = 221, 5
    assert log.history.has(221, 5)
    assert log.history.has(200, 4)
    assert not log.history.has(222, 5)
    log.epochs, log.end = [(6, 221)], 230
    assert log.history.has(221, 5)
    assert log.history.has(230, 6)
    assert not log.history.has(230, 5)
