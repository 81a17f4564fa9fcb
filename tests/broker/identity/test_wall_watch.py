"""The wall clock beside the newest known time: what is believed, by what something is judged, and what
records get."""

from __future__ import annotations

from millrace.broker.identity.wall_watch import JUMP_MAX_MS, WallWatch

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
T = 1_700_000_000_000


def test_small_steps_are_believed_and_large_ones_never_by_waiting() -> None:
    """Within the bound, again and again; beyond it not after a year; back within it, at once."""
    watch = WallWatch(T, 0)
    assert watch.look(T + JUMP_MAX_MS, 0) == 0
    assert watch.look(T + 2 * JUMP_MAX_MS, 0) == 0
    known = T + 2 * JUMP_MAX_MS
    for waited in (0, DAY_MS, 365 * DAY_MS):
        assert watch.look(known + waited + JUMP_MAX_MS + 1, waited) == JUMP_MAX_MS + 1
        assert watch.judged_ms(known + waited + 8 * DAY_MS, waited) == known + waited
    assert watch.look(known + 366 * DAY_MS, 366 * DAY_MS) == 0


def test_at_a_start_a_time_off_is_believed_up_to_the_slack_and_once() -> None:
    """Also when the clock is behind at first, and is set right while the process runs."""
    watch = WallWatch(T, 0, DAY_MS)
    assert watch.look(T + DAY_MS + 1, 0) == DAY_MS + 1
    assert watch.look(0, 0) == 0
    assert watch.judged_ms(0, 0) == 0
    assert watch.look(T + DAY_MS + 5000, 5000) == 0
    assert watch.look(T + 2 * DAY_MS, 5000) > 0


def test_nothing_known_believes_the_first_look() -> None:
    """A first start has nothing to lose; from then on it is as any other."""
    watch = WallWatch(None, 0, DAY_MS)
    assert watch.judged_ms(T, 7) == T
    assert watch.look(T + 2 * HOUR_MS, 7) == 2 * HOUR_MS


def test_a_store_that_agrees_confirms_whatever_was_known() -> None:
    """A node that was off for eight days; and one whose clock had been ahead before."""
    for known in (T - 8 * DAY_MS, T + 8 * DAY_MS, None):
        watch = WallWatch(known, 0, DAY_MS)
        watch.on_store_date(T - 5000, T, 0)
        assert watch.judged_ms(T, 0) == T
        assert watch.stamped_ms(T, 0) == T
        assert watch.look(T + HOUR_MS + 1, 0) == HOUR_MS + 1


def test_a_store_that_disagrees_raises_what_is_known_and_never_lowers_it() -> None:
    """Alone it may be the one that is behind; the slack of a start is no longer needed."""
    watch = WallWatch(T - 3 * DAY_MS, 0, DAY_MS)
    watch.on_store_date(T, T + 8 * DAY_MS, 0)
    assert watch.judged_ms(T + 8 * DAY_MS, 0) == T
    watch.on_store_date(T - 365 * DAY_MS, T + 8 * DAY_MS, 0)
    assert watch.judged_ms(T + 8 * DAY_MS + 1, 1) == T + 1
    assert watch.look(T + 2 * HOUR_MS, 0) == 2 * HOUR_MS


def test_an_operators_word_sets_what_is_known() -> None:
    """Later or earlier, against a store that says something else; and once: the next jump is doubted
    again."""
    for known in (T - 8 * DAY_MS, T + 8 * DAY_MS):
        watch = WallWatch(known, 0)
        watch.on_store_date(T - 365 * DAY_MS, T, 0)
        watch.confirm(T, 0)
        watch.on_store_date(T - 365 * DAY_MS, T, 0)
        assert watch.judged_ms(T, 0) == T
        assert watch.stamped_ms(T, 0) == T
        assert watch.look(T + 2 * HOUR_MS, 0) == 2 * HOUR_MS


def test_what_is_written_while_the_clock_is_behind_gets_the_known_time() -> None:
    """So that it is not found old once the clock is right. Small steps back, and a clock ahead, are left
    alone."""
    watch = WallWatch(T, 0)
    assert watch.stamped_ms(0, 500) == T + 500
    assert watch.stamped_ms(T - HOUR_MS, 0) == T - HOUR_MS
    assert watch.stamped_ms(T - HOUR_MS - 1, 0) == T
    assert watch.stamped_ms(T + 8 * DAY_MS, 0) == T + 8 * DAY_MS
    assert watch.judged_ms(0, 500) == 0
