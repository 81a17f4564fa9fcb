"""Recovery from images built by hand: which blocks count, where the log ends, and what is damage."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from millrace.wal.block.batcher import Batcher
from millrace.wal.block.layout import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    RING_START,
    DeviceHeader,
    Geometry,
    decode_block_header,
    encode_block_header,
)
from millrace.wal.block.recovery import RecoveryScan
from millrace.wal.errors import WalCorrupt

RING = 16 * BLOCK_BYTES


def header(**changes: int) -> DeviceHeader:
    fields = {
        "node_id": 1, "epoch": 1, "epoch_start": 0, "capacity_bytes": RING + RING_START, "trim": 0, "head": 0,
        "confirmed": 0,
        "block_bytes_max": 2 * BLOCK_BYTES, "window_bytes": 4 * BLOCK_BYTES, "filled_bytes": 0,
        "closed_end": -1, "sequence": 2,
    }  # fmt: skip
    return DeviceHeader(cluster_id="cluster", **{**fields, **changes})


class Image:
    """A ring into which blocks are put by position."""

    def __init__(self) -> None:
        self.data = bytearray(RING)

    def put(
        self,
        position: int,
        texts: Iterable[str],
        *,
        epoch: int = 1,
        confirmed: int = 0,
        previous_end: int | None = None,
    ) -> int:
        """One block; gives its end."""
        batcher = Batcher(epoch, position if previous_end is None else previous_end)
        batcher.use_arena(memoryview(bytearray(4 * BLOCK_BYTES)))
        batcher.open_block(position, 4 * BLOCK_BYTES)
        for text in texts:
            batcher.add((text.encode(),), len(text))
        block = batcher.close_block()
        block.stamp(confirmed)
        place = Geometry(RING).physical(position) - RING_START
        self.data[place : place + len(block.view)] = block.view
        return block.end

    def scan(self, device_header: DeviceHeader, read_bytes: int = 2 * BLOCK_BYTES) -> tuple[list[str], int]:
        scan = RecoveryScan(device_header, read_bytes)
        found: list[str] = []
        reads = 0
        while (wanted := scan.wanted()) is not None:
            position, length = wanted
            assert length > 0
            assert length % BLOCK_BYTES == 0
            place = position % RING
            assert place + length <= RING, "a read never crosses the ring's end"
            found.extend(
                bytes(record.payload).decode()
                for record in scan.feed(bytes(self.data[place : place + length]))
            )
            reads += 1
            assert reads < 100
        return found, scan.tail


def test_an_empty_ring() -> None:
    """Nothing written: no records, and the log begins at its head."""
    assert Image().scan(header()) == ([], 0)
    assert Image().scan(header(head=5 * RING + 4096, epoch_start=0)) == ([], 5 * RING + 4096)


def test_only_a_block_that_two_reads_share_is_copied() -> None:
    """Records of all others are views of what was read: a recovery of a gigabyte copies little of it."""
    image, position = Image(), 0
    for number in range(7):  # of two blocks' length each: every read of five ends within one
        position = image.put(position, ["x" * 5_000 + str(number)])
    scan = RecoveryScan(header(), 5 * BLOCK_BYTES)
    reads: list[bytes] = []
    records = []
    while (wanted := scan.wanted()) is not None:
        place, length = wanted
        reads.append(bytes(image.data[place : place + length]))
        records += scan.feed(reads[-1])
    copied = [
        number
        for number, record in enumerate(records)
        if all(record.payload.obj is not read for read in reads)
    ]
    assert len(records) == 7
    assert copied == [2]


@pytest.mark.parametrize("read_blocks", [1, 2, 3, 16])
def test_blocks_are_read_in_order_whatever_the_read_size(read_blocks: int) -> None:
    """Blocks larger than a read, and reads that end within a block, change nothing."""
    image = Image()
    end = image.put(0, ["a", "b"])
    end = image.put(end, ["c" * 9000])
    end = image.put(end, ["d"])
    found, tail = image.scan(header(), read_blocks * BLOCK_BYTES)
    assert found == ["a", "b", "c" * 9000, "d"]
    assert tail == end


def test_records_below_the_trim_are_left_out() -> None:
    """A trim inside a block hides the records before it."""
    image = Image()
    image.put(0, ["aaaa", "bbbb", "cccc"])
    first_end = 64 + 24 + 4
    assert image.scan(header(trim=first_end))[0] == ["bbbb", "cccc"]


def test_the_rest_of_a_lap_may_be_skipped() -> None:
    """A block at the start of a lap that names the place where the one before it ended continues the log."""
    image = Image()
    head = RING - 3 * BLOCK_BYTES
    end = image.put(head, ["a"])
    last = image.put(RING, ["b" * 9000], previous_end=end)
    assert image.scan(header(head=head)) == (["a", "b" * 9000], last)


def test_a_skip_from_another_place_does_not_count() -> None:
    """A block at the start of a lap whose link names another end proves nothing here."""
    image = Image()
    head = RING - 3 * BLOCK_BYTES
    end = image.put(head, ["a"])
    image.put(RING, ["b"], previous_end=end + BLOCK_BYTES)
    assert image.scan(header(head=head)) == (["a"], end)


def test_a_full_ring_ends_where_it_began() -> None:
    """With every block of the ring live, the scan stops after one lap."""
    image = Image()
    head = 7 * BLOCK_BYTES
    texts = [str(number) for number in range(16)]
    for number, text in enumerate(texts):
        image.put(head + number * BLOCK_BYTES, [text])
    assert image.scan(header(head=head)) == (texts, head + RING)


def test_blocks_of_the_lap_before_do_not_count() -> None:
    """What a former lap left at the same place has another position."""
    image = Image()
    image.put(0, ["old"])
    image.put(BLOCK_BYTES, ["old"])
    end = image.put(RING, ["new"])
    assert image.scan(header(head=RING)) == (["new"], end)


def test_only_the_owner_counts_from_where_it_began() -> None:
    """At or above epoch_start blocks of older epochs are void, also where they fit exactly; so are those of
    later ones."""
    image = Image()
    first = image.put(0, ["one"], epoch=1)
    second = image.put(first, ["void"], epoch=1)
    assert image.scan(header(epoch=2, epoch_start=first)) == (["one"], first)
    image.put(first, ["two"], epoch=2)
    image.put(second, ["void"], epoch=1)
    assert image.scan(header(epoch=2, epoch_start=first)) == (["one", "two"], second)
    image.put(second, ["void"], epoch=3)
    assert image.scan(header(epoch=2, epoch_start=first)) == (["one", "two"], second)


def test_epochs_never_fall_below_the_start() -> None:
    """Below epoch_start an older epoch behind a newer one is damage, and so is the owner's own."""
    image = Image()
    first = image.put(0, ["two"], epoch=2)
    second = image.put(first, ["one"], epoch=1)
    with pytest.raises(WalCorrupt) as corrupt:
        image.scan(header(epoch=3, epoch_start=second))
    assert corrupt.value.position == first
    image.put(first, ["three"], epoch=3)
    with pytest.raises(WalCorrupt):
        image.scan(header(epoch=3, epoch_start=second))


