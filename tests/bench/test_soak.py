"""The judge of flat memory, and the soak in short."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.bench import soak
from tests.bench.flat import judge, slope
from tests.live import LiveBroker

MIB = 1 << 20


def samples(shape: str) -> list[tuple[float, int]]:
    """Ten minutes, four samples a second, around 200 MiB."""
    found = []
    for number in range(2400):
        time_s = number / 4
        extra = {
            "still": 0.0,
            "saw": time_s % 7 * 4,
            "steps": 20.0 * (number // 37 % 2),
            "one spike": 100.0 if 1000 < number < 1500 else 0.0,
            "leak": time_s / 15,
            "leaking saw": time_s / 15 + time_s % 7 * 4,
            "fills up": 60 * (1 - math.exp(-time_s / 200)),
        }[shape]
        found.append((time_s, int((200 + extra) * MIB)))
    return found


@pytest.mark.parametrize(
    ("shape", "is_flat"),
    [
        ("still", True),
        ("saw", True),
        ("steps", True),
        ("one spike", True),
        ("leak", False),
        ("leaking saw", False),
        ("fills up", False),
    ],
)
def test_growth_is_told_from_noise(shape: str, is_flat: bool) -> None:
    """A saw, steps and a spike are flat; a leak of 4 MiB a minute is not, alone or under a saw, nor a cache that still fills."""
    found = judge(samples(shape), 400 * MIB, 24 * MIB)
    assert found.is_flat is is_flat, found


def test_memory_over_the_bound_is_not_flat() -> None:
    """The highest sample counts, however short it was."""
    found = judge(samples("one spike"), 299 * MIB, 24 * MIB)
    assert not found.is_flat
    assert abs(found.grown_bytes) < MIB


def test_the_line_is_the_slope_of_a_line() -> None:
    """Of samples on a straight line, thinned out or not, the slope is theirs."""
    for count in (12, 500, 3000):
        assert slope([(number * 0.5, number * 50) for number in range(count)]) == 100


async def short(broker: LiveBroker) -> soak.Story:
    return await soak.run(broker, 12)


def test_memory_is_flat_under_everything_at_once(tmp_path: Path) -> None:
    """A short soak: every part of the load does something, and memory stays below the bound and does not grow."""
    import uvloop

    with LiveBroker(tmp_path, soak.SETTINGS, wal="256MiB") as broker:
        story = uvloop.run(short(broker))
        assert broker.stop() == 0
    assert story.stood_still() == []
    assert story.verdict().is_flat, soak.table(soak.rows(story))
