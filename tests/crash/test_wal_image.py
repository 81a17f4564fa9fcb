"""Images of a WAL, cut at every block and at random bytes: recovery ends at the last sound block, and all
that was acknowledged is there.

What a power cut leaves at the end of the log is whatever the last write became: nothing, a part, or bytes
that were there before. None of it was acknowledged, for an acknowledgement means that its block is whole and
everything before it too. So for any cut point the image holds a prefix of blocks and noise behind it. Nothing
was written behind the cut that knew of the blocks behind it, so what was acknowledged below it has to be
there, once and in order, and nothing of what is behind it: a ring that has wrapped holds a whole lap of sound
blocks there. A flipped byte is damage wherever a later block proves that its block was durable: then the
start is refused, and names the block. In the last block nothing tells it from a tail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from millrace.runtime.rand import Rand
from millrace.wal.block.layout import BLOCK_BYTES, BLOCK_HEADER_BYTES, RING_START, align_up
from millrace.wal.errors import WalCorrupt
from tests.crash.wal_image import WAL_PATH, Loaded, first_lap, wrapped
from tests.sim.checkers import AcknowledgedIsThere, Checker, OnceInOrder
from tests.sim.disk import SECTOR_BYTES, SimDisk, keep
from tests.sim.look import look
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.node import SimNode, StartFailed

NOISE_BYTES = 64 << 10  # no more than is free behind the end of a wrapped ring
Load = Callable[[SimLoop], Awaitable[Loaded]]
both_shapes = pytest.mark.parametrize("load", [first_lap, wrapped])


async def check_exact(loaded: Loaded, disk: SimDisk, end: int) -> None:
    """The log gives the records below `end` and no others."""
    assert await loaded.recovered(disk) == loaded.records_below(end), end


async def check_sound(loaded: Loaded, disk: SimDisk, end: int, node: SimNode | None = None) -> None:
    """The log is exact; and the node starts on it and has what was acknowledged, also from objects, after
    another start. `node`: whose bucket it finds, the loaded one's without it."""
    await check_exact(loaded, disk, end)
    twin = (node or loaded.node).twin(disk)
    history = loaded.told(end)
    checkers: list[Checker] = [AcknowledgedIsThere(), OnceInOrder()]
    for _ in range(2):
        await twin.start()
        found = await look(twin.world.client("reader", twin.address), history, lookups=())
        for checker in checkers:
            assert checker.check(history, found) == [], end
        await twin.stop()
    assert checkers[0].count == 2 * sum(len(log.acknowledged) for log in history.logs.values())


@both_shapes
def test_cut_at_every_block(load: Load) -> None:
    """An image that ends with a block, with what was there before behind it, has all that was acknowledged by
    then and nothing else."""

    async def main(loop: SimLoop) -> None:
        loaded = await load(loop)
        assert len(loaded.cuts) > 16
        for number, end in enumerate(loaded.cuts):
            await check_sound(loaded, loaded.image(number), end)

    run_simulation(main)


@both_shapes
def test_cut_at_random_bytes(load: Load) -> None:
    """An image that ends within a block, with what was there before, noise or blocks of elsewhere behind, has
    all that was acknowledged before that block."""

    async def main(loop: SimLoop) -> None:
        loaded = await load(loop)
        rand = Rand(b"bytes")
        whole = bytes(loaded.node.disk.files[WAL_PATH].durable)
        for turn in range(30):
            number = rand.below(len(loaded.blocks))
            block = loaded.blocks[number]
            length = block.header.length
            cut = rand.below(length)
            other = loaded.blocks[number - 1 - rand.below(len(loaded.blocks) - 1)]
            elsewhere = whole[other.place + cut % BLOCK_BYTES :][:NOISE_BYTES]
            rest = (block.before[cut:], rand.uuid() * (NOISE_BYTES // 16), elsewhere)[turn % 3]
            torn = (block.content[:cut] + rest)[: len(whole) - block.place]
            is_whole = torn[:length] == block.content[:length]  # its last bytes may be what was there before
            await check_sound(loaded, loaded.image(number, torn), loaded.cuts[number + is_whole])

    run_simulation(main)


def test_records_of_the_lap_before_in_a_torn_block() -> None:
    """Sectors of a block are written in any order: those with its later records are still of the block that
    was there a lap ago, whose records are whole, sound and of the same sizes. The block does not count."""

    async def main(loop: SimLoop) -> None:
        loaded = await wrapped(loop)
        torn_count = 0
        for number, block in enumerate(loaded.blocks):
            if not loaded.is_alike(block):
                continue
            (_, _), (position, _) = block.records()
            second = position - block.header.position
            assert second % SECTOR_BYTES == 0
            torn = block.content[:second] + block.before[second:]
            check = check_exact if torn_count % 4 else check_sound
            await check(loaded, loaded.image(number, torn), block.header.position)
            torn_count += 1
        assert torn_count > len(loaded.blocks) // 2

    run_simulation(main)


@both_shapes
def test_a_flipped_byte_below_what_was_confirmed(load: Load) -> None:
    """In every block but the last, in its header or its records: the start is refused and names the end of
    the block before it. In the padding it is nothing."""

    async def main(loop: SimLoop) -> None:
        loaded = await load(loop)
        rand = Rand(b"flips")
        for block in loaded.blocks:
            length = block.header.length
            for at in (
                rand.below(BLOCK_HEADER_BYTES),
                BLOCK_HEADER_BYTES + rand.below(length - BLOCK_HEADER_BYTES),
            ):
                disk = loaded.image()
                disk.flip(WAL_PATH, block.place + at, 1 << rand.below(8))
                if block is loaded.blocks[-1]:
                    await check_sound(loaded, disk, block.header.position)
                    continue
                with pytest.raises(StartFailed) as refused:
                    await loaded.node.twin(disk).start()
                assert isinstance(refused.value.__cause__, WalCorrupt)
                assert refused.value.__cause__.position == block.header.previous_end
            if length < align_up(length):
                disk = loaded.image()
                disk.flip(WAL_PATH, block.place + len(block.content) - 1)
                await check_exact(loaded, disk, loaded.cuts[-1])

    run_simulation(main)


def test_a_start_that_is_refused_changes_nothing() -> None:
    """Refused twice in the same words, the image is byte for byte what it was; with the flip undone the node
    has everything."""

    async def main(loop: SimLoop) -> None:
        loaded = await first_lap(loop, 6)
        disk = loaded.image()
        disk.flip(WAL_PATH, RING_START + 100)
        before = bytes(disk.files[WAL_PATH].durable)
        twin = loaded.node.twin(disk)
        causes = []
        for _ in range(2):
            with pytest.raises(StartFailed) as refused:
                await twin.start()
            causes.append(repr(refused.value.__cause__))
        assert causes[0] == causes[1]
        assert bytes(twin.disk.files[WAL_PATH].durable) == before
        twin.disk.flip(WAL_PATH, RING_START + 100)
        await check_sound(loaded, twin.disk.restart(keep), loaded.cuts[-1], twin)  # its starts put claims

    run_simulation(main)