@pytest.mark.parametrize("field", ["confirmed", "epoch_start", "trim"])
def test_a_bad_block_below_what_the_header_is_sure_of_is_damage(field: str) -> None:
    """What a header says was durable must be there."""
    image = Image()
    end = image.put(0, ["a"], epoch=0 if field == "epoch_start" else 1)
    assert image.scan(header(**{field: end}))[1] == end
    with pytest.raises(WalCorrupt) as corrupt:
        image.scan(header(**{field: end + BLOCK_BYTES}))
    assert corrupt.value.position == end


def test_a_bad_block_that_a_sound_one_before_it_cannot_vouch_for_is_the_tail() -> None:
    """A hole with later blocks that were written while it was open is the end, not damage."""
    image = Image()
    end = image.put(0, ["a"])
    image.put(end + BLOCK_BYTES, ["behind the hole"], confirmed=end)
    assert image.scan(header()) == (["a"], end)


@pytest.mark.parametrize("distance", [1, 2, 4, 8])
def test_a_later_block_that_knew_better_makes_it_damage(distance: int) -> None:
    """A later block, as far away as the window and the largest block allow, that says the bad one was
    durable."""
    image = Image()
    end = image.put(0, ["a"])
    image.put(end + distance * BLOCK_BYTES, ["later"], confirmed=end + BLOCK_BYTES)
    with pytest.raises(WalCorrupt) as corrupt:
        image.scan(header())
    assert corrupt.value.position == end


def test_evidence_across_the_end_of_a_lap() -> None:
    """The later block is found behind the ring's end too."""
    image = Image()
    head = RING - 2 * BLOCK_BYTES
    end = image.put(head, ["a"])
    image.put(RING + BLOCK_BYTES, ["later"], confirmed=RING)
    with pytest.raises(WalCorrupt) as corrupt:
        image.scan(header(head=head))
    assert corrupt.value.position == end


def test_a_void_block_is_no_evidence() -> None:
    """What an older owner wrote behind its hole says nothing about the new owner's log."""
    image = Image()
    end = image.put(0, ["a"], epoch=2)
    image.put(end + BLOCK_BYTES, ["void"], epoch=1, confirmed=end + BLOCK_BYTES)
    assert image.scan(header(epoch=2)) == (["a"], end)


def test_a_log_that_was_closed_in_order_is_not_searched() -> None:
    """The header names the end, so nothing is read behind it."""
    image = Image()
    end = image.put(0, ["a"])
    image.put(end, ["beyond"])
    assert image.scan(header(closed_end=end, confirmed=end), 16 * BLOCK_BYTES) == (["a"], end)
    scan = RecoveryScan(header(head=end, closed_end=end))
    assert scan.wanted() is None


def restamp(image: Image, position: int, **changes: int) -> None:
    """Changes fields of a block's header and seals it again."""
    block = decode_block_header(memoryview(image.data), position)
    assert block is not None
    image.data[position : position + BLOCK_HEADER_BYTES] = encode_block_header(
        dataclasses.replace(block, **changes)
    )


def test_a_block_with_other_contents_than_it_says_does_not_count() -> None:
    """More bytes than its records fill, or fewer records than they should be: none of the block is
    believed."""
    for changes in ({"length": 64 + 2 * 25 + 1}, {"record_count": 1}, {"record_count": 3}):
        image = Image()
        image.put(0, ["a", "b"])
        restamp(image, 0, **changes)
        assert image.scan(header()) == ([], 0)


def test_a_block_beyond_the_end_of_its_lap_does_not_count() -> None:
    """A sound header whose block would cross the ring's end, or meet the head, is not followed."""
    image = Image()
    head = RING - BLOCK_BYTES
    image.put(head, ["a"])
    restamp(image, head, length=BLOCK_BYTES + 1)
    assert image.scan(header(head=head)) == ([], head)


def test_a_torn_block_counts_for_nothing() -> None:
    """With any one of its sectors lost, none of a block's records is recovered."""
    for sector in range(1, 8):
        image = Image()
        image.put(0, ["x" * 1000, "y" * 1000, "z" * 1000])
        image.data[sector * 512 : sector * 512 + 512] = bytes(512)
        found, tail = image.scan(header())
        assert (found, tail) == ([], 0) or (sector >= 7 and len(found) == 3)
