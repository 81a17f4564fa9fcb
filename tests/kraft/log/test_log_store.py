"""Kafka's files: segments, torn tails, corruption, rolling, truncation, the quorum-state file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millrace.kraft.errors import LogCorrupt, OffsetWithinBatch
from millrace.kraft.image.records import Proposal, encode_batch
from millrace.kraft.log.log_store import SYNCED_TOGETHER_BYTES_MAX, LogStore, SnapshotId
from millrace.kraft.raft.ready import QuorumState
from millrace.protocol.batches import BatchHeader
from millrace.runtime.disk import DiskFull
from tests.kraft.build import run, sim_disk
from tests.sim.disk import SimDisk, drop

FIRST = "/data/__cluster_metadata-0/00000000000000000000.log"


def batch(base: int, count: int = 1, size: int = 10, epoch: int = 1) -> bytes:
    return encode_batch([Proposal([bytes([base % 251]) * size] * count, 1000)], base, epoch)


async def opened(disk: SimDisk, start: int = 0, segment_bytes: int = 1 << 20) -> tuple[LogStore, list[int]]:
    store = LogStore(disk, "/data", (1,), segment_bytes)
    await store.list_segments()
    seen: list[int] = []
    await store.read_all(start, lambda header, view: seen.append(header.base_offset))
    return store, seen


async def filled(disk: SimDisk, count: int, **options: Any) -> LogStore:
    store, _ = await opened(disk, **options)
    for base in range(store.end, store.end + count):
        await store.append(batch(base), base + 1)
    return store


def test_what_was_appended_is_read_again() -> None:
    """A new log is empty; what is appended to it is there after a power cut."""

    async def main() -> None:
        disk = sim_disk()
        store, seen = await opened(disk)
        assert (seen, store.start, store.end) == ([], 0, 0)
        await store.append(batch(0, count=3), 3)
        await store.append(batch(3), 4)
        store, seen = await opened(disk.restart(drop))
        assert (seen, store.end) == ([0, 3], 4)

    run(main())


def test_batches_that_were_appended_together_are_read_one_by_one() -> None:
    """From any of them on, before and after a power cut."""

    async def main() -> None:
        disk = sim_disk()
        store, _ = await opened(disk)
        await store.append(batch(0), 1)
        await store.append_all([batch(1, count=2), batch(3, size=100_000), batch(4, epoch=2)], 5)
        whole_bytes = store.size_bytes
        store, seen = await opened(disk.restart(drop))
        assert (seen, store.end, store.size_bytes) == ([0, 1, 3, 4], 5, whole_bytes)
        for base in (0, 1, 3, 4):
            assert (await store.read(base, 5, 1 << 20))[0].data[:8] == base.to_bytes(8, "big")

    run(main())


def test_what_a_killed_process_had_not_synced_is_durable_once_it_was_read() -> None:
    """A batch that was appended and not synced is found by the next process, which acts on it: a power cut
    may not take it then, nor leave it torn before a batch that is whole."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 2)
        file = await disk.open_log(FIRST)
        await file.append([batch(2)])
        disk = disk.restart(power_was_cut=False)
        store, seen = await opened(disk)
        assert (seen, store.end) == ([0, 1, 2], 3)
        _, seen = await opened(disk.restart(drop))
        assert seen == [0, 1, 2]

    run(main())


@pytest.mark.parametrize("cut_bytes", [1, 11, 30, 60, 70])
def test_a_torn_tail_is_cut_off(cut_bytes: int) -> None:
    """An append that a power cut stopped anywhere leaves the log as it was before, and appendable."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 3)
        whole = len(disk.files[FIRST].durable)
        for data in (disk.files[FIRST].durable, disk.files[FIRST].visible):
            del data[-cut_bytes:]
        store, seen = await opened(disk)
        assert (seen, store.end) == ([0, 1], 2)
        await store.append(batch(2), 3)
        assert len(disk.files[FIRST].durable) == whole
        assert (await opened(disk.restart(drop)))[1] == [0, 1, 2]

    run(main())


@pytest.mark.parametrize("where", [0, 9, 16, 18, 40, 63])
def test_a_bad_last_batch_is_a_torn_tail(where: int) -> None:
    """Whatever byte of the last batch is wrong, it was never acknowledged as far as anyone can tell."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 3)
        last = len(disk.files[FIRST].durable) - len(batch(2))
        disk.flip(FIRST, last + where, 0x40)
        store, seen = await opened(disk)
        assert (seen, store.end) == ([0, 1], 2)

    run(main())


