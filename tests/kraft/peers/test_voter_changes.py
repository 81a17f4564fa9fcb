"""Voters come, go and move by request, over a simulated network: what is done, what is refused, and what is
not known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from millrace.kraft import controller
from millrace.kraft.commands.voters import NO_CHANGES
from millrace.kraft.config import Ticks
from millrace.kraft.raft.voters import DYNAMIC, NO_DIRECTORY, STATIC, Endpoint
from millrace.kraft.tables.features import KRAFT_VERSION, MILLRACE_VERSION, bootstrap_records
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.ids import uuid_bytes
from millrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from millrace.protocol.messages.add_raft_voter import Listener as AddedListener
from millrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from millrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from millrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from millrace.protocol.messages.update_raft_voter import KRaftVersionFeature, UpdateRaftVoterRequest
from millrace.protocol.messages.update_raft_voter import Listener as UpdatedListener
from millrace.runtime.rand import Rand
from tests.kraft.peers.listener import served
from tests.kraft.peers.members import CLUSTER, PORT, Member, Members, name
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop, run_simulation

SILENT_S = 5.0  # after which a voter is not heard of


def with_members(
    work: Callable[[Members], Coroutine[Any, Any, None]],
    *ids: Any,
    starts: tuple[int, ...] = (),
    **options: Any,
) -> Callable[[SimLoop], Coroutine[Any, Any, None]]:
    """At kraft.version 1 with voter 1 and observers 2 and 3."""

    async def main(loop: SimLoop) -> None:
        members = Members(loop, (1,), (2, 3), is_dynamic=True)
        await members.format()
        await members.start(*starts)
        await members.leader()
        await work(members)

    return main


def directory_of(member: Member) -> bytes:
    return uuid_bytes(member.node.meta.directory_id)


def voters_of(member: Member) -> tuple[int, ...]:
    return member.node.driver.raft.voters


async def add(members: Members, node_id: int, by: int = 1, **fields: Any) -> AddRaftVoterResponse:
    member = members.all[node_id]
    listeners = [AddedListener("CONTROLLER", name(node_id), PORT)]
    asked = {
        "voter_directory_id": directory_of(member),
        "listeners": listeners,
        "timeout_ms": 20_000,
    } | fields
    request = AddRaftVoterRequest(CLUSTER, voter_id=node_id, **asked)
    response: AddRaftVoterResponse = await members.all[by].transport.channel.send(request)
    return response


async def remove(
    members: Members, node_id: int, by: int = 1, directory_id: bytes | None = None
) -> RemoveRaftVoterResponse:
    known = directory_of(members.all[node_id]) if directory_id is None else directory_id
    request = RemoveRaftVoterRequest(CLUSTER, node_id, known)
    response: RemoveRaftVoterResponse = await members.all[by].transport.channel.send(request)
    return response


async def described(members: Members, by: int = 1) -> tuple[list[tuple[int, bytes]], ...]:
    """Voters and observers, with their directories."""
    topic = DescribeQuorumRequestTopicData("__cluster_metadata", [DescribeQuorumRequestPartitionData(0)])
    response = await members.all[by].transport.channel.send(DescribeQuorumRequest([topic]))
    part = response.topics[0].partitions[0]
    return tuple(
        [(one.replica_id, one.replica_directory_id) for one in replicas]
        for replicas in (part.current_voters, part.observers)
    )


def test_one_becomes_three_by_request() -> None:
    """Asked of any node; a node that was told of nothing but a server finds the leader, also when the first
    one is gone."""

    async def work(members: Members) -> None:
        await members.create("a")
        assert (await add(members, 2)).error_code == 0
        assert (await add(members, 3, by=3)).error_code == 0
        await members.agree()
        assert {voters_of(member) for member in members.all.values()} == {(1, 2, 3)}
        voters, observers = await described(members)
        assert voters == [(one, directory_of(members.all[one])) for one in (1, 2, 3)]
        assert observers == []
        known = members.all[3].node.driver.raft.voter_set
        assert known.voters[1].endpoints == (Endpoint("CONTROLLER", name(2), PORT),)
        await members.stop(1)
        del members.all[1]
        await members.create("b")
        await members.agree()

    run_simulation(with_members(work))


def test_a_removed_leader_answers_and_follows() -> None:
    """The answer comes with the commit, from a leader that leads no more by then."""

    async def work(members: Members) -> None:
        for node_id in (2, 3):
            assert (await add(members, node_id)).error_code == 0
        assert (await remove(members, 1)).error_code == 0
        leader = await members.leader()
        assert leader.node_id != 1
        await members.create("a")
        await members.agree()
        assert voters_of(members.all[1]) == (2, 3)
        assert [one for one, _ in (await described(members, by=2))[1]] == [1]

    run_simulation(with_members(work))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"voter_id": 1}, ErrorCode.DUPLICATE_VOTER),
        ({"voter_directory_id": NO_DIRECTORY}, ErrorCode.INVALID_REQUEST),
        ({"listeners": []}, ErrorCode.INVALID_REQUEST),
        ({"listeners": [AddedListener("OTHER", name(2), PORT)]}, ErrorCode.INVALID_REQUEST),
        ({"listeners": [AddedListener("CONTROLLER", "0.0.0.0", PORT)]}, ErrorCode.INVALID_REQUEST),
        ({"listeners": [AddedListener("CONTROLLER", "nowhere", PORT)]}, ErrorCode.REQUEST_TIMED_OUT),
        ({"voter_directory_id": b"d" * 16, "timeout_ms": 2_000}, ErrorCode.REQUEST_TIMED_OUT),
        ({"cluster_id": "BBBBBBBBBBBBBBBBBBBBBQ"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
    ],
)
def test_what_cannot_be_added_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    """And nothing is written."""

    async def work(members: Members) -> None:
        leader = members.all[1]
        await members.agree()
        end = leader.node.log.end
        listeners = [AddedListener("CONTROLLER", name(2), PORT)]
        known = {"voter_id": 2, "voter_directory_id": directory_of(members.all[2]), "listeners": listeners}
        asked = {"cluster_id": CLUSTER, "timeout_ms": 20_000} | known | fields
        response = await leader.transport.channel.send(AddRaftVoterRequest(**asked))
        assert (response.error_code, bool(response.error_message)) == (code, True)
        assert leader.node.log.end == end

    run_simulation(with_members(work))


def test_a_node_of_an_earlier_release_is_not_added() -> None:
    """It says that it runs at level 0 alone."""

    async def work(members: Members) -> None:
        old = served()
        old.supported_features = []
        members.versions = old
        await members.start(2)
        await members.agree_of(1)
        response = await add(members, 2)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert "supports kraft.version 0 to 0" in (response.error_message or "")

    run_simulation(with_members(work, starts=(1,)))


def test_who_lags_is_waited_for() -> None:
    """It is added when it has caught up, or not at all; whoever asks next waits its turn."""

    async def work(members: Members) -> None:
        await members.create("a", 1_000)
        for way in ((name(1), name(2)), (name(2), name(1))):
            members.net.sever(*way)
        response = await add(members, 2, by=1, timeout_ms=3_000)
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "does not say" in (response.error_message or "") or "not done" in (
            response.error_message or ""
        )
        members.net.heal()
        waits = asyncio.ensure_future(add(members, 2))
        other = asyncio.ensure_future(add(members, 3))
        assert [(await waits).error_code, (await other).error_code] == [0, 0]
        assert voters_of(members.all[1]) == (1, 2, 3)

    run_simulation(with_members(work))


def test_one_that_is_not_committed_holds_up_the_next() -> None:
    """The answer says that nothing was done; behind the append it says that the outcome is unknown."""

    async def work(members: Members) -> None:
        for node_id in (2, 3):
            assert (await add(members, node_id)).error_code == 0
        leader = await members.leader()
        others = [one for one in members.all.values() if one is not leader]
        waits = asyncio.ensure_future(remove(members, others[0].node_id, by=leader.node_id))
        while len(voters_of(leader)) == 3:
            await leader.node.driver.news.told()
        for other in others:
            for way in (
                (name(leader.node_id), name(other.node_id)),
                (name(other.node_id), name(leader.node_id)),
            ):
                members.net.sever(*way)
        response = await waits
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "unknown" in (response.error_message or "")
        members.net.heal()
        await members.agree()

    run_simulation(with_members(work))


def test_nobody_is_removed_whom_the_rest_needs_for_a_majority() -> None:
    """One of three is away: without either of the two that run nothing could be decided any more, nor that
    be taken back. Whoever is away can be removed, and all of them once it is back."""

    async def work(members: Members) -> None:
        for node_id in (2, 3):
            assert (await add(members, node_id)).error_code == 0
        leader = await members.leader()
        runs, away = [one.node_id for one in members.all.values() if one is not leader]
        await members.stop(away)
        await asyncio.sleep(SILENT_S)
        for node_id in (runs, leader.node_id):
            response = await remove(members, node_id, by=leader.node_id)
            assert response.error_code == ErrorCode.INVALID_REQUEST
            assert f"node {away} " in (response.error_message or "")
        await members.create("a")
        assert (await remove(members, away, by=leader.node_id)).error_code == 0
        await members.start(away)
        assert (await add(members, away, by=leader.node_id)).error_code == 0
        await members.agree()
        assert (await remove(members, runs, by=leader.node_id)).error_code == 0

    run_simulation(with_members(work))


def test_who_ended_a_moment_ago_is_not_heard_of() -> None:
    """It fetched within the time in which a voter may be silent, and does so no more."""

    async def work(members: Members) -> None:
        for node_id in (2, 3):
            assert (await add(members, node_id)).error_code == 0
        await members.agree()
        leader = await members.leader()
        runs, away = [one.node_id for one in members.all.values() if one is not leader]
        await members.stop(away)
        response = await remove(members, runs, by=leader.node_id)
        assert response.error_code == ErrorCode.INVALID_REQUEST, response
        assert f"node {away} " in (response.error_message or "")
        assert (await remove(members, away, by=leader.node_id)).error_code == 0

    run_simulation(with_members(work))


def test_a_leader_whose_process_is_new_takes_nobody_for_heard_of_that_has_not_fetched() -> None:
    """It stands for election, and is asked, before it has run for as long as a voter may be silent."""

    async def work(members: Members) -> None:
        for node_id in (2, 3):
            assert (await add(members, node_id)).error_code == 0
        await members.agree()
        for node_id in members.all:
            await members.stop(node_id)
        await members.start(1, 2)
        leader = await members.leader()
        runs = 3 - leader.node_id
        response = await remove(members, runs, by=leader.node_id)
        assert response.error_code == ErrorCode.INVALID_REQUEST, response
        assert "node 3 " in (response.error_message or "")

    run_simulation(with_members(work))


def test_a_lost_disk_is_replaced() -> None:
    """The voter is removed by the directory that is gone, then added with the one that it has."""

    async def work(members: Members) -> None:
        for node_id in (2, 3):
            assert (await add(members, node_id)).error_code == 0
        before = directory_of(members.all[3])
        lost = members.all[3]
        await members.stop(3)
        lost.disk, lost.seed = SimDisk(Rand(b"another"), hops=0), b"another"
        await members.start(3)
        await members.agree()
        assert not lost.node.driver.raft.is_voter
        voters, observers = await described(members)
        assert (3, before) in voters
        assert observers == [(3, directory_of(lost))]
        assert (await add(members, 3)).error_code == ErrorCode.DUPLICATE_VOTER
        assert (await remove(members, 3)).error_code == ErrorCode.VOTER_NOT_FOUND
        assert (await remove(members, 3, directory_id=before)).error_code == 0
        assert (await add(members, 3)).error_code == 0
        await members.agree()
        assert lost.node.driver.raft.is_voter

    run_simulation(with_members(work))


def test_the_last_voter_stays() -> None:
    async def work(members: Members) -> None:
        assert (await remove(members, 1)).error_code == ErrorCode.INVALID_REQUEST
        assert (await remove(members, 2)).error_code == ErrorCode.VOTER_NOT_FOUND
        unnamed = await remove(members, 1, directory_id=NO_DIRECTORY)
        assert unnamed.error_code == ErrorCode.INVALID_REQUEST

    run_simulation(with_members(work))


def endpoints_of(moved: Member) -> tuple[Endpoint, ...]:
    return (Endpoint("CONTROLLER", name(moved.node_id), PORT), Endpoint("MORE", "elsewhere", 1))


async def with_moved(members: Members) -> tuple[Member, Member]:
    """Three voters: who leads, and one of the others, which has just been started with other listeners."""
    for node_id in (2, 3):
        assert (await add(members, node_id)).error_code == 0
    leader = await members.leader()
    moved = next(one for one in members.all.values() if one is not leader)
    await members.stop(moved.node_id)
    await members.start(moved.node_id, endpoints=endpoints_of(moved))
    return leader, moved


def test_a_voter_that_has_moved_says_so() -> None:
    """At its next start, to whoever leads; the record has its new listener from then on."""

    async def work(members: Members) -> None:
        leader, moved = await with_moved(members)
        raft = leader.node.driver.raft

        def is_known() -> bool:
            voter = raft.voter_set.get(moved.node_id)
            return voter is not None and voter.endpoints == endpoints_of(moved) and raft.may_change_voters

        await members.until(is_known)
        await members.agree()

    run_simulation(with_members(work))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"listeners": [UpdatedListener("CONTROLLER", name(1), PORT)]}, ErrorCode.NONE),
        ({"current_leader_epoch": 99}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"current_leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"voter_directory_id": b"d" * 16}, ErrorCode.VOTER_NOT_FOUND),
        ({"kraft_version_feature": KRaftVersionFeature(0, 0)}, ErrorCode.INVALID_REQUEST),
        ({"cluster_id": "BBBBBBBBBBBBBBBBBBBBBQ"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
    ],
)
def test_an_update_is_answered_with_the_leader(fields: dict[str, Any], code: ErrorCode) -> None:
    """Also where it does not fit, and is refused."""

    async def work(members: Members) -> None:
        leader = members.all[1]
        asked = {
            "cluster_id": CLUSTER,
            "current_leader_epoch": leader.node.driver.raft.epoch,
            "voter_id": 1,
            "voter_directory_id": directory_of(leader),
            "kraft_version_feature": KRaftVersionFeature(0, 1),
        }
        response = await leader.transport.answer(UpdateRaftVoterRequest(**asked | fields))
        assert (response.error_code, response.current_leader.leader_id) == (code, 1)

    run_simulation(with_members(work))


def test_who_does_not_lead_names_who_does() -> None:
    async def work(members: Members) -> None:
        await members.agree()
        response = await members.all[2].transport.answer(UpdateRaftVoterRequest(CLUSTER, voter_id=2))
        assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (response.current_leader.leader_id, response.current_leader.host) == (1, name(1))

    run_simulation(with_members(work))


# From a list to voters of the log.


def upgrade(level: int = DYNAMIC, **fields: Any) -> UpdateFeaturesRequest:
    return UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(KRAFT_VERSION, level)], **fields)


def of_a_list(work: Callable[[Members], Coroutine[Any, Any, None]]) -> Any:
    async def main(loop: SimLoop) -> None:
        members = Members(loop, (1, 2, 3), (4,))
        await members.start()
        await members.leader()
        await members.agree()
        await work(members)

    return main


def test_what_names_no_voter_is_told_before_the_level_is() -> None:
    """As in Kafka: INVALID_REQUEST at kraft.version 0, too."""

    async def work(members: Members) -> None:
        assert (await add(members, 4)).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await remove(members, 3)).error_code == ErrorCode.UNSUPPORTED_VERSION
        for answer in (
            await add(members, 4, voter_directory_id=NO_DIRECTORY),
            await remove(members, 3, directory_id=NO_DIRECTORY),
        ):
            assert answer.error_code == ErrorCode.INVALID_REQUEST

    run_simulation(of_a_list(work))


def test_voters_of_a_list_are_told_without_directories() -> None:
    """As in Kafka, that of the leader as well: with one that is known it would be told to be removed by it,
    which kraft.version 0 refuses."""

    async def work(members: Members) -> None:
        voters, observers = await described(members)
        assert voters == [(node_id, NO_DIRECTORY) for node_id in (1, 2, 3)]
        assert observers == [(4, directory_of(members.all[4]))]

    run_simulation(of_a_list(work))


def test_voters_of_a_list_are_raised_to_the_log_while_they_run() -> None:
    """Then others can be added; there is no way back."""

    async def work(members: Members) -> None:
        channel = members.all[4].transport.channel
        assert (await add(members, 4)).error_message == NO_CHANGES
        asked = await channel.send(upgrade(validate_only=True))
        assert asked.error_code == 0
        assert members.all[1].node.driver.raft.voter_set.kraft_version == STATIC
        done = await channel.send(upgrade())
        assert done.error_code == 0
        await members.agree()
        known = members.all[4].node.driver.raft.voter_set
        assert known.kraft_version == DYNAMIC
        assert [one.directory_id for one in known.voters] == [
            directory_of(members.all[node_id]) for node_id in (1, 2, 3)
        ]
        assert [one.endpoints[0].host for one in known.voters] == [name(node_id) for node_id in (1, 2, 3)]
        assert (await channel.send(upgrade())).error_code == 0
        back = await channel.send(upgrade(STATIC))
        assert back.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert (await add(members, 4)).error_code == 0
        assert voters_of(await members.leader()) == (1, 2, 3, 4)

    run_simulation(of_a_list(work))


def test_a_voter_that_is_away_keeps_the_level() -> None:
    """Nobody knows its directory, nor what it supports."""

    async def work(members: Members) -> None:
        leader = await members.leader()
        away = next(one for one in members.all.values() if one is not leader and one.node_id < 4)
        await members.stop(away.node_id)
        del members.all[away.node_id]
        response = await leader.transport.channel.send(upgrade())
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert f"voter {away.node_id}" in (response.error_message or "")
        assert leader.node.driver.raft.voter_set.kraft_version == STATIC

    run_simulation(of_a_list(work))


@pytest.mark.parametrize("is_old", [True, False])
def test_a_controller_that_could_not_read_it_keeps_the_level(
    monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    """It runs an earlier release, or is away, and is no broker, whose registration tells: our own level stays
    where it is, and so does all else that was asked for with it."""
    at_2 = [
        replace(one, feature_level=2) if one.name == MILLRACE_VERSION else one for one in bootstrap_records()
    ]
    monkeypatch.setattr(controller, "bootstrap_records", lambda: at_2)

    async def work(members: Members) -> None:
        leader = await members.leader()
        other = next(one for one in members.all.values() if one is not leader and one.node_id < 4)
        await members.stop(other.node_id)
        if is_old:
            members.versions = served()
            for one in members.versions.supported_features:
                one.max_version = 2 if one.name == MILLRACE_VERSION else one.max_version
            await members.start(other.node_id)
            await members.agree()
        channel = leader.transport.channel
        request = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(MILLRACE_VERSION, 3)])
        response = await channel.send(request)
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        why = "supports versions 0-2" if is_old else "does not say what it supports"
        assert f"Controller {other.node_id} {why}" in (response.error_message or "")
        both = upgrade()
        both.feature_updates += request.feature_updates
        assert (await channel.send(both)).error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert leader.node.driver.raft.voter_set.kraft_version == STATIC
        assert leader.node.publisher.image.features.level(MILLRACE_VERSION) == 2
        if is_old:
            await members.stop(other.node_id)
            members.versions = None
        await members.start(other.node_id)
        assert (await channel.send(request)).error_code == 0
        assert leader.node.publisher.image.features.level(MILLRACE_VERSION) == 3

    run_simulation(of_a_list(work))


def test_levels_that_nobody_knows_are_refused_and_others_with_them() -> None:
    """All of a request or nothing."""

    async def work(members: Members) -> None:
        channel = members.all[1].transport.channel
        for level in (2, -1):
            response = await channel.send(upgrade(level))
            assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        both = upgrade()
        both.feature_updates.append(FeatureUpdateKey("no.such", 1))
        assert (await channel.send(both)).error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert members.all[1].node.driver.raft.voter_set.kraft_version == STATIC

    run_simulation(of_a_list(work))


def test_a_broker_finds_voters_of_a_list_by_bootstrap_servers(caplog: pytest.LogCaptureFixture) -> None:
    """Of which one leads: nobody says where others are at kraft.version 0. Also when another leads. One that
    does not answer is told of by its address: it has no id."""

    async def main(loop: SimLoop) -> None:
        members = Members(loop, (1, 2, 3), (4,))
        await members.start(1, 2, 3)
        servers = (("nowhere", PORT), *((name(voter), PORT) for voter in (1, 2, 3)))
        members.is_told_a_list = False
        await members.start(4, is_dynamic=True, voters=(), bootstrap_servers=servers)
        await members.create("a")
        await members.agree()
        first = (await members.leader()).node_id
        await members.stop(first)
        del members.all[first]
        await members.create("b")
        await members.agree()
        lines = [record.getMessage() for record in caplog.records]
        assert any(f"no answer from bootstrap server nowhere:{PORT}: " in line for line in lines), lines
        assert not any("node -" in line for line in lines), lines

    run_simulation(main)


def test_changes_wait_for_news_and_not_for_the_clock() -> None:
    """One that lags, one in turn behind another, one that has to be committed: each goes on when the leader
    hears of it; a removal when those that are left have fetched, which they do every five ticks where nothing
    is new. Ticks are 200 ms apart here."""

    async def main(loop: SimLoop) -> None:
        members = Members(loop, (1,), (2, 3), is_dynamic=True)
        await members.format()
        await members.start(ticks=Ticks(200))
        await members.agree()
        began_s = loop.time()
        both = [asyncio.ensure_future(add(members, node_id)) for node_id in (2, 3)]
        assert [(await one).error_code for one in both] == [0, 0]
        assert loop.time() - began_s < 0.1
        assert (await remove(members, 2)).error_code == 0
        assert loop.time() - began_s < 1.2

    run_simulation(main)


def test_a_voter_that_has_moved_says_so_as_soon_as_it_hears_who_leads() -> None:
    """And not at a look, a second later; where the leader refuses it, or is away, it is asked again later."""

    async def work(members: Members) -> None:
        leader, moved = await with_moved(members)
        news = moved.node.driver.news
        await members.until(lambda: news.leader == leader.node_id)
        known_s = members.loop.time()
        raft = leader.node.driver.raft

        def is_known() -> bool:
            voter = raft.voter_set.get(moved.node_id)
            return voter is not None and voter.endpoints == endpoints_of(moved)

        await members.until(is_known)
        assert members.loop.time() - known_s < 0.3

    run_simulation(with_members(work))
