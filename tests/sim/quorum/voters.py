"""What befalls the voters of a dynamic quorum: they are added, removed and moved by whoever leads, and disks
are lost. And what must hold of them beside all else:

    sets-apart            two sets that follow each other in a log differ by more than one voter
    two-changes-open      a leader has more than one change that is not committed
    changed-too-early     a leader changed voters before it had committed in its epoch

A disk is lost only while all are up and some set is known, which is not so where what the log began with is
damaged, and where a majority of every such set is left.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from millrace.kraft.raft.quorum import majority
from millrace.kraft.raft.roles import Leader
from millrace.kraft.raft.voters import DYNAMIC, Endpoint, Voter, VotersChange, VoterSet
from millrace.protocol.ids import uuid_bytes
from millrace.runtime.rand import Rand
from tests.sim.disk import SimDisk
from tests.sim.quorum.history import History

if TYPE_CHECKING:
    from millrace.kraft.raft.core import Raft
    from tests.sim.quorum.cluster import Cluster
    from tests.sim.quorum.replica import Replica

META = "/data/meta.properties"
VOTERS_MAX = 5
NEAR = 30  # records behind: who is added has caught up about so far


def first_voters(ids: tuple[int, ...]) -> VoterSet:
    return VoterSet(tuple(Voter(one, bytes([one]) * 16, (), (0, 1)) for one in ids), DYNAMIC)


def directory_on(disk: SimDisk) -> bytes:
    """Of the log directory there; none where it was never started."""
    file = disk.files.get(META)
    lines = bytes(file.visible).decode().splitlines() if file is not None else []
    found = [line.partition("=")[2] for line in lines if line.startswith("directory.id=")]
    return uuid_bytes(found[0]) if found else b""


def is_there(cluster: Cluster, voter: Voter) -> bool:
    """Its directory is on the disk of the machine."""
    return voter.is_at(directory_on(cluster.replicas[voter.node_id].disk))


def check_sets(history: History, replica: Replica, raft: Raft) -> None:
    sets = [known for _, known in raft.log.voters.changes]
    for before, after in pairwise(sets):
        if not after.is_next_to(before):
            history.find("sets-apart", f"{replica}: {before!r}, then {after!r}")
    role = raft.role
    if not isinstance(role, Leader):
        return
    own = [offset for offset, _ in raft.log.voters.changes if offset > role.start]
    if len([offset for offset in own if offset >= raft.high_watermark]) > 1:
        history.find("two-changes-open", f"{replica}: at {own}, committed: {raft.high_watermark}")
    if own and raft.high_watermark <= role.start:
        history.find("changed-too-early", f"{replica}: at {own}, its epoch begins at {role.start}")


async def voter_changes(cluster: Cluster, rand: Rand) -> None:
    """One after the other, as fast as the leader takes them; who has lost its disk goes first."""
    while cluster.is_stormy:
        await asyncio.sleep((50 + rand.below(900)) / 1000)
        leader = cluster.leader()
        if leader is not None and leader.life is not None and not leader.is_frozen and cluster.is_stormy:
            leader.call(change, cluster, leader, rand)


def change(cluster: Cluster, leader: Replica, rand: Rand) -> None:
    """In the life of the process."""
    node = leader.node
    if node is None or not node.driver.raft.may_change_voters:
        return
    raft = node.driver.raft
    role, known = raft.role, raft.voter_set
    assert isinstance(role, Leader)
    gone = [voter for voter in known.voters if not is_there(cluster, voter)]
    new = [
        key
        for key, progress in sorted(role.observers.items())
        if key[0] not in known.ids
        and progress.end >= raft.high_watermark - NEAR
        and directory_on(cluster.replicas[key[0]].disk) == key[1]
    ]
    draw = rand.below(10)
    if gone:
        what, after = "removed a lost voter", known.without(gone[0].node_id)
    elif new and len(known.ids) < VOTERS_MAX and draw < 6:
        node_id, directory = new[rand.below(len(new))]
        what, after = "added a voter", known.with_voter(Voter(node_id, directory, (), (0, 1)))
    elif draw == 6:
        moved = known.voters[rand.below(len(known.voters))]
        port = 1 + rand.below(1000)
        endpoints = (Endpoint("CONTROLLER", "moved", port),)
        what, after = "moved a voter", known.with_voter(replace(moved, endpoints=endpoints))
    elif len(known.ids) > 1:
        going = known.ids[rand.below(len(known.ids))]
        what = "removed the leader" if going == leader.node_id else "removed a voter"
        after = known.without(going)
    else:
        return
    if after.voters:
        cluster.hits[what] += 1
        node.driver.change_voters(VotersChange(voters=after.voters))


async def lost_disks(cluster: Cluster, rand: Rand) -> None:
    while cluster.is_stormy:
        await asyncio.sleep((500 + rand.below(2_000)) / 1000)
        node_ids = sorted(cluster.replicas)
        replica = cluster.replicas[node_ids[rand.below(len(node_ids))]]
        if cluster.is_stormy and may_lose(cluster, replica):
            cluster.hits["disk lost"] += 1
            cluster.watch.on_disk_lost(replica.node_id)
            replica.lose_disk()


def may_lose(cluster: Cluster, replica: Replica) -> bool:
    is_known = False
    for other in cluster.replicas.values():
        raft = other.raft
        if raft is None or not other.is_up:
            return False
        for known in raft.log.voters.since(raft.log.snapshot[0] if raft.log.snapshot else 0):
            left = [
                voter
                for voter in known.voters
                if voter.node_id != replica.node_id and is_there(cluster, voter)
            ]
            if known.voters and len(left) < majority(len(known.voters)):
                return False
            is_known = is_known or bool(known.voters)
    return is_known
