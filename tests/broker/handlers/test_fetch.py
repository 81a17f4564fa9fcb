"""Fetch over a real directory and engine: versions, sizes, waiting, sessions, epochs, cold data."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.handlers.fetch import Fetch
from millrace.broker.purgatory import notify_change
from millrace.broker.requests.fetch_machine import FetchState
from millrace.broker.requests.fetch_sessions import FetchSessions
from millrace.protocol.batches import BatchHeader, iter_headers
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.fetch import ReplicaState
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.broker_fixture import BrokerFixture, connection, fetch_request, parts_of
from tests.broker.partitions.build import START_MS, batch, run
from tests.patience import PATIENCE_S
from tests.s3stream.build import World

VERSIONS = (4, 5, 6, 7, 9, 11, 12, 13, 15, 16, 17, 18)
# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_cold_data_comes_from_objects_and_warm_data_does_not_wait_elsewhere": "cold as it is, and the store "
    "stands still",
    "test_a_fetch_goes_from_objects_into_the_log_cache": "is about the log cache beside objects",
    "test_limits_are_shared_in_the_order_asked_whatever_is_cold": "cold as far as it is",
    "test_cold_and_hot_partitions_of_a_session_take_turns": "cold as far as it is",
    "test_one_batch_an_answer_goes_whole_whatever_is_cold": "cold as far as it is",
    "test_a_share_that_the_store_leaves_unused_goes_to_others": "cold as it is, and the store stands still",
    "test_bytes_that_come_during_a_remote_read_count_towards_the_minimum": "cold as far as it is",
    "test_bytes_behind_a_remote_read_count_as_far_as_the_partitions_limit_goes": "cold as far as it is",
    "test_a_partition_that_goes_during_a_remote_read_is_told_behind_it": "cold as far as it is",
    "test_records_are_views_of_what_is_cached": "is about the log cache",
    "test_replicas_do_not_fetch_here": "reads nothing",
    "test_a_fetch_that_does_not_wait_is_answered_at_once": "reads nothing",
    "test_a_fetch_that_waits_learns_that_its_partition_left": "reads nothing",
    "test_a_delayed_fetch_can_be_force_completed": "reads nothing",
    "test_a_fetch_whose_client_is_gone_is_not_read_for": "reads nothing",
    "test_a_fetch_that_fails_leaves_no_subscription": "reads nothing",
    "test_a_wake_during_a_read_does_not_begin_another": "cold as far as it is",
    "test_a_delayed_increment_ends_with_its_session": "reads nothing",
    "test_a_read_for_a_fetch_whose_session_went_on_changes_nothing": "cold as far as it is",
    "test_without_slots_fetches_go_on_without_sessions": "reads nothing",
}


def offsets(part: Any) -> list[int]:
    """Base offsets of the batches in a partition's answer."""
    records = part.records
    data = records if isinstance(records, memoryview | bytes) else b"".join(records)
    return [header.base_offset for _, header in iter_headers(data)]


async def filled(
    fixture: BrokerFixture, name: str = "a", partitions: int = 1, batches: int = 5, **configs: str
) -> None:
    """Topics with batches of two records each."""
    fixture.make_topic(name, partitions, **configs)
    for index in range(partitions):
        for _ in range(batches):
            await fixture.produce({(name, index): batch(2)})


def size_of_one() -> int:
    return len(batch(2))


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_that_is_durable_is_returned(version: int) -> None:
    """Batches, watermarks and the log's start, by name or by id, on every version."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=2)
        response = await fixture.fetch({("a", 0): 0, ("a", 1): 4}, version)
        parts = parts_of(response)
        assert [offsets(part) for part in parts.values()] == [[0, 2, 4, 6, 8], [4, 6, 8]]
        for part in parts.values():
            assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 10, 10)
            assert part.log_start_offset == (0 if version >= 5 else -1)
            assert part.aborted_transactions is None
            assert part.preferred_read_replica == -1
        assert response.session_id == 0

    run(scenario())


def test_an_offset_inside_a_batch_gets_the_whole_batch() -> None:
    """Clients skip what lies below the offset they asked for."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        (part,) = parts_of(await fixture.fetch({("a", 0): 5})).values()
        assert offsets(part) == [4, 6, 8]

    run(scenario())


@pytest.mark.parametrize("version", [4, 11, 18])
def test_offsets_out_of_range_are_told_and_the_end_is_not_one(version: int) -> None:
    """Below the log's start and above its end: OFFSET_OUT_OF_RANGE. At the end, or between watermark and end:
    nothing yet."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a")
        partition = await fixture.partition("a")
        for _ in range(4):
            partition.append(batch(2), 9, START_MS, 0, lambda _: None)
        fixture.world.wal.confirm(3)
        partition.raise_log_start(2, START_MS)
        fixture.world.wal.confirm()
        partition.append(batch(2), 9, START_MS, 0, lambda _: None)
        for offset, code in ((0, 1), (1, 1), (2, 0), (8, 0), (9, 0), (10, 0), (11, 1), (-1, 1)):
            (part,) = parts_of(await fixture.fetch({("a", 0): offset}, version)).values()
            assert part.error_code == code, offset
            assert part.high_watermark == (-1 if code else 8)
            if offset >= 8:
                assert offsets(part) == []

    run(scenario())


@pytest.mark.parametrize("isolation", [0, 1])
def test_readers_of_committed_records_get_a_list_of_aborts(isolation: int) -> None:
    """Empty as yet; readers of everything get none at all."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        (part,) = parts_of(await fixture.fetch({("a", 0): 0}, isolation_level=isolation)).values()
        assert offsets(part) == [0, 2, 4, 6, 8]
        assert part.aborted_transactions == ([] if isolation else None)

    run(scenario())


