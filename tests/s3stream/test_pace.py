"""The pace of writes: down when the store refuses, up again, and nothing remembered for ever."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.s3stream.pace import PACE_MIN, PEAK_S, WritePace

MIB = 1 << 20
SECOND = 1_000_000


def test_refusals_lower_the_pace_and_quiet_lifts_it() -> None:
    """Half of what went through, half again each second that it goes on; a quarter more each quiet second,
    until there is no limit."""
    pace = WritePace()
    pace.on_written(100 * MIB, 0)
    assert pace.limit(0) is None
    for _ in range(100):
        pace.on_refused(SECOND // 2)
    assert pace.limit(SECOND // 2) == 50 * MIB
    pace.on_refused(2 * SECOND)
    assert pace.limit(2 * SECOND) == 25 * MIB
    assert pace.limit(4 * SECOND) == 25 * MIB
    assert pace.limit(5 * SECOND) == 125 * MIB // 4
    assert pace.limit(13 * SECOND) == int(25 * MIB * 1.25**9)
    assert pace.limit(14 * SECOND) is None
    assert pace.cuts == 2


def test_a_store_that_is_away_is_asked_slowly_and_then_at_full_speed() -> None:
    """An hour of refusals ends at the least pace, not at nothing; half a minute after the last one there is
    no limit."""
    pace = WritePace()
    for second in range(3600):
        pace.on_refused(second * SECOND)
    assert pace.limit(3600 * SECOND) == PACE_MIN
    assert pace.limit(3630 * SECOND) is None


def test_a_burst_is_forgotten() -> None:
    """The rate of one burst does not set what is allowed a minute later: the limit begins from what went
    through lately."""
    pace = WritePace()
    pace.on_written(1000 * MIB, 0)
    for second in range(1, PEAK_S + 5):
        pace.on_written(10 * MIB, second * SECOND)
    pace.on_refused((PEAK_S + 5) * SECOND)
    assert pace.limit((PEAK_S + 5) * SECOND) == 5 * MIB
    assert pace.peak((PEAK_S + 5) * SECOND) == 10 * MIB
    assert pace.peak(10 * PEAK_S * SECOND) == 0


def test_it_settles_near_what_the_store_takes() -> None:
    """A store that takes 20 MiB a second and refuses what is more: over ten minutes more than half of that
    goes through."""
    pace = WritePace()
    written = 0
    for tick in range(10 * 60 * 10):
        now_us = tick * SECOND // 10
        limit = pace.limit(now_us)
        wanted = 10 * MIB if limit is None else limit // 10
        taken = min(wanted, 2 * MIB)
        written += taken
        pace.on_written(taken, now_us)
        if wanted > taken:
            pace.on_refused(now_us)
    assert written > 0.5 * 20 * MIB * 600


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 64 * MIB), st.integers(0, 3 * SECOND)), max_size=80))
def test_the_limit_stays_in_its_bounds(plan: list[tuple[bool, int, int]]) -> None:
    """Never below the least pace, never raised by a refusal, gone when it is quiet; what it remembers is
    bounded."""
    pace, now_us = WritePace(), 0
    for is_written, size_bytes, pause_us in plan:
        now_us += pause_us
        before = pace.limit(now_us)
        if is_written:
            pace.on_written(size_bytes, now_us)
            assert pace.limit(now_us) == before
        else:
            pace.on_refused(now_us)
            after = pace.limit(now_us)
            assert after is not None
            assert after >= PACE_MIN
            assert before is None or after <= before
        assert len(pace._seconds) <= PEAK_S
    assert pace.limit(now_us + 60 * SECOND) is None
