"""claim-basis: where a metadata log ended when its start set out to claim the node, until the bucket was
compared once the claim was there.

    version=1
    end=12345                where the log ended
    epoch=7                  of the record before it
    crc32c=1a2b3c4d          of the lines above, with their ends

Not here: the comparison (broker/identity/metadata_check.py). docs/formats/claim_basis.md draws it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace.kraft.errors import LogCorrupt
from millrace.kraft.log.checked_text import CheckedText, sealed
from millrace.runtime.disk import Disk

FILE: Final = "claim-basis"
_TEXT: Final = CheckedText(rb"version=1\nend=(\d{1,19})\nepoch=(\d{1,10})\n")


class ClaimBasis(NamedTuple):
    epoch: int
    end: int


def encode_claim_basis(basis: ClaimBasis) -> bytes:
    return sealed(b"version=1\nend=%d\nepoch=%d\n" % (basis.end, basis.epoch))


async def write_claim_basis(disk: Disk, log_dir: str, basis: ClaimBasis) -> None:
    """Durable on return."""
    await disk.write_file(f"{log_dir}/{FILE}", encode_claim_basis(basis))


async def read_claim_basis(disk: Disk, log_dir: str) -> ClaimBasis | None:
    """None where the last claim was compared, or there never was one. Raises LogCorrupt for what
    `write_claim_basis` did not make."""
    path = f"{log_dir}/{FILE}"
    data = await disk.read_file(path)
    if data is None:
        return None
    found = _TEXT.values(data)
    if found is None:
        raise LogCorrupt(path, 0, "it does not say where the log ended when its node was claimed")
    return ClaimBasis(int(found[1]), int(found[0]))


async def forget_claim_basis(disk: Disk, log_dir: str) -> None:
    """The bucket was compared. Durable on return."""
    await disk.remove(f"{log_dir}/{FILE}")
