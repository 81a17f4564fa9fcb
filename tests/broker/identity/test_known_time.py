"""The time that a node knows: kept over restarts, learnt from metadata and a store, confirmed by an
operator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.identity.known_time import CONFIRMED, NEWEST, SAVE_MS, KnownTime, newest_in
from millrace.broker.identity.known_time_text import decode_time, encode_time
from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.protocol.stream_records import CommittedObjectRecord, PrepareObjectsRecord, StreamRecord
from millrace.runtime.disk.posix import PosixDisk
from millrace.runtime.objectstore import StoreDate
from millrace.s3stream.ids import ObjectKind, StreamRole
from tests.broker.partitions.build import SteppedClock
from tests.s3stream.build import run as run_in_virtual_time
from tests.sim.disk import SimDisk

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
T = 1_700_000_000_000


class Machine:
    """A clock, a disk, and a store that tells a date when it is asked, if it has one."""

    def __init__(self) -> None:
        self.clock = SteppedClock(T)
        self.disk = SimDisk()
        self.date: StoreDate | None = None
        self.asked = 0
        self.is_answering = True

    def made(self, gap_max_ms: int = DAY_MS) -> KnownTime:
        return KnownTime(self.clock, self.disk, "log", gap_max_ms, lambda: self.date)

    async def start(self, metadata_ms: int = 0, gap_max_ms: int = DAY_MS) -> KnownTime:
        await self.disk.make_folder("log")
        known = self.made(gap_max_ms)
        await known.open(metadata_ms)
        await known.settle(metadata_ms)
        return known

    def tell(self, wall_ms: int) -> None:
        self.date = StoreDate(wall_ms, asyncio.get_running_loop().time())

    async def ask(self) -> None:
        self.asked += 1
        if self.is_answering:
            self.tell(self.clock.now_ms)

    async def kept(self) -> int | None:
        data = await self.disk.read_file(f"log/{NEWEST}")
        return None if data is None else decode_time(data)

    async def confirm(self, wall_ms: int) -> None:
        await self.disk.write_file(f"log/{CONFIRMED}", encode_time(wall_ms))


def test_metadata_tells_when_its_newest_data_was() -> None:
    """Also where the log was replaced by a snapshot; deadlines of what is only prepared are no time that
    was."""
    records = [
        StreamRecord(0, bytes(16), 0, StreamRole.DATA, 0, 1, 0, 0, 2),
        PrepareObjectsRecord(0, 1, 1, T + DAY_MS),
        *(
            CommittedObjectRecord(
                number, ObjectKind.STREAM, 10, T - number * DAY_MS, 1, 0, number, number + 1
            )
            for number in (1, 2)
        ),
    ]
    _, image = apply_records(EMPTY_IMAGE, records, 1, 0)
    assert newest_in(EMPTY_IMAGE) == 0
    assert newest_in(image) == T - DAY_MS


def run(scenario: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(scenario)


def test_the_newest_time_is_kept_and_a_start_eight_days_ahead_is_doubted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At each start again, for waiting and starting anew confirm nothing; the operator is told what to do."""

    async def scenario() -> None:
        machine = Machine()
        await machine.start()
        assert await machine.kept() == T
        for _ in range(3):
            machine.clock.now_ms += 8 * DAY_MS
            known = await machine.start(metadata_ms=machine.clock.now_ms)  # written by the start before
            assert known.judged.wall_ms() == await machine.kept() == T
            assert known.ahead_ms > 7 * DAY_MS
            assert known.wall_ms() == machine.clock.now_ms
        assert "millrace clock --confirm" in caplog.text

    run(scenario())


def test_what_is_written_while_a_member_settles_counts() -> None:
    """Of a cluster that had written nothing for days: its own registration, stamped by whoever leads. One
    that knew the time before learns nothing from it."""

    async def scenario() -> None:
        for is_new in (True, False):
            machine = Machine()
            await machine.disk.make_folder("log")
            known = machine.made()
            await known.open(0 if is_new else T)
            await known.settle(T - 3 * DAY_MS)
            machine.clock.now_ms += 3 * DAY_MS * (not is_new)
            assert known.ahead_ms == (3 * DAY_MS if is_new else 0)
            await known.settle(machine.clock.now_ms - 60_000)
            assert (known.judged.wall_ms() == machine.clock.now_ms) == is_new
            assert await machine.kept() == T

    run(scenario())


