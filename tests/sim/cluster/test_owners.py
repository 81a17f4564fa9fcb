"""What is found of a stream's owners, record by record."""

from __future__ import annotations

import pytest

from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.tables.streams import CLOSED, OPEN
from millrace.protocol.stream_records import StreamRecord
from tests.sim.bugs import in_place
from tests.sim.cluster.owners import watched
from tests.sim.history import History


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([(1, 0, OPEN), (1, 0, CLOSED), (2, 1, OPEN)], []),
        ([(1, 0, OPEN), (1, 1, OPEN)], []),  # its own, after a start
        ([(1, 0, OPEN), (2, 1, CLOSED)], []),  # by who recovered its log
        ([(1, 0, OPEN), (2, 1, OPEN)], ["stream 7 is open at node 1, and node 2 opens it"]),
        (
            [(1, 3, OPEN), (1, 3, CLOSED), (2, 3, OPEN)],
            ["stream 7: epoch 3 of node 2 is no later than node 1's"],
        ),
    ],
)
def test_one_owner_at_a_time(steps: list[tuple[int, int, int]], found: list[str]) -> None:
    """All records of one commit."""
    history = History()
    with in_place(watched(history)):
        delta = MetadataDelta(EMPTY_IMAGE)
        for node_id, epoch, state in steps:
            delta.apply(StreamRecord(7, bytes(16), 0, 0, epoch, node_id, state, 0, 0))
    assert history.findings == [f"stream-taken: {line}" for line in found]