@pytest.mark.parametrize("where", [0, 9, 16, 18, 40, 63])
def test_a_bad_batch_before_a_good_one_is_corruption(where: int) -> None:
    """What has an intact batch behind it was whole once: start is refused, with file, place and reason."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 3)
        disk.flip(FIRST, len(batch(0)) + where, 0x40)
        with pytest.raises(LogCorrupt, match="behind it is whole") as caught:
            await opened(disk)
        assert (caught.value.path, caught.value.position) == (FIRST, len(batch(0)))

    run(main())


def batch_up_to(place: int) -> bytes:
    """The first batch, which ends there in a sector."""
    sizes = (len(batch(0, size=size)) % 512 == place for size in range(600))
    return batch(0, size=list(sizes).index(True))


@pytest.mark.parametrize("place", [68, 370, 504, 507, 511])
@pytest.mark.parametrize("missing", range(6))
def test_a_sector_that_never_came_is_a_torn_tail(place: int, missing: int) -> None:
    """Batches that share a sync reach the disk in any order. One of them lacks a sector, those behind it are
    whole: the log ends before it, wherever in the sector it begins. Zeros that an offset begins with lack
    nothing."""

    async def main() -> None:
        disk = sim_disk()
        store, _ = await opened(disk)
        await store.append(batch_up_to(place), 1)
        together = [batch(1), batch(2, size=1500), batch(3, size=700), batch(4)]
        start = len(disk.files[FIRST].durable)
        await store.append_all(together, 5)
        file = disk.files[FIRST]
        at = start // 512 * 512 + 512 * missing
        lost = slice(max(at, start), min(at + 512, len(file.durable)))
        disk.zero(FIRST, lost.start, lost.stop)
        if lost.stop == len(file.durable):
            del file.durable[lost.start :], file.visible[lost.start :]
        kept, end = 1, start
        for one in together:
            end += len(one)
            if file.durable[end - len(one) : end] != one:
                break
            kept += 1
        store, seen = await opened(disk)
        assert (seen, store.end) == (list(range(kept)), kept)

    run(main())


@pytest.mark.parametrize("base", [2, 300, 70_000, 1 << 24, 1 << 32])
def test_a_missing_sector_that_holds_the_zeros_of_the_next_batch_is_a_torn_tail(base: int) -> None:
    """A batch begins with the zeros of its offset. Where no more of it than those lies in the sector that
    never came, it is whole, and the batch before it lacks its end."""

    async def main() -> None:
        zeros = 8 - (base.bit_length() + 7) // 8
        for shared_bytes in range(1, zeros + 1):
            disk = sim_disk()
            store, _ = await opened(disk, start=base - 2)
            await store.append(batch(base - 2), base - 1)
            start = len(batch(base - 2))
            torn = next(
                one
                for size in range(600, 1200)
                if (start + len(one := batch(base - 1, size=size)) + shared_bytes) % 512 == 0
            )
            await store.append_all([torn, batch(base)], base + 1)
            end = start + len(torn) + shared_bytes
            disk.zero(f"/data/__cluster_metadata-0/{base - 2:020}.log", end - 512, end)
            store, seen = await opened(disk, start=base - 2)
            assert (seen, store.end) == ([base - 2], base - 1), shared_bytes

    run(main())


@pytest.mark.parametrize("place", [505, 507, 511])
def test_zeros_that_an_offset_begins_with_are_no_missing_sector(place: int) -> None:
    """All that lies in a sector of the batch may be zeros, and were written as such: what is damaged in
    another one was whole once."""

    async def main() -> None:
        disk = sim_disk()
        store, _ = await opened(disk)
        await store.append(batch_up_to(place), 1)
        await store.append_all([batch(1), batch(2)], 3)
        disk.flip(FIRST, place + 40)
        with pytest.raises(LogCorrupt, match="offset 2 behind it is whole"):
            await opened(disk)

    run(main())


def test_a_missing_sector_long_before_the_end_is_corruption() -> None:
    """What lies so far behind it was of later syncs."""

    async def main() -> None:
        disk = sim_disk()
        store, _ = await opened(disk)
        await store.append(batch(0), 1)
        await store.append_all([batch(1, size=2000), batch(2)], 3)
        for base in range(3, 13):
            await store.append(batch(base, size=SYNCED_TOGETHER_BYTES_MAX // 10), base + 1)
        disk.zero(FIRST, 512, 1024)
        with pytest.raises(LogCorrupt, match="offset 2 behind it is whole"):
            await opened(disk)

    run(main())


def test_a_missing_sector_of_what_is_known_to_be_durable_is_corruption() -> None:
    """A snapshot is made of what was durable; so is what an open log is asked for."""

    async def main() -> None:
        disk = sim_disk()
        store, _ = await opened(disk)
        await store.append(batch(0), 1)
        await store.append_all([batch(1, size=2000), batch(2)], 3)
        store, _ = await opened(disk)
        whole = bytes(disk.files[FIRST].durable)
        disk.zero(FIRST, 512, 1024)
        for _ in range(2):
            with pytest.raises(LogCorrupt, match="offset 2 behind it is whole"):
                await opened(disk, start=3)
        with pytest.raises(LogCorrupt, match="offset 2 behind it is whole"):
            await store.read(1, 3, 1 << 20)
        assert len(disk.files[FIRST].durable) == len(whole)
        _, seen = await opened(disk, start=1)
        assert seen == [0]

    run(main())


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_bad_last_batch_of_what_is_known_to_be_durable_is_corruption(is_cut: bool) -> None:
    """Nothing whole lies behind it. Whoever asks an open log for it is told, and does not take the log for
    one that ends before; nor is the log cut there, and called longer; nor does a start go on at a snapshot
    that holds it, without what lay behind that."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 4)
        store, _ = await opened(disk)
        whole = bytes(disk.files[FIRST].durable)
        place = 2 * len(batch(0))
        if is_cut:
            disk.zero(FIRST, place + 30, len(whole))
        else:
            disk.flip(FIRST, place + 40)
            disk.flip(FIRST, place + len(batch(0)) + 40)
        for start in (0, 2):
            with pytest.raises(LogCorrupt, match=r"offset 2 has .*all below offset 4 was durable"):
                await store.read(start, 4, 1 << 20)
        with pytest.raises(LogCorrupt, match="all below offset 3 was durable"):
            await store.truncate(3)
        assert store.end == 4
        for _ in range(2):
            with pytest.raises(LogCorrupt, match="all below offset 3 was durable"):
                await opened(disk, start=3)
        assert len(disk.files[FIRST].durable) == len(whole)
        await store.truncate(2)
        assert (await opened(disk, start=2))[1] == [0, 1]

    run(main())


