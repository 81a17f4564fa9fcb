"""What a connection remembers of refused batches: the first that is missing, around the end of the sequences, and no more than so many."""

from __future__ import annotations

import pytest

from millrace.broker.sequence_gaps import GAPS_MAX, SequenceGaps
from millrace.protocol.errors import KafkaError
from tests.broker.partitions.build import batch

MAX = 2**31 - 1


def sent(sequence: int, producer_id: int = 9, epoch: int = 0) -> memoryview:
    return batch(1, producer_id=producer_id, epoch=epoch, sequence=sequence)


def is_held(gaps: SequenceGaps, records: memoryview) -> bool:
    try:
        gaps.check("t", 0, records)
    except KafkaError:
        return True
    return False


@pytest.mark.parametrize(
    ("refused", "held", "passing"),
    [
        ((5,), (6, 1000), (4, 5)),
        ((5, 6, 7), (6, 7, 8), (5,)),
        ((6, 5), (6,), (5,)),
        ((MAX,), (0, 1), (MAX - 1, MAX)),
        ((0,), (1,), (MAX, 0)),
    ],
)
def test_the_first_that_is_missing_holds_those_behind_it(
    refused: tuple[int, ...], held: tuple[int, ...], passing: tuple[int, ...]
) -> None:
    """In whichever order they were refused, and where sequences begin again at 0."""
    gaps = SequenceGaps()
    for sequence in refused:
        gaps.note("t", 0, sent(sequence))
    assert [is_held(gaps, sent(sequence)) for sequence in held] == [True] * len(held)
    assert [is_held(gaps, sent(sequence)) for sequence in passing] == [False] * len(passing)
    assert not len(gaps)
    assert [is_held(gaps, sent(sequence)) for sequence in held] == [False] * len(held)


def test_others_are_not_held() -> None:
    """Another producer, partition or topic, a new epoch (which ends it), and batches of no producer or of nothing."""
    gaps = SequenceGaps()
    gaps.note("t", 0, batch(1))
    gaps.note("t", 0, memoryview(b"short"))
    assert not len(gaps)
    gaps.note("t", 0, sent(3))
    gaps.check("t", 1, sent(4))
    gaps.check("u", 0, sent(4))
    gaps.check(b"t", 0, sent(4))
    gaps.check("t", 0, batch(1))
    gaps.check("t", 0, memoryview(b"short"))
    assert not is_held(gaps, sent(4, producer_id=8))
    assert is_held(gaps, sent(4))
    assert not is_held(gaps, sent(0, epoch=1))
    assert not len(gaps)


def test_no_more_are_kept_than_a_connection_may_cost() -> None:
    gaps = SequenceGaps()
    for producer_id in range(GAPS_MAX + 5):
        gaps.note("t", 0, sent(0, producer_id))
    assert len(gaps) == GAPS_MAX
    assert not is_held(gaps, sent(1, 4))
    assert is_held(gaps, sent(1, 5))
