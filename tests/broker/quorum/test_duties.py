"""Duties of the controller that leads: begun with its leadership, ended with it, done by one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from millrace.broker.config import load
from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.claim_format import (
    NOBODY,
    ClaimKind,
    OwnerClaim,
    claim_key,
    decode_claim,
    encode_claim,
    series_prefix,
)
from millrace.broker.identity.claims import read_newest_claim
from millrace.broker.identity.known_time import KnownTime
from millrace.broker.meters.node import StoreCounts
from millrace.broker.quorum.duties import LeaderDuties
from millrace.broker.settings.source import Given
from millrace.broker.stores import NodeStores, stack_stores
from millrace.kraft.bucket.reader import survey
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.protocol.ids import uuid_text
from millrace.runtime.bundle import Runtime
from millrace.runtime.disk import Buffer
from millrace.runtime.metrics import Registry
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.config import TrafficSettings
from tests.kraft.build import HandClock
from tests.kraft.peers.members import CLUSTER, Member, Members, name
from tests.sim.loop import SimLoop, run_simulation

SETTINGS = {
    "process.roles": "controller",
    "node.id": "1",
    "cluster.id": CLUSTER,
    "controller.quorum.voters": "1@a:1,2@b:1,3@c:1",
    "s3.data.buckets": "0@mem://lake",
    "controller.quorum.fetch.timeout.ms": "400",
    "controller.quorum.election.timeout.ms": "200",
    "s3.metadata.upload.interval.ms": "100",
}


class Cluster:
    """Three controllers over one bucket, with their duties."""

    def __init__(self, loop: SimLoop) -> None:
        self.members = Members(loop)
        self.bucket = MemoryObjectStore(HandClock())
        self.failures: dict[int, list[BaseException]] = {}
        self.duties: dict[int, LeaderDuties] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def start(self) -> None:
        await self.members.start()
        for member in self.members.all.values():
            await self.begin(member)

    async def begin(self, member: Member) -> None:
        given = {key: Given(text, "override", "--override") for key, text in SETTINGS.items()}
        settings = load(given, data_dir="/data", machine_bytes=1 << 30).settings
        clock, rand = HandClock(), Rand(b"duties %d" % member.node_id)
        known = KnownTime(clock, member.disk, "/data", 1 << 40, lambda: None)
        await known.settle(0)
        self.failures[member.node_id] = failures = []
        host = self.members.net.host(name(member.node_id))
        runtime = Runtime(clock, rand, member.disk, host, lambda *_: None)  # type: ignore[arg-type,return-value]
        duties = LeaderDuties(member.node, self._stores(rand), known, settings, runtime, failures.append)
        self.duties[member.node_id] = duties
        self.tasks[member.node_id] = asyncio.ensure_future(duties.run())

    def _stores(self, rand: Rand) -> NodeStores:
        counts = StoreCounts(Registry())
        return stack_stores(self.bucket, counts, rand, TrafficSettings(), lambda *_: None, YieldQueue())

    async def end(self, member: Member) -> None:
        """Its duties, in order."""
        task = self.tasks[member.node_id]
        task.cancel()
        await asyncio.wait([task])

    def at_work(self) -> list[int]:
        return [node_id for node_id, duties in self.duties.items() if duties.is_at_work()]

    async def one_at_work(self) -> Member:
        leader = await self.members.leader()
        await self.members.until(lambda: self.at_work() == [leader.node_id])
        return leader

    async def newest_claim(self) -> OwnerClaim | None:
        """On the writing of metadata."""
        return await read_newest_claim(self.bucket, CLUSTER, METADATA_SERIES)

    async def claims(self) -> list[int]:
        """Numbers of those on the writing of metadata."""
        keys = [one.key async for one in self.bucket.list(series_prefix(CLUSTER, METADATA_SERIES), "")]
        return [decode_claim(await self.bucket.get(key), key).number for key in keys]

    def cut(self, member: Member) -> None:
        for other in self.members.all:
            if other != member.node_id:
                self.members.net.sever(name(member.node_id), name(other))
                self.members.net.sever(name(other), name(member.node_id))

    async def lose_leadership(self, leader: Member) -> None:
        """Nobody else does duties from now on."""
        for member in self.members.all.values():
            if member is not leader:
                await self.end(member)
        await self.step_down(leader)

    async def step_down(self, leader: Member) -> None:
        """Cut off from the others, until it leads no more."""
        self.cut(leader)
        await self.members.until(lambda: not leader.node.driver.news.is_active)

    async def is_saved(self) -> None:
        """Returns when all that is committed now is in the bucket."""
        leader = await self.one_at_work()
        backup = self.duties[leader.node_id].backup
        assert backup is not None
        await backup.reach_committed()
        found = await survey(self.bucket, CLUSTER)
        assert found.highest is not None
        assert found.chain_end >= 1


def with_cluster(work: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimLoop) -> None:
        cluster = Cluster(loop)
        await cluster.start()
        await work(cluster)
        assert not any(cluster.failures.values()), cluster.failures

    run_simulation(main)


def test_the_leader_alone_puts_metadata_into_the_bucket() -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.one_at_work()
        await cluster.members.create("t")
        await cluster.is_saved()
        assert await cluster.claims() == [1]

    with_cluster(work)


def test_duties_move_with_the_leadership() -> None:
    """Also from one that is cut off and does not know: it finds the next one's claim, or resigns; and when it
    is back, it follows."""

    async def work(cluster: Cluster) -> None:
        first = await cluster.one_at_work()
        await cluster.members.create("t")
        await cluster.is_saved()
        cluster.cut(first)
        await cluster.members.until(lambda: cluster.members.leading() not in (None, first))
        await cluster.members.until(lambda: first.node_id not in cluster.at_work() != [])
        await cluster.members.create("u")
        await cluster.is_saved()
        assert await cluster.claims() == [1, 2]
        cluster.members.net.heal()
        await cluster.members.agree()
        await cluster.is_saved()
        assert await cluster.claims() == [1, 2]

    with_cluster(work)


def test_one_that_was_replaced_and_does_not_know_it_ends_no_process() -> None:
    """It begins its duties where another has claimed them, of whom its log knows nothing: as a log would that
    is an older copy. It learns that it leads no more, and does nothing."""

    async def work(cluster: Cluster) -> None:
        first = await cluster.one_at_work()
        cluster.tasks.pop(first.node_id).cancel()
        cluster.cut(first)
        news = first.node.driver.news
        first.node.driver.raft.settings = first.node.driver.raft.settings.__class__(
            first.node_id, (1, 2, 3), fetch_ticks=300
        )
        await cluster.members.until(lambda: bool(set(cluster.at_work()) - {first.node_id}))
        assert news.is_active  # it believes that it leads
        claims = await cluster.claims()
        await cluster.begin(first)
        await cluster.members.until(lambda: not news.is_active)
        assert not cluster.failures[first.node_id]
        assert await cluster.claims() == claims

    with_cluster(work)


def test_a_controller_that_was_told_another_bucket_does_nothing_there() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = Cluster(loop)
        await cluster.start()
        first = await cluster.one_at_work()
        await cluster.members.create("t")
        others = [member for member in cluster.members.all.values() if member is not first]
        cluster.bucket = MemoryObjectStore(HandClock())
        for member in others:
            cluster.tasks[member.node_id].cancel()
            await cluster.begin(member)
        await first.node.close()
        await first.transport.close()
        del cluster.members.all[first.node_id]
        leader = await cluster.members.leader()
        await cluster.members.until(lambda: bool(cluster.failures[leader.node_id]))
        (failure,) = cluster.failures[leader.node_id]
        assert isinstance(failure, BindingRefused)
        assert "give each of its nodes" in str(failure)
        assert [one.key async for one in cluster.bucket.list("", "")] == []

    run_simulation(main)


def test_a_quorum_of_older_logs_ends_before_it_changes_anything() -> None:
    """The bucket has a claim, and metadata, of which the quorum's log knows nothing: all its disks were put
    back from copies."""

    async def main(loop: SimLoop) -> None:
        before = Cluster(loop)
        await before.start()
        await before.one_at_work()
        await before.members.create("t")
        await before.is_saved()
        after = Cluster(before.members.loop)
        after.bucket = before.bucket
        for task in before.tasks.values():
            task.cancel()
        await asyncio.wait(before.tasks.values())
        claims = await after.claims()
        await after.start()
        leader = await after.members.leader()
        await after.members.until(lambda: bool(after.failures[leader.node_id]))
        (failure,) = after.failures[leader.node_id]
        assert isinstance(failure, BindingRefused)
        assert await after.claims() == claims

    run_simulation(main)


def test_who_gives_way_once_another_has_claimed_the_metadata_says_so() -> None:
    """A quorum of other voters, say, that was started beside this one. The bucket answers all the while."""

    async def main(loop: SimLoop) -> None:
        cluster = Cluster(loop)
        await cluster.start()
        first = await cluster.one_at_work()
        said: list[str] = []
        first.node.driver.give_way = said.append  # type: ignore[method-assign]
        other = OwnerClaim(ClaimKind.CLAIMED, CLUSTER, METADATA_SERIES, 2, bytes(range(16)), NOBODY, 3, 9, 0)
        await cluster.bucket.put(claim_key(CLUSTER, METADATA_SERIES, 2), [encode_claim(other)])
        await cluster.members.until(lambda: bool(said))
        assert uuid_text(other.incarnation) in said[0], said
        assert "leads another quorum over this bucket" in said[0], said
        assert "write-ahead log" not in said[0], said

    run_simulation(main)


def test_a_takeover_by_the_next_leader_wakes_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Who led stood still, or is cut off, finds the next one's claim, and learns soon that it leads no
    more."""

    async def work(cluster: Cluster) -> None:
        first = await cluster.one_at_work()
        cluster.cut(first)
        news, raft = first.node.driver.news, first.node.driver.raft
        raft.settings = replace(raft.settings, fetch_ticks=1000)
        await cluster.members.until(lambda: "another controller does them" in caplog.text)
        assert news.is_active  # it believes that it leads
        cluster.members.net.heal()
        await cluster.members.until(lambda: not news.is_active)
        await cluster.one_at_work()

    caplog.set_level(logging.INFO)
    with_cluster(work)
    assert not [one for one in caplog.records if one.levelno >= logging.CRITICAL]


