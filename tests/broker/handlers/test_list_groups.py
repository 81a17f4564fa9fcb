"""ListGroups: every version, its filters, and groups of shards that nobody had asked for."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.handlers.list_groups import GROUPS_PER_CHUNK
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.list_groups import ListGroupsRequest
from tests.broker.coordinators.build import GroupFixture, group_at, run


async def listed(fixture: GroupFixture, version: int, *filters: list[str]) -> list[tuple[str, str, str, str]]:
    response = await fixture.ask_for(16, version, ListGroupsRequest(*filters))
    assert response.error_code == 0
    return sorted((g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(version: int) -> None:
    """With state from version 4 on, with type from 5 on; simple groups have no protocol type."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=3).start()
        await fixture.stable_member("g")
        await fixture.commit("simple", {("t", 0): 1})
        await fixture.join("connect", protocol_type="connect")
        state = (lambda text: text) if version >= 4 else (lambda text: "")
        kind = "classic" if version >= 5 else ""
        assert await listed(fixture, version) == [
            ("connect", "connect", state("CompletingRebalance"), kind),
            ("g", "consumer", state("Stable"), kind),
            ("simple", "", state("Empty"), kind),
        ]

    run(scenario())


def test_filters() -> None:
    """By state and by type, in any case; what is unknown matches nothing."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.stable_member("g")
        await fixture.commit("simple", {("t", 0): 1})

        async def names(*filters: list[str]) -> list[str]:
            return [group[0] for group in await listed(fixture, 5, *filters)]

        assert await names(["Stable"]) == ["g"]
        assert await names(["STABLE", " empty "]) == ["g", "simple"]
        assert await names(["dead"]) == []
        assert await names([], ["Classic"]) == ["g", "simple"]
        assert await names([], ["consumer", "CLASSIC"]) == ["g", "simple"]
        assert await names([], ["consumer"]) == []
        assert await names([], ["share", "nonsense"]) == []
        assert await names(["stable"], ["classic"]) == ["g"]

    run(scenario())


def test_groups_of_one_shard_are_listed_in_chunks() -> None:
    """All names may belong to one partition: the loop goes on between any thousand of them."""
    chunks = 8

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("first", {("t", 0): 1})
        machine = await fixture.loaded()
        for number in range(chunks * GROUPS_PER_CHUNK - 1):
            machine._add_group(f"g{number}")
        asked = fixture.later(16, 5, ListGroupsRequest())
        iterations = 0
        while not asked.done():
            iterations += 1
            await asyncio.sleep(0)
        assert len((await asked).groups) == chunks * GROUPS_PER_CHUNK
        assert iterations >= 2 * (chunks - 1)

    run(scenario())


def test_shards_are_loaded_to_be_listed() -> None:
    """After a restart every partition that has streams is read; those that never had anything are left
    alone."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=8).start()
        for index in (1, 4, 6):
            await fixture.commit(group_at(index, 8), {("t", 0): 1})
        await fixture.crash()
        fixture.opener.opened.clear()
        assert [group[0] for group in await listed(fixture, 2)] == sorted(
            group_at(index, 8) for index in (1, 4, 6)
        )
        assert sorted(index for _, index, _ in fixture.opener.opened) == [1, 4, 6]

    run(scenario())


def test_partitions_of_other_brokers_are_theirs_to_list() -> None:
    """What is led elsewhere is left out; a partition that does not open is an error."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=2).start()
        for index in (0, 1):
            await fixture.commit(group_at(index, 2), {("t", 0): 1})
        fixture.move("__consumer_offsets", 1, 2)
        assert [group[0] for group in await listed(fixture, 3)] == [group_at(0, 2)]
        await fixture.crash()

        def fail(operation: str, key: str) -> None:
            raise TimeoutError

        fixture.world.store.fault = fail
        fixture.engine.drop_caches()
        response = await fixture.ask_for(16, 4, ListGroupsRequest())
        assert (response.error_code, response.groups) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])

    run(scenario())


def test_nothing_to_list() -> None:
    """Before there is an offsets topic there are no groups, which is no error."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=0).start()
        assert await listed(fixture, 5) == []
        await fixture.coordinator.stop()
        assert await listed(fixture, 5) == []

    run(scenario())
