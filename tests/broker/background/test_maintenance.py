"""Retention by time and size, of open and closed partitions, with a wall clock that may jump; producers that
expire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.background import maintenance as maintenance_module
from millrace.broker.background.maintenance import Maintenance, MaintenanceSettings
from millrace.broker.partitions import opening_turn
from millrace.kraft.tables.streams import OPEN
from millrace.protocol.metadata_records import ConfigRecord
from millrace.protocol.stream_records import StreamRecord
from millrace.runtime.objectstore import StoreFull
from millrace.s3stream.ids import StreamRole
from tests.broker.broker_fixture import NODE, OTHER, BrokerFixture, topic_id
from tests.broker.partitions.build import START_MS, batch, run
from tests.patience import PATIENCE_S, eventually
from tests.s3stream.build import World

DAY_MS = 86_400_000
INTERVAL_S = MaintenanceSettings().retention_check_interval_ms / 1000


def made(fixture: BrokerFixture) -> Maintenance:
    return Maintenance(fixture.directory, fixture.cache, fixture.judged, MaintenanceSettings())


def later(fixture: BrokerFixture, step_ms: int) -> None:
    """Time goes on, for both clocks alike."""
    fixture.clock.now_ms += step_ms
    fixture.clock.slept_ms += step_ms


async def filled(fixture: BrokerFixture, name: str, **configs: str) -> None:
    """Five batches of ten records, a day apart, each a segment of its own."""
    fixture.make_topic(name, segment_bytes="150", **configs)
    for day in range(5):
        data = batch(10, timestamp=fixture.clock.now_ms - (5 - day) * DAY_MS)
        await fixture.produce({(name, 0): data})


async def start_of(fixture: BrokerFixture, name: str) -> int:
    await fixture.settle()
    return (await fixture.partition(name)).log_start_offset


def test_open_partitions_lose_what_is_too_old_or_too_much() -> None:
    """By retention.ms, by retention.bytes, by neither; compacted topics keep everything, those that do both
    do not."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        size = str(2 * len(batch(10, key=b"k")))
        topics = {
            "aged": ({"retention_ms": str(3 * DAY_MS + 1000)}, 20),
            "sized": ({"retention_ms": "-1", "retention_bytes": size}, 30),
            "kept": ({"retention_ms": "-1"}, 0),
            "compacted": ({"retention_ms": "1", "cleanup_policy": "compact"}, 0),
            "both": ({"retention_ms": "1", "cleanup_policy": "compact,delete"}, 50),
        }
        for name, (configs, _) in topics.items():
            fixture.make_topic(name, segment_bytes="200", **configs)
            for day in range(5):
                await fixture.produce(
                    {(name, 0): batch(10, key=b"k", timestamp=START_MS - (5 - day) * DAY_MS)}
                )
        await made(fixture).retain()
        found = {name: await start_of(fixture, name) for name in topics}
        assert found == {name: expected for name, (_, expected) in topics.items()}
        aged = await fixture.partition("aged")
        assert aged.data.start == 20
        assert len(aged.state.segments) == 3

    run(scenario())


def test_nothing_is_dropped_twice_or_before_it_is_durable() -> None:
    """Rounds that find nothing new write nothing; what is in flight stays."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a", retention_ms="1000")
        partition = await fixture.partition("a")
        maintenance = made(fixture)
        partition.append(batch(10, timestamp=START_MS - 5000), 9, START_MS, 0, lambda _: None)
        await maintenance.retain()
        assert partition.meta.stream.next_offset == 0
        fixture.world.wal.confirm()
        await maintenance.retain()
        fixture.world.wal.confirm()
        assert partition.log_start_offset == 10
        await maintenance.retain()
        assert partition.meta.stream.next_offset == 1

    run(scenario())


def test_a_wall_clock_that_jumps_forward_deletes_nothing() -> None:
    """Retention by time goes no further while the clock is far ahead, by size it goes on; set right, it goes
    on as before."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, "aged", retention_ms=str(30 * DAY_MS))
        await filled(fixture, "sized", retention_ms=str(30 * DAY_MS), retention_bytes=str(len(batch(10))))
        maintenance = made(fixture)
        fixture.clock.now_ms += 365 * DAY_MS
        await maintenance.retain()
        assert fixture.known.ahead_ms > 364 * DAY_MS
        assert await start_of(fixture, "aged") == 0
        assert await start_of(fixture, "sized") > 0
        fixture.clock.now_ms -= 365 * DAY_MS
        later(fixture, 28 * DAY_MS)
        await maintenance.retain()
        assert await start_of(fixture, "aged") == 30

    run(scenario())


