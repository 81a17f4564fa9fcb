"""Settings of the write-ahead logs: values only, checked once at start. Collaborators are constructor
arguments.

Every field is fixed for the life of a log object; a change takes a restart. A changed capacity takes effect
at the first reset after the restart, when the log is empty.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.runtime.objectstore.address_words import shown_value

KIB = 1024
MIB = 1024 * KIB
CAPACITY_BYTES_MIN = 256 * KIB
# Ten uploads a second at most: docs/decisions/2026-11-24-an-interval-bounds-what-the-log-costs.md
BATCH_INTERVAL_MS = 100
BATCH_INTERVAL_MS_MAX = 10_000
_UNITS = {"": 1, "kib": KIB, "mib": MIB, "gib": 1024 * MIB, "tib": 1024 * 1024 * MIB}


def parse_bytes(text: str) -> int:
    """A number of bytes, with KiB, MiB, GiB or TiB behind it or nothing. Raises ValueError."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text[len(digits) :].strip().lower()
    if unit not in _UNITS:
        raise ValueError(f"{text!r} has a unit other than KiB, MiB, GiB and TiB")
    return int(digits) * _UNITS[unit]


@dataclass(frozen=True, slots=True)
class BlockWalSettings:
    capacity_bytes: int = 2048 * MIB
    """Size of the file, its two header blocks included; what may wait for upload. At least 256 KiB."""

    is_capacity_given: bool = True
    """False where no operator said it: a log that is there keeps its size, and a new one takes what
    capacity.py chooses."""

    direct: str = "prefer"
    """prefer | require | never: direct I/O. `prefer` falls back to synchronous writes through the page
    cache."""

    corruption: str = "refuse"
    """refuse | skip | truncate: what recovery does about a record in the middle that is damaged. See
    recovery.py."""

    reservation: str = "auto"
    """auto | require | never: whether a device is reserved against other machines. `auto` does it where the
    device can."""

    fencing: str = "auto"
    """auto | reservation | lock | claim: how a replaced owner is kept from acknowledging, `fencing`. `auto`:
    a reservation where the device has it, else the lock. `claim`: by a look behind each write, on storage
    that several machines share. See fence.py."""

    block_soft_bytes: int = 1 * MIB
    """A block is closed at this size; only a single larger record makes a larger one. 8 KiB or more."""

    max_record_bytes: int = 64 * MIB
    """The largest payload an append takes. Cut to a third of the ring where the ring is small."""

    writes_in_flight: int = 4
    """The most writes under way at once, 1 to 32; fewer where more carry nothing. A crash can leave holes
    only among them."""

    writes_at_first: int = 2
    """How many of them at first, before the log was busy; no more than that."""

    iops: int = 0
    """Writes a second, for volumes that are sold by them; headers and zeros count too, 256 KiB as one. 0: no
    limit, else 10 or more."""

    eager_bytes: int = 32 * KIB
    """While a write is under way, the next starts as soon as it holds this much; when none is, at once."""

    window_bytes: int = 16 * MIB
    """How far writes under way may reach beyond what is confirmed."""

    arena_bytes: int = 4 * MIB
    """Memory is taken in pieces of this size; a view of one record pins a whole piece."""

    arenas_ahead: int = 0
    """So many pieces are made ready in a thread while the log's memory grows; 0 makes each where it is
    needed."""

    fill_ahead_bytes: int = 64 * MIB
    """Zeros are written this far ahead of the log on its first lap, so that it meets written extents; 0 turns
    it off."""

    @property
    def is_by_claims(self) -> bool:
        return self.fencing == "claim"

    @property
    def reserves(self) -> str:
        """auto | require | never, of both words."""
        if self.fencing == "auto":
            return self.reservation
        return "require" if self.fencing == "reservation" else "never"

    def _fencing_problems(self) -> list[str]:
        found = []
        if self.reservation not in ("auto", "require", "never"):
            found.append(
                f"WAL reservation is {shown_value('reservation', self.reservation)!r}; it must be auto, "
                "require or never"
            )
        if self.fencing not in ("auto", "reservation", "lock", "claim"):
            found.append(
                f"WAL fencing is {shown_value('fencing', self.fencing)!r}; it must be auto, reservation, "
                "lock or claim"
            )
        elif self.fencing != "auto" and self.reservation not in ("auto", self.reserves):
            found.append(f"WAL fencing={self.fencing} contradicts reservation={self.reservation}")
        if self.is_by_claims and self.direct == "never":
            found.append("WAL fencing=claim reads past the page cache, which wal.direct.io=never forbids")
        return found

    def problems(self) -> list[str]:
        """Everything that is wrong, in words; empty when nothing is."""
        found = self._fencing_problems()
        if self.capacity_bytes < CAPACITY_BYTES_MIN:
            found.append(f"WAL capacity is {self.capacity_bytes} bytes; it must be at least 256 KiB")
        if self.direct not in ("prefer", "require", "never"):
            found.append(f"WAL direct I/O is {self.direct!r}; it must be prefer, require or never")
        if self.corruption not in ("refuse", "skip", "truncate"):
            found.append(f"WAL corruption is {self.corruption!r}; it must be refuse, skip or truncate")
        if self.block_soft_bytes < 8 * KIB:
            found.append(f"WAL block size is {self.block_soft_bytes} bytes; it must be at least 8 KiB")
        if self.arena_bytes < self.block_soft_bytes or self.arena_bytes % 4096:
            found.append(
                f"WAL arena size {self.arena_bytes} must be a multiple of 4096, and no less than a block"
            )
        if not 1 <= self.writes_in_flight <= 32 or self.writes_at_first < 1:
            found.append(f"WAL writes in flight is {self.writes_in_flight}; it must lie in 1..32")
        if self.iops < 0 or 0 < self.iops < 10:
            found.append(f"WAL iops is {self.iops}; it must be at least 10, or 0 for no limit")
        if (
            min(self.max_record_bytes, self.window_bytes) < 1
            or min(self.eager_bytes, self.fill_ahead_bytes, self.arenas_ahead) < 0
        ):
            found.append("WAL sizes must be positive")
        return found