@pytest.mark.parametrize("base", [0, 2])
@pytest.mark.parametrize("kept", [0, 1])
def test_a_segment_that_lost_its_end_while_the_log_is_open_is_told(base: int, kept: int) -> None:
    """Whole batches of it, or all that it held: whoever asks for them is told, and does not take the log for
    one that ends there."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 4, segment_bytes=2 * len(batch(0)))
        store, _ = await opened(disk)
        file = disk.files[f"/data/__cluster_metadata-0/{base:020}.log"]
        for data in (file.durable, file.visible):
            del data[kept * len(batch(0)) :]
        with pytest.raises(LogCorrupt, match=f"it ends at offset {base + kept}, and went up to {base + 2}"):
            await store.read(base + kept, 4, 1 << 20)
        if kept:
            assert [one.base for one in await store.read(base, base + 1, 1 << 20)] == [base]

    run(main())


def test_zeros_at_the_end_are_a_torn_tail() -> None:
    """A file that grew while its bytes did not arrive."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 2)
        for data in (disk.files[FIRST].durable, disk.files[FIRST].visible):
            data.extend(bytes(5000))
        store, seen = await opened(disk)
        assert (seen, store.end) == ([0, 1], 2)
        assert len(disk.files[FIRST].durable) == 2 * len(batch(0))

    run(main())


