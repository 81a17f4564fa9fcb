"""What a broker says of a quorum that does not answer it."""

from __future__ import annotations

from millrace.broker.quorum.follower import why_silent


def test_a_leader_that_decides_nothing_is_not_told_as_none() -> None:
    assert why_silent(-1) == "no controller says that it leads"
    assert why_silent(2).startswith("controller 2 leads, and decides nothing")
