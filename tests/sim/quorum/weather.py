"""What befalls a quorum while its storm lasts: the network, disks, clocks and processes, each by name.

Each weather is a coroutine that goes on until the storm is over, and leaves nothing behind that
`Cluster.calm` does not put right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from millrace.runtime.rand import Rand
from tests.sim.quorum.clients import Burst
from tests.sim.quorum.replica import DISK_LATENCY_S, ROOMY_BYTES
from tests.sim.quorum.stored import snapshots

if TYPE_CHECKING:
    from tests.sim.quorum.cluster import Cluster
    from tests.sim.quorum.replica import Replica

JUMP_MS_MAX = 400_000
BURSTING = 150  # broker id
SLOW_S = (0.03, 0.1, 0.3)


async def _pause(rand: Rand, low_ms: int, high_ms: int) -> None:
    await asyncio.sleep((low_ms + rand.below(high_ms - low_ms)) / 1000)


def _any(cluster: Cluster, rand: Rand) -> Replica:
    """One of all; half of the time the one that leads."""
    leader = cluster.leader()
    if leader is not None and rand.below(2):
        return leader
    return cluster.replicas[1 + rand.below(len(cluster.replicas))]


async def losses(cluster: Cluster, rand: Rand) -> None:
    while cluster.is_stormy:
        cluster.post.lost_per_mille = (0, 50, 150, 400)[rand.below(4)]
        await _pause(rand, 200, 1500)


async def repeats(cluster: Cluster, rand: Rand) -> None:
    cluster.post.twice_per_mille = 200
    await _pause(rand, 5000, 9000)


async def disorder(cluster: Cluster, rand: Rand) -> None:
    while cluster.is_stormy:
        cluster.post.late_per_mille = (0, 50, 300)[rand.below(3)]
        await _pause(rand, 300, 2000)


async def slow_net(cluster: Cluster, rand: Rand) -> None:
    while cluster.is_stormy:
        cluster.post.delay_ms = ((1, 8), (10, 60), (50, 250))[rand.below(3)]
        await _pause(rand, 500, 2000)


async def one_way_cuts(cluster: Cluster, rand: Rand) -> None:
    """Between pairs, for a while each."""
    while cluster.is_stormy:
        source, target = (_any(cluster, rand).node_id for _ in range(2))
        if source != target:
            await _cut(cluster, rand, [(source, target)], 200, 3000)
        await _pause(rand, 50, 600)


async def partitions(cluster: Cluster, rand: Rand) -> None:
    """Any split of all, both ways."""
    while cluster.is_stormy:
        here = [node_id for node_id in cluster.replicas if rand.below(2)]
        there = [node_id for node_id in cluster.replicas if node_id not in here]
        pairs = [(a, b) for a in here for b in there]
        cluster.hits["whole partition"] += bool(pairs)
        await _cut(cluster, rand, pairs + [(b, a) for a, b in pairs], 300, 4000)
        await _pause(rand, 200, 1500)


async def lonely_leader(cluster: Cluster, rand: Rand) -> None:
    """The leader is cut off, in one direction or both, from all or from all but one."""
    while cluster.is_stormy:
        leader = cluster.leader()
        if leader is not None:
            own = leader.node_id
            others = [node_id for node_id in cluster.replicas if node_id != own][rand.below(2) :]
            ways = rand.below(3)
            pairs = [(own, other) for other in others] * (ways != 0)
            pairs += [(other, own) for other in others] * (ways != 1)
            await _cut(cluster, rand, pairs, 500, 5000)
        await _pause(rand, 300, 2000)


async def stragglers(cluster: Cluster, rand: Rand) -> None:
    """One hears nothing while the others go on, and has all to catch up with; half of the time on a slow
    disk."""
    while cluster.is_stormy:
        replica = cluster.replicas[1 + rand.below(len(cluster.replicas))]
        if rand.below(2):
            replica.disk.latency_s = SLOW_S[rand.below(2)]
        own = replica.node_id
        pairs = [(other, own) for other in cluster.replicas if other != own]
        await _cut(cluster, rand, pairs, 1500, 4000)
        await _pause(rand, 300, 2000)
        replica.disk.latency_s = DISK_LATENCY_S


async def _cut(
    cluster: Cluster, rand: Rand, pairs: Sequence[tuple[int, int]], low_ms: int, high_ms: int
) -> None:
    for pair in pairs:
        cluster.post.cut(*pair)
    await _pause(rand, low_ms, high_ms)
    if cluster.is_stormy:
        for pair in pairs:
            cluster.post.heal(*pair)


async def freezes(cluster: Cluster, rand: Rand) -> None:
    """A process stands still, and goes on as if nothing had been."""
    while cluster.is_stormy:
        await _pause(rand, 200, 1500)
        replica = _any(cluster, rand)
        if replica.life is not None and cluster.is_stormy:
            life = replica.life
            cluster.hits["froze a leader"] += replica is cluster.leader()
            cluster.hits["freeze"] += 1
            replica.freeze()
            await _pause(rand, 100, 4000)
            if replica.life is life:
                replica.thaw()


async def slow_disk(cluster: Cluster, rand: Rand) -> None:
    """One is slow, very slow at times; whose it is may change."""
    while cluster.is_stormy:
        replica = _any(cluster, rand)
        replica.disk.latency_s = SLOW_S[rand.below(3)]
        cluster.hits["slow disk"] += 1
        await _pause(rand, 500, 5000)
        replica.disk.latency_s = DISK_LATENCY_S


async def full_disk(cluster: Cluster, rand: Rand) -> None:
    """There is no more room than for a few writes, for a while."""
    while cluster.is_stormy:
        replica = _any(cluster, rand)
        disk = replica.disk
        disk.capacity_bytes = disk.used_bytes() + rand.below(3_000)
        cluster.has_full_disk[replica.node_id] = None
        await _pause(rand, 300, 3000)
        replica.disk.capacity_bytes = disk.capacity_bytes = ROOMY_BYTES
        await _pause(rand, 200, 1500)


async def clock_jumps(cluster: Cluster, rand: Rand) -> None:
    while cluster.is_stormy:
        replica = _any(cluster, rand)
        replica.clock.step(rand.below(2 * JUMP_MS_MAX) - JUMP_MS_MAX)
        replica.clock.drift(rand.below(400_000) - 200_000)
        cluster.hits["clock set"] += 1
        await _pause(rand, 200, 2000)


async def crashes(cluster: Cluster, rand: Rand) -> None:
    """Kills, power cuts and orderly stops, of one or of several at once."""
    while cluster.is_stormy:
        await _pause(rand, 300, 2500)
        for _ in range((1, 1, 1, 2, 3)[rand.below(5)]):
            replica = _any(cluster, rand)
            if not cluster.is_stormy or replica.life is None:
                continue
            way = rand.below(3)
            if way == 0:
                replica.kill()
            elif way == 1:
                replica.power_off()
            else:
                cluster.hits["orderly stop"] += 1
                await cluster.stop(replica)


async def blackouts(cluster: Cluster, rand: Rand) -> None:
    """The power of all goes at once."""
    while cluster.is_stormy:
        await _pause(rand, 800, 3500)
        if cluster.is_stormy:
            cluster.hits["blackout"] += 1
            for replica in cluster.replicas.values():
                replica.power_off()


async def bursts(cluster: Cluster, rand: Rand) -> None:
    """Somebody asks for many things at once."""
    client = Burst(BURSTING, *cluster.arguments())
    await client.run(lambda: not cluster.is_stormy, 150)


async def one_away(cluster: Cluster, rand: Rand) -> None:
    """A voter is down, and stays so for a while after the storm: the others are a majority."""
    await _pause(rand, 500, 4000)
    replica = cluster.replicas[1 + rand.below(cluster.plan.voters)]
    if cluster.is_stormy:
        cluster.away[replica.node_id] = None
        cluster.hits["a voter away"] += 1
        replica.power_off()


async def rotten_snapshots(cluster: Cluster, rand: Rand) -> None:
    """A node that is killed finds its newest snapshot damaged."""
    while cluster.is_stormy:
        await _pause(rand, 1500, 3000)
        replica = _any(cluster, rand)
        found = snapshots(replica.disk)
        if not found or replica.life is None or not cluster.is_stormy:
            continue
        replica.kill()
        cluster.mend(replica)  # it may have been killed before it met what is damaged
        path = found[-1][2]
        file = replica.disk.files[path]
        position = rand.below(len(file.durable))
        replica.disk.flip(path, position)
        cluster.rotten[replica.node_id] = (path, position)
        cluster.hits["snapshot damaged"] += 1


WEATHERS: dict[str, Callable[[Cluster, Rand], Awaitable[None]]] = {
    "losses": losses,
    "repeats": repeats,
    "disorder": disorder,
    "slow net": slow_net,
    "one-way cuts": one_way_cuts,
    "partitions": partitions,
    "lonely leader": lonely_leader,
    "stragglers": stragglers,
    "freezes": freezes,
    "slow disk": slow_disk,
    "full disk": full_disk,
    "clock jumps": clock_jumps,
    "crashes": crashes,
    "blackouts": blackouts,
    "bursts": bursts,
    "one away": one_away,
    "rotten snapshots": rotten_snapshots,
}
