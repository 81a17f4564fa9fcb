"""restored-from: what of the bucket's metadata a log directory was restored from, until its first start is through.

    version=1
    end=12345                the highest offset that anything in the bucket named
    epoch=7                  of the record before it
    stream=41                streams from this id on may have been made since, and are not known here
    compared=0               1: the bucket was looked at again once the node was claimed, and held no more
    crc32c=1a2b3c4d          of the lines above, with their ends

The first start compares it with the bucket, for whoever had the node may have been at work while it was restored, and then with what the WAL
holds. Not here: the comparisons (broker/metadata_check.py, broker/unknown_streams.py). docs/formats/restored_from.md draws it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from millrace.kraft.errors import LogCorrupt
from millrace.protocol.crc32c import crc32c
from millrace.runtime.disk import Disk

FILE: Final = "restored-from"
_TEXT: Final = re.compile(
    rb"(version=1\nend=(\d{1,19})\nepoch=(\d{1,10})\nstream=(\d{1,19})\ncompared=([01])\n)crc32c=([0-9a-f]{8})\n"
)


@dataclass(frozen=True, slots=True)
class RestoredFrom:
    end: int
    epoch: int
    next_stream_id: int
    is_compared: bool = False


def encode_restored_from(found: RestoredFrom) -> bytes:
    values = found.end, found.epoch, found.next_stream_id, found.is_compared
    head = b"version=1\nend=%d\nepoch=%d\nstream=%d\ncompared=%d\n" % values
    return head + b"crc32c=%08x\n" % crc32c(head)


async def write_restored_from(disk: Disk, log_dir: str, found: RestoredFrom) -> None:
    """Durable on return."""
    await disk.write_file(f"{log_dir}/{FILE}", encode_restored_from(found))


async def read_restored_from(disk: Disk, log_dir: str) -> RestoredFrom | None:
    """None where the directory was not restored, or a start of it went through since. Raises LogCorrupt for what `write` did not make."""
    path = f"{log_dir}/{FILE}"
    data = await disk.read_file(path)
    if data is None:
        return None
    found = _TEXT.fullmatch(data)
    if found is None or crc32c(found[1]) != int(found[6], 16):
        raise LogCorrupt(path, 0, "it does not say what the directory was restored from")
    return RestoredFrom(int(found[2]), int(found[3]), int(found[4]), found[5] == b"1")


async def forget_restored_from(disk: Disk, log_dir: str) -> None:
    """A start went through: from here on the directory is as any other. Durable on return."""
    if await read_restored_from(disk, log_dir) is not None:
        await disk.remove(f"{log_dir}/{FILE}")