@pytest.mark.parametrize("off_ms", [8 * DAY_MS, -8 * DAY_MS])
def test_what_a_member_without_a_time_fetches_tells_it(off_ms: int) -> None:
    """A new one, or one that has lost its log directory. A start that ends before it has fetched keeps
    nothing for the next; one that kept a time, or found it in its metadata, goes on by that."""

    async def scenario() -> None:
        machine = Machine()
        machine.clock.now_ms = T + off_ms
        for fetched_ms in (None, T):
            known = machine.made()
            await known.open(0)
            assert known.wall_ms() == known.believed.wall_ms() == T + off_ms
            assert await machine.kept() is None
            if fetched_ms is not None:
                await known.settle(fetched_ms)
        assert known.believed.wall_ms() == await machine.kept() == T
        assert known.judged.wall_ms() == T + min(0, off_ms)
        await known.settle(T - DAY_MS)
        again = machine.made()
        await again.open(T + 30 * DAY_MS)
        await again.settle(T + 30 * DAY_MS)
        assert known.believed.wall_ms() == again.believed.wall_ms() == await machine.kept() == T

    run(scenario())


def test_metadata_of_a_new_cluster_is_stamped_by_the_wall_clock() -> None:
    """And no more once that is set ahead or back while the node runs, until a store or an operator says that
    it is right."""

    async def scenario() -> None:
        machine = Machine()
        known = await machine.start()
        for off_ms in (30 * 60_000, 30 * DAY_MS, -30 * DAY_MS):
            machine.clock.now_ms = T + off_ms
            assert known.believed.wall_ms() == T + (off_ms if abs(off_ms) < HOUR_MS else 30 * 60_000)
        machine.clock.now_ms = T + 30 * DAY_MS
        machine.tell(machine.clock.now_ms)
        assert known.believed.wall_ms() == T + 30 * DAY_MS

    run(scenario())


def test_a_first_start_of_this_version_goes_by_the_metadata_log() -> None:
    """What is kept is its newest time, not the doubted one that this start adds to it; then what is kept
    counts."""

    async def scenario() -> None:
        machine = Machine()
        machine.clock.now_ms += 8 * DAY_MS
        known = await machine.start(metadata_ms=T)
        assert known.judged.wall_ms() == T
        assert await machine.kept() == T

    run(scenario())


@pytest.mark.parametrize(
    "data", [b"", encode_time(T)[:-1], encode_time(T).replace(b"17", b"18", 1), b"\0" * 40]
)
def test_a_damaged_file_is_none(data: bytes) -> None:
    """Torn, rotten, of zeros: the metadata log stands in, and the file is written anew."""

    async def scenario() -> None:
        machine = Machine()
        await machine.disk.make_folder("log")
        await machine.disk.write_file(f"log/{NEWEST}", data)
        machine.clock.now_ms += 8 * DAY_MS
        known = await machine.start(metadata_ms=T)
        assert known.judged.wall_ms() == await machine.kept() == T
        await machine.disk.write_file(f"log/{CONFIRMED}", data)
        await known.look()
        assert known.judged.wall_ms() == T

    run(scenario())


def test_a_store_confirms_by_itself() -> None:
    """A node that was honestly off for eight days: its store's answers are there before it looks."""

    async def scenario() -> None:
        machine = Machine()
        await machine.start()
        machine.clock.now_ms += 8 * DAY_MS
        machine.tell(machine.clock.now_ms - 1500)
        known = await machine.start()
        assert known.judged.wall_ms() == machine.clock.now_ms
        assert known.ahead_ms == 0

    run(scenario())


def test_a_store_that_denies_the_clock_is_asked_again_until_it_agrees() -> None:
    """After a long pause of the machine its last answer is old; one is asked for only while the clock is
    doubted."""

    async def scenario() -> None:
        machine = Machine()
        machine.tell(T)
        known = await machine.start()
        running = asyncio.ensure_future(known.run(machine.ask))
        await asyncio.sleep(60)
        assert machine.asked == 0
        machine.clock.now_ms += 60_000 + 5 * HOUR_MS
        assert known.judged.wall_ms() == T + 60_000
        await asyncio.sleep(11)
        assert machine.asked >= 1
        assert known.judged.wall_ms() == machine.clock.now_ms
        running.cancel()

    run(scenario())


def test_a_machine_that_slept_has_no_jump() -> None:
    """A laptop that is closed overnight: timers stood still, and the system says for how long."""

    async def scenario() -> None:
        machine = Machine()
        known = await machine.start()
        machine.clock.now_ms += 12 * HOUR_MS
        machine.clock.slept_ms += 12 * HOUR_MS
        assert known.judged.wall_ms() == machine.clock.now_ms

    run(scenario())


@pytest.mark.parametrize(("off_ms", "is_believed"), [(DAY_MS, True), (DAY_MS + 1, False)])
def test_a_time_off_is_believed_up_to_the_setting(off_ms: int, is_believed: bool) -> None:
    """Without a store that tells the time."""

    async def scenario() -> None:
        machine = Machine()
        await machine.start()
        machine.clock.now_ms += off_ms
        known = await machine.start()
        assert (known.judged.wall_ms() == machine.clock.now_ms) == is_believed

    run(scenario())