@pytest.mark.parametrize(
    ("isolation", "level", "found"), [("everything", 0, [0, 2, 4, 6, 8]), ("committed", 1, [0, 2])]
)
def test_a_reader_sees_up_to_the_visible_end_of_its_isolation(
    isolation: str, level: int, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where something holds the last stable offset back, readers of committed records are given nothing
    behind it, and wait there."""
    monkeypatch.setattr("millrace.broker.partitions.partition.last_stable_offset", lambda high_watermark: 4)

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        (part,) = parts_of(await fixture.fetch({("a", 0): 0}, isolation_level=level)).values()
        assert offsets(part) == found
        assert (part.high_watermark, part.last_stable_offset) == (10, 4)
        outcome = begin(fixture, {("a", 0): 4}, max_wait_ms=20, isolation_level=level)
        (part,) = parts_of(await fixture.finish(outcome, 1, 12)).values()
        assert offsets(part) == found[2:]

    run(scenario())


@pytest.mark.parametrize("version", [12, 13, 16, 18])
def test_places_that_cannot_be_read_have_their_codes(version: int) -> None:
    """Unknown topics, ids and partitions, and other leaders; from version 16 on with who leads."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        fixture.make_topic("away", leader=2)
        wanted = {("a", 0): 0, ("a", 7): 0, ("none", 0): 0, ("away", 0): 0}
        response = await fixture.fetch(wanted, version, max_wait_ms=600_000, min_bytes=10**6)
        parts = parts_of(response)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [part.error_code for part in parts.values()] == [
            0,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            unknown,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ]
        hint = parts["away", 0].current_leader
        assert (hint.leader_id, hint.leader_epoch) == ((2, 0) if version >= 16 else (-1, -1))
        nodes = [(node.node_id, node.host) for node in response.node_endpoints]
        assert nodes == ([(2, "host2")] if version >= 16 else [])

    run(scenario())


@pytest.mark.parametrize("version", [16, 18])
def test_nobody_is_sent_to_a_leader_that_is_gone(version: int) -> None:
    """As in Metadata, nobody leads what a fenced broker did: its address is not told."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        fixture.make_topic("away", leader=2)
        fixture.fence(2)
        response = await fixture.fetch({("a", 0): 0, ("away", 0): 0}, version)
        part = parts_of(response)["away", 0]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (-1, 0)
        assert not response.node_endpoints

    run(scenario())


@pytest.mark.parametrize("version", [9, 12, 16])
def test_leader_epochs_are_compared(version: int) -> None:
    """An older one than ours is fenced, a newer one unknown; our own and none (below 0) are fine."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        fixture.move("a", 0, 1)
        fixture.move("a", 0, 1)
        codes = []
        for epoch in (-1, 1, 2, 3, -2):
            response = await fixture.fetch({("a", 0): 0}, version, leader_epoch=epoch)
            (part,) = parts_of(response).values()
            codes.append(part.error_code)
            if epoch == 1 and version >= 16:
                assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, 2)
                assert [(node.node_id, node.host) for node in response.node_endpoints] == [(1, "127.0.0.1")]
        fenced = ErrorCode.FENCED_LEADER_EPOCH
        assert codes == [0, fenced, 0, ErrorCode.UNKNOWN_LEADER_EPOCH, 0]

    run(scenario())


def test_a_diverging_epoch_is_told_without_records() -> None:
    """Who fetched further in an epoch than that epoch went learns where it ended; an epoch nobody knows is
    out of range."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, batches=2)
        for leader_epoch in (1, 2):
            fixture.move("a", 0, 1)
            assert (await fixture.partition("a")).leader_epoch == leader_epoch
        await fixture.produce({("a", 0): batch(2)})
        answers = []
        for epoch, offset in ((0, 4), (0, 5), (1, 4), (2, 6), (2, 7), (3, 6)):
            (part,) = parts_of(await fixture.fetch({("a", 0): offset}, 12, last_fetched_epoch=epoch)).values()
            diverging = part.diverging_epoch
            answers.append((part.error_code, diverging.epoch, diverging.end_offset, len(offsets(part))))
        assert answers == [
            (0, -1, -1, 1),
            (0, 0, 4, 0),
            (0, 0, 4, 0),
            (0, -1, -1, 0),
            (0, 2, 6, 0),
            (1, -1, -1, 0),
        ]

    run(scenario())


def test_replicas_do_not_fetch_here() -> None:
    """A follower would believe that it holds what only the store holds."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        for version, fields in ((12, {"replica_id": 2}), (15, {"replica_state": ReplicaState(2, 1)})):
            response = await fixture.fetch({("a", 0): 0}, version, **fields)
            assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert [part.error_code for part in parts_of(response).values()] == [31]

    run(scenario())


# -- sizes


def test_a_partitions_limit_holds_after_its_first_batch() -> None:
    """The first batch of an answer is sent whole however small the limits; a later partition's only if it
    fits."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=3)
        one = size_of_one()
        for limit, expected in (
            (1, [1, 0, 0]),
            (one - 1, [1, 0, 0]),
            (one, [1, 1, 1]),
            (2 * one, [2, 2, 2]),
            (3 * one - 1, [2, 2, 2]),
        ):
            wanted = {("a", index): 0 for index in range(3)}
            parts = parts_of(await fixture.fetch(wanted, partition_max_bytes=limit))
            assert [len(offsets(part)) for part in parts.values()] == expected, limit

    run(scenario())


def test_the_answers_limit_is_shared_in_the_order_asked() -> None:
    """Bytes go to the first partitions; the rest get none, though they have some; the broker's own limit
    holds too."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=3)
        one = size_of_one()
        for limit, expected in ((0, [1, 0, 0]), (1, [1, 0, 0]), (6 * one, [5, 1, 0]), (12 * one, [5, 5, 2])):
            wanted = {("a", index): 0 for index in range(3)}
            parts = parts_of(await fixture.fetch(wanted, max_bytes=limit))
            assert [len(offsets(part)) for part in parts.values()] == expected, limit
        fixture.fetch_handler = Fetch(
            fixture.directory, fixture.cache, fixture.sessions, YieldQueue(), response_bytes_max=3 * one
        )
        parts = parts_of(await fixture.fetch({("a", 0): 0, ("a", 1): 0}))
        assert [len(offsets(part)) for part in parts.values()] == [3, 0]

    run(scenario())


