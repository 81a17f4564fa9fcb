"""The coordinator runtime under a state machine that is no group: a coordinator of counters loads, appends,
confirms, times, deletes, is rewritten, killed and fenced as groups are, without a line of the runtime that
knows of it."""

from __future__ import annotations

import asyncio
import random

import pytest

from millrace.broker.partitions.partition import Partition
from millrace.protocol.batch_build import build_batch
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.records import Record
from millrace.runtime.errors import Exhausted
from tests.broker.coordinators.build import run
from tests.broker.coordinators.runtime.counters import CLEANUP_MS, IDLE_MS, TOPIC, CounterFixture
from tests.s3stream.build import World

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_a_counter_is_answered_when_it_is_durable": "reads nothing",
    "test_a_fenced_shard_answers_nobody_with_what_it_decided": "reads nothing",
    "test_what_has_expired_is_deleted_step_by_step": "its log is read while it is in the log cache",
}


async def confirmed(fixture: CounterFixture, asking: asyncio.Future[int]) -> int:
    """Of a WAL that is durable only when told: it is told until there is an answer."""
    while not asking.done():
        await asyncio.sleep(0)
        fixture.world.wal.confirm()
    return asking.result()


def test_a_counter_is_answered_when_it_is_durable() -> None:
    """Answers, and who waits for a total, come in the order of the decisions, when the log has them;
    decisions of one turn share a batch."""

    async def scenario() -> None:
        fixture = await CounterFixture(World(is_auto=False)).start()
        assert await confirmed(fixture, fixture.add("a")) == 1
        told: list[str] = []
        asked = {"add": fixture.add("a"), "wait": fixture.wait_for("a", 3), "again": fixture.add("a")}
        for name, future in asked.items():
            future.add_done_callback(lambda _, name=name: told.append(name))
        await asyncio.sleep(0)
        assert fixture.shard().machine.totals == {"a": 3}
        assert told == []
        fixture.world.wal.confirm()
        await asyncio.sleep(0)
        assert {name: future.result() for name, future in asked.items()} == {"add": 2, "wait": 3, "again": 3}
        entries = await (await fixture.partition(TOPIC)).data.fetch(0, 3, 1 << 20)
        assert [entry.count for entry in entries] == [1, 2]

    run(scenario())


def test_an_idle_counter_is_deleted_without_being_asked() -> None:
    """By its timer: an addition moves it, and after a kill the time begins anew. Its tombstone is in the
    log."""

    async def scenario() -> None:
        fixture = await CounterFixture().start()
        await fixture.add("kept", 5)
        await fixture.add("idle", 5)
        await asyncio.sleep(IDLE_MS / 1000 - 1)
        await fixture.add("kept", 0)
        await asyncio.sleep(2)
        assert fixture.shard().machine.totals == {"kept": 5}
        await fixture.crash()
        assert await fixture.total("other") == 0
        await asyncio.sleep(IDLE_MS / 1000 - 1)
        assert fixture.shard().machine.totals == {"kept": 5, "other": 0}
        await asyncio.sleep(2)
        assert fixture.shard().machine.totals == {}
        await fixture.crash()
        assert await fixture.total("kept") == 0

    run(scenario())