def test_a_takeover_by_another_quorum_is_told_loudly(caplog: pytest.LogCaptureFixture) -> None:
    """This one leads on: its voters hear nothing of whoever has claimed the metadata."""

    async def main(loop: SimLoop) -> None:
        cluster = Cluster(loop)
        await cluster.start()
        await cluster.one_at_work()
        other = OwnerClaim(ClaimKind.CLAIMED, CLUSTER, METADATA_SERIES, 2, bytes(range(16)), NOBODY, 3, 9, 0)
        await cluster.bucket.put(claim_key(CLUSTER, METADATA_SERIES, 2), [encode_claim(other)])

        def is_told() -> bool:
            told = [one.getMessage() for one in caplog.records if one.levelno >= logging.CRITICAL]
            return any(uuid_text(other.incarnation) in text for text in told)

        await cluster.members.until(is_told)

    run_simulation(main)


def test_who_is_stopped_while_it_claims_leaves_no_claim_standing() -> None:
    """A leader stops, the next one is stopped as it claims: a restore would take it for one that was
    killed, and what it had acknowledged for lost."""

    async def work(cluster: Cluster) -> None:
        leader = await cluster.one_at_work()
        first = await cluster.newest_claim()
        assert first is not None
        put_if_absent, has_landed = cluster.bucket.put_if_absent, asyncio.Event()

        async def land_and_stay(key: str, parts: Sequence[Buffer]) -> None:
            await put_if_absent(key, parts)
            if key.startswith(series_prefix(CLUSTER, METADATA_SERIES)):
                has_landed.set()
                await asyncio.Event().wait()

        await cluster.end(leader)
        assert (await cluster.claims())[-1] == 2
        cluster.bucket.put_if_absent = land_and_stay  # type: ignore[method-assign]
        await leader.node.close()
        await has_landed.wait()
        cluster.bucket.put_if_absent = put_if_absent  # type: ignore[method-assign]
        newest = await cluster.newest_claim()
        assert newest is not None
        assert (newest.number, newest.is_standing) == (3, True)
        for member in cluster.members.all.values():
            await cluster.end(member)
        newest = await cluster.newest_claim()
        assert newest is not None
        assert (newest.number, newest.is_standing) == (4, False)

    with_cluster(work)


