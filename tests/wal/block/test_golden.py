"""The golden images of versions 1 to 3: they are read for ever, and today's writer still makes the same
bytes.

`tests/golden/block_wal_v*.hex` hold the stretches of an image that are not zeros, one a line: place and
bytes. To make one anew, when the format changes on purpose: `python -m tests.wal.block.test_golden 2 >
tests/golden/block_wal_v2.hex`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millrace.protocol.crc32c import crc32c
from millrace.wal.block.device import identify
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark, WalIdentity
from tests.sim.disk import SimDisk, SimFile
from tests.sim.loop import SimLoop, run_simulation
from tests.wal.build import KIB, PATH, open_wal, payload, start_wal

FOLDER = Path(__file__).parents[2] / "golden"
# By version of the device header: id, and how it is fenced.
WALS = {1: (NO_WAL_ID, "lock"), 2: (bytes(range(16)), "lock"), 3: (bytes(range(16)), "claim")}
LINE_BYTES = 64


async def make_image(wal_id: bytes, fencing: str) -> tuple[bytes, list[bytes]]:
    """Two owners, a trim, a skipped rest of a lap, an orderly close; small payloads, so that the file stays
    small."""
    disk = SimDisk(hops=0)
    disk.add_device(PATH, 256 * KIB)
    sent = []
    for epoch in (3, 4):
        wal, _, journal = await start_wal(disk, epoch, wal_id, fencing=fencing)
        for number in range(34):
            data = payload(number, 40) if number % 8 else bytes(17 * KIB)
            tail = data[20:]
            record = wal.append(data[:20], tail, tail_crc=crc32c(tail) if number % 3 == 0 else None)
            sent.append((record.end, data))
            await journal.reach(record.end)
            if number % 16 == 15:
                wal.see_metadata(MetadataMark(1000 * epoch + number, epoch))
                await wal.trim(record.end)
                sent.clear()
        await wal.close()
    return bytes(disk.files[PATH].durable), [data for _, data in sent]


def to_lines(image: bytes) -> list[str]:
    pieces = ((at, image[at : at + LINE_BYTES]) for at in range(0, len(image), LINE_BYTES))
    return [f"{at:08x} {piece.hex()}" for at, piece in pieces if any(piece)]


def from_lines(lines: list[str]) -> bytearray:
    image = bytearray(256 * KIB)
    for line in lines:
        at, data = line.split()
        image[int(at, 16) : int(at, 16) + LINE_BYTES] = bytes.fromhex(data)
    return image


def golden(version: int) -> list[str]:
    return (FOLDER / f"block_wal_v{version}.hex").read_text().splitlines()


@pytest.mark.parametrize("version", WALS)
def test_the_writer_makes_the_golden_image(version: int) -> None:
    """The same life gives the same bytes as when the version was fixed."""
    image, _ = run_simulation(lambda loop: make_image(*WALS[version]))
    assert to_lines(image) == golden(version)


@pytest.mark.parametrize("version", WALS)
def test_the_golden_image_is_read(version: int) -> None:
    """Its records come back, in order and whole, and with them what it says of itself."""

    async def run(loop: SimLoop) -> None:
        image, expected = from_lines(golden(version)), (await make_image(*WALS[version]))[1]
        disk = SimDisk()
        disk.files[PATH] = SimFile(bytearray(image), image, is_device=True)
        mark = MetadataMark(4031, 4) if version >= 2 else NO_MARK
        assert await identify(disk, PATH) == WalIdentity(WALS[version][0], 4, mark, "cluster", 1)
        _, records = await open_wal(disk, 5)
        assert [bytes(record.payload) for record in records] == expected

    run_simulation(run)


if __name__ == "__main__":
    print("\n".join(to_lines(run_simulation(lambda loop: make_image(*WALS[int(sys.argv[1])]))[0])))
