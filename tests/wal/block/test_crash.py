"""Power cuts: at every write, with every fate of what was not durable, over several lives of one log.

A model keeps what each life was told. After a cut the next life must find every record that was confirmed, or
that an earlier life recovered, exactly once and in order; it may find records that were never confirmed, but
only as a run that continues those; and never one that lies behind a hole, in this life or in any later one.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

import pytest

from millrace.runtime.rand import Rand
from millrace.wal.block.log import BlockWal
from millrace.wal.errors import WalFull
from tests.sim.disk import BLOCK_BYTES, Cut, Fate, Pending, SimDisk, any_fate, drop, keep, tear
from tests.wal.build import PATH, open_wal, owner, payload, small_settings, start_wal


@dataclass(slots=True)
class Model:
    """All records of one life's view of the log, oldest first; what surely is there, and what surely is
    gone."""

    records: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    confirmed: int = 0  # so many of them are durable
    trimmed: int = 0  # so many are gone for good
    trim_asked: int = 0  # so many may be gone
    made: int = 0  # numbers handed out, over all lives

    def next_payload(self, length: int) -> bytes:
        self.made += 1
        return payload(self.made, length)

    def check(self, recovered: list[bytes]) -> None:
        """`recovered` is records[first:last] for some allowed first and last."""
        for first in range(self.trimmed, self.trim_asked + 1):
            last = first + len(recovered)
            if (
                max(first, self.confirmed) <= last <= len(self.records)
                and recovered == self.records[first:last]
            ):
                return
        known = {data: index for index, data in enumerate(self.records)}
        found = [known.get(data, -1) for data in recovered]
        raise AssertionError(
            f"{self.trimmed}..{self.trim_asked} {self.confirmed} of {len(self.records)}: {found}"
        )

    def begin_life(self, recovered: list[bytes], ends: list[int]) -> None:
        """What a life has recovered is as good as confirmed: it may have been shown."""
        self.records, self.ends = list(recovered), list(ends)
        self.confirmed = len(recovered)
        self.trimmed = self.trim_asked = 0


async def live(disk: SimDisk, epoch: int, model: Model, rand: Rand, steps: int, reset_odds: int = 6) -> None:
    """One life: recover, check, perhaps reset, then appends and trims. Hangs for ever once the power is
    cut."""
    wal = await BlockWal.open(disk, PATH, small_settings(), owner(epoch))
    found = [record async for record in wal.recover()]
    recovered = [bytes(record.payload) for record in found]
    model.check(recovered)
    model.begin_life(recovered, [record.end for record in found])
    if rand.below(reset_odds) == 0:
        model.trim_asked = len(model.records)
        await wal.reset()
        model.trimmed = model.trim_asked

    def on_confirmed(end: int) -> None:
        while model.confirmed < len(model.ends) and model.ends[model.confirmed] <= end:
            model.confirmed += 1
        assert wal.confirmed_end == end

    wal.start(on_confirmed, lambda error: pytest.fail(repr(error)))
    trims: list[asyncio.Task[None]] = []
    for _ in range(steps):
        await step(wal, model, rand, trims)
    await asyncio.gather(*trims)
    if rand.below(2):
        await wal.close()


async def step(wal: BlockWal, model: Model, rand: Rand, trims: list[asyncio.Task[None]]) -> None:
    for _ in range(rand.below(4)):
        data = model.next_payload(rand.below(30_000) if rand.below(6) == 0 else rand.below(3000))
        try:
            record = wal.append(data)
        except WalFull:
            await asyncio.sleep(0)
            break
        model.records.append(data)
        model.ends.append(record.end)
    for _ in range(rand.below(4)):
        await asyncio.sleep(0)
    untrimmed = model.confirmed - model.trim_asked
    if untrimmed and (rand.below(8) == 0 or wal.room_bytes < 60_000):
        model.trim_asked += 1 + rand.below(untrimmed)
        trims.append(asyncio.create_task(trim(wal, model, model.trim_asked)))


async def trim(wal: BlockWal, model: Model, count: int) -> None:
    await wal.trim(model.ends[count - 1])
    model.trimmed = max(model.trimmed, count)


async def run_until_cut(disk: SimDisk, epoch: int, model: Model, rand: Rand, steps: int) -> bool:
    """One life until the planned cut, or until its end and a cut right then; whether the planned one came."""
    life = asyncio.create_task(live(disk, epoch, model, rand, steps))
    cut = asyncio.create_task(disk.was_cut.wait())
    await asyncio.wait({life, cut}, return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if life.done():
        life.result()
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)
    was_planned = disk.was_cut.is_set()
    if not was_planned:
        disk.cut()
    return was_planned


def copy_of(model: Model) -> Model:
    return Model(
        list(model.records), list(model.ends), model.confirmed, model.trimmed, model.trim_asked, model.made
    )


async def check_survivor(disk: SimDisk, epoch: int, model: Model, fate: Fate) -> None:
    """The next life, and, after a few appends and another cut, the one after it."""
    survivor, later = disk.restart(fate), copy_of(model)
    rand = Rand(b"later")
    survivor.at_write(3 + disk.write_count % 5, Cut())
    await run_until_cut(survivor, epoch, later, rand, 3)
    last = survivor.restart(fate)
    _, records = await open_wal(last, epoch + 1)
    later.check([bytes(record.payload) for record in records])


def subsets(pending: list[Pending]) -> list[Fate]:
    """Every way in which each write under way is wholly there or wholly lost."""
    fates: list[Fate] = []
    for count in range(len(pending) + 1):
        for chosen in itertools.combinations([one.number for one in pending], count):
            fates.append(lambda one, chosen=chosen: keep(one) if one.number in chosen else [])
    return fates


def test_a_cut_at_every_write() -> None:
    """Cut at each write of a life in turn, with every subset of the writes under way kept, and with torn
    ones."""

    async def run() -> None:
        cuts = 0
        for number in itertools.count(1):
            disk, model, rand = SimDisk(Rand(b"cuts"), hops=5), Model(), Rand(b"life")
            disk.at_write(number, Cut())
            if not await run_until_cut(disk, 1, model, rand, 80):
                break
            cuts += 1
            fates = subsets(disk.pending()[:5])
            fates += [tear(Rand(b"t%d" % turn), unit) for turn in range(3) for unit in (512, BLOCK_BYTES)]
            for fate in fates:
                await check_survivor(disk, 2, model, fate)
        assert cuts > 40
        assert min(disk.hits[kind] for kind in ("kept", "dropped", "torn")) >= 0

    asyncio.run(run())


@pytest.mark.parametrize("seed", [*range(11), 12])
def test_many_lives_of_one_log(seed: int) -> None:
    """Twenty lives in a row, each cut at a place drawn from the seed, or closed; the model holds through all
    of them."""

    async def run() -> None:
        rand = Rand(b"lives%d" % seed)
        disk, model = SimDisk(rand.split("disk"), hops=5), Model()
        for epoch in range(1, 21):
            disk.at_write(1 + rand.below(60), Cut())
            await run_until_cut(disk, epoch, model, rand, 25)
            disk = disk.restart(any_fate(rand))
        assert disk.hits["cut"] > 10
        assert disk.hits["torn"] > 0

    asyncio.run(run())


async def cut_with_hole(epoch: int, disk: SimDisk, sent: list[bytes], kept: set[int]) -> SimDisk:
    """One life that appends a block for each payload, all under way when the power goes; of them only `kept`
    survive."""
    wal, _, journal = await start_wal(disk, epoch, eager_bytes=0, writes_in_flight=8)
    disk.hops = 10**9  # nothing completes from now on
    for data in sent:
        wal.append(data)
        await asyncio.sleep(0)
    assert journal.ends == []
    numbers = [pending.number for pending in disk.pending()]
    assert len(numbers) == len(sent)
    chosen = {numbers[index] for index in kept}
    after = disk.restart(lambda pending: keep(pending) if pending.number in chosen else [])
    after.hops = 3
    return after


async def recovered_by(disk: SimDisk, epoch: int) -> list[bytes]:
    """What a life finds, without a trace: the disk is copied first."""
    _, records = await open_wal(disk.restart(keep), epoch)
    return [bytes(record.payload) for record in records]


def test_what_lies_behind_a_hole_never_comes_back() -> None:
    """Blocks beyond a hole fit exactly behind what later owners write into the hole, and still stay void for
    ever."""

    async def run() -> None:
        old = [b"old%d" % number * 400 for number in range(4)]
        disk = await cut_with_hole(1, SimDisk(), old, {1, 2, 3})
        assert await recovered_by(disk, 2) == []
        expected: list[bytes] = []
        for epoch in range(2, 8):
            # The new owner fills the hole with a block of the same size, and is cut with the next one lost.
            new = [b"n%d%d." % (epoch, number) * 400 for number in range(3)]
            disk = await cut_with_hole(epoch, disk, new, {0, 2})
            expected.append(new[0])
            assert await recovered_by(disk, epoch + 1) == expected

    asyncio.run(run())


def test_an_owner_that_writes_nothing_still_closes_the_hole() -> None:
    """A life that only recovers ends the log where it found its end: a late write of an older epoch does not
    count."""

    async def run() -> None:
        old = [b"old%d" % number * 400 for number in range(3)]
        wal, _, _ = await start_wal(disk := SimDisk(), 1, eager_bytes=0, writes_in_flight=8)
        disk.hops = 10**9
        for data in old:
            wal.append(data)
            await asyncio.sleep(0)
        late = disk.pending()[0]
        disk = disk.restart(lambda pending: [] if pending is late else keep(pending))
        disk.hops = 3
        assert await recovered_by(disk, 2) == []
        await open_wal(disk, 2)
        disk = disk.restart(keep)
        disk.files[PATH].durable[late.position : late.position + len(late.data)] = late.data
        disk.files[PATH].visible[late.position : late.position + len(late.data)] = late.data
        assert await recovered_by(disk, 3) == []

    asyncio.run(run())


def test_a_torn_block_over_an_old_one_is_no_mixture() -> None:
    """Where a new block was torn over a void old one of the same layout, old records never pass for new
    ones."""

    async def run() -> None:
        def records(mark: bytes) -> list[bytes]:
            # Each record ends with a sector, so that a tear can exchange one record for another.
            first = 512 - 64 - 24
            return [mark * first, *(mark * (512 - 24) for _ in range(7))]

        async def one_block(disk: SimDisk, epoch: int, mark: bytes, sectors: set[int]) -> SimDisk:
            wal, found, _ = await start_wal(disk, epoch)
            assert found == []
            disk.hops = 10**9
            for data in records(mark):
                wal.append(data)
            await asyncio.sleep(0)
            (pending,) = disk.pending()
            pieces = [
                (pending.position + 512 * n, pending.data[512 * n : 512 * n + 512]) for n in sorted(sectors)
            ]
            after = disk.restart(lambda _: pieces)
            after.hops = 3
            return after

        disk = await one_block(SimDisk(), 1, b"a", {1, 2, 3, 4, 5, 6, 7})
        for missing in range(1, 8):
            torn = await one_block(disk.restart(keep), 2, b"b", set(range(8)) - {missing})
            assert await recovered_by(torn, 3) == []
        whole = await one_block(disk.restart(keep), 2, b"b", set(range(8)))
        assert await recovered_by(whole, 3) == records(b"b")

    asyncio.run(run())


def test_a_kill_without_a_power_cut_loses_nothing() -> None:
    """kill -9 keeps what was handed to the kernel: all that was written is there, acknowledged or not."""

    async def run() -> None:
        wal, _, _ = await start_wal(disk := SimDisk(), 1)
        sent = [payload(number, 500) for number in range(5)]
        for data in sent:
            wal.append(data)
        await asyncio.sleep(0)
        _, records = await open_wal(disk.restart(power_was_cut=False), 2)
        assert [bytes(record.payload) for record in records] == sent

    asyncio.run(run())


def beginning(length: int) -> Fate:
    """So many bytes of each write survive, which is finer than a disk tears."""
    return lambda pending: [(pending.position, pending.data[:length])] if length else []


def test_a_cut_while_formatting() -> None:
    """A power cut at the making of a new file, or at either header write, leaves one that the next owner can
    format, of whatever capacity; also when the power goes in each of several starts, and whatever part of a
    copy is there."""

    async def run() -> None:
        fates = [
            drop,
            keep,
            tear(Rand(b"format")),
            *(beginning(length) for length in (*range(1, 40), 100, 167, 290, 299, 301)),
        ]
        for number in (1, 2, 3):
            for fate in fates:
                disk = SimDisk()
                disk.at_write(number, Cut())
                await run_until_cut(disk, 1, Model(), Rand(b"x"), 1)
                disk = disk.restart(fate)
                again = disk.restart(keep)
                again.at_write(1, Cut())
                await run_until_cut(again, 2, Model(), Rand(b"x"), 1)
                for epoch, left, kib in ((2, disk, 256), (3, again.restart(fate), 512)):
                    wal, found, _ = await start_wal(left, epoch, capacity_bytes=kib * 1024)
                    assert found == []
                    wal.append(b"works")
                    await wal.close()

    asyncio.run(run())


@pytest.mark.parametrize("from_kib", [200, 512], ids=["grown", "shrunk"])
def test_a_cut_while_the_capacity_changes(from_kib: int) -> None:
    """At every write of a reset: the next start has the capacity that is set, in a file that is no longer
    than that."""

    async def reset(disk: SimDisk, epoch: int, kib: int) -> None:
        wal, _ = await open_wal(disk, epoch, capacity_bytes=kib * 1024)
        await wal.reset()
        await wal.close()

    async def run() -> None:
        made = SimDisk()
        await reset(made, 1, from_kib)
        for number in itertools.count(1):
            disk = made.restart(keep)
            disk.at_write(number, Cut())
            changing = asyncio.ensure_future(reset(disk, 2, 256))
            await asyncio.wait(
                (changing, asyncio.ensure_future(disk.was_cut.wait())), return_when="FIRST_COMPLETED"
            )
            changing.cancel()
            for fate in (drop, keep):
                left = disk.restart(fate)
                await reset(left, 3, 256)
                assert len(left.files[PATH].durable) == 256 * 1024
            if not disk.was_cut.is_set():
                break
        assert number > 4

    asyncio.run(run())


def test_a_large_block_is_declared_before_it_is_written() -> None:
    """No block larger than the header speaks of is ever on the device, so that recovery knows how far to
    look."""

    async def run() -> None:
        from millrace.wal.block.layout import choose_device_header

        disk = SimDisk(Rand(b"large"), hops=5)
        wal, _, journal = await start_wal(disk)
        for number in range(30):
            record = wal.append(payload(number, 2000 + 1200 * number))
            while journal.end < record.end:
                largest = max((len(pending.data) for pending in disk.pending()), default=0)
                data = bytes(disk.files[PATH].durable[: 2 * BLOCK_BYTES])
                header = choose_device_header(data[:BLOCK_BYTES], data[BLOCK_BYTES:])
                assert header is not None
                assert largest <= header.block_bytes_max
                await asyncio.sleep(0)
            await wal.trim(record.end)
        assert header.block_bytes_max > 32 * 1024

    asyncio.run(run())
