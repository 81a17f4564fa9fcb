"""restored-from: what of the bucket's metadata a log directory was restored from, until its first start is
through.

    version=2
    end=12345                the highest offset that anything in the bucket named
    epoch=7                  of the record before it
    stream=41                streams from this id on may have been made since, and are not known here
    compared=0               1: the bucket was looked at again once the node was claimed, and held no more
    lost=0                   1: the restore told of acknowledged records that are not known here
    crc32c=1a2b3c4d          of the lines above, with their ends

The first start compares it with the bucket, for whoever had the node may have been at work while it was
restored, and then with what the WAL holds. Not here: the comparisons (broker/identity/metadata_check.py,
broker/identity/unknown_streams.py). docs/formats/restored_from.md draws it.
"""

from __future__ import annotations

from typing import Final

from millrace.kraft.errors import LogCorrupt
from millrace.kraft.log.checked_text import CheckedText, sealed
from millrace.protocol.dataclass import dataclass
from millrace.runtime.disk import Disk

FILE: Final = "restored-from"
_TEXT: Final = CheckedText(
    rb"version=2\nend=(\d{1,19})\nepoch=(\d{1,10})\nstream=(\d{1,19})\ncompared=([01])\nlost=([01])\n"
)


@dataclass(frozen=True, slots=True)
class RestoredFrom:
    end: int
    epoch: int
    next_stream_id: int
    is_compared: bool = False
    is_loss_known: bool = False  # beside a lost write-ahead log, which the start finds by itself


def encode_restored_from(found: RestoredFrom) -> bytes:
    values = found.end, found.epoch, found.next_stream_id, found.is_compared, found.is_loss_known
    return sealed(b"version=2\nend=%d\nepoch=%d\nstream=%d\ncompared=%d\nlost=%d\n" % values)


async def write_restored_from(disk: Disk, log_dir: str, found: RestoredFrom) -> None:
    """Durable on return."""
    await disk.write_file(f"{log_dir}/{FILE}", encode_restored_from(found))


async def read_restored_from(disk: Disk, log_dir: str) -> RestoredFrom | None:
    """None where the directory was not restored, or a start of it went through since. Raises LogCorrupt for
    what `write` did not make."""
    path = f"{log_dir}/{FILE}"
    data = await disk.read_file(path)
    if data is None:
        return None
    found = _TEXT.values(data)
    if found is None:
        raise LogCorrupt(path, 0, "it does not say what the directory was restored from")
    return RestoredFrom(int(found[0]), int(found[1]), int(found[2]), found[3] == b"1", found[4] == b"1")


async def forget_restored_from(disk: Disk, log_dir: str) -> None:
    """A start went through: from here on the directory is as any other. Durable on return."""
    if await read_restored_from(disk, log_dir) is not None:
        await disk.remove(f"{log_dir}/{FILE}")
