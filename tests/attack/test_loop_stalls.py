"""Requests that ask for thousands of things at once: how long each holds the broker's loop, and with it
everybody else.

What counts is the longest callback's CPU time in the loop's own thread: a busy neighbour on the machine does
not. The short form names fewer things, and has a bound that each of these requests was far above when it was
done in one piece.
"""

from __future__ import annotations

from pathlib import Path

from tests.attack import IS_FULL
from tests.bench.stalls import ProbedBroker, measure

COUNT = 10_000 if IS_FULL else 1_500
OPENED = 2_000 if IS_FULL else 50
OFFSETS = 100_000 if IS_FULL else 6_000
BOUND_MS = 25.0  # a collection of garbage may fall into any callback


def test_no_request_holds_the_loop(tmp_path: Path) -> None:
    """Topics, partitions, configurations, offsets and groups by the thousands are made, described and
    deleted, beside a producer and a reader."""
    with ProbedBroker(tmp_path, is_warm=True) as broker:
        found = measure(broker, COUNT, OPENED, OFFSETS, settle_s=0.5 if IS_FULL else 0.1)
    print(
        "\n".join(f"{row.what}: {row.figure}; producer and reader waited {row.beside}" for row, _, _ in found)
    )
    above = [(row.what, places) for row, longest_ms, places in found if longest_ms > BOUND_MS]
    assert not above, "\n".join(f"{what}\n{places}" for what, places in above)
