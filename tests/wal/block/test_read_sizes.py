"""What recovery finds does not hang on how much it reads at a time: block by block, or all at once."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from millrace.runtime.rand import Rand
from millrace.wal.block import recovery
from millrace.wal.block.layout import BLOCK_BYTES, DeviceHeader
from millrace.wal.block.recovery import REFUSE, SKIP, TRUNCATE, RecoveryScan
from millrace.wal.errors import WalCorrupt
from tests.wal.block.test_recovery import RING, Image, header

READ_BLOCKS = (2, 3, 5, 16)


class Damaged(NamedTuple):
    header: DeviceHeader
    image: bytes
    unreadable: frozenset[int]  # places in the ring


class Found(NamedTuple):
    tail: int
    records: list[tuple[int, bytes, int, int | None]]
    damages: list[tuple[int, int, int]]


def damaged(seed: int) -> Damaged:
    """A log of blocks of one to three, by one owner or two, closed or cut, in which some blocks are torn, lie
    elsewhere, have rotted or cannot be read."""
    rand, image = Rand(b"%d" % seed), Image()
    head = end = rand.below(40) * BLOCK_BYTES
    ends, epoch, epoch_start = [head], 1, head
    for _ in range(rand.below(8)):
        place = end if end % RING + 3 * BLOCK_BYTES <= RING else end - end % RING + RING
        if place + 3 * BLOCK_BYTES > head + RING:
            break
        if epoch == 1 and rand.below(6) == 0:
            epoch, epoch_start = 2, end
        texts = ["x" * (1 + rand.below(5_500)) for _ in range(1 + rand.below(2))]
        confirmed = ends[-1 - rand.below(min(2, len(ends)))]
        end = image.put(place, texts, epoch=epoch, confirmed=confirmed, previous_end=end)
        ends.append(end)
    unreadable = set()
    for _ in range(rand.below(4)):
        at = (head + rand.below(16) * BLOCK_BYTES) % RING
        how = rand.below(4)
        if how == 0:
            image.data[at + rand.below(BLOCK_BYTES)] ^= 1 << rand.below(8)
        else:
            torn = rand.below(8) * 512 if how == 1 else 0
            other = rand.below(16) * BLOCK_BYTES
            there = image.data[other : other + BLOCK_BYTES] if how == 2 else bytes(BLOCK_BYTES)
            image.data[at + torn : at + BLOCK_BYTES] = there[torn:]
        if how == 3:
            unreadable.add(at)
    known = {"confirmed": end, "closed_end": end} if rand.below(2) else {"confirmed": epoch_start}
    told = header(
        epoch=epoch, epoch_start=epoch_start, head=head, trim=head, window_bytes=RING, **known
    )  # of such a window all is looked at for what says that a block was durable
    return Damaged(told, bytes(image.data), frozenset(unreadable))


def walked(log: Damaged, policy: str, read_bytes: int) -> Found | int:
    """Or the position that is refused."""
    scan = RecoveryScan(log.header, read_bytes, policy)
    records = []
    try:
        while (wanted := scan.wanted()) is not None:
            position, length = wanted
            place = position % RING
            bad = [position + at for at in range(0, length, BLOCK_BYTES) if place + at in log.unreadable]
            for one in scan.feed(log.image[place : place + length], bad):
                records.append((one.position, bytes(one.payload), one.lead, one.tail_crc))
    except WalCorrupt as error:
        return error.position
    return Found(scan.tail, records, [(one.start, one.end, one.sound_count) for one in scan.damages])


@pytest.mark.parametrize("policy", [REFUSE, SKIP, TRUNCATE])
def test_damage_is_the_same_however_much_is_read(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "FIRST_READ_BYTES", RING)
    with_damage = 0
    for seed in range(400):
        log = damaged(seed)
        found = walked(log, policy, BLOCK_BYTES)
        with_damage += isinstance(found, int) or bool(found.damages)
        for blocks in READ_BLOCKS:
            assert walked(log, policy, blocks * BLOCK_BYTES) == found, (seed, blocks)
    assert with_damage > 50
