"""OffsetFetch: every version, one group and several, by name and by id."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.coordinators.runtime.shard import LOAD_WAIT_S
from millrace.protocol.declare import NO_UUID
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from millrace.protocol.metadata_records import PartitionRecord, TopicRecord
from tests.broker.broker_fixture import topic_id
from tests.broker.coordinators.build import GroupFixture, fetch_offsets_request, group_at, run

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_one_group_costs_no_task": "is about what is loaded",
    "test_without_a_coordinator": "reads nothing",
    "test_all_offsets_of_many_groups_wait_together_for_what_loads_late": "reads nothing",
}


def shown(
    version: int, response: OffsetFetchResponse, number: int = 0
) -> dict[tuple[str, int], tuple[int, int, str | None, int]]:
    """(offset, epoch, metadata, code) by topic and partition."""
    topics = response.topics if version < 8 else response.groups[number].topics
    return {
        (topic.name if version < 10 else topic.topic_id.rstrip(b".").decode(), part.partition_index): (
            part.committed_offset,
            part.committed_leader_epoch,
            part.metadata,
            part.error_code,
        )
        for topic in topics
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 11))
def test_reading_back(version: int) -> None:
    """What was committed, and -1 for what was not: no error, for an unknown group neither."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 5, ("u", 1): 7}, metadata="text")
        await fixture.begin_reading()
        places = [("t", 0), ("t", 1), ("u", 1), ("u", 99)]
        response = await fixture.ask_for(9, version, fetch_offsets_request(version, {"g": places}))
        epoch = 5 if version >= 5 else -1
        assert shown(version, response) == {
            ("t", 0): (5, epoch, "text", 0),
            ("t", 1): (-1, -1, "", 0),
            ("u", 1): (7, epoch, "text", 0),
            ("u", 99): (-1, -1, "", 0),
        }
        unknown = await fixture.ask_for(9, version, fetch_offsets_request(version, {"none": [("t", 0)]}))
        assert shown(version, unknown) == {("t", 0): (-1, -1, "", 0)}
        if version >= 2:
            everything = await fixture.ask_for(9, version, fetch_offsets_request(version, {"g": None}))
            assert shown(version, everything) == {
                ("t", 0): (5, epoch, "text", 0),
                ("u", 1): (7, epoch, "text", 0),
            }
            assert (
                shown(
                    version, await fixture.ask_for(9, version, fetch_offsets_request(version, {"none": None}))
                )
                == {}
            )

    run(scenario())


@pytest.mark.parametrize("version", [8, 9, 10])
def test_several_groups(version: int) -> None:
    """Groups of several shards in one answer, in the order in which they were asked for; each has its own
    code."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=3).start()
        names = [group_at(index, 3) for index in (2, 0, 1)]
        for number, name in enumerate(names):
            await fixture.commit(name, {("t", number): number})
        fixture.move("__consumer_offsets", 1, 2)
        await fixture.crash()
        wanted = {names[0]: [("t", 0)], names[1]: None, names[2]: None}
        response = await fixture.ask_for(
            9, version, fetch_offsets_request(version, wanted, require_stable=True)
        )
        assert [(g.group_id, g.error_code) for g in response.groups] == [
            (names[0], 0),
            (names[1], 0),
            (names[2], ErrorCode.NOT_COORDINATOR),
        ]
        assert shown(version, response, 0) == {("t", 0): (0, 5, "", 0)}
        assert shown(version, response, 1) == {("t", 1): (1, 5, "", 0)}
        assert shown(version, response, 2) == {}
        assert (await fixture.ask_for(9, version, OffsetFetchRequest())).groups == []

    run(scenario())


def test_topics_by_id() -> None:
    """An unknown id has its code; offsets of a namesake with another id are not the topic's; all offsets
    leave out what has no id."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 5, ("u", 0): 6})
        await fixture.begin_reading()
        request = fetch_offsets_request(10, {"g": [("t", 0), ("none", 2)]})
        response = await fixture.ask_for(9, 10, request)
        assert shown(10, response) == {
            ("t", 0): (5, 5, "", 0),
            ("none", 2): (-1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID),
        }
        assert response.groups[0].topics[0].topic_id == topic_id("t")
        shard = await fixture.loaded()
        stored = shard.offsets.of_topic("g", "t")[0]
        shard.offsets.apply("g", "t", 0, stored._replace(topic_id=b"of a former t..."))
        assert shown(10, await fixture.ask_for(9, 10, request))["t", 0] == (-1, -1, "", 0)
        assert await fixture.fetch_offsets("g", ("t", 0)) == {("t", 0): 5}
        shard.offsets.apply("g", "t", 0, stored._replace(topic_id=NO_UUID))
        assert shown(10, await fixture.ask_for(9, 10, request))["t", 0] == (5, 5, "", 0)
        shard.offsets.apply("g", "gone", 0, stored)
        everything = await fixture.ask_for(9, 10, fetch_offsets_request(10, {"g": None}))
        assert list(shown(10, everything)) == [("t", 0), ("u", 0)]
        assert list(shown(9, await fixture.ask_for(9, 9, fetch_offsets_request(9, {"g": None})))) == [
            ("t", 0),
            ("u", 0),
            ("gone", 0),
        ]
        fixture.publish(
            TopicRecord("late", b"late".ljust(16, b".")), PartitionRecord(0, b"late".ljust(16, b"."))
        )

    run(scenario())