def test_a_bad_batch_in_an_older_segment_is_corruption() -> None:
    """Only the segment that was written last can be torn."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 4, segment_bytes=2 * len(batch(0)))
        disk.flip(FIRST, len(batch(0)) + 20)
        with pytest.raises(LogCorrupt, match="later segments follow"):
            await opened(disk)

    run(main())


def test_an_epoch_that_falls_is_corruption() -> None:
    """A batch's epoch lies outside its checksum; that it never falls is all that can be known of it."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 3)
        disk.flip(FIRST, len(batch(0)) + 15)  # epoch 1 becomes 0
        with pytest.raises(LogCorrupt, match="of epoch 0, after 1"):
            await opened(disk)

    run(main())


def test_a_missing_segment_is_corruption() -> None:
    """Offsets go on from one segment to the next."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 6, segment_bytes=2 * len(batch(0)))
        await disk.remove("/data/__cluster_metadata-0/00000000000000000002.log")
        with pytest.raises(LogCorrupt, match="the next begins at 4"):
            await opened(disk)

    run(main())


def test_batches_larger_than_what_is_read_at_once() -> None:
    """A batch of several MiB among small ones."""

    async def main() -> None:
        disk = sim_disk()
        store, _ = await opened(disk, segment_bytes=1 << 30)
        await store.append(batch(0), 1)
        await store.append(batch(1, size=3 << 20), 2)
        await store.append(batch(2), 3)
        sizes: list[int] = []
        again = LogStore(disk, "/data", (1,), 1 << 30)
        await again.list_segments()
        await again.read_all(0, lambda header, view: sizes.append(len(view)))
        assert sizes == [len(batch(0)), len(batch(1, size=3 << 20)), len(batch(2))]

    run(main())


def test_reading_begins_with_the_segment_that_holds_the_start() -> None:
    """Earlier segments are kept, not read; they go once they are below what is kept."""

    async def main() -> None:
        disk = sim_disk()
        await filled(disk, 7, segment_bytes=2 * len(batch(0)))
        store, seen = await opened(disk, start=5)
        assert seen == [4, 5, 6]
        assert store.size_bytes == 7 * len(batch(0))
        assert await store.remove_before(SnapshotId(5, 1)) == 4
        assert store.size_bytes == 3 * len(batch(0))
        assert (await opened(disk, start=5))[1] == [4, 5, 6]
        with pytest.raises(LogCorrupt, match="begins at offset 4, after 1"):
            await opened(disk, start=1)

    run(main())


def test_a_roll_begins_a_segment_where_the_log_ends() -> None:
    """Asked for, the next batch stands first in a file of its own; an empty segment is not rolled."""

    async def main() -> None:
        disk = sim_disk()
        store, _ = await opened(disk)
        store.roll_next()
        await store.append(batch(0), 1)
        store.roll_next()
        await store.append(batch(1), 2)
        assert await store.list_segments() == [0, 1]

    run(main())


@pytest.mark.parametrize("end", [0, 1, 2, 3, 4, 5])
def test_truncation(end: int) -> None:
    """A log cut at any batch ends there and goes on from there, whichever segment that is."""

    async def main() -> None:
        disk = sim_disk()
        store = await filled(disk, 5, segment_bytes=2 * len(batch(0)))
        await store.truncate(end)
        assert store.end == end
        await store.append(batch(end, epoch=2), end + 1)
        seen: list[tuple[int, int]] = []
        again = LogStore(disk.restart(drop), "/data", (1,), 1 << 20)
        await again.list_segments()

        def visit(header: BatchHeader, view: memoryview) -> None:
            seen.append((header.base_offset, header.leader_epoch))

        await again.read_all(0, visit)
        assert seen == [(base, 1) for base in range(end)] + [(end, 2)]

    run(main())


def test_a_log_that_is_cut_by_segments_knows_its_size() -> None:
    """By which snapshots are due: what was removed counts no more."""

    async def main() -> None:
        disk = sim_disk()
        store = await filled(disk, 6, segment_bytes=1)
        await store.truncate(2)
        sizes = [len(file.visible) for path, file in disk.files.items() if path.endswith(".log")]
        assert (len(sizes), store.size_bytes) == (2, sum(sizes))

    run(main())


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    """The append is refused whole, and can be tried again when there is room."""

    async def main() -> None:
        disk = sim_disk()
        store = await filled(disk, 2)
        disk.capacity_bytes = disk.used_bytes() + 10
        with pytest.raises(DiskFull):
            await store.append(batch(2), 3)
        assert store.end == 2
        disk.capacity_bytes = 1 << 30
        await store.append(batch(2), 3)
        assert (await opened(disk.restart(drop)))[1] == [0, 1, 2]

    run(main())


def test_the_quorum_state_is_kafkas_json() -> None:
    """Fields and version as Kafka 4's file store writes them for static voters; and back."""

    async def main() -> None:
        disk = sim_disk()
        store, _ = await opened(disk)
        assert await store.load_state() == QuorumState()
        await store.save_state(QuorumState(7, 1, 1))
        data = json.loads(bytes(disk.files["/data/__cluster_metadata-0/quorum-state"].durable))
        assert data == {
            "clusterId": "",
            "leaderId": 1,
            "leaderEpoch": 7,
            "votedId": 1,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": 1}],
            "data_version": 0,
        }
        assert await store.load_state() == QuorumState(7, 1, 1)
        await disk.write_file("/data/__cluster_metadata-0/quorum-state", b"{")
        with pytest.raises(LogCorrupt, match="quorum-state"):
            await store.load_state()

    run(main())


