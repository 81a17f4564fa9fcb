"""How many writes are under way, on devices that carry more with more of them and on those that do not; and
the limit on operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from millrace.runtime.rand import Rand
from millrace.wal.block.pace import IO_BYTES, Depth, IopsLimit
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop, run_simulation
from tests.wal.build import payload, start_wal

BLOCK = 64 << 10


def climb(rate_of: Callable[[int], float], most: int, writes: int, at_first: int = 2) -> list[int]:
    """The depths that were had, on a device that carries `rate_of(depth)` writes a second."""
    depth = Depth(most, at_first)
    now_s, depths = 0.0, []
    for _ in range(writes):
        now_s += 1 / rate_of(depth.value)
        depth.on_written(1, BLOCK, depth.value, now_s)
        depths.append(depth.value)
    return depths


def share(depths: list[int], *wanted: int) -> float:
    last = depths[len(depths) // 2 :]
    return sum(depth in wanted for depth in last) / len(last)


@pytest.mark.parametrize(
    ("rate_of", "most", "wanted"),
    [
        (lambda depth: 1000.0, 8, (1,)),  # one at a time
        (lambda depth: 1000.0 * min(depth, 3), 8, (3,)),  # three at once, not a fourth
        (lambda depth: 1000.0 * depth, 8, (8,)),  # as many as there are
        (lambda depth: 1000.0 * depth, 1, (1,)),  # there is nothing to choose
        (lambda depth: 1000.0 / depth, 8, (1,)),  # more are worse
    ],
    ids=["serial", "three", "parallel", "single", "worse"],
)
def test_depth_is_what_the_device_makes_use_of(
    rate_of: Callable[[int], float], most: int, wanted: tuple[int, ...]
) -> None:
    """In nine tenths of a busy log's writes the depth is the least that carries the most; the rest are
    tries."""
    assert share(climb(rate_of, most, 60_000), *wanted) > 0.9


def test_noise_does_not_make_it_wander() -> None:
    """Rates that differ by a tenth from stretch to stretch leave the depth near the knee."""
    rand = Rand(b"noise")
    rate_of = lambda depth: 1000.0 * min(depth, 4) * (0.95 + rand.below(100) / 1000)  # noqa: E731
    assert share(climb(rate_of, 8, 60_000), 3, 4, 5) > 0.9


def test_a_log_that_is_not_busy_tells_nothing() -> None:
    """While fewer writes are under way than may be, nothing is tried."""
    depth = Depth(8, 2)
    for number in range(10_000):
        depth.on_written(1, BLOCK, 1, number / 100)
    assert depth.value == 2


def test_a_limit_spreads_operations() -> None:
    """A hundred a second: a short burst at once, then one each ten milliseconds; large writes count as
    several; 0 is no limit."""
    limit = IopsLimit(100, 0.0)
    now_s, begun = 0.0, []
    while len(begun) < 300:
        wait_s = limit.wait_s(now_s)
        if wait_s:
            now_s += wait_s
            continue
        limit.spend(4096)
        begun.append(now_s)
    assert begun[9] == 0.0
    assert begun[-1] == pytest.approx(2.9, abs=0.03)
    limit.spend(4 * IO_BYTES + 1)
    assert limit.wait_s(now_s) == pytest.approx(0.05, abs=0.011)
    assert IopsLimit(0, 0.0).wait_s(5.0) == 0.0


def test_a_log_keeps_to_its_limit() -> None:
    """With 50 operations a second a hundred appends, one after each other's confirmation or all at once, make
    no more writes than that; all at once they share few writes and nobody waits for long."""

    async def write(together: bool) -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        disk = SimDisk(Rand(b"limit"), hops=0)
        wal, _, journal = await start_wal(disk, iops=50, capacity_bytes=1 << 20)
        before, began_s = disk.write_count, loop.time()
        for number in range(100):
            record = wal.append(payload(number, 300))
            if not together:
                await journal.reach(record.end)
        await journal.reach(record.end)
        await wal.close()
        return loop.time() - began_s, disk.write_count - before

    async def run(loop: SimLoop) -> None:
        seconds, writes = await write(together=False)
        assert writes >= 100
        assert seconds >= (100 - 5 - 1) / 50
        seconds, writes = await write(together=True)
        assert writes < 15
        assert seconds < 0.5

    run_simulation(run)