async def served(
    fixture: BrokerFixture, wanted: dict[tuple[str, int], int], count: int, **fields: Any
) -> list[tuple[str, int]]:
    """Who had records in the first so many answers of a session, of which all but the first ask for nothing
    new."""
    keys, session_id = [], 0
    for epoch in range(count):
        response = await fixture.fetch(
            {} if epoch else wanted, 12, session_id=session_id, session_epoch=epoch, **fields
        )
        session_id = response.session_id
        keys += [key for key, part in parts_of(response).items() if offsets(part)]
    return keys


def test_in_a_session_nobody_starves() -> None:
    """With room for one partition an answer, increments that ask for nothing new go round: each partition has
    its turn."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=3)
        one = size_of_one()
        fields = {"max_bytes": one, "partition_max_bytes": 10 * one}
        assert (
            await served(fixture, {("a", index): 0 for index in range(3)}, 6, **fields)
            == [("a", 0), ("a", 1), ("a", 2)] * 2
        )

    run(scenario())


def test_a_fetch_that_reads_twice_serves_whom_it_served_first() -> None:
    """With batches above the partition's limit one is taken an answer: that of the first in the request, or
    in a session of each in turn, also where the minimum is waited for and all is read again at the
    deadline."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=2)
        one = size_of_one()
        fields = {"min_bytes": 99 * one, "partition_max_bytes": one - 1, "max_wait_ms": 30}
        wanted = {("a", 0): 0, ("a", 1): 0}
        assert await served(fixture, wanted, 4, **fields) == [("a", 0), ("a", 1)] * 2
        for _ in range(2):
            parts = parts_of(await fixture.fetch(wanted, 12, **fields))
            assert [key for key, part in parts.items() if offsets(part)] == [("a", 0)]

    run(scenario())


def test_a_batch_that_does_not_fit_keeps_its_place() -> None:
    """A large batch behind smaller ones is left out, and comes first in the next increment, where it is sent
    whole."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=1)
        fixture.make_topic("large")
        await fixture.produce({("large", 0): batch(1, value=b"v" * 5000)})
        fields = {"max_bytes": 2 * size_of_one()}
        assert await served(fixture, {("a", 0): 0, ("large", 0): 0}, 3, **fields) == [
            ("a", 0),
            ("large", 0),
            ("a", 0),
        ]

    run(scenario())


# -- waiting


def stand_still(fixture: BrokerFixture) -> asyncio.Event:
    """The store answers nothing before the event."""
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    fixture.world.store.fault = lambda operation, key: wait()
    return gate


def begin(
    fixture: BrokerFixture, wanted: dict[tuple[str, int], int], version: int = 12, **fields: Any
) -> Any:
    to = fields.pop("to", None)
    return fixture.begin(fixture.fetch_handler, 1, version, fetch_request(wanted, version, **fields), to=to)


def test_a_fetch_waits_for_bytes_and_completes_when_they_are_durable() -> None:
    """Delayed at the log's end it is answered with the batch once that is durable, well before its time is
    over."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a")
        partition = await fixture.partition("a")
        outcome = begin(fixture, {("a", 0): 0}, max_wait_ms=600_000)
        partition.append(batch(2), 9, START_MS, 0, lambda _: None)
        await asyncio.sleep(0.01)
        assert not outcome.done()
        fixture.world.wal.confirm()
        (part,) = parts_of(await fixture.finish(outcome, 1, 12)).values()
        assert offsets(part) == [0]
        assert partition.subscriptions == {}

    run(scenario())


def test_a_fetch_waits_for_as_many_bytes_as_it_wants() -> None:
    """Bytes of several partitions are summed, those at hand at the beginning count, and nothing is sent twice
    or missing."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 3)
        await fixture.produce({("a", 0): batch(2)})
        one = size_of_one()
        outcome = begin(
            fixture, {("a", index): 0 for index in range(3)}, max_wait_ms=600_000, min_bytes=3 * one
        )
        await asyncio.sleep(0.01)
        await fixture.produce({("a", 2): batch(2)})
        await asyncio.sleep(0.01)
        assert not outcome.done()
        await fixture.produce({("a", 2): batch(2)})
        parts = parts_of(await fixture.finish(outcome, 1, 12))
        assert [offsets(part) for part in parts.values()] == [[0], [], [0, 2]]

    run(scenario())


def test_a_partitions_limit_bounds_what_it_counts_for() -> None:
    """One busy partition cannot satisfy a minimum that its own limit keeps out of the answer."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        one = size_of_one()
        await fixture.partition("a", 0)
        await fixture.partition("a", 1)
        fields: dict[str, Any] = {"max_wait_ms": 600_000, "min_bytes": 2 * one, "partition_max_bytes": one}
        outcome = begin(fixture, {("a", 0): 0, ("a", 1): 0}, **fields)
        for _ in range(5):
            await fixture.produce({("a", 0): batch(2)})
        with_some = begin(fixture, {("a", 0): 0, ("a", 1): 0}, **fields)
        await fixture.produce({("a", 0): batch(2)})
        await asyncio.sleep(0.01)
        assert not outcome.done()
        assert not with_some.done()
        await fixture.produce({("a", 1): batch(2)})
        parts = parts_of(await fixture.finish(outcome, 1, 12))
        assert [offsets(part) for part in parts.values()] == [[0], [0]]

    run(scenario())


@pytest.mark.parametrize("name", ["max_bytes", "partition_max_bytes"])
def test_a_backlog_that_whole_batches_do_not_fill_is_not_waited_for(name: str) -> None:
    """A minimum that is the limit is there when more lies behind what fits: the answer comes at once, with
    less."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        limit = 3 * size_of_one() - 1
        async with asyncio.timeout(PATIENCE_S):
            response = await fixture.fetch(
                {("a", 0): 0}, max_wait_ms=600_000, min_bytes=limit, **{name: limit}
            )
        assert [offsets(part) for part in parts_of(response).values()] == [[0, 2]]

    run(scenario())


def test_a_batch_that_does_not_fit_counts_for_its_partitions_limit() -> None:
    """It is there to be asked for: with it a minimum is reached or nearer, once, whatever else comes behind
    it."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, batches=1)
        fixture.make_topic("large")
        await fixture.produce({("large", 0): batch(1, value=b"v" * 5000)})
        one = size_of_one()
        wanted = {("a", 0): 0, ("large", 0): 0}
        fields: dict[str, Any] = {"max_wait_ms": 600_000, "partition_max_bytes": 2 * one}
        async with asyncio.timeout(PATIENCE_S):
            parts = parts_of(await fixture.fetch(wanted, min_bytes=3 * one, **fields))
            assert [offsets(part) for part in parts.values()] == [[0], []]
            outcome = begin(fixture, wanted, min_bytes=4 * one, **fields)
            await asyncio.sleep(0.01)
            await fixture.produce({("large", 0): batch(2)})
            await asyncio.sleep(0.01)
            assert not outcome.done()
            await fixture.produce({("a", 0): batch(2)})
            parts = parts_of(await fixture.finish(outcome, 1, 12))
        # A further read pass serves in the order of the request, too.
        assert [offsets(part) for part in parts.values()] == [[0, 2], []]

    run(scenario())