@pytest.mark.parametrize("is_recent", [True, False])
def test_any_part_of_the_log_can_be_read_back(is_recent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From memory or from the segments: from a batch's start on, whole batches alone, as many bytes as asked
    for and one batch at least."""
    if not is_recent:
        monkeypatch.setattr("millrace.kraft.log.log_store.RECENT_BYTES_MAX", 0)

    async def main() -> None:
        store = LogStore(sim_disk(), "/data", (1,), 1_000)
        await store.list_segments()
        await store.read_all(0, lambda header, view: None)
        written = []
        for base in range(0, 40, 2):
            data = encode_batch([Proposal([b"x" * 50, b"y" * 50], 0)], base, 3)
            written.append(data)
            await store.append(data, base + 2)
        assert [batch.data for batch in await store.read(0, 40, 1 << 20)] == written
        assert [batch.data for batch in await store.read(10, 21, 1 << 20)] == written[5:10]
        assert [(batch.base, batch.end, batch.epoch) for batch in await store.read(38, 40, 1)] == [
            (38, 40, 3)
        ]
        assert len(await store.read(0, 40, len(written[0]) + 1)) == 2
        assert await store.read(40, 40, 100) == []
        await store.truncate(30)
        assert [batch.data for batch in await store.read(28, 40, 1 << 20)] == written[14:15]
        with pytest.raises(OffsetWithinBatch):
            await store.read(15, 20, 100)
        await store.close()

    run(main())