def test_what_is_too_old_goes_while_the_clock_is_doubted() -> None:
    """By the newest known time, which goes on: what is certainly too old is dropped, of closed partitions
    too, and no more."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, "a", retention_ms=str(4 * DAY_MS + DAY_MS // 2))
        close_to_metadata(fixture, "a")
        await restarted(fixture)
        maintenance = made(fixture)
        fixture.clock.now_ms += 365 * DAY_MS
        await maintenance.retain()
        assert await start_of(fixture, "a") == 10
        later(fixture, DAY_MS)
        await maintenance.retain()
        assert await start_of(fixture, "a") == 20

    run(scenario())


def test_a_clock_that_jumps_in_the_middle_of_a_round_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round goes on for minutes: between its bursts, and while what was open is written, the clock may be
    set wrong."""
    monkeypatch.setattr(maintenance_module, "OPENS_IN_A_BURST", 1)
    monkeypatch.setattr(maintenance_module, "BURST_S", 0.05)

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        names = ["a", "b"]
        for name in names:
            await filled(fixture, name, retention_ms=str(30 * DAY_MS))
            close_to_metadata(fixture, name)
        await restarted(fixture)
        maintenance = made(fixture)
        for times_before in (1, 0):
            with monkeypatch.context() as patch:
                jump = Jump(fixture, times_before)
                patch.setattr(fixture.directory, "release_quiet", jump.release_quiet)
                await maintenance.retain()
            assert [await start_of(fixture, name) for name in names] == [0, 0]
            fixture.clock.now_ms -= 365 * DAY_MS
            await maintenance.retain()

    run(scenario())


class Jump:
    """The wall clock goes wrong while a round waits for what it opened to be closed: before its first look,
    or after a burst."""

    def __init__(self, fixture: BrokerFixture, times_before: int) -> None:
        self._fixture = fixture
        self._release_quiet = fixture.directory.release_quiet
        self._times_before = times_before

    async def release_quiet(self) -> None:
        await self._release_quiet()
        if self._times_before == 0:
            self._fixture.clock.now_ms += 365 * DAY_MS
        self._times_before -= 1


def close_to_metadata(
    fixture: BrokerFixture, name: str, partitions: int = 1, *, is_empty: bool = False
) -> None:
    """Metadata knows the partitions' streams, as it would after a clean close."""
    for index in range(partitions):
        for number, role in enumerate((StreamRole.META, StreamRole.DATA, StreamRole.TIME)):
            end = 0 if is_empty or role is not StreamRole.DATA else 50
            stream_id = 10_000 + 1000 * len(fixture.publisher.image.topics) + 10 * index + number
            fixture.publish(StreamRecord(stream_id, topic_id(name), index, role, 0, NODE, 0, 0, end))


async def restarted(fixture: BrokerFixture) -> None:
    await fixture.directory.close()
    await fixture.engine.close(1000)
    await fixture.crash()