@pytest.mark.parametrize("version", range(1, 11))
def test_without_a_coordinator(version: int) -> None:
    """In the place that the version has for it; with the code that makes consumers of all ages look for the
    coordinator again."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=0).start()
        response = await fixture.ask_for(9, version, fetch_offsets_request(version, {"g": [("t", 0)]}))
        if version >= 8:
            assert response.groups[0].error_code == ErrorCode.NOT_COORDINATOR
        elif version >= 2:
            assert (response.error_code, response.topics) == (ErrorCode.NOT_COORDINATOR, [])
        else:
            assert shown(version, response) == {("t", 0): (-1, -1, "", ErrorCode.NOT_COORDINATOR)}
        request = fetch_offsets_request(version, {"g": [("t", 0)]})
        refused = await fixture.finish(
            fixture.handlers[9].refuse(request, ErrorCode.REQUEST_TIMED_OUT), 9, version
        )
        code = refused.groups[0].error_code if version >= 8 else refused.error_code
        assert code == (ErrorCode.REQUEST_TIMED_OUT if version >= 2 else 0)
        if version == 1:
            assert shown(version, refused) == {("t", 0): (-1, -1, "", ErrorCode.REQUEST_TIMED_OUT)}

    run(scenario())


def test_one_group_costs_no_task() -> None:
    """Answered at once when nothing is on its way, by a future when something is."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 5})
        request = fetch_offsets_request(9, {"g": [("t", 0)]})
        assert isinstance(fixture.call(9, 9, request), OffsetFetchResponse)
        commit = asyncio.ensure_future(fixture.commit("g", {("t", 0): 6}))
        await asyncio.sleep(0)
        waiting = fixture.call(9, 9, request)
        assert asyncio.isfuture(waiting)
        assert not isinstance(waiting, asyncio.Task)
        assert shown(9, await waiting) == {("t", 0): (6, 5, "", 0)}
        await commit

    run(scenario())


def test_all_offsets_of_many_groups_wait_together_for_what_loads_late() -> None:
    """Each group's partition would not open: the request waits for them as long as for one."""

    async def scenario() -> None:
        count, loop = 8, asyncio.get_running_loop()
        fixture = await GroupFixture(offsets_partitions=count).start()
        fixture.opener.gate = asyncio.Event()
        names = [group_at(index, count) for index in range(count)]
        began_s = loop.time()
        response = await fixture.ask_for(9, 8, fetch_offsets_request(8, dict.fromkeys(names)))
        codes = {group.error_code for group in response.groups}
        assert codes == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert loop.time() - began_s == pytest.approx(LOAD_WAIT_S, abs=0.01)
        fixture.opener.gate.set()
        await asyncio.sleep(1)
        response = await fixture.ask_for(9, 8, fetch_offsets_request(8, dict.fromkeys(names)))
        assert {group.error_code for group in response.groups} == {0}

    run(scenario())
