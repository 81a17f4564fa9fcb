"""What the bucket's metadata and objects say of the local log's age, and what a process that was replaced has
left there."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.metadata_check import (
    check_claim_basis,
    newer_metadata,
    newer_objects,
    note_claim_basis,
)
from millrace.kraft.bucket.layout import PieceName, piece_key
from millrace.kraft.bucket.reader import BucketMetadata
from millrace.kraft.errors import LogCorrupt
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.log.claim_basis import (
    FILE,
    ClaimBasis,
    encode_claim_basis,
    read_claim_basis,
    write_claim_basis,
)
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.raft.log_view import LogHistory
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.s3stream.ids import ObjectId, Writer
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.writer import ObjectWriter
from tests.kraft.build import HandClock, sim_disk

# Epoch 1 up to offset 20, where epoch 2 began; ends at 30.
HISTORY = LogHistory(0, 30, ((1, 0), (2, 20)))
OWN, BEFORE = Writer(1, 7), Writer(1, 5)


LOG_DIR = "/data/metadata"


def test_a_claim_is_compared_with_what_the_bucket_held_before_it() -> None:
    """What somebody saved since refuses this start and every further one; what was there before, or below,
    refuses none, and the file goes."""

    async def main() -> None:
        disk, store = sim_disk(), MemoryObjectStore(HandClock())
        await disk.make_folder(LOG_DIR)

        async def check() -> None:
            await check_claim_basis(store, "the bucket", "cluster", disk, LOG_DIR)

        await check()  # a start that noted nothing
        await store.put(piece_key("cluster", PieceName(30, 2, 0)), [b"a piece"])
        await note_claim_basis(disk, LOG_DIR, 2, 30)
        await store.put(piece_key("cluster", PieceName(90, 1, 30)), [b"of a replaced writer"])
        await check()
        assert await read_claim_basis(disk, LOG_DIR) is None
        await note_claim_basis(disk, LOG_DIR, 2, 30)
        await store.put(piece_key("cluster", PieceName(31, 2, 30)), [b"a piece more"])
        for _ in range(2):
            await note_claim_basis(disk, LOG_DIR, 3, 40)  # of a further start
            with pytest.raises(
                BindingRefused, match=r"up to offset 30 .* up to 31 now: .*still at work.*`millrace restore`"
            ):
                await check()
        assert await read_claim_basis(disk, LOG_DIR) == ClaimBasis(2, 30)

    asyncio.run(main())


def test_a_claim_basis_is_read_whole_or_not_at_all() -> None:
    """The golden bytes; and every other length or byte is refused."""
    whole = encode_claim_basis(ClaimBasis(7, 12_345))
    assert whole == b"version=1\nend=12345\nepoch=7\ncrc32c=01f5d9f7\n"

    async def main() -> None:
        disk = sim_disk()
        await disk.make_folder(LOG_DIR)
        await write_claim_basis(disk, LOG_DIR, ClaimBasis(7, 12_345))
        assert await read_claim_basis(disk, LOG_DIR) == ClaimBasis(7, 12_345)
        for data in (
            *(whole[:size] for size in range(len(whole))),
            whole + b"\n",
            whole.replace(b"7\n", b"8\n", 1),
        ):
            await disk.write_file(f"{LOG_DIR}/{FILE}", data)
            with pytest.raises(LogCorrupt):
                await read_claim_basis(disk, LOG_DIR)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("end", "epoch", "claimed_epoch", "reason"),
    [
        (20, 1, 2, ""),
        (30, 2, 2, ""),
        (25, 1, 2, ""),  # a replaced writer's, which went on
        (40, 1, 2, ""),
        (40, 2, 2, "up to offset 40 of epoch 2"),  # our own epoch's: this log is an older copy
        (31, 3, 2, "up to offset 31 of epoch 3"),
        (25, 1, 1, "two copies of one log"),  # epoch 2 was never claimed: its start was killed before
        (40, 1, 1, "up to offset 40 of epoch 1"),
        (25, 1, -1, "two copies of one log"),
    ],
)
def test_metadata_counts_unless_its_writer_was_replaced(
    end: int, epoch: int, claimed_epoch: int, reason: str
) -> None:
    """Piece, snapshot and pointer alike."""
    for found in (
        BucketMetadata(pieces=(PieceName(end, epoch, 10),)),
        BucketMetadata(snapshots=(SnapshotId(end, epoch),)),
        BucketMetadata(newest=SnapshotId(end, epoch)),
    ):
        said = newer_metadata(found, HISTORY, claimed_epoch) or ""
        assert reason in said
        assert bool(reason) == bool(said)


def test_what_a_replaced_writer_put_is_no_part_of_the_chain() -> None:
    """The next piece begins where this log's own pieces end."""
    pieces = (PieceName(15, 1, 0), PieceName(40, 1, 15), PieceName(28, 2, 15))
    found = BucketMetadata(pieces=pieces, newest=SnapshotId(40, 1)).within(HISTORY)
    assert found == BucketMetadata(pieces=(pieces[0], pieces[2]))
    assert found.chain_end == 28


@pytest.mark.parametrize(
    ("writer", "owner", "is_newer"),
    [
        (OWN, OWN, True),
        (BEFORE, OWN, False),
        (BEFORE, None, True),
        (None, OWN, True),
        (Writer(2, 5), OWN, True),
    ],
)
def test_an_object_under_an_id_that_was_not_given(
    writer: Writer | None, owner: Writer | None, is_newer: bool
) -> None:
    """It tells of a newer log, unless it was written for the node by somebody else than its newest owner."""

    async def main() -> None:
        store = MemoryObjectStore(HandClock())
        made = ObjectWriter(writer=writer)
        made.add(1, [Entry(0, 1, memoryview(b"x" * 100))])
        await store.put(object_key("c", ObjectId(EMPTY_IMAGE.objects.next_id + 1)), made.finish().parts)
        assert (await newer_objects(store, "c", EMPTY_IMAGE, owner) is not None) is is_newer

    asyncio.run(main())
