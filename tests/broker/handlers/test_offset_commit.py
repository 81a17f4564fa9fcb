"""OffsetCommit: every version, Kafka's order of refusals, and what is stored."""

from __future__ import annotations

import asyncio

import pytest

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.join_group import JoinGroupRequestProtocol
from millrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from millrace.protocol.messages.sync_group import SyncGroupRequest
from tests.broker.broker_fixture import topic_id
from tests.broker.coordinators.build import GroupFixture, codes_of, commit_request, join_request, run

GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(2, 11))
def test_committing(version: int) -> None:
    """A simple consumer and a member commit; topics and partitions that there are not have their own
    codes."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        offsets = {("t", 0): 5, ("t", 3): 6, ("u", 1): 7}
        assert await fixture.commit("simple", offsets, version) == dict.fromkeys(offsets, 0)
        assert await fixture.fetch_offsets("simple") == offsets
        stored = (await fixture.loaded()).offsets.of_topic("simple", "t")[3]
        assert stored.leader_epoch == (5 if version >= 6 else -1)
        assert (stored.topic_id, stored.expires_ms) == (topic_id("t"), None)
        joined = await fixture.stable_member("g")
        own = {"generation": 1, "member_id": joined.member_id}
        codes = await fixture.commit(
            "g", {("t", 0): 5, ("t", 4): 5, ("t", -1): 5, ("none", 0): 5}, version, **own
        )
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else GONE
        assert codes == {("t", 0): 0, ("t", 4): GONE, ("t", -1): GONE, ("none", 0): unknown}
        assert await fixture.fetch_offsets("g") == {("t", 0): 5}

    run(scenario())


@pytest.mark.parametrize("version", range(2, 11))
def test_who_may_commit(version: int) -> None:
    """Members of the generation; others only while there is none."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.stable_member("g")

        async def code(
            group_id: str = "g", generation: int = 1, member_id: str = joined.member_id, **fields: str
        ) -> int:
            codes = await fixture.commit(
                group_id,
                {("t", 0): 1, ("t", 9): 1},
                version,
                generation=generation,
                member_id=member_id,
                **fields,
            )
            assert codes["t", 9] == GONE
            return codes["t", 0]

        assert await code() == 0
        assert await code(generation=0) == ErrorCode.ILLEGAL_GENERATION
        assert await code(generation=-1) == ErrorCode.ILLEGAL_GENERATION
        assert await code(member_id="stranger") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code(generation=-1, member_id="") == ErrorCode.UNKNOWN_MEMBER_ID
        missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        assert await code("none") == missing
        assert await code("made", generation=-1, member_id="") == 0
        assert await code("made", generation=-1) == 0
        assert await code("made") == ErrorCode.UNKNOWN_MEMBER_ID
        if version >= 7:
            assert await code(group_instance_id="i") == ErrorCode.UNKNOWN_MEMBER_ID
        await fixture.join("new")
        assert await code("new", generation=-1, member_id="") == ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario())


