"""Finds the records of a block WAL, and its end, in bytes that it asks for. Pure: `wanted` says what to read
next.

    while (asked := scan.wanted()) is not None:
        records = scan.feed(<the bytes there>)

It walks block by block from the header's head. A block counts when its place, its link to the block before
it, its epoch and every checksum fit. The header knows which owner wrote where, and only that one's blocks
count there, so what older owners left behind a hole is void for ever, also where the block that was written
over it is damaged or never reached the device. Below `epoch_start` lies what the last owner accepted, and
everything must be sound. The first block that does not count ends the log, unless something proves that it
had been durable: a header or a later block that says so, or that the device cannot read it: a block that was
never written can be read. Then it is damage, and the policy says what follows:

    refuse      WalCorrupt names the place
    skip        the walk goes on at the next block that is sound and lawful; records between are lost. Where
                that leaves a hole in a stream that its objects do not fill, the stream engine refuses it
    truncate    the log ends before the damage; all that lies behind it is lost. The walk goes on as for
                `skip`, to say what that is

Whoever skips or truncates finds the places in `damages`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from millrace.protocol.dataclass import dataclass
from millrace.wal.block.layout import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC_BYTES,
    BlockHeader,
    DeviceHeader,
    align_up,
    decode_block_header,
)
from millrace.wal.block.space import BlockEnds
from millrace.wal.errors import WalCorrupt
from millrace.wal.log import WalRecord
from millrace.wal.record import RECORD_HEADER_BYTES, decode_record, epoch_seed

FIRST_READ_BYTES = 256 * 1024  # an empty log is the common case, and should open at once
READ_BYTES = 4 * 1024 * 1024
READS_AHEAD = 3  # of READ_BYTES each


REFUSE, SKIP, TRUNCATE = "refuse", "skip", "truncate"


@dataclass(frozen=True, slots=True)
class Damage:
    """Nothing sound from `start` on, though it was durable; `end` is where the walk went on, or the end of
    what is known to have been there: all between is given up."""

    start: int
    end: int
    place: int  # of `start` in the file
    reason: str
    sound_count: int = 0  # records in blocks that are sound, and given up with the rest


class RecoveryScan:
    """`tail` is the end of the log once `wanted` gives None; `ends` are the blocks found, for a later
    trim."""

    def __init__(self, header: DeviceHeader, read_bytes: int = READ_BYTES, policy: str = REFUSE) -> None:
        self._header = header
        self._geometry = header.geometry
        self._read_bytes = min(read_bytes, FIRST_READ_BYTES)
        self._read_bytes_max = read_bytes
        self._stop = header.head + self._geometry.ring_bytes
        # Everything below this was durable once.
        self._certain = max(header.confirmed, header.epoch_start, header.trim)
        self._epoch = -1  # of the block before
        self._oldest_epoch = (
            header.earlier[0].epoch if header.earlier else header.epoch
        )  # of those who are known
        self.tail = header.head  # the end of the last block that counts
        self.ends = BlockEnds()
        self.damages: list[Damage] = []
        self._policy = policy
        self._found: Damage | None = None  # the one behind which the next sound block is looked for
        self._cut: Damage | None = (
            # where the log ends, when it is to be truncated; all that the walk meets from there on is given
            # up
            None
        )
        self._at = header.head  # the place that is looked at
        self._rest = b""  # bytes from there on that were read before, the beginning of a block
        self._missing = 0  # how many bytes that block lacks, where its header has been judged
        self._unreadable: dict[int, None] = {}  # blocks that were fed as zeros
        self._is_unread = False  # one of them is why nothing sound was found behind the tail
        self._is_begun = False  # a block that continues the chain was begun behind the tail, and is not whole
        self._seek = self._walk
        self._evidence_end = 0
        self._is_done = self.tail == header.closed_end

    def wanted(self) -> tuple[int, int] | None:
        """Position and length of the next read; it never crosses a lap's end. None: the tail is found."""
        return None if self._is_done else self._read_at(self._at + len(self._rest))

    def following(self, position: int) -> Iterator[tuple[int, int]]:
        """What would be read from `position` on: the next reads, most likely, if that is where the last one
        ended. One alone while reads still grow."""
        count = READS_AHEAD if self._read_bytes == self._read_bytes_max else 1
        while count and (place := self._read_at(position)) is not None:
            yield place
            position, count = sum(place), count - 1

    def _read_at(self, position: int) -> tuple[int, int] | None:
        length = min(self._read_bytes, self._geometry.lap_end(position) - position, self._stop - position)
        return (position, length) if length > 0 else None

    def feed(self, data: bytes | memoryview, unreadable: Sequence[int] = ()) -> list[WalRecord]:
        """Takes the bytes that `wanted` named, with zeros for blocks that cannot be read; gives the records
        found in them. Raises WalCorrupt."""
        self._unreadable.update(dict.fromkeys(unreadable))
        self._read_bytes = min(2 * self._read_bytes, self._read_bytes_max)
        cut = self._cut
        found = self._feed(memoryview(data))
        if cut is not None:
            self._cut = replace(cut, sound_count=cut.sound_count + len(found))
            found = []
        if self._is_done:
            self._end_at_cut()
        return found

    def _feed(self, data: memoryview) -> list[WalRecord]:
        """A block that was begun is joined with what it lacks, and with no more: what comes after it is
        looked at where it lies. Where the block is not what it seemed, what follows is read once more."""
        if not self._rest:
            return self._seek(data)
        joined = self._missing if self._missing else len(data)
        whole = memoryview(self._rest + data[:joined])
        end = self._at + len(whole)
        self._rest, self._missing, seek = b"", 0, self._seek
        found = seek(whole)
        if self._at == end and self._seek == seek and not self._is_done and joined < len(data):
            found += seek(data[joined:])
        return found

    @property
    def is_cut(self) -> bool:
        """The log has ended; only what is given up is looked at still."""
        return self._cut is not None

    def stop(self) -> None:
        """Looks no further at what is given up: it cannot be read."""
        assert self.is_cut
        self._is_done = True
        self._end_at_cut()

    def _end_at_cut(self) -> None:
        """Where the log was truncated, what was walked since is no part of it."""
        if self._cut is not None:
            known = (damage.end for damage in (*self.damages, *([self._found] if self._found else [])))
            end = max(self.tail, self._certain, self._cut.end, *known)
            self.damages = [replace(self._cut, end=end)]
            self.tail = self._cut.start

    def _walk(self, data: memoryview) -> list[WalRecord]:
        found: list[WalRecord] = []
        first = self._at
        while self._at - first < len(data) and self._at != self._header.closed_end:
            offset = self._at - first
            header = self._fitting_header(data, offset)
            if header is not None and header.end - self._at > len(data) - offset:
                self._rest = bytes(data[offset:])
                self._missing = header.end - self._at - len(self._rest)
                return found
            records = None if header is None else self._records(data[offset:], header)
            if header is None or records is None:
                self._is_begun = self._is_begun or header is not None
                self._note_unreadable(self._at + BLOCK_BYTES if header is None else header.end)
                self._on_bad_block()
                return found
            self._accept(header, records, found)
        if self._at >= self._stop or self._at == self._header.closed_end:
            self._is_done = True
        return found

    def _fitting_header(self, data: memoryview, offset: int) -> BlockHeader | None:
        """The block header at `_at`, if it continues the chain."""
        header = decode_block_header(data, offset)
        if header is None or header.position != self._at or header.previous_end != self.tail:
            return None
        if header.end > min(self._geometry.lap_end(self._at), self._stop) or not self._is_lawful(header):
            return None
        return header

    def _is_lawful(self, header: BlockHeader) -> bool:
        reign = self._header.reign_at(header.position)
        return (
            header.epoch == reign.epoch
            if reign is not None
            else self._epoch <= header.epoch < self._oldest_epoch
        )

    def _records(self, data: memoryview, header: BlockHeader) -> list[WalRecord] | None:
        return block_records(data, header)

    def _accept(self, header: BlockHeader, records: list[WalRecord], found: list[WalRecord]) -> None:
        self._epoch = header.epoch
        self._certain = max(self._certain, header.confirmed)
        self._at = self.tail = header.end
        self._is_unread = self._is_begun = False
        if self._cut is None:
            self.ends.add(header.position + header.length)
        found.extend(record for record in records if record.end > self._header.trim)

    def _note_unreadable(self, end: int) -> None:
        """Whether the device was what kept a block from being sound. At a lap's end only where a block may
        have been too long for the rest."""
        rest = self._geometry.lap_end(self.tail) - self.tail
        if (
            self._at != self.tail
            and self.tail >= self._header.epoch_start
            and rest >= self._header.block_bytes_max
        ):
            return
        self._is_unread = self._is_unread or any(
            at in self._unreadable for at in range(self._at, end, BLOCK_BYTES)
        )

    def _on_bad_block(self) -> None:
        """Nothing sound at `_at`: perhaps the rest of the lap was skipped; else this is the end, or
        damage."""
        lap_end = self._geometry.lap_end(self.tail)
        if self._at < lap_end < self._search_end and self.tail % self._geometry.ring_bytes:
            self._at = lap_end
            return
        what = "the device cannot read it" if self._is_unread else "no sound block"
        if self.tail < self._certain:
            self._on_damage(self._certain, f"{what}, though all below {self._certain} was durable")
            return
        if self._is_unread:
            self._on_damage(self.tail + BLOCK_BYTES, f"{what}, and the log may have gone on there")
            return
        self._at = self.tail + BLOCK_BYTES
        self._evidence_end = self._reach_end
        self._seek = self._look_for_evidence
        if self._at >= self._evidence_end:
            self._is_done = True

    @property
    def _reach_end(self) -> int:
        """A block that was begun once the bad one was confirmed begins below it: within the window, or, when
        it was alone, behind the bad one and whatever it skipped at a lap's end."""
        reach = self._header.window_bytes + 2 * self._header.block_bytes_max
        return min(self._stop, self.tail + reach + BLOCK_BYTES)

    def _look_for_evidence(self, data: memoryview) -> list[WalRecord]:
        """A later block of the same owner that was written when the bad one had been confirmed makes it
        damage. So does one that cannot be read, where the bad one had been begun."""
        for offset in range(0, len(data), BLOCK_BYTES):
            if data[offset : offset + 4] != BLOCK_MAGIC_BYTES:
                continue
            header = decode_block_header(data, offset)
            if header is None or header.position != self._at + offset or header.epoch != self._header.epoch:
                continue
            if header.confirmed > self.tail:
                self._on_damage(
                    header.position, f"no sound block, though one at {header.position} says it was durable"
                )
                return []
        end = min(self._at + len(data), self._evidence_end)
        if self._is_begun and any(self._at <= at < end for at in self._unreadable):
            words = "no sound block, and the device cannot read what may say that it was durable"
            self._on_damage(self.tail + BLOCK_BYTES, words)
            return []
        self._at += align_up(len(data))
        if self._at >= self._evidence_end:
            self._is_done = True
        return []

    def _on_damage(self, end: int, reason: str) -> None:
        place = self._geometry.physical(self.tail)
        if self._policy == REFUSE:
            raise WalCorrupt(self.tail, f"{reason} (byte {place})")
        self._found = Damage(self.tail, end, place, reason)
        if self._policy == TRUNCATE and self._cut is None:
            self._cut = self._found
        self._at = self.tail + BLOCK_BYTES
        self._seek = self._look_for_next
        if self._at >= self._search_end:
            self._give_up()

    @property
    def _search_end(self) -> int:
        return self._stop if self._header.closed_end < 0 else self._header.closed_end

    def _give_up(self) -> None:
        """Nothing sound follows: the log ends where the damage begins. What cannot be read and may have been
        of it is told with it."""
        assert self._found is not None
        end = min(self._reach_end, self._search_end)
        last = max((at for at in self._unreadable if at < end), default=0)
        self.damages.append(replace(self._found, end=max(self._found.end, last + BLOCK_BYTES)))
        self._is_done = True

    def _look_for_next(self, data: memoryview) -> list[WalRecord]:
        """Goes on at the first block behind the damage that is whole, sound and lawful, wherever the ones
        before it ended."""
        assert self._found is not None
        for offset in range(0, len(data), BLOCK_BYTES):
            header = self._possible_header(data, offset)
            if header is None:
                continue
            if header.end - header.position > len(data) - offset:
                self._at += offset
                self._rest = bytes(data[offset:])
                return []
            if self._records(data[offset:], header) is not None:
                self.damages.append(Damage(self.tail, header.position, self._found.place, self._found.reason))
                self._at, self.tail = header.position, header.previous_end
                self._seek = self._walk
                return self._walk(data[offset:])
            self._found = replace(self._found, end=max(self._found.end, header.end))
        self._at += align_up(len(data))
        if self._at >= self._search_end:
            self._give_up()
        return []

    def _possible_header(self, data: memoryview, offset: int) -> BlockHeader | None:
        if data[offset : offset + 4] != BLOCK_MAGIC_BYTES:
            return None
        header = decode_block_header(data, offset)
        if header is None or header.position != self._at + offset or not self._is_lawful(header):
            return None
        if not self.tail < header.previous_end <= header.position or header.end > self._search_end:
            return None
        return header if header.end <= self._geometry.lap_end(header.position) else None


def block_records(data: memoryview, header: BlockHeader) -> list[WalRecord] | None:
    """All records of a block, or None when one of them is torn. `data` begins with the block."""
    seed = epoch_seed(header.epoch)
    at = BLOCK_HEADER_BYTES
    found = []
    for _ in range(header.record_count):
        decoded = decode_record(data, at, header.length, header.position + at, seed)
        if decoded is None:
            return None
        position = header.position + at
        at += RECORD_HEADER_BYTES + len(decoded.payload)
        found.append(WalRecord(position, header.position + at, *decoded))
    return found if at == header.length else None