def test_what_has_expired_is_deleted_step_by_step() -> None:
    """At the interval of the cleanup, each step in a batch of its own."""

    async def scenario() -> None:
        fixture = await CounterFixture().start()
        await fixture.add("five", 5)
        for _ in range(CLEANUP_MS // IDLE_MS):
            await asyncio.sleep(IDLE_MS / 1000 - 1)
            await fixture.add("five", 0)
            for number in range(10):
                await fixture.add(f"c{number}", 0)
        partition = await fixture.partition(TOPIC)
        end = partition.log_end_offset
        await asyncio.sleep(11)
        entries = await partition.data.fetch(end, partition.high_watermark, 1 << 20)
        assert [entry.count for entry in entries] == [3, 3, 3, 1]
        assert fixture.shard().machine.totals == {"five": 5}
        assert fixture.memory.used_bytes == 104

    run(scenario())


def test_a_counters_log_is_rewritten() -> None:
    """The log start follows what lives, which is there after a kill, and so is what the state machine does
    not know."""

    async def scenario() -> None:
        fixture = await CounterFixture().start()
        partition = await fixture.partition(TOPIC)
        partition.append_own(build_batch([Record(b"\x00\x09?", b"unknown")]), 0, lambda _: None)
        await fixture.add("few", 3)
        name = "n" * 4000
        while not partition.log_start_offset:
            assert partition.log_end_offset < 10_000, "the log was never rewritten"
            await asyncio.gather(*(fixture.add(name) for _ in range(100)))
        total = await fixture.total(name)
        await fixture.crash()
        assert (await fixture.total("few"), await fixture.total(name)) == (3, total)
        assert fixture.shard().unknown.counts() == {9: 1}
        assert fixture.failures == []

    run(scenario())


def test_a_fenced_shard_answers_nobody_with_what_it_decided() -> None:
    """Another owner has the log: what is in flight fails, whoever waits for anything else is sent away, and
    memory is given back."""

    async def scenario() -> None:
        fixture = await CounterFixture(World(is_auto=False)).start()
        await confirmed(fixture, fixture.add("a"))
        adding, waiting = fixture.add("a"), fixture.wait_for("a", 9)
        await asyncio.sleep(0)
        shard = fixture.shard()
        partition = await fixture.partition(TOPIC)
        partition.data.is_fenced = True
        fixture.world.wal.confirm()
        assert (await adding, await waiting) == (-ErrorCode.NOT_COORDINATOR, -ErrorCode.NOT_COORDINATOR)
        assert shard.is_ended
        assert fixture.memory.used_bytes == 0

    run(scenario())


def test_a_failed_append_unloads_the_shard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is undone: what was decided is not answered as if it were durable, and the next load finds what
    the log has."""

    def refused(*_: object) -> int:
        raise Exhausted("no room")

    async def scenario() -> None:
        fixture = await CounterFixture().start()
        await fixture.add("a", 7)
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "append_own", refused)
            adding, waiting = fixture.add("a"), fixture.wait_for("a", 9)
            assert fixture.shard().machine.totals == {"a": 8}
            assert await adding == await waiting == -ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await fixture.total("a") == 7
        assert fixture.failures == []

    run(scenario())
    told = [record.getMessage() for record in caplog.records if "unloaded" in record.getMessage()]
    assert told == ["coordinator shard __counters-0 unloaded: append failed: no room"]


def test_a_partition_that_moves_away_and_back_is_read_again() -> None:
    """Who asks meanwhile is told to look elsewhere; each key has its partition."""

    async def scenario() -> None:
        fixture = await CounterFixture(partitions=3).start()
        names = {
            index: name for name in "abcdefgh" if (index := fixture.runtime.partition_of(name)) is not None
        }
        assert sorted(names) == [0, 1, 2]
        for index, name in names.items():
            await fixture.add(name, index + 1)
        fixture.move(TOPIC, 1, 2)
        assert await fixture.add(names[1]) == -ErrorCode.NOT_COORDINATOR
        assert await fixture.total(names[2]) == 3
        fixture.move(TOPIC, 1, 1)
        assert await fixture.add(names[1]) == 3
        await fixture.runtime.stop()
        assert await fixture.add(names[2]) == -ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(scenario())


def test_a_defect_in_a_command_unloads_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it applied: the log counts."""

    async def scenario() -> None:
        fixture = await CounterFixture().start()
        await fixture.add("a", 7)

        def half_done(name: str, *_: object) -> None:
            fixture.shard().machine.totals[name] = 1000
            raise AssertionError("defect")

        monkeypatch.setattr(fixture.shard().machine, "add", half_done)
        with pytest.raises(AssertionError, match="defect"):
            fixture.add("a")
        assert await fixture.total("a") == 7

    run(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_no_acknowledged_addition_is_lost_or_counted_twice(seed: int) -> None:
    """Additions, confirmed in bits, and kills at any place between: a total is what was acknowledged, or more
    of what was asked for."""

    async def scenario() -> None:
        chance = random.Random(seed)
        fixture = await CounterFixture(World(is_auto=False)).start()
        acknowledged = dict.fromkeys("abc", 0)
        for _ in range(5):
            asked = dict(acknowledged)
            futures: list[tuple[str, asyncio.Future[int]]] = []
            for name in "abc":
                asked[name] = acknowledged[name] = await confirmed(fixture, fixture.add(name, 0))
            for _ in range(chance.randrange(100)):
                name = chance.choice("abc")
                asked[name] += 1
                futures.append((name, fixture.add(name)))
                if chance.random() < 0.5:
                    await asyncio.sleep(0)
                    fixture.world.wal.confirm(chance.choice([1, None]))
            await asyncio.sleep(0)
            for name, future in futures:
                if future.done():
                    assert future.result() > acknowledged[name]
                    acknowledged[name] = future.result()
            await fixture.crash(unconfirmed_count=chance.randrange(3))
            for name in "abc":
                assert acknowledged[name] <= await confirmed(fixture, fixture.add(name, 0)) <= asked[name]
        assert fixture.failures == []

    run(scenario())