def test_a_member_may_not_commit_before_its_generation_is_assigned() -> None:
    """Between join and sync it is told that a rebalance is under way."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.join("g")
        codes = await fixture.commit("g", {("t", 0): 1}, generation=1, member_id=joined.member_id)
        assert codes == {("t", 0): ErrorCode.REBALANCE_IN_PROGRESS}

    run(scenario())


def test_text_that_is_too_long() -> None:
    """4096 of Java's characters are taken, one more is not; the partitions beside it are stored."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
        for text, code in [
            ("m" * 4096, 0),
            ("m" * 4097, too_large),
            ("😀" * 2048, 0),
            ("😀" * 2049, too_large),
            ("é" * 4096, 0),
        ]:
            assert await fixture.commit("g", {("t", 0): 1}, metadata=text) == {("t", 0): code}
        request = commit_request("g", {("t", 0): 8, ("t", 1): 9}, 9, metadata=None)
        request.topics[0].partitions[0].committed_metadata = "m" * 5000
        response = await fixture.ask_for(8, 9, request)
        assert codes_of(response) == {("t", 0): too_large, ("t", 1): 0}
        assert await fixture.fetch_offsets("g") == {("t", 0): 1, ("t", 1): 9}
        assert (await fixture.loaded()).offsets.of_topic("g", "t")[1].metadata == ""

    run(scenario())


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_explicit_retention(version: int) -> None:
    """Old clients say how long their offsets are to be kept."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 1}, version, retention_time_ms=5000)
        assert (await fixture.loaded()).offsets.of_topic("g", "t")[
            0
        ].expires_ms == fixture.clock.now_ms + 5000

    run(scenario())


@pytest.mark.parametrize(("retention_ms", "expires_ms"), [(2**63 - 1, 2**63 - 1), (-(2**63), 0)])
def test_a_retention_beyond_all_time_is_cut(retention_ms: int, expires_ms: int) -> None:
    """What no record can carry is for ever, or over at once."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        codes = await fixture.commit("g", {("t", 0): 1}, 3, retention_time_ms=retention_ms)
        assert codes == {("t", 0): 0}
        assert (await fixture.loaded()).offsets.of_topic("g", "t")[0].expires_ms == expires_ms

    run(scenario())


def test_a_commit_keeps_its_member_alive() -> None:
    """One that commits and sends no heartbeat stays in its group."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.stable_member("g", session_timeout_ms=10_000)
        for number in range(5):
            await asyncio.sleep(9)
            codes = await fixture.commit("g", {("t", 0): number}, generation=1, member_id=joined.member_id)
            assert codes == {("t", 0): 0}
        await asyncio.sleep(11)
        codes = await fixture.commit("g", {("t", 0): 9}, generation=1, member_id=joined.member_id)
        assert codes == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}

    run(scenario())


def test_commits_of_nothing() -> None:
    """No topics, or none that exist: answered at once, whatever the group."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.loaded()
        response = fixture.call(8, 9, OffsetCommitRequest(group_id="none", generation_id_or_member_epoch=3))
        assert response == OffsetCommitResponse()
        codes = await fixture.commit("none", {("none", 0): 1}, generation=3)
        assert codes == {("none", 0): GONE}
        assert await fixture.log() == []

    run(scenario())


@pytest.mark.parametrize("version", [2, 9, 10])
def test_without_a_coordinator(version: int) -> None:
    """Every partition that there is says so; of the others that is told first here, too."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=0).start()
        away = ErrorCode.COORDINATOR_NOT_AVAILABLE
        asked = {("t", 0): 1, ("t", 99): 1, ("u", 1): 1, ("none", 0): 1}
        assert await fixture.commit("g", asked, version) == {
            ("t", 0): away,
            ("t", 99): GONE,
            ("u", 1): away,
            ("none", 0): ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else GONE,
        }

    run(scenario())


def test_group_ids_at_the_edge() -> None:
    """The empty id is a group like any other here; one as long as the protocol lets it be is stored and
    read."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        for group_id in ("", "g" * 32_767, "группа"):
            assert await fixture.commit(group_id, {("t", 0): 1}) == {("t", 0): 0}
            assert await fixture.fetch_offsets(group_id) == {("t", 0): 1}
        await fixture.crash()
        assert await fixture.fetch_offsets("g" * 32_767) == {("t", 0): 1}

    run(scenario())


def test_a_generation_that_is_too_large_harms_no_other_group() -> None:
    """It is refused; the shard goes on."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 1})
        protocols = [JoinGroupRequestProtocol("p", b"x" * (9 << 20))]
        joined = await fixture.ask_for(11, 3, join_request("big", protocols=protocols))
        synced = await fixture.ask_for(14, 3, SyncGroupRequest("big", 1, joined.member_id))
        assert synced.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        loop = fixture.shard()
        assert repr(loop.machine.groups["big"]).startswith("big PreparingRebalance")
        assert await fixture.commit("g", {("t", 0): 2}) == {("t", 0): 0}
        assert fixture.shard() is loop

    run(scenario())