def test_who_led_last_leaves_no_claim_standing() -> None:
    """The last of a cluster that is stopped one after the other has lost its followers, and with them the
    leadership, before it is stopped itself."""

    async def work(cluster: Cluster) -> None:
        first = await cluster.one_at_work()
        await cluster.lose_leadership(first)
        assert await cluster.claims() == [1]
        await cluster.end(first)
        newest = await cluster.newest_claim()
        assert newest is not None
        assert (newest.number, newest.is_standing) == (2, False)

    with_cluster(work)


def test_who_led_before_another_releases_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """And nothing is told of a claim that had to be released."""

    async def work(cluster: Cluster) -> None:
        first = await cluster.one_at_work()
        cluster.cut(first)
        await cluster.members.until(lambda: first.node_id not in cluster.at_work() != [])
        assert await cluster.claims() == [1, 2]
        await cluster.end(first)
        newest = await cluster.newest_claim()
        assert newest is not None
        assert (newest.number, newest.is_standing) == (2, True)

    with_cluster(work)
    assert "were not released" not in caplog.text


def test_who_leads_again_and_is_stopped_before_it_claims_leaves_no_claim_standing() -> None:
    """Of its term before, which ended with nobody in its place."""

    async def work(cluster: Cluster) -> None:
        first = await cluster.one_at_work()
        await cluster.lose_leadership(first)
        listed, is_met = cluster.bucket.list, asyncio.Event()

        async def wait_for_ever(prefix: str, after: str = "") -> Any:
            is_met.set()
            await asyncio.Event().wait()
            yield

        cluster.bucket.list = wait_for_ever  # type: ignore[method-assign]
        cluster.members.net.heal()
        while (leader := await cluster.members.leader()) is not first:
            await cluster.step_down(leader)
            cluster.members.net.heal()
        await is_met.wait()
        task = cluster.tasks[first.node_id]
        task.cancel()
        cluster.bucket.list = listed  # type: ignore[method-assign]
        await asyncio.wait([task])
        newest = await cluster.newest_claim()
        assert newest is not None
        assert (newest.number, newest.is_standing) == (2, False)

    with_cluster(work)
