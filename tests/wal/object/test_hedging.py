"""When an upload counts as late, what a duplicate may cost, and when there is none."""

from __future__ import annotations

import pytest

from millrace.wal.config import ObjectWalSettings
from millrace.wal.object.batcher import GATHER_MS, LONGEST_MS, wait_ms
from millrace.wal.object.hedging import (
    DUPLICATES_BYTES_MAX,
    EAGER_PART,
    EARLY_MS_MIN,
    GATHER_PART,
    LATE_PART,
    OUTCOMES_MAX,
    PROBE_EVERY,
    QUIET_MS,
    SAMPLES_MAX,
    SAMPLES_MIN,
    SPARING_PART,
    Hedging,
)
from millrace.wal.object.layout import HEADER_BYTES


def hedging_of(elapsed_ms: float, *, is_on: bool = True) -> Hedging:
    """One that has seen enough."""
    hedging = Hedging(is_on=is_on)
    for _ in range(SAMPLES_MIN):
        hedging.on_uploaded(elapsed_ms)
    return hedging


def test_nothing_is_late_before_uploads_were_seen() -> None:
    """Eight uploads are needed; then what counts is the median of the last sixty-four."""
    hedging = Hedging(is_on=True)
    for number in range(SAMPLES_MIN):
        assert hedging.early_ms is None
        assert hedging.gather_ms(100, 0.0) is None
        hedging.on_uploaded(200.0 if number else 10_000.0)
    assert (hedging.early_ms, hedging.late_ms) == (200 * EAGER_PART, 200 * LATE_PART)
    assert hedging.gather_ms(100, 0.0) == 200 * GATHER_PART
    for _ in range(SAMPLES_MAX):
        hedging.on_uploaded(400.0)
    assert hedging.early_ms == 400 * EAGER_PART


@pytest.mark.parametrize(
    ("elapsed_ms", "early_ms", "late_ms"), [(1.0, EARLY_MS_MIN, EARLY_MS_MIN), (1000.0, 100, 2500)]
)
def test_a_quick_store_has_its_milliseconds(elapsed_ms: float, early_ms: float, late_ms: float) -> None:
    """Nothing is late before five milliseconds."""
    hedging = hedging_of(elapsed_ms)
    assert (hedging.early_ms, hedging.late_ms) == (early_ms, late_ms)


def test_off_is_off() -> None:
    """Nothing is ever late, and batches are gathered as without."""
    hedging = hedging_of(100.0, is_on=False)
    assert (hedging.early_ms, hedging.gather_ms(1, 0.0), hedging.begin(1, 0.0)) == (None, None, False)


def test_duplicates_under_way_are_bounded_in_bytes() -> None:
    """A large object is never put twice, and small ones only as many as stay below the bound together."""
    hedging = hedging_of(100.0)
    assert not hedging.begin(DUPLICATES_BYTES_MAX + 1, 0.0)
    assert hedging.gather_ms(DUPLICATES_BYTES_MAX + 1, 0.0) is None
    part = DUPLICATES_BYTES_MAX // 4
    assert [hedging.begin(part, 0.0) for _ in range(5)] == [True] * 4 + [False]
    hedging.end(part, has_won=True)
    assert hedging.begin(part, 0.0)
    assert (hedging.begun, hedging.won, hedging.begun_bytes) == (5, 1, 5 * part)


def test_full_batches_are_put_twice() -> None:
    """Two of the default size at a time, so that a log of 100 MB/s does not wait for each slow put."""
    full_bytes = ObjectWalSettings().batch_bytes_max + HEADER_BYTES
    hedging = hedging_of(100.0)
    assert hedging.gather_ms(full_bytes, 0.0) == 100 * GATHER_PART
    assert [hedging.begin(full_bytes, 0.0) for _ in range(3)] == [True, True, False]


def test_a_store_that_refused_is_left_alone() -> None:
    """After a refusal there is no duplicate for five seconds, and batches are gathered as without."""
    hedging = hedging_of(100.0)
    hedging.on_refused(1000.0)
    for now_ms, is_well in ((1000.0, False), (1000.0 + QUIET_MS - 1, False), (1000.0 + QUIET_MS, True)):
        assert (hedging.gather_ms(1, now_ms) is not None) == is_well
        assert hedging.begin(1, now_ms) == is_well


def test_duplicates_that_never_win_are_probes() -> None:
    """When fewer than one in ten of the last sixty-four won, only one in sixteen is sent; once they win again
    all are."""
    hedging = hedging_of(100.0)
    for _ in range(OUTCOMES_MAX):
        assert hedging.begin(1, 0.0)
        hedging.end(1, has_won=False)
    assert hedging.gather_ms(1, 0.0) is None
    begun = 0
    for _ in range(10 * PROBE_EVERY):
        if hedging.begin(1, 0.0):
            begun += 1
            hedging.end(1, has_won=begun > 2)
    assert hedging.gather_ms(1, 0.0) is not None
    assert begun == 2 + 7 + (10 - 9) * PROBE_EVERY


def test_one_that_had_no_answer_says_nothing() -> None:
    """Duplicates whose upload was refused altogether are no reason to stop, nor to go on."""
    hedging = hedging_of(100.0)
    for _ in range(2 * OUTCOMES_MAX):
        assert hedging.begin(1, 0.0)
        hedging.end(1, has_won=None)
    assert (hedging.under_way_bytes, hedging.won) == (0, 0)


def test_batches_wait_as_hedging_says() -> None:
    """One step whatever is under way, no shorter than without hedging beside one upload, and not for long."""
    waits = [wait_ms(uploads, 10.0, 1, 100, 0, 60.0) for uploads in (0, 1, 5)]
    assert waits == [0.0, 50.0, 50.0]
    assert wait_ms(1, 0.0, 1, 100, 0, 5.0) == GATHER_MS
    assert wait_ms(1, 0.0, 1, 100, 0, 900.0) == LONGEST_MS


def test_sparing_is_for_what_is_late() -> None:
    """A log with a batch interval puts again what takes twice as long as usual, and gathers as its interval
    says."""
    hedging = Hedging(is_on=True, is_eager=False)
    for _ in range(SAMPLES_MIN):
        hedging.on_uploaded(60.0)
    assert (hedging.early_ms, hedging.late_ms) == (60 * SPARING_PART, 60 * LATE_PART)
    assert hedging.gather_ms(1, 0.0) is None
    assert hedging.begin(1, 0.0)