@dataclass(frozen=True, slots=True)
class ObjectWalSettings:
    """The first eight are parameters of the address, under AutoMQ's names where it has them."""

    capacity_bytes: int = 2048 * MIB
    """What may wait for upload, `capacity`. At least 256 KiB. A longer log is a longer recovery."""

    batch_bytes_max: int = 8 * MIB
    """An object is closed at this size, `maxBytesInBatch`; only a single larger record makes a larger one. 64
    KiB to 1 GiB."""

    batch_interval_ms: int | None = None
    """Uploads begin this far apart, `batchInterval`, full batches aside: it bounds requests, and what they
    cost. 0 favours latency: shorter steps, by what is under way, and nearly all objects put twice. None: 100,
    in a directory 0."""

    unflushed_bytes_max: int = 1024 * MIB
    """What may be appended and not yet confirmed, `maxUnflushedBytes`: beyond it producers wait."""

    uploads_max: int = 50
    """Objects on their way at once, `maxInflightUploadCount`, 1 to 1000."""

    ahead_bytes: int = 64 * MIB
    """What recovery reads ahead, `readaheadDataSize`."""

    fence: str = "conditional"
    """conditional | reservation: how a replaced owner is kept from acknowledging, `fence`. The second is for
    stores without conditional puts."""

    corruption: str = "refuse"
    """refuse | skip | truncate: what recovery does about a record that is damaged or an object that is gone.
    See recovery.py."""

    hedge: str = "auto"
    """auto | on | off: whether an object is put a second time when its put is late, `hedge`. `auto` does it
    but in a directory. With a batch interval that is one in eight, which cuts the slowest hundredth of
    acknowledgements by a quarter."""

    max_record_bytes: int = 64 * MIB
    """The largest payload an append takes. Cut to a third of what may be unflushed or wait for upload."""

    arena_bytes: int = 4 * MIB
    """Memory is taken in pieces of this size; a view of one record pins a whole piece."""

    arenas_ahead: int = 0
    """So many pieces are made ready in a thread while the log's memory grows; 0 makes each where it is
    needed."""

    trim_wait_ms: int = 100
    """So long a trim waits for records to ride with before it costs an object of its own."""

    close_wait_ms: int = 10_000
    """How long a close waits for a store that does not answer: nothing that is given up then was ever
    confirmed."""

    @property
    def interval_ms(self) -> int:
        """The batch interval that holds in a store whose requests are paid for."""
        return BATCH_INTERVAL_MS if self.batch_interval_ms is None else self.batch_interval_ms

    def problems(self) -> list[str]:
        """Everything that is wrong, in words; empty when nothing is."""
        found = []
        if self.capacity_bytes < CAPACITY_BYTES_MIN:
            found.append(f"WAL capacity is {self.capacity_bytes} bytes; it must be at least 256 KiB")
        if not 0 <= self.interval_ms <= BATCH_INTERVAL_MS_MAX:
            found.append(f"batchInterval is {self.interval_ms}; it must lie in 0..{BATCH_INTERVAL_MS_MAX}")
        if not 64 * KIB <= self.batch_bytes_max <= 1024 * MIB:
            found.append(f"maxBytesInBatch is {self.batch_bytes_max} bytes; it must lie in 64 KiB..1 GiB")
        if self.unflushed_bytes_max < 256 * KIB:
            found.append(
                f"maxUnflushedBytes is {self.unflushed_bytes_max} bytes; it must be at least 256 KiB"
            )
        if not 1 <= self.uploads_max <= 1000:
            found.append(f"maxInflightUploadCount is {self.uploads_max}; it must lie in 1..1000")
        if self.fence not in ("conditional", "reservation"):
            found.append(
                f"fence is {shown_value('fence', self.fence)!r}; it must be conditional or reservation"
            )
        if self.corruption not in ("refuse", "skip", "truncate"):
            found.append(f"WAL corruption is {self.corruption!r}; it must be refuse, skip or truncate")
        if self.hedge not in ("auto", "on", "off"):
            found.append(f"hedge is {shown_value('hedge', self.hedge)!r}; it must be auto, on or off")
        if self.arena_bytes < 4096 or self.arena_bytes % 4096:
            found.append(f"WAL arena size {self.arena_bytes} must be a multiple of 4096")
        if (
            min(self.max_record_bytes, self.ahead_bytes) < 1
            or min(self.trim_wait_ms, self.close_wait_ms, self.arenas_ahead) < 0
        ):
            found.append("WAL sizes and times must be positive")
        return found
