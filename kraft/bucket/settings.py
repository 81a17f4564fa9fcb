"""Settings of the metadata's copy in the bucket. Values only; the broker's config.py gives them names."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BackupSettings:
    interval_ms: int = 20_000  # what nobody waits for is put so long after its commit
    snapshot_pieces: int = 500  # a restore reads about so many pieces at most
    snapshot_bytes: int = 32 << 20  # and so many bytes of them
