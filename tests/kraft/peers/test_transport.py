"""A quorum whose members reach one another over a network: elections, replication, snapshots, and what
becomes of them when connections break, addresses are wrong or peers are strangers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.kraft.log import log_store
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.peers import snapshots
from millrace.kraft.peers.connection import PeerConnection, PeerLost
from millrace.kraft.peers.wire import TOPIC, request_of
from millrace.kraft.peers.wire import Member as WireMember
from millrace.kraft.raft.messages import Fetch
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from millrace.protocol.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestPartitionData,
    BeginQuorumEpochRequestTopicData,
    LeaderEndpoint,
)
from millrace.protocol.messages.fetch import FetchRequest
from millrace.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartitionSnapshot,
    FetchSnapshotRequestTopicSnapshot,
    FetchSnapshotResponse,
    FetchSnapshotResponsePartitionSnapshot,
    FetchSnapshotResponseTopicSnapshot,
)
from millrace.protocol.messages.fetch_snapshot import SnapshotId as WireSnapshotId
from millrace.protocol.messages.vote import VoteRequest, VoteResponse
from millrace.runtime.errors import Unavailable
from tests.kraft.peers.listener import MemberConnection, served
from tests.kraft.peers.members import CLUSTER, PORT, Member, Members, name
from tests.sim.loop import SimLoop, run_simulation


def with_members(
    work: Callable[[Members], Coroutine[Any, Any, None]], **options: Any
) -> Callable[[SimLoop], Coroutine[Any, Any, None]]:
    async def main(loop: SimLoop) -> None:
        await work(Members(loop, **options))

    return main


async def start_with_snapshot(members: Members) -> Member:
    """Members 1 and 2, whose logs begin behind a snapshot; gives who leads."""
    await members.start(1, 2)
    leader = await members.leader()
    for number in range(6):
        await members.create(f"t{number}", 1_500)
        await leader.node.snapshot()
    assert leader.node.log.start > 0
    return leader


def test_members_elect_a_leader_and_follow_it() -> None:
    async def work(members: Members) -> None:
        await members.start()
        await members.create("t", 3)
        image = await members.agree()
        assert image.topics.by_name("t") is not None

    run_simulation(with_members(work, observers=(9,)))


def test_followers_elect_another_when_the_leader_is_cut_off() -> None:
    async def work(members: Members) -> None:
        await members.start()
        first = await members.leader()
        await members.create("before")
        for other in members.all:
            if other != first.node_id:
                members.net.sever(name(first.node_id), name(other))
                members.net.sever(name(other), name(first.node_id))
        await members.until(lambda: not first.node.driver.raft.is_leader)  # no majority fetches
        second = await members.leader()
        assert second is not first
        await members.create("after")
        members.net.heal()
        image = await members.agree()
        assert image.topics.by_name("before") is not None
        assert image.topics.by_name("after") is not None

    run_simulation(with_members(work))


def test_a_member_that_was_away_gets_a_snapshot() -> None:
    """In pieces, and the log behind it."""

    async def work(members: Members) -> None:
        await start_with_snapshot(members)
        await members.start(3)
        image = await members.agree()
        assert len(image.topics.by_name("t5").partitions) == 1_500  # type: ignore[union-attr]
        asked = [one for one in members.asked if isinstance(one, FetchSnapshotRequest)]
        assert len({one.topics[0].partitions[0].position for one in asked}) == len(asked) >= 1

    run_simulation(with_members(work))


def test_a_leader_waits_for_who_fetches_a_snapshot_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two are all that is left, and the snapshot takes longer than a leader goes on without fetches."""
    monkeypatch.setattr(snapshots, "PIECE_BYTES_MAX", 2_000)

    async def work(members: Members) -> None:
        leader = await start_with_snapshot(members)
        raft, settings = leader.node.driver.raft, leader.node.settings
        epoch, away = raft.epoch, name(3 - leader.node_id)
        for other in (name(leader.node_id), name(3)):
            members.net.sever(away, other)
            members.net.sever(other, away)
        members.net.delay_us = (2_000, 4_000)
        began_s = members.loop.time()
        await members.start(3)
        image = members.all[3].node.publisher
        await members.until(lambda: image.image.topics.by_name("t5") is not None or raft.epoch > epoch)
        assert raft.epoch == epoch
        assert members.loop.time() - began_s > raft.settings.fetch_ticks * 1.5 * settings.ticks.ms / 1000

    run_simulation(with_members(work))