@pytest.mark.parametrize("is_running", [True, False])
def test_an_operators_word_is_taken_once(is_running: bool) -> None:
    """By a node that runs, and by a start hours later; it is removed, and the next jump is doubted."""

    async def scenario() -> None:
        machine = Machine()
        known = await machine.start()
        machine.clock.now_ms += 14 * DAY_MS
        if is_running:
            assert known.judged.wall_ms() < T + HOUR_MS
            running = asyncio.ensure_future(known.run(machine.ask))
            await machine.confirm(machine.clock.now_ms)
            await asyncio.sleep(6)
            running.cancel()
        else:
            await machine.confirm(machine.clock.now_ms)
            machine.clock.now_ms += 20 * HOUR_MS
            known = await machine.start()
        assert known.judged.wall_ms() == machine.clock.now_ms
        assert await machine.disk.read_file(f"log/{CONFIRMED}") is None
        machine.clock.now_ms += 14 * DAY_MS
        assert known.judged.wall_ms() < machine.clock.now_ms - 13 * DAY_MS
        again = await machine.start()
        assert again.ahead_ms > 13 * DAY_MS

    run(scenario())


def test_a_word_that_was_said_long_before_does_not_count_for_later() -> None:
    """Confirmed, then off for a month."""

    async def scenario() -> None:
        machine = Machine()
        await machine.start()
        await machine.confirm(T + HOUR_MS)
        machine.clock.now_ms += 30 * DAY_MS
        known = await machine.start()
        assert known.judged.wall_ms() == T + HOUR_MS

    run(scenario())


def test_a_clock_that_is_behind_stamps_with_the_known_time_and_is_believed_when_right() -> None:
    """A board without a battery starts in 1970; minutes later its clock is set."""

    async def scenario() -> None:
        machine = Machine()
        await machine.start()
        machine.clock.now_ms = 5000
        known = await machine.start()
        assert known.judged.wall_ms() == 5000
        assert known.wall_ms() == T
        assert known.behind_ms == T - 5000
        machine.clock.now_ms = T + 10 * HOUR_MS
        assert known.judged.wall_ms() == known.wall_ms() == T + 10 * HOUR_MS
        assert await machine.kept() == T

    run(scenario())


def test_a_known_time_from_the_future_is_corrected_by_store_or_operator() -> None:
    """A node that ran with a clock ahead, set right since: until then what it stamps keeps its order."""

    async def scenario() -> None:
        for is_by_store in (True, False):
            machine = Machine()
            machine.clock.now_ms = T + 365 * DAY_MS
            await machine.start()
            machine.clock.now_ms = T
            known = await machine.start()
            assert known.wall_ms() == T + 365 * DAY_MS
            assert known.judged.wall_ms() == T
            if is_by_store:
                machine.tell(T)
            else:
                await machine.confirm(T)
            await known.look()
            assert known.wall_ms() == known.judged.wall_ms() == await machine.kept() == T

    run(scenario())


def test_it_is_kept_seldom_and_a_disk_that_fails_is_no_end(caplog: pytest.LogCaptureFixture) -> None:
    """An idle node writes every ten minutes; a full disk is said."""
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        machine = Machine()
        known = await machine.start()
        before = machine.disk.write_count
        for _ in range(9):
            machine.clock.now_ms += SAVE_MS // 10
            await known.look()
        assert machine.disk.write_count == before
        machine.clock.now_ms += SAVE_MS // 10
        machine.disk.capacity_bytes = 0
        await known.look()
        assert "newest known time cannot be kept" in caplog.text
        machine.disk.capacity_bytes = 1 << 40
        await known.look()
        assert await machine.kept() == machine.clock.now_ms

    run(scenario())


def test_two_who_settle_it_write_one_after_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker and the controller of one process come to have what is committed at the same time; a file is
    written through a second one, of one name."""
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        under_way, most = 0, 0

        class Disk(PosixDisk):
            async def write_file(self, path: str, data: bytes) -> None:
                nonlocal under_way, most
                under_way += 1
                most = max(most, under_way)
                try:
                    await super().write_file(path, data)
                finally:
                    under_way -= 1

        known = KnownTime(SteppedClock(T), Disk(), str(tmp_path), DAY_MS, lambda: None)
        await known.open(0)
        await asyncio.gather(*(known.settle(T - number) for number in range(20)))
        assert most == 1
        assert decode_time((tmp_path / NEWEST).read_bytes())

    asyncio.run(scenario())
    assert not caplog.messages