def test_a_fetch_that_waits_holds_no_records() -> None:
    """What it has read is not charged to its client; it is read again when there is enough, or its time is
    over."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, batches=3)
        outcome = begin(fixture, {("a", 0): 0}, max_wait_ms=200, min_bytes=10**6)
        await asyncio.sleep(0.01)
        (operation,) = fixture.connection.purgatory.values()
        assert [answer.records for answer in operation.read_pass.answers.values()] == [b""]
        (part,) = parts_of(await fixture.finish(outcome, 1, 12)).values()
        assert offsets(part) == [0, 2, 4]

    run(scenario())


def test_a_minimum_above_the_maximum_is_the_maximum() -> None:
    """Who wants more than it takes is answered with what it takes."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        fields = {"max_wait_ms": 600_000, "min_bytes": 10**6, "max_bytes": 2 * size_of_one()}
        (part,) = parts_of(await fixture.fetch({("a", 0): 0}, **fields)).values()
        assert offsets(part) == [0, 2]

    run(scenario())


def test_when_its_time_is_over_a_fetch_gets_what_there_is() -> None:
    """Nothing, or less than it wanted; and it stands at no partition any more."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        partition = await fixture.partition("a")
        loop = asyncio.get_running_loop()
        began = loop.time()
        (part,) = parts_of(await fixture.fetch({("a", 0): 0}, max_wait_ms=30)).values()
        assert offsets(part) == []
        assert loop.time() - began == pytest.approx(0.03)
        await fixture.produce({("a", 0): batch(2)})
        (part,) = parts_of(await fixture.fetch({("a", 0): 0}, max_wait_ms=30, min_bytes=10_000)).values()
        assert offsets(part) == [0]
        assert partition.subscriptions == {}

    run(scenario(), is_virtual=True)


@pytest.mark.parametrize("fields", [{"max_wait_ms": 0}, {"max_wait_ms": 9000, "min_bytes": 0}])
def test_a_fetch_that_does_not_wait_is_answered_at_once(fields: dict[str, Any]) -> None:
    """No time, or no bytes wanted: a plain answer, not even a future."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        await fixture.partition("a")
        outcome = begin(fixture, {("a", 0): 0}, **fields)
        assert not asyncio.isfuture(outcome)
        assert parts_of(outcome)["a", 0].error_code == 0
        assert not asyncio.isfuture(begin(fixture, {}, max_wait_ms=9000))

    run(scenario())