def test_a_node_closes_while_it_fetches_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a piece, and not for all of it."""
    monkeypatch.setattr(snapshots, "PIECE_BYTES_MAX", 2_000)

    async def work(members: Members) -> None:
        await start_with_snapshot(members)
        members.net.delay_us = (2_000, 4_000)
        await members.start(3)
        await members.until(lambda: any(isinstance(one, FetchSnapshotRequest) for one in members.asked))
        began_s = members.loop.time()
        await members.all[3].node.close()
        assert members.loop.time() - began_s < 0.3

    run_simulation(with_members(work))


def test_a_leader_that_resigns_tells_the_others() -> None:
    async def work(members: Members) -> None:
        await members.start()
        first = await members.leader()
        await members.create("t")
        await members.agree()
        began_s = members.loop.time()
        first.node.driver.raft.resign()
        first.node.driver.tick()
        await members.until(lambda: members.leading() not in (None, first))
        settings = first.node.driver.raft.settings
        assert members.loop.time() - began_s < settings.election_ticks * first.node.settings.ticks.ms / 1000

    run_simulation(with_members(work))


def test_older_peers_are_asked_in_their_versions() -> None:
    """Their fetches name the topic and the replica in the older way."""

    async def work(members: Members) -> None:
        members.versions = served(Fetch=12)
        await members.start()
        await members.create("t")
        assert (await members.agree()).topics.by_name("t") is not None
        fetches = [one for one in members.asked if isinstance(one, FetchRequest)]
        assert fetches
        assert all(one.replica_id > 0 for one in fetches)

    run_simulation(with_members(work))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda request: setattr(request, "cluster_id", "BBBBBBBBBBBBBBBBBBBBBQ"), "INCONSISTENT_CLUSTER_ID"),
        (lambda request: setattr(request, "voter_id", 7), "INVALID_VOTER_KEY"),
        (lambda request: setattr(request.topics[0], "topic_name", "t"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (
            lambda request: setattr(request.topics[0].partitions[0], "partition_index", 1),
            "UNKNOWN_TOPIC_OR_PARTITION",
        ),
        (lambda request: setattr(request, "topics", []), "INVALID_REQUEST"),
        (
            lambda request: setattr(request.topics[0].partitions[0], "replica_id", request.voter_id),
            "INVALID_REQUEST",
        ),
        (lambda request: setattr(request.topics[0].partitions[0], "replica_epoch", -1), "INVALID_REQUEST"),
    ],
)
def test_what_no_sound_peer_asks_is_refused(spoil: Callable[[Any], None], code: str) -> None:
    """And changes nothing at whom it is asked."""

    async def work(members: Members) -> None:
        await members.start()
        await members.leader()
        request = next(one for one in members.asked if isinstance(one, VoteRequest))
        asked = members.all[request.voter_id]
        request.topics[0].partitions[0].replica_epoch += 5
        spoil(request)
        epoch = asked.node.driver.raft.epoch
        response = await asked.transport.answer(request)
        assert response.error_code == ErrorCode[code]
        assert asked.node.driver.raft.epoch == epoch

    run_simulation(with_members(work))


def test_a_peer_that_is_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="millrace.kraft.peers")

    async def work(members: Members) -> None:
        await members.start(1, 2)
        await members.leader()
        await asyncio.sleep(20)
        lines = [record.getMessage() for record in caplog.records]
        away = [line for line in lines if line.startswith("quorum: no answer from node 3")]
        assert 1 <= len(away) <= 2, lines  # from each of the two
        await members.start(3)
        await members.agree()

    run_simulation(with_members(work))


def test_a_node_whose_transport_is_closed_goes_on_alone(caplog: pytest.LogCaptureFixture) -> None:
    """What it says reaches nobody, whether it spoke to that peer before or not."""

    async def work(members: Members) -> None:
        await members.start(1)
        await members.all[1].transport.close()
        await asyncio.sleep(3)  # it stands for election

    run_simulation(with_members(work))
    assert not [record for record in caplog.records if record.levelno >= logging.CRITICAL]


@pytest.mark.parametrize("place", ["response", "partition"])
def test_a_snapshot_that_is_refused_with_an_unknown_code_is_asked_for_again(place: str) -> None:
    """Who asks goes on: it is a leader that does not give it."""

    async def refuse(request: Any) -> Any:
        asked = request.topics[0]
        part = FetchSnapshotResponsePartitionSnapshot(asked.partitions[0].partition, 999)
        return (
            FetchSnapshotResponse(error_code=999)
            if place == "response"
            else FetchSnapshotResponse(topics=[FetchSnapshotResponseTopicSnapshot(asked.name, [part])])
        )

    async def work(members: Members) -> None:
        await members.start(1)
        transport = members.all[1].transport
        await members.net.host(name(2)).listen(lambda: MemberConnection(refuse), "", PORT)
        with pytest.raises(Unavailable):
            await anext(transport.fetch(2, SnapshotId(7, 1)))

    run_simulation(with_members(work))


def test_a_snapshot_that_is_removed_while_it_is_fetched_stays_removed() -> None:
    """The piece is given, or it is not found; no empty file takes its name."""

    async def work(members: Members) -> None:
        await members.start(1, 2)
        leader = await members.leader()
        store, epoch = leader.node.log, leader.node.driver.raft.epoch
        for topic in ("a", "b"):
            await members.create(topic)
            await leader.node.snapshot()
        newest, older = await store.snapshots()
        list_snapshots = store.snapshots
        removals: list[asyncio.Task[int]] = []

        async def list_slowly() -> list[SnapshotId]:
            found = await list_snapshots()
            store.snapshots = list_snapshots  # type: ignore[method-assign]
            removals.append(asyncio.create_task(store.remove_before(newest)))
            await asyncio.sleep(1)
            return found

        store.snapshots = list_slowly  # type: ignore[method-assign]
        asked = FetchSnapshotRequestPartitionSnapshot(0, epoch, WireSnapshotId(older.end, older.epoch))
        topic = FetchSnapshotRequestTopicSnapshot(TOPIC, [asked])
        answer = await leader.transport.answer(FetchSnapshotRequest(CLUSTER, 2, 100, [topic]))
        await asyncio.gather(*removals)
        assert answer.topics[0].partitions[0].error_code in (0, ErrorCode.SNAPSHOT_NOT_FOUND)
        assert await store.snapshots() == [newest]

    run_simulation(with_members(work))


class Garbler(asyncio.Protocol):
    """Answers the first request with bytes that are no response."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(b"\0\0\0\x08" + b"\0\0\0\x01" + b"\xff" * 4)


