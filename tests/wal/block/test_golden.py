"""The golden image of version 1: it is read for ever, and today's writer still makes the same bytes.

`tests/golden/block_wal_v1.hex` holds the stretches of the image that are not zeros, one a line: place and bytes. To
make it anew, when the format changes on purpose: `python -m tests.wal.block.test_golden > tests/golden/block_wal_v1.hex`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from millrace.protocol.crc32c import crc32c
from tests.sim.disk import SimDisk, SimFile
from tests.wal.build import KIB, PATH, open_wal, payload, start_wal

GOLDEN = Path(__file__).parents[2] / "golden" / "block_wal_v1.hex"
LINE_BYTES = 64


async def make_image() -> tuple[bytes, list[bytes]]:
    """Two owners, a trim, a skipped rest of a lap, an orderly close; small payloads, so that the file stays small."""
    disk = SimDisk(hops=0)
    disk.add_device(PATH, 256 * KIB)
    sent = []
    for epoch in (3, 4):
        wal, _, journal = await start_wal(disk, epoch)
        for number in range(34):
            data = payload(number, 40) if number % 8 else bytes(17 * KIB)
            tail = data[20:]
            record = wal.append(data[:20], tail, tail_crc=crc32c(tail) if number % 3 == 0 else None)
            sent.append((record.end, data))
            await journal.reach(record.end)
            if number % 16 == 15:
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


def test_the_writer_makes_the_golden_image() -> None:
    """The same life gives the same bytes as when version 1 was fixed."""
    image, _ = asyncio.run(make_image())
    assert to_lines(image) == GOLDEN.read_text().splitlines()


def test_the_golden_image_is_read() -> None:
    """Its records come back, in order and whole."""

    async def run() -> None:
        image, expected = from_lines(GOLDEN.read_text().splitlines()), (await make_image())[1]
        disk = SimDisk()
        disk.files[PATH] = SimFile(bytearray(image), image, is_device=True)
        _, records = await open_wal(disk, 5)
        assert [bytes(record.payload) for record in records] == expected

    asyncio.run(run())


if __name__ == "__main__":
    print("\n".join(to_lines(asyncio.run(make_image())[0])))
