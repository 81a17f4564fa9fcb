"""The judges of a soak, and the soak in short."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.bench import soak
from tests.bench.flat import Bounds, judge, slope
from tests.bench.report import exit_code, table
from tests.bench.soak_story import EMPTY_LOOKS_MAX, Look, Story, bounds_of, rows
from tests.live import LiveBroker

MIB = 1 << 20
WARM_S, MEASURED_S = 200, 400


def samples(shape: str, leak_mib_a_minute: float) -> list[tuple[float, int]]:
    """Ten minutes' but the warm-up, four samples a second, around 200 MiB."""
    found = []
    for number in range(4 * MEASURED_S):
        time_s = number / 4
        extra = {
            "still": 0.0,
            "saw": time_s % 7 * 4,
            "steps": 20.0 * (number // 37 % 2),
            "one step": 20.0 * (number > 400),
            "one spike": 100.0 if 600 < number < 900 else 0.0,
            "fills up": 60 * (1 - math.exp(-time_s / 200)),
            "climbs": 20.0 * (number // 400),
        }[shape]
        found.append((time_s, int((200 + extra + leak_mib_a_minute * time_s / 60) * MIB)))
    return found


def is_flat(shape: str, leak_mib_a_minute: float) -> bool:
    return judge(samples(shape, leak_mib_a_minute), bounds_of(WARM_S, MEASURED_S)).is_flat


@pytest.mark.parametrize("shape", ["still", "saw", "steps", "one step", "one spike"])
def test_a_leak_is_told_from_noise(shape: str) -> None:
    """A saw, steps and a spike are flat, also one that rises by a third of a MiB a minute; under each of them
    a leak of 1 MiB a minute is seen in ten minutes."""
    assert is_flat(shape, 0)
    assert is_flat(shape, 1 / 3)
    assert not is_flat(shape, 1)
    assert not is_flat(shape, 4)


@pytest.mark.parametrize("shape", ["fills up", "climbs"])
def test_growth_that_is_no_line_is_growth(shape: str) -> None:
    """A cache that still fills, and a leak that shows in steps of 20 MiB, one in 100 seconds."""
    assert not is_flat(shape, 0)


def test_what_is_allowed_grows_with_the_time() -> None:
    """More slowly than a leak of 1 MiB a minute from ten minutes on, and of 1 MiB a second in a short
    soak."""
    assert bounds_of(4, 8).steady_bytes < 8 * MIB / 2
    for seconds in (600, 1200, 36_000):
        assert bounds_of(seconds / 3, seconds * 2 / 3).steady_bytes < 0.6 * seconds * 2 / 3 / 60 * MIB


def test_memory_over_the_bound_is_not_flat() -> None:
    """The highest sample counts, however short it was."""
    found = judge(samples("one spike", 0), Bounds(299 * MIB, 24 * MIB, MIB))
    assert not found.is_flat
    assert abs(found.grown_bytes) < MIB


def test_the_line_is_the_slope_of_a_line() -> None:
    """Of samples on a straight line, thinned out or not, the slope is theirs."""
    for count in (12, 500, 3000):
        assert slope([(number * 0.5, number * 50) for number in range(count)]) == 100


def story() -> Story:
    """Of ten minutes in which all was well."""
    done = {"large": 600, "small": 3000, "fetch": 600, "topics": 2, "group": 3000}
    return Story(
        records_a_request=64,
        seconds=600,
        warm_s=WARM_S,
        memory=[(WARM_S + time_s, size) for time_s, size in samples("still", 0)],
        disk_bytes=[512 * MIB],
        looks=[Look(2.0, dict(done), 64) for _ in range(300)],
        bytes_in=24 << 30,
        latencies_s=[0.005] * 600,
        rejoins=140,
    )


def missed(story: Story) -> list[str]:
    return [row.what.strip() for row in rows(story, 10e6) if row.is_met is False]


def test_a_soak_in_which_all_was_well_misses_nothing() -> None:
    assert missed(story()) == []
    assert exit_code(rows(story(), 10e6)) == 0


@pytest.mark.parametrize("part", EMPTY_LOOKS_MAX)
def test_a_part_that_stands_still_is_missed(part: str) -> None:
    """From the first second on, in the middle, or at the end, one look longer than it may."""
    most = EMPTY_LOOKS_MAX[part]
    for begin, end in ((0, 300), (1, 300), (100, 100 + most + 1), (299 - most, 300)):
        told = story()
        for look in told.looks[begin:end]:
            look.done[part] = 0
        assert f"looks without {part}" in missed(told), (begin, end)
    told = story()
    for look in told.looks[100 : 100 + most]:
        look.done[part] = 0
    assert missed(told) == []


def test_slow_late_and_lonely_are_missed() -> None:
    """A rate below the least, readers seconds behind or not done at the end, and a member that did not come
    back."""
    told = story()
    told.bytes_in, told.left_behind, told.rejoins = 5_000_000_000, 1, 29
    told.looks = [Look(look.seconds, look.done, 64 * 601) for look in told.looks]
    assert missed(told) == ["a second", "tail readers behind", "at the end", "a member came back and read"]
    assert rows(told)[2].is_met is None


async def short(broker: LiveBroker) -> Story:
    return await soak.run(broker, 12)


def test_memory_is_flat_under_everything_at_once(tmp_path: Path) -> None:
    """A short soak: every part of the load gets on, and memory stays below the bound and does not grow."""
    import uvloop

    with LiveBroker(tmp_path, soak.SETTINGS, wal="256MiB") as broker:
        story = uvloop.run(short(broker))
        assert broker.stop() == 0
    found = rows(story)
    assert exit_code(found) == 0, table(found)