def test_an_answer_that_is_none_is_told_at_once() -> None:
    """Whoever asked does not wait for the end of its time, and hears what was wrong."""

    async def work(members: Members) -> None:
        await members.net.host("a").listen(Garbler, "", PORT)
        began_s = members.loop.time()
        with pytest.raises(PeerLost) as lost:
            await PeerConnection.open(members.net.host("b"), "a", PORT, "b")
        assert members.loop.time() - began_s < 1
        assert "not answered" not in lost.value.why

    run_simulation(with_members(work))


def test_a_connection_that_lets_nothing_pass_is_closed_though_nobody_waits_any_more() -> None:
    """Whoever asked has its own time, which is over first: what is asked next goes over another."""

    async def work(members: Members) -> None:
        async def answer(request: Any) -> Any:
            await asyncio.sleep(0.5 if isinstance(request, VoteRequest) else 100.0)
            return VoteResponse()

        await members.net.host("a").listen(lambda: MemberConnection(answer), "", PORT)
        connection = await PeerConnection.open(members.net.host("b"), "a", PORT, "b")
        for request, is_open in ((VoteRequest(), True), (FetchRequest(), False)):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await connection.ask(request, 1.0)
            await asyncio.sleep(1.0)
            assert connection.is_open is is_open
        with pytest.raises(PeerLost, match="Fetch was not answered"):
            await connection.ask(VoteRequest(), 1.0)

    run_simulation(with_members(work))


def test_who_serves_more_apis_than_there_are_is_no_peer() -> None:
    """A million of them are seconds of decoding, with each connection anew."""

    async def work(members: Members) -> None:
        members.versions = ApiVersionsResponse(api_keys=[ApiVersion(1, 0, 1)] * 20_000)

        async def answer(request: Any) -> Any:
            raise AssertionError

        await members.net.host("a").listen(lambda: MemberConnection(answer, members.versions), "", PORT)
        with pytest.raises(PeerLost):
            await PeerConnection.open(members.net.host("b"), "a", PORT, "b")

    run_simulation(with_members(work))


@pytest.mark.parametrize("recent_bytes", [1 << 20, 0])
def test_who_asks_for_a_part_of_a_batch_ends_no_leader(
    monkeypatch: pytest.MonkeyPatch, recent_bytes: int
) -> None:
    """Anybody who reaches the listener may ask, and is given nothing."""
    monkeypatch.setattr(log_store, "RECENT_BYTES_MAX", recent_bytes)

    async def work(members: Members) -> None:
        await members.start()
        for topic in ("a", "b"):
            await members.create(topic, 5)
        leader = await members.leader()
        raft, log = leader.node.driver.raft, leader.node.log
        batches = await log.read(0, raft.commit_end, 1 << 20)
        wide = next(batch for batch in batches[:-1] if batch.end - batch.base > 1)
        fetch = Fetch(9, leader.node_id, raft.epoch, wide.base + 1, raft.log.last_epoch)
        response = await leader.transport.answer(request_of(fetch, WireMember(CLUSTER, 9, bytes(16))))
        assert not response.responses[0].partitions[0].records
        await members.create("c")
        assert await members.leader() is leader

    run_simulation(with_members(work))


def test_leaders_that_are_nowhere_are_forgotten() -> None:
    """Somebody names ever new ones, each with an address and a later epoch; the member asks where each is
    said to be, and keeps no more of it than of its peers. The quorum goes on, in an epoch behind them."""

    async def work(members: Members) -> None:
        await members.start()
        leader = await members.leader()
        told = next(member for member in members.all.values() if member is not leader)
        epoch = leader.node.driver.raft.epoch
        for number in range(1, 30):
            asked = BeginQuorumEpochRequestPartitionData(0, bytes(16), 1000 + number, epoch + number)
            request = BeginQuorumEpochRequest(
                CLUSTER,
                -1,
                [BeginQuorumEpochRequestTopicData(TOPIC, [asked])],
                [LeaderEndpoint("CONTROLLER", "nowhere", PORT)],
            )
            response = await told.transport.answer(request)
            assert response.topics[0].partitions[0].leader_id == 1000 + number
            await asyncio.sleep(0.01)
        assert len(told.transport._lanes) <= 2 * len(members.all) + 2
        await members.create("a")
        await members.agree()

    run_simulation(with_members(work))