def test_closed_partitions_are_looked_at_once_and_then_when_due() -> None:
    """After a start each with data is opened, retained and closed; then not again before its oldest segment
    is too old."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, "a", retention_ms=str(4 * DAY_MS + DAY_MS // 2))
        close_to_metadata(fixture, "a")
        await restarted(fixture)
        maintenance = made(fixture)
        fixture.opener.opened.clear()
        await maintenance.retain()
        assert len(fixture.opener.opened) == 1
        await fixture.settle()
        streams = fixture.opener.streams_of(topic_id("a"), 0)
        await eventually(lambda: not any(fixture.world.catalog.streams[stream].is_open for stream in streams))
        assert fixture.directory.opened() == []
        assert fixture.world.catalog.streams[streams[1]].start == 10
        await maintenance.retain()
        assert len(fixture.opener.opened) == 1
        later(fixture, DAY_MS // 2)
        await maintenance.retain()
        assert len(fixture.opener.opened) == 1
        later(fixture, 1)
        await maintenance.retain()
        assert len(fixture.opener.opened) == 2
        assert await start_of(fixture, "a") == 20

    run(scenario())


def test_what_was_looked_at_stays_usable_while_uploads_wait() -> None:
    """The bucket is full: retention visits closed partitions and drops something of each. One is closed, and
    waits; the others can be written to, and are closed when puts are taken again."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        names = ["a", "b", "c", "d"]
        for name in names:
            await filled(fixture, name, retention_ms=str(4 * DAY_MS + DAY_MS // 2))
            close_to_metadata(fixture, name)
        await restarted(fixture)

        def full(operation: str, key: str) -> None:
            if operation in ("put", "start_multipart"):
                raise StoreFull(key, "507")

        fixture.world.store.fault = full
        maintenance = made(fixture)
        await maintenance.retain()
        assert len(fixture.directory._closing) == 1
        opened = fixture.directory.opened()
        assert len(opened) == 3
        wanted = opened[0].topic_name
        assert [partition.log_start_offset for partition in opened] == [10] * 3
        await fixture.produce({(wanted, 0): batch(timestamp=fixture.clock.now_ms)})
        await maintenance.retain()
        assert len(fixture.directory.opened()) == 3
        fixture.world.store.fault = lambda operation, key: None
        await asyncio.sleep(60)
        await maintenance.retain()
        await asyncio.sleep(60)
        assert not fixture.directory._closing
        assert [partition.topic_name for partition in fixture.directory.opened()] == [wanted]

    run(scenario(), is_virtual=True)


def test_a_changed_configuration_makes_closed_partitions_due() -> None:
    """A shorter retention holds for what is closed, too."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, "a", retention_ms=str(100 * DAY_MS))
        close_to_metadata(fixture, "a")
        await restarted(fixture)
        maintenance = made(fixture)
        await maintenance.retain()
        await asyncio.sleep(0.05)
        opened = len(fixture.opener.opened)
        fixture.publish(ConfigRecord(2, "a", "retention.ms", str(2 * DAY_MS)))
        await maintenance.retain()
        assert len(fixture.opener.opened) == opened + 1
        await asyncio.sleep(0.05)
        assert await start_of(fixture, "a") == 30

    run(scenario(), is_virtual=True)


def test_idle_partitions_are_not_opened_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty ones, those of others, and those whose topics keep everything never; the rest a few a round, the
    shortest lived first."""
    monkeypatch.setattr(maintenance_module, "OPENS_IN_A_BURST", 3)
    monkeypatch.setattr(maintenance_module, "BURST_S", 300)

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("empty", 5)
        close_to_metadata(fixture, "empty", 5, is_empty=True)
        fixture.make_topic("away", 5, leader=2)
        close_to_metadata(fixture, "away", 5)
        for name, configs in (
            ("kept", {"retention_ms": "-1"}),
            ("compacted", {"cleanup_policy": "compact"}),
            ("short", {"retention_ms": str(DAY_MS)}),
            ("long", {"retention_ms": str(9 * DAY_MS)}),
        ):
            fixture.make_topic(name, 2, **configs)
            for index in range(2):
                await fixture.produce({(name, index): batch(10)})
            close_to_metadata(fixture, name, 2)
        await restarted(fixture)
        fixture.opener.opened.clear()
        maintenance = made(fixture)
        rounds = []
        for _ in range(3):
            await maintenance.retain()
            await asyncio.sleep(0.05)
            rounds.append([(found.rstrip(b".").decode(), index) for found, index, _ in fixture.opener.opened])
            fixture.opener.opened.clear()
        assert rounds == [[("short", 0), ("short", 1), ("long", 0)], [("long", 1)], []]

    run(scenario(), is_virtual=True)


def test_hundreds_that_are_due_are_looked_at_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bursts with a pause between them, and no more than fit the interval: the rest in the next round."""
    monkeypatch.setattr(maintenance_module, "BURST_S", 0.01, raising=False)
    count = 650
    settings = MaintenanceSettings(retention_check_interval_ms=30)

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", count, retention_ms="1000")
        for index in range(count):
            await fixture.produce({("a", index): batch(1, timestamp=START_MS - DAY_MS)})
        close_to_metadata(fixture, "a", count)
        await restarted(fixture)
        fixture.opener.opened.clear()
        maintenance = Maintenance(fixture.directory, fixture.cache, fixture.judged, settings)
        await maintenance.retain()
        assert len(fixture.opener.opened) == 600
        await maintenance.retain()
        assert len(fixture.opener.opened) == count

    run(scenario())


def test_partitions_that_do_not_open_hold_up_no_others() -> None:
    """A hundred wait, as the log of a broker that is gone is reached by nobody, or as the store is away: what
    is open loses what is too old within two intervals all the same."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, "open", retention_ms=str(4 * DAY_MS + DAY_MS // 2))
        count = 100
        for name in ("elsewhere", "away"):
            fixture.make_topic(name, count)
        close_to_metadata(fixture, "away", count)
        fixture.publish(
            *(
                StreamRecord(20_000 + index, topic_id("elsewhere"), index, 1, 0, OTHER, OPEN, 0, 50)
                for index in range(count)
            )
        )
        fixture.opener.gate = asyncio.Event()
        rounds = asyncio.ensure_future(made(fixture).run())
        await asyncio.sleep(INTERVAL_S + 1)
        assert (await fixture.partition("open")).log_start_offset == 10
        later(fixture, DAY_MS)
        await asyncio.sleep(2 * INTERVAL_S)
        assert (await fixture.partition("open")).log_start_offset == 20
        assert not any(led == topic_id("elsewhere") for led, _ in fixture.directory._opening)
        rounds.cancel()
        fixture.opener.gate.set()
        await eventually(lambda: not fixture.directory._opening)

    run(scenario(), is_virtual=True)


def test_what_was_late_before_ends_no_later_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions that do not open have the shortest retention, and are the first burst of each round: what
    lies behind them has its turn once they are known to be late. On a clock that goes on while one looks."""
    monkeypatch.setattr(maintenance_module, "OPENS_IN_A_BURST", 2)
    monkeypatch.setattr(maintenance_module, "BURST_S", 0.01)
    monkeypatch.setattr(maintenance_module, "OPENS_AT_ONCE", 1)
    monkeypatch.setattr(opening_turn, "OPENING_S", 0.05)

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("late", 2, retention_ms="1000")
        close_to_metadata(fixture, "late", 2)
        await filled(fixture, "behind", retention_ms=str(4 * DAY_MS + DAY_MS // 2))
        close_to_metadata(fixture, "behind")
        await restarted(fixture)
        gate, open_partition = asyncio.Event(), fixture.opener.open_partition

        async def open_late(found: bytes, *args: Any) -> Any:
            if found == topic_id("late"):
                await gate.wait()
            return await open_partition(found, *args)

        monkeypatch.setattr(fixture.opener, "open_partition", open_late)
        maintenance = made(fixture)
        for _ in range(3):
            await maintenance.retain()
        assert (topic_id("behind"), 0) in maintenance._forecasts
        gate.set()
        await eventually(lambda: not fixture.directory._opening)

    run(scenario())


def test_a_partition_that_a_client_comes_for_stays_open() -> None:
    """A quiet visit does not close what is wanted by then."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, "a")
        close_to_metadata(fixture, "a")
        await restarted(fixture)
        maintenance = made(fixture)
        visit = asyncio.ensure_future(maintenance.retain())
        while not fixture.directory._opening:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await fixture.produce({("a", 0): batch(1)})
        await visit
        await asyncio.sleep(0.02)
        assert len(fixture.directory.opened()) == 1
        assert (await fixture.partition("a")).is_led

    run(scenario())


def test_silent_producers_are_forgotten() -> None:
    """After producer.id.expiration.ms without a write, in open partitions."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.directory.memory.producer_expiration_ms = 40
        maintenance = Maintenance(fixture.directory, fixture.cache, fixture.judged, MaintenanceSettings())
        await fixture.produce({("a", 0): batch(1, producer_id=1, sequence=0)})
        await asyncio.sleep(0.03)
        await fixture.produce({("a", 0): batch(1, producer_id=2, sequence=0)})
        await asyncio.sleep(0.02)
        await maintenance.expire_producers()
        producers = (await fixture.partition("a")).state.producers
        assert [producer.producer_id for producer in producers] == [2]

    run(scenario(), is_virtual=True)


def test_rounds_come_by_themselves() -> None:
    """`run` goes on until it is cancelled."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture, "a", retention_ms=str(3 * DAY_MS + 1000))
        settings = MaintenanceSettings(retention_check_interval_ms=10, producer_check_interval_ms=10)
        running = asyncio.ensure_future(
            Maintenance(fixture.directory, fixture.cache, fixture.judged, settings).run()
        )
        partition = await fixture.partition("a")
        async with asyncio.timeout(PATIENCE_S):
            while partition.log_start_offset != 20:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    run(scenario())