def test_a_fetch_that_waits_learns_that_its_partition_left() -> None:
    """Another leader, a deleted topic, or a later epoch answer it at once."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        for name in ("moved", "deleted", "renewed"):
            fixture.make_topic(name)
            await fixture.partition(name)
        waiting = {
            name: begin(fixture, {(name, 0): 0}, max_wait_ms=600_000, leader_epoch=0)
            for name in ("moved", "deleted", "renewed")
        }
        fixture.move("moved", 0, 2)
        fixture.delete_topic("deleted")
        fixture.move("renewed", 0, 1)
        codes = {}
        for name, outcome in waiting.items():
            (part,) = parts_of(await fixture.finish(outcome, 1, 12)).values()
            codes[name] = part.error_code
        assert codes == {
            "moved": ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "deleted": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "renewed": ErrorCode.FENCED_LEADER_EPOCH,
        }

    run(scenario())


@pytest.mark.parametrize("is_open", [True, False])
def test_a_delayed_fetch_can_be_force_completed(is_open: bool) -> None:
    """It is answered without news, or let go of with its client; no subscription is left, and no time is
    waited for."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        partition = await fixture.partition("a")
        client = connection(5)
        outcome = begin(fixture, {("a", 0): 0}, max_wait_ms=2**31 - 1, to=client)
        ((future, request),) = client.purgatory.items()
        assert future is outcome
        assert len(partition.subscriptions) == 1
        client.is_open = is_open
        request.force_complete()
        response = await fixture.finish(outcome, 1, 12)
        assert response.error_code == (0 if is_open else ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        assert partition.subscriptions == {}
        assert client.purgatory == {}
        request.force_complete()

    run(scenario())


def test_a_fetch_whose_client_is_gone_is_not_read_for() -> None:
    """When its partition is open at last nothing is read, and it does not go on waiting."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        client = connection(5)
        outcome = begin(fixture, {("a", 0): 0}, max_wait_ms=2**31 - 1, to=client)
        assert not outcome.done()
        client.is_open = False
        response = await fixture.finish(outcome, 1, 12)
        assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert (await fixture.partition("a")).subscriptions == {}

    run(scenario())


@pytest.mark.parametrize("version", [4, 12])
def test_a_fetch_that_fails_leaves_no_subscription(version: int) -> None:
    """A defect in the first read pass or in a later one is the dispatcher's to answer; the request's
    partitions tell it nothing any more."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        partitions = [await fixture.partition("a", index) for index in range(2)]
        led = fixture.directory.topic_named("a")
        assert led is not None

        class Failing(dict[int, Any]):
            def get(self, key: int, default: Any = None) -> Any:
                if key == 1:
                    raise RuntimeError("a defect")
                return super().get(key, default)

        wanted, sound = {("a", 0): 0, ("a", 1): 0}, led.partitions
        outcome = begin(fixture, wanted, version, max_wait_ms=600_000, session_epoch=0)
        assert [len(partition.subscriptions) for partition in partitions] == [1, 1]
        led.partitions = Failing(sound)
        for partition in partitions:
            notify_change(partition.subscriptions)
        fixture.connection.purgatory[outcome].force_complete()
        with pytest.raises(RuntimeError):
            await outcome
        assert [len(partition.subscriptions) for partition in partitions] == [0, 0]
        with pytest.raises(RuntimeError):
            begin(fixture, wanted, version, max_wait_ms=600_000, session_epoch=0)
        assert [len(partition.subscriptions) for partition in partitions] == [0, 0]

    run(scenario())


def test_a_wake_during_a_read_does_not_begin_another() -> None:
    """News come and its time is over in the same iteration of the loop: what is in objects is read once, and
    is in the answer."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, batches=1)
        fixture.make_topic("b")
        await fixture.partition("b")
        outcome = begin(fixture, {("a", 0): 0, ("b", 0): 0}, max_wait_ms=600_000, min_bytes=10**6)
        assert await fixture.engine.upload_all(1000)
        fixture.engine.drop_caches()
        gate = stand_still(fixture)
        fixture.move("b", 0, 2)  # completes it, in the next turn
        fixture.connection.purgatory[outcome].force_complete()
        await asyncio.sleep(0.01)
        assert not outcome.done()
        gate.set()
        parts = parts_of(await fixture.finish(outcome, 1, 12))
        assert [(part.error_code, len(offsets(part))) for part in parts.values()] == [
            (0, 1),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0),
        ]

    run(scenario())


def test_only_what_changed_is_read_again() -> None:
    """A delayed fetch over many partitions that one batch wakes reads one partition, not all of them."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 200)
        for index in range(200):
            await fixture.partition("a", index)
        outcome = begin(
            fixture, {("a", index): 0 for index in range(200)}, session_epoch=0, max_wait_ms=600_000
        )
        reads: list[int] = []
        led = fixture.directory.topic_named("a")
        assert led is not None

        class Counting(dict[int, Any]):
            def get(self, key: int, default: Any = None) -> Any:
                reads.append(key)
                return super().get(key, default)

        led.partitions = Counting(led.partitions)
        await fixture.produce({("a", 77): batch(2)})
        response = await fixture.finish(outcome, 1, 12)
        assert len(parts_of(response)) == 200
        assert reads == [77, 77, 77]  # the produce's, the fetch's, and to count what was given
        reads.clear()
        following = begin(fixture, {}, session_id=response.session_id, session_epoch=1, max_wait_ms=600_000)
        assert set(reads) == {77}
        assert [
            key for key, part in parts_of(await fixture.finish(following, 1, 12)).items() if offsets(part)
        ] == [("a", 77)]

    run(scenario())


# -- sessions


def test_a_session_holds_only_news() -> None:
    """After the full answer, increments hold partitions with records or moved watermarks; an unchanged offset
    is served again."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=3, batches=1)
        first = await fixture.fetch({("a", index): 2 for index in range(3)}, 12, session_epoch=0)
        assert first.session_id > 0
        assert len(parts_of(first)) == 3
        session = {"session_id": first.session_id}
        assert parts_of(await fixture.fetch({("a", 0): 2}, 12, session_epoch=1, **session)) == {}
        await fixture.produce({("a", 1): batch(2)})
        for epoch in (2, 3):  # the client did not say that it has them
            second = parts_of(await fixture.fetch({}, 12, session_epoch=epoch, **session))
            assert [(key, offsets(part)) for key, part in second.items()] == [(("a", 1), [2])]
        third = parts_of(await fixture.fetch({("a", 1): 4}, 12, session_epoch=4, **session))
        assert third == {}
        (await fixture.partition("a", 2)).raise_log_start(1, START_MS)
        await fixture.settle()
        fourth = parts_of(await fixture.fetch({}, 12, session_epoch=5, **session))
        assert [(key, part.log_start_offset) for key, part in fourth.items()] == [(("a", 2), 1)]

    run(scenario())


def test_a_session_grows_shrinks_and_ends() -> None:
    """Partitions join, are forgotten, and the last one ends the session; errors of a session are of the whole
    answer."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=2)
        first = await fixture.fetch({("a", 0): 0}, 12, session_epoch=0)
        session = {"session_id": first.session_id}
        grown = await fixture.fetch({("a", 1): 8}, 12, session_epoch=1, **session)
        assert [offsets(part) for part in parts_of(grown).values()] == [[0, 2, 4, 6, 8], [8]]
        late = await fixture.fetch({}, 12, session_epoch=1, **session)
        assert (late.error_code, late.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
        shrunk = await fixture.fetch({}, 12, session_epoch=2, forgotten=[("a", 0)], **session)
        assert list(parts_of(shrunk)) == [("a", 1)]
        by_id = await fixture.fetch({}, 13, session_epoch=3, **session)
        assert by_id.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        ended = await fixture.fetch({}, 12, session_epoch=3, forgotten=[("a", 1)], **session)
        assert (ended.error_code, ended.session_id, ended.responses) == (0, 0, [])
        gone = await fixture.fetch({}, 12, session_epoch=4, **session)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        for index in range(2):
            assert (await fixture.partition("a", index)).subscriptions == {}

    run(scenario())


def test_a_session_is_delayed_and_completes_like_any_fetch() -> None:
    """An increment waits for bytes; when nothing came its answer is empty and the session goes on."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=2, batches=1)
        first = await fixture.fetch({("a", 0): 2, ("a", 1): 2}, 13, session_epoch=0)
        session = {"session_id": first.session_id, "max_wait_ms": 20}
        empty = await fixture.fetch({}, 13, session_epoch=1, **session)
        assert (empty.session_id, parts_of(empty)) == (first.session_id, {})
        outcome = begin(fixture, {}, 13, session_epoch=2, session_id=first.session_id, max_wait_ms=600_000)
        await fixture.produce({("a", 1): batch(2)})
        parts = parts_of(await fixture.finish(outcome, 1, 13))
        assert [(key, offsets(part)) for key, part in parts.items()] == [(("a", 1), [2])]

    run(scenario())


def test_a_delayed_increment_ends_with_its_session() -> None:
    """The client opened another in its place: the delayed one is answered at once, with an error that its
    reader drops."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, batches=1)
        first = await fixture.fetch({("a", 0): 2}, 12, session_epoch=0)
        outcome = begin(fixture, {}, session_id=first.session_id, session_epoch=1, max_wait_ms=600_000)
        await asyncio.sleep(0)
        second = await fixture.fetch({("a", 0): 2}, 12, session_id=first.session_id, session_epoch=0)
        assert second.session_id not in (0, first.session_id)
        assert (await fixture.finish(outcome, 1, 12)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert len((await fixture.partition("a")).subscriptions) == 1

    run(scenario())


def test_a_fetch_whose_session_went_on_elsewhere_leaves_its_news_to_the_next() -> None:
    """The client came back on another connection; then the old one is seen to be gone, and what waits there
    is force completed."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        partition = await fixture.partition("a")
        first = await fixture.fetch({("a", 0): 0}, 12, session_epoch=0)
        old = begin(fixture, {}, session_id=first.session_id, session_epoch=1, max_wait_ms=600_000)
        new = begin(fixture, {}, session_id=first.session_id, session_epoch=2, max_wait_ms=600_000)
        await asyncio.sleep(0)
        fixture.connection.purgatory[old].force_complete()
        await asyncio.wait([old])
        await fixture.produce({("a", 0): batch(1)})
        async with asyncio.timeout(PATIENCE_S):
            parts = parts_of(await fixture.finish(new, 1, 12))
        assert [(key, offsets(part)) for key, part in parts.items()] == [(("a", 0), [0])]
        assert partition.log_end_offset == 1

    run(scenario())


def test_a_read_for_a_fetch_whose_session_went_on_changes_nothing() -> None:
    """The client gave up waiting for objects and forgot their partition: what comes of them late wakes
    nobody, and keeps nobody from being woken."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, "cold", batches=1)
        fixture.make_topic("a")
        await fixture.partition("a")
        first = await fixture.fetch({("cold", 0): 2, ("a", 0): 0}, 12, session_epoch=0)
        assert await fixture.engine.upload_all(1000)
        fixture.engine.drop_caches()
        gate = stand_still(fixture)
        fields: dict[str, Any] = {"session_id": first.session_id, "max_wait_ms": 600_000}
        old = begin(fixture, {("cold", 0): 0}, session_epoch=1, min_bytes=10**6, **fields)
        await asyncio.sleep(0.01)
        new = begin(fixture, {}, session_epoch=2, forgotten=[("cold", 0)], **fields)
        gate.set()
        async with asyncio.timeout(PATIENCE_S):
            response = await fixture.finish(old, 1, 12)
            assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            await fixture.produce({("a", 0): batch(1)})
            parts = parts_of(await fixture.finish(new, 1, 12))
        assert [(key, offsets(part)) for key, part in parts.items()] == [(("a", 0), [0])]
        assert (await fixture.partition("cold")).subscriptions == {}

    run(scenario())


def test_errors_in_a_session_are_told_until_they_pass() -> None:
    """A partition that is not there is named in each increment, at once; when it comes it is read."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        first = await fixture.fetch({("a", 0): 10, ("later", 0): 0}, 12, session_epoch=0, max_wait_ms=600_000)
        assert parts_of(first)["later", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        session = {"session_id": first.session_id, "max_wait_ms": 600_000}
        second = await fixture.fetch({}, 12, session_epoch=1, **session)
        assert list(parts_of(second)) == [("later", 0)]
        fixture.make_topic("later")
        await fixture.produce({("later", 0): batch(2)})
        third = parts_of(await fixture.fetch({}, 12, session_epoch=2, **session))
        assert [(key, part.error_code, offsets(part)) for key, part in third.items()] == [
            (("later", 0), 0, [0])
        ]

    run(scenario())


def test_a_partition_that_comes_back_is_watched_again() -> None:
    """A session outlives a change of leader: news of the partition's next handle reach it."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        first = await fixture.fetch({("a", 0): 10}, 12, session_epoch=0)
        session = {"session_id": first.session_id, "max_wait_ms": 600_000}
        fixture.move("a", 0, 2)
        away = parts_of(await fixture.fetch({}, 12, session_epoch=1, **session))
        assert away["a", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        fixture.move("a", 0, 1)
        back = await fixture.fetch({}, 12, session_epoch=2, session_id=first.session_id, max_wait_ms=0)
        assert [part.error_code for part in parts_of(back).values()] == [0]
        outcome = begin(fixture, {}, session_epoch=3, **session)
        await asyncio.sleep(0)
        await fixture.produce({("a", 0): batch(2)})
        assert offsets(parts_of(await fixture.finish(outcome, 1, 12))["a", 0]) == [10]

    run(scenario())


def test_without_slots_fetches_go_on_without_sessions() -> None:
    """Session id 0 and the full answer each time; nothing is left behind."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        fixture.fetch_handler = Fetch(
            fixture.directory, fixture.cache, FetchSessions(iter(range(1, 9)).__next__, slots=0), YieldQueue()
        )
        for _ in range(3):
            response = await fixture.fetch({("a", 0): 10}, 12, session_epoch=0)
            assert (response.session_id, len(parts_of(response))) == (0, 1)
        assert (await fixture.partition("a")).subscriptions == {}

    run(scenario())


# -- far data


def test_cold_data_comes_from_objects_and_warm_data_does_not_wait_elsewhere() -> None:
    """Partitions whose data left the log cache are read from objects, several at once; fetches of others go
    on meanwhile."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=3)
        assert await fixture.engine.upload_all(1000)
        fixture.engine.drop_caches()
        gate = stand_still(fixture)
        wanted = {("a", index): 0 for index in range(3)}
        outcome = begin(fixture, wanted, max_wait_ms=1)
        await filled(fixture, "warm")
        assert len(offsets(parts_of(await fixture.fetch({("warm", 0): 0}))["warm", 0])) == 5
        assert not outcome.done()
        gate.set()
        parts = parts_of(await fixture.finish(outcome, 1, 12))
        assert [offsets(part) for part in parts.values()] == [[0, 2, 4, 6, 8]] * 3

    run(scenario())


def test_limits_hold_for_cold_data_too() -> None:
    """First batch whole, then what fits, in the order asked."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=3)
        await fixture.engine.upload_all(1000)
        one = size_of_one()
        for limit, expected in (
            (1, [1, 0, 0]),
            (2 * one, [2, 0, 0]),
            (6 * one, [5, 1, 0]),
            (99 * one, [5, 5, 5]),
        ):
            fixture.engine.drop_caches()
            parts = parts_of(await fixture.fetch({("a", index): 0 for index in range(3)}, max_bytes=limit))
            assert [len(offsets(part)) for part in parts.values()] == expected, limit

    run(scenario())


async def half_cold(cold: dict[str, memoryview], hot: dict[str, memoryview]) -> BrokerFixture:
    """Topics of five such batches each, in objects alone or in the log cache."""
    fixture = await BrokerFixture().start()
    for topics, is_cold in ((cold, True), (hot, False)):
        for name, records in topics.items():
            fixture.make_topic(name)
            for _ in range(5):
                await fixture.produce({(name, 0): records})
        if is_cold:
            assert await fixture.engine.upload_all(1000)
            fixture.engine.drop_caches()
    return fixture


def test_limits_are_shared_in_the_order_asked_whatever_is_cold() -> None:
    """A partition whose records are in objects has its share before those behind it, and they have what it
    leaves."""

    async def scenario() -> None:
        fixture = await half_cold({"cold": batch(2), "old": batch(2)}, {"hot": batch(2)})
        one = size_of_one()
        everything = 99 * one
        for names, limit, partition_limit, expected in (
            (("cold", "hot", "old"), 1, everything, [1, 0, 0]),
            (("cold", "hot", "old"), 2 * one, everything, [2, 0, 0]),
            (("cold", "hot", "old"), 6 * one, everything, [5, 1, 0]),
            (("cold", "hot", "old"), 12 * one, everything, [5, 5, 2]),
            (("cold", "old", "hot"), 12 * one, everything, [5, 5, 2]),
            (("cold", "hot", "old"), 4 * one, 2 * one, [2, 2, 0]),
            (("cold", "hot", "old"), 5 * one, 2 * one, [2, 2, 1]),
            (("hot", "cold", "old"), 6 * one, everything, [5, 1, 0]),
            (("hot", "cold", "old"), 1, everything, [1, 0, 0]),
        ):
            wanted = {(name, 0): 0 for name in names}
            parts = parts_of(
                await fixture.fetch(wanted, max_bytes=limit, partition_max_bytes=partition_limit)
            )
            assert [len(offsets(part)) for part in parts.values()] == expected, (names, limit)
            assert all(part.error_code == 0 for part in parts.values())

    run(scenario())


def test_cold_and_hot_partitions_of_a_session_take_turns() -> None:
    """With room for one partition an answer each is served in its turn, wherever its records are."""

    async def scenario() -> None:
        fixture = await half_cold({"cold": batch(2), "old": batch(2)}, {"hot": batch(2), "new": batch(2)})
        keys = [("cold", 0), ("hot", 0), ("old", 0), ("new", 0)]
        fields = {"max_bytes": size_of_one()}
        assert await served(fixture, dict.fromkeys(keys, 0), 8, **fields) == keys * 2

    run(scenario())


def test_one_batch_an_answer_goes_whole_whatever_is_cold() -> None:
    """It is the first partition's that has any: what is at hand behind it does not take its place, but
    inherits it when that cannot be read."""

    async def scenario() -> None:
        large = batch(1, value=b"v" * 5000)
        fixture = await half_cold({"cold": large, "old": large}, {"hot": large, "small": batch(2)})
        one = size_of_one()
        fields = {"partition_max_bytes": one, "max_bytes": 3 * one}

        async def counts(*names: str) -> list[int]:
            parts = parts_of(await fixture.fetch({(name, 0): 0 for name in names}, **fields))
            return [
                len(offsets(part)) if part.error_code == 0 else -part.error_code for part in parts.values()
            ]

        assert await counts("cold", "hot", "old") == [1, 0, 0]
        assert await counts("cold", "small", "hot") == [1, 1, 0]
        assert await counts("small", "cold", "hot") == [1, 0, 0]
        fixture.world.store.objects.clear()
        fixture.engine.drop_caches()
        lost = -ErrorCode.KAFKA_STORAGE_ERROR
        assert await counts("cold", "hot", "small") == [lost, 1, 1]
        assert await counts("cold", "hot", "old") == [lost, 1, lost]

    run(scenario())


@pytest.mark.parametrize("is_before", [False, True])
def test_bytes_that_come_during_a_remote_read_count_towards_the_minimum(is_before: bool) -> None:
    """The minimum is there as soon as the read is over, whether they came before its task ran or later; one
    byte less is waited for."""

    async def scenario() -> None:
        fixture = await half_cold({"cold": batch(2)}, {"hot": batch(2)})
        gate = stand_still(fixture)
        minimum = 7 * size_of_one()
        outcome = begin(fixture, {("cold", 0): 0, ("hot", 0): 10}, max_wait_ms=600_000, min_bytes=minimum)
        await asyncio.sleep(0 if is_before else 0.01)
        await fixture.produce({("hot", 0): batch(2)})
        more = begin(fixture, {("cold", 0): 0, ("hot", 0): 12}, max_wait_ms=600_000, min_bytes=minimum)
        await fixture.produce({("cold", 0): batch(2)})
        gate.set()
        async with asyncio.timeout(PATIENCE_S):
            parts = parts_of(await fixture.finish(outcome, 1, 12))
        assert [offsets(part) for part in parts.values()] == [[0, 2, 4, 6, 8, 10], [10]]
        await asyncio.sleep(0.01)
        assert not more.done()
        await fixture.produce({("hot", 0): batch(2)})
        async with asyncio.timeout(PATIENCE_S):
            parts = parts_of(await fixture.finish(more, 1, 12))
        assert [offsets(part) for part in parts.values()] == [[0, 2, 4, 6, 8, 10], [12]]

    run(scenario())


def test_bytes_behind_a_remote_read_count_as_far_as_the_partitions_limit_goes() -> None:
    """A partition of which only so much may be told does not make up a larger minimum, however much comes
    while it is read."""

    async def scenario() -> None:
        fixture = await half_cold({"cold": batch(2)}, {"hot": batch(2)})
        gate = stand_still(fixture)
        one = size_of_one()
        fields = {"max_wait_ms": 600_000, "min_bytes": 7 * one, "partition_max_bytes": 6 * one}
        outcome = begin(fixture, {("cold", 0): 0, ("hot", 0): 10}, **fields)
        await asyncio.sleep(0.01)
        for _ in range(5):
            await fixture.produce({("cold", 0): batch(2)})
        gate.set()
        await asyncio.sleep(0.05)
        assert not outcome.done()
        assert fixture.connection.purgatory[outcome].machine.state is FetchState.DELAYED
        await fixture.produce({("hot", 0): batch(2)})
        async with asyncio.timeout(PATIENCE_S):
            parts = parts_of(await fixture.finish(outcome, 1, 12))
        assert [len(offsets(part)) for part in parts.values()] == [6, 1]

    run(scenario())


def test_a_partition_that_goes_during_a_remote_read_is_told_behind_it() -> None:
    """Whoever waits for more would wait for what does not come."""

    async def scenario() -> None:
        fixture = await half_cold({"cold": batch(2)}, {"hot": batch(2)})
        gate = stand_still(fixture)
        outcome = begin(fixture, {("cold", 0): 0, ("hot", 0): 10}, max_wait_ms=600_000, min_bytes=10**6)
        await asyncio.sleep(0.01)
        fixture.move("hot", 0, 2)
        gate.set()
        async with asyncio.timeout(PATIENCE_S):
            parts = parts_of(await fixture.finish(outcome, 1, 12))
        assert [(part.error_code, len(offsets(part))) for part in parts.values()] == [
            (0, 5),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0),
        ]

    run(scenario())


def test_a_share_that_the_store_leaves_unused_goes_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that stands still does not hold back what is at hand for long, and what it owes is not an error
    beside that."""
    monkeypatch.setattr("millrace.broker.requests.read_pass.REMOTE_READ_BESIDE_RECORDS_S", 0.05)
    monkeypatch.setattr("millrace.broker.requests.read_pass.REMOTE_READ_S", 600.0)

    async def scenario() -> None:
        fixture = await half_cold({"cold": batch(2), "old": batch(2)}, {"hot": batch(2)})
        gate = stand_still(fixture)
        wanted = {("cold", 0): 0, ("old", 0): 0, ("hot", 0): 0}
        limit = 4 * size_of_one()
        async with asyncio.timeout(PATIENCE_S):
            response = await fixture.fetch(wanted, max_wait_ms=600_000, min_bytes=limit, max_bytes=limit)
        gate.set()
        parts = parts_of(response)
        assert [(part.error_code, len(offsets(part))) for part in parts.values()] == [(0, 0), (0, 0), (0, 4)]

    run(scenario())


def test_a_fetch_goes_from_objects_into_the_log_cache() -> None:
    """A consumer that catches up sees every batch once, in order, whatever tier it lies in."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, batches=20)
        await fixture.engine.upload_all(1000)
        fixture.engine.drop_caches()
        for _ in range(20):
            await fixture.produce({("a", 0): batch(2)})
        seen: list[int] = []
        offset = 0
        while offset < 80:
            (part,) = parts_of(
                await fixture.fetch({("a", 0): offset}, partition_max_bytes=3 * size_of_one())
            ).values()
            seen += offsets(part)
            offset = seen[-1] + 2
        assert seen == list(range(0, 80, 2))

    run(scenario())


def test_a_store_that_loses_an_object_is_a_storage_error_of_its_partitions() -> None:
    """What cannot be read is told as such, and the rest of the answer is there."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        await fixture.engine.upload_all(1000)
        fixture.engine.drop_caches()
        fixture.world.store.objects.clear()
        await filled(fixture, "warm")
        parts = parts_of(await fixture.fetch({("a", 0): 0, ("warm", 0): 0}))
        assert parts["a", 0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(offsets(parts["warm", 0])) == 5
        parts = parts_of(await fixture.fetch({("a", 0): 0}, 5))
        assert parts["a", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario())


def test_partitions_open_for_a_fetch() -> None:
    """The first fetch after a start opens what it names and reads it; a refusal is told, and consumers
    understand it."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, partitions=3)
        await fixture.crash()
        parts = parts_of(await fixture.fetch({("a", index): 0 for index in range(3)}, 12, max_wait_ms=5))
        assert [len(offsets(part)) for part in parts.values()] == [5, 5, 5]
        fixture.make_topic("b")
        fixture.opener.error = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        parts = parts_of(await fixture.fetch({("b", 0): 0, ("a", 0): 0}, 12, max_wait_ms=5))
        assert [part.error_code for part in parts.values()] == [ErrorCode.KAFKA_STORAGE_ERROR, 0]

    run(scenario())


def test_an_error_that_has_passed_by_the_next_read_is_waited_behind() -> None:
    """A topic that was not there comes while another partition opens: neither has records, and the fetch
    waits for some."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("closed")
        outcome = begin(fixture, {("later", 0): 0, ("closed", 0): 0}, max_wait_ms=600_000)
        fixture.make_topic("later")
        await fixture.partition("later")
        await asyncio.sleep(0.05)
        assert not outcome.done()
        await fixture.produce({("later", 0): batch(1)})
        async with asyncio.timeout(PATIENCE_S):
            parts = parts_of(await fixture.finish(outcome, 1, 12))
        assert [(part.error_code, offsets(part)) for part in parts.values()] == [(0, [0]), (0, [])]

    run(scenario())


def test_records_are_views_of_what_is_cached() -> None:
    """Nothing is copied or joined on the way out: the answer views the memory that is cached."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        await fixture.produce({("a", 0): batch(1, value=b"v" * 5000)})
        partition = await fixture.partition("a")
        response = begin(fixture, {("a", 0): 0})
        (records,) = response.responses[0].partitions[0].records
        (entry,) = partition.data.read_cached(0, 1, 1) or []
        assert records.obj is entry.data.obj
        assert BatchHeader(records).base_offset == 0

    run(scenario())
