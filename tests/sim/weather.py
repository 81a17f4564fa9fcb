"""What the edges do to a run besides its strikes: a store that fails now and then or is away, a disk or a bucket that fills up, for a while.

    calm          nothing
    rough store   every fault of the object store, a few in a hundred requests, slow answers
    store away    no request is answered for two seconds
    full bucket   puts are refused for lack of room for two seconds
    full disk     the machine's disk takes a few hundred bytes more, then nothing, for two seconds; a start meanwhile may fail

Bad weather begins at a time drawn from the run's seed and ends before the quiet: then progress is demanded.
"""

from __future__ import annotations

import asyncio

from tests.sim.node import QUIET, SimNode
from tests.sim.objectstore import StoreFaults
from tests.sim.world import World

WEATHERS = ("calm", "rough store", "store away", "full bucket", "full disk")
ROUGH = StoreFaults(
    refused=80,
    throttled=60,
    lost_request=60,
    lost_answer=80,
    late=80,
    latency_ms=(1, 150),
    timeout_ms=400,
    late_ms=(0, 3_000),
)
LASTS_S = 2.0


async def blow(weather: str, world: World, node: SimNode) -> None:
    """Returns when it is over."""
    rand = world.rand.split("weather")
    await asyncio.sleep((50 + rand.below(500)) / 1000)
    world.hits[f"weather: {weather}"] += 1
    if weather == "rough store":
        node.set_store_faults(ROUGH)
        await asyncio.sleep(LASTS_S)
        node.set_store_faults(QUIET)
    elif weather == "store away":
        world.bucket.is_away = True
        await asyncio.sleep(LASTS_S)
        world.bucket.is_away = False
    elif weather == "full bucket":
        world.bucket.capacity_bytes = world.bucket.used_bytes() + rand.below(8_000)
        await asyncio.sleep(LASTS_S)
        world.bucket.capacity_bytes = None
    elif weather == "full disk":
        room_bytes = node.disk.capacity_bytes
        node.disk.capacity_bytes = node.disk.used_bytes() + rand.below(600)
        await asyncio.sleep(LASTS_S)
        node.disk.capacity_bytes = room_bytes
