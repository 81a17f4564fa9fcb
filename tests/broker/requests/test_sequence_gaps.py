"""What a connection remembers of refused batches: the first that is missing, around the end of the sequences,
and no more than so many."""

from __future__ import annotations

import pytest

from millrace.broker.partitions.producers import Producers, WrittenBatch
from millrace.broker.requests.sequence_gaps import GAP_MS, GAPS_MAX, TOPIC_MAX, SequenceGaps
from millrace.protocol.errors import KafkaError
from tests.broker.partitions.build import batch

MAX = 2**31 - 1
NOW = 1_000


def sent(sequence: int, producer_id: int = 9, epoch: int = 0) -> memoryview:
    return batch(1, producer_id=producer_id, epoch=epoch, sequence=sequence)


def is_held(
    gaps: SequenceGaps,
    records: memoryview,
    topic: str | bytes = "t",
    index: int = 0,
    known: int = -1,
    now: int = NOW,
) -> bool:
    """`known`: a producer that the partition knows."""
    producers = Producers()
    if known >= 0:
        producers.written(known, 0, WrittenBatch(0, 0, 0, 0, 0), 0)
    try:
        gaps.check(topic, index, records, producers, now)
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
        gaps.note("t", 0, sent(sequence), NOW)
    assert [is_held(gaps, sent(sequence)) for sequence in held] == [True] * len(held)
    assert [is_held(gaps, sent(sequence)) for sequence in passing] == [False] * len(passing)
    assert not len(gaps)
    assert [is_held(gaps, sent(sequence)) for sequence in held] == [False] * len(held)


def test_others_are_not_held() -> None:
    """Another producer, partition or topic, a new epoch (which ends it), and batches of no producer or of
    nothing."""
    gaps = SequenceGaps()
    gaps.note("t", 0, batch(1), NOW)
    gaps.note("t", 0, memoryview(b"short"), NOW)
    assert not len(gaps)
    gaps.note("t", 0, sent(3), NOW)
    assert not is_held(gaps, sent(4), index=1)
    assert not is_held(gaps, sent(4), topic="u")
    assert not is_held(gaps, sent(4), topic=b"t")
    assert not is_held(gaps, batch(1))
    assert not is_held(gaps, memoryview(b"short"))
    assert not is_held(gaps, sent(4, producer_id=8))
    assert is_held(gaps, sent(4))
    assert not is_held(gaps, sent(0, epoch=1))
    assert not len(gaps)


def test_no_more_are_kept_than_a_connection_may_cost() -> None:
    """Those are forgotten that were refused longest ago. What may be behind one of them is held as long as it
    would be, but for what begins, what the partition knows, and what is no producer's."""
    gaps = SequenceGaps()
    for producer_id in range(GAPS_MAX):
        gaps.note("t", 0, sent(0, producer_id), NOW)
    gaps.note("t", 0, sent(0, 0), NOW)
    assert not is_held(gaps, sent(1, GAPS_MAX))
    for producer_id in range(GAPS_MAX, GAPS_MAX + 5):
        gaps.note("t", 0, sent(0, producer_id), NOW)
    assert len(gaps) == GAPS_MAX
    assert is_held(gaps, sent(1, 0))
    assert len(gaps) == GAPS_MAX
    forgotten = 5
    assert is_held(gaps, sent(1, forgotten))
    assert is_held(gaps, sent(1, forgotten), now=NOW + GAP_MS - 1)
    assert not is_held(gaps, sent(0, forgotten))
    assert not is_held(gaps, sent(1, forgotten), known=forgotten)
    assert not is_held(gaps, batch(1))
    for producer_id in range(GAPS_MAX + 5):
        assert not is_held(gaps, sent(0, producer_id))
    assert not len(gaps)
    assert gaps
    assert is_held(gaps, sent(1, forgotten))
    assert not is_held(gaps, sent(1, forgotten), now=NOW + GAP_MS)
    assert not gaps


def test_a_partition_that_knows_the_producer_judges_by_itself() -> None:
    """It wrote on by another way: the sequence that was refused here is in the log, and what comes now is not
    held, nor anything after it."""
    gaps = SequenceGaps()
    gaps.note("t", 0, sent(5), NOW)
    assert is_held(gaps, sent(10), known=8)
    assert not is_held(gaps, sent(10), known=9)
    assert not is_held(gaps, sent(11))


def test_what_was_on_its_way_arrives_soon() -> None:
    """Each refusal is a reason to wait anew; then what is missing may have been given up or written
    elsewhere, and forgotten there."""
    gaps = SequenceGaps()
    gaps.note("t", 0, sent(5), NOW)
    assert is_held(gaps, sent(6), now=NOW + GAP_MS - 1)
    gaps.note("t", 0, sent(5), NOW + GAP_MS - 1)
    assert is_held(gaps, sent(6), now=NOW + GAP_MS)
    assert not is_held(gaps, sent(6), now=NOW + 2 * GAP_MS)
    assert not len(gaps)


def test_names_that_no_topic_has_are_not_kept() -> None:
    gaps = SequenceGaps()
    gaps.note("t" * (TOPIC_MAX + 1), 0, sent(0), NOW)
    assert not len(gaps)
    gaps.note("t" * TOPIC_MAX, 0, sent(0), NOW)
    assert len(gaps) == 1
