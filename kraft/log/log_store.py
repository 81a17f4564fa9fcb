"""The metadata log on disk, in Kafka's own files: segments, the quorum-state file, the names of snapshots.

    <log.dir>/__cluster_metadata-0/
        00000000000000000000.log                      record batches v2 from that offset on; the last one is
                                                      written
        00000000000000012345-0000000007.checkpoint    a snapshot: end offset and epoch (snapshot.py)
        quorum-state                                  JSON: epoch, leader, vote

There are no index files: the log is read from a snapshot's end to its own. What was appended with the last
sync may not be whole after a power cut: such a tail was never acknowledged and is cut off. (What is read at a
start is synced before anything follows it: the process before may have been killed.) That is one batch, or
several of no more than SYNCED_TOGETHER_BYTES_MAX, whose sectors reach the disk in any order: one that did not
reads as zeros, and a batch behind it may be intact. Any other bad batch with an intact one behind it was once
whole: that is corruption, and start is refused. So is one below a snapshot's end, and one before an intact
batch of an epoch that this node led: a leader's own batches have a sync each.

Not here: what records mean. Kept true: offsets in a segment and from one to the next are continuous; `end` is
durable; a segment goes only when a durable snapshot holds what it held.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, Final, Protocol

from millrace.kraft.errors import LogCorrupt, OffsetWithinBatch
from millrace.kraft.image.applier import StoredBatch
from millrace.kraft.image.records import first_batch_fault
from millrace.kraft.raft.ready import QuorumState
from millrace.kraft.raft.voters import DYNAMIC, NO_DIRECTORY, STATIC
from millrace.protocol.batches import HEADER_BYTES, BatchHeader, is_intact
from millrace.protocol.dataclass import dataclass
from millrace.protocol.ids import uuid_bytes, uuid_text
from millrace.runtime.disk import Buffer, Disk, DiskFull, LogFile
from millrace.runtime.errors import in_words

log = logging.getLogger(__name__)

FOLDER: Final = "__cluster_metadata-0"
STATE_FILE: Final = "quorum-state"
READ_BYTES: Final = 1 << 20
RECENT_BYTES_MAX: Final = 1 << 20  # of what was appended last, kept for readers that are close behind
MARK_EVERY_BYTES: Final = 64 << 10  # a reader begins at most so far before what it wants
BATCH_BYTES_MAX: Final = 1 << 30  # a longer length is no length
SYNCED_TOGETHER_BYTES_MAX: Final = 1 << 20  # of several batches: the less, the surer what is damage
SECTOR_BYTES: Final = 512  # what a disk writes whole or not at all
SEGMENT_NAME: Final = re.compile(r"(\d{20})\.log")
SNAPSHOT_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
# Where a batch may begin: base offset below 2^48, a length below 2^30, magic 2. Found by a scan for what is
# still intact.
BATCH_START: Final = re.compile(rb"(?=\x00\x00.{6}[\x00-\x3f].{3}.{4}\x02)", re.DOTALL)

NO_EPOCH: Final = 1 << 31  # above all

BatchVisitor = Callable[[BatchHeader, memoryview], None]


@dataclass(frozen=True, slots=True, order=True)
class SnapshotId:
    """Everything below `end`; `epoch` is that of the last record in it."""

    end: int
    epoch: int

    @property
    def name(self) -> str:
        return f"{self.end:020}-{self.epoch:010}.checkpoint"


@dataclass(frozen=True, slots=True)
class TornFrom:
    """Where what the last sync was to make durable may begin in a file that ends with it: not below `offset`,
    nor before a whole batch of `own_epoch` or a later one, each of which was synced by itself."""

    offset: int
    own_epoch: int = NO_EPOCH


@dataclass(slots=True)
class Segment:
    base: int
    end: int  # exclusive; known once it was read or written
    marks: list[tuple[int, int]] = field(default_factory=list)  # (offset, byte) of some batches, in order

    def note(self, offset: int, position: int) -> None:
        if not self.marks or position - self.marks[-1][1] >= MARK_EVERY_BYTES:
            self.marks.append((offset, position))

    def mark_before(self, offset: int) -> tuple[int, int]:
        """A batch at or before `offset`: its offset and its byte."""
        place = bisect_right(self.marks, offset, key=lambda mark: mark[0])
        return self.marks[place - 1] if place else (self.base, 0)


class LogStore:
    def __init__(self, disk: Disk, log_dir: str, voters: tuple[int, ...], segment_bytes: int) -> None:
        self.folder = f"{log_dir}/{FOLDER}"
        self.end = 0
        self.size_bytes = 0  # of all segments
        self._disk = disk
        self.voters = voters
        self._segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        self._sizes: dict[int, int] = {}  # base -> bytes, of segments that are not written any more
        self._file: LogFile | None = None
        self._is_roll_due = False
        self._recent: deque[StoredBatch] = deque()
        self._recent_bytes = 0
        # Held by who reads a segment or opens a snapshot, and by who closes, cuts or removes one.
        self._files = asyncio.Lock()
        # of the last batch that was read; no checksum covers it, so that it never falls is checked
        self._epoch = 0

    @property
    def start(self) -> int:
        return self._segments[0].base if self._segments else self.end

    # The quorum-state file.

    async def load_state(self) -> QuorumState:
        """The defaults where the file is missing. Raises LogCorrupt where it cannot be understood."""
        data = await self._disk.read_file(f"{self.folder}/{STATE_FILE}")
        if data is None:
            return QuorumState()
        try:
            found = json.loads(data)
            version = int(found.get("data_version", 0))
            directory = uuid_bytes(found["votedDirectoryId"]) if version else NO_DIRECTORY
            leader, voted = int(found["leaderId"]), int(found.get("votedId", -1))
            return QuorumState(int(found["leaderEpoch"]), leader, voted, directory, min(version, DYNAMIC))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LogCorrupt(
                f"{self.folder}/{STATE_FILE}", 0, f"not a quorum state: {in_words(error)}"
            ) from error

    async def load_voters(self) -> tuple[int, ...]:
        """Those of the last start that has saved its state; none where none has, or the file has none."""
        data = await self._disk.read_file(f"{self.folder}/{STATE_FILE}")
        try:
            found = json.loads(data or b"{}")
            return tuple(int(one["voterId"]) for one in found.get("currentVoters") or ())
        except (ValueError, KeyError, TypeError, AttributeError):
            return ()  # load_state says what is wrong with it

    async def save_state(self, state: QuorumState) -> None:
        """Durable on return. From kraft.version 1 on the file names a directory and no voters (its version
        1): those stand in the log."""
        content: dict[str, Any] = {
            "leaderId": state.leader,
            "leaderEpoch": state.epoch,
            "votedId": state.voted,
        }
        if state.kraft_version == STATIC:
            voters = [{"voterId": voter} for voter in self.voters]
            content = {"clusterId": "", **content, "appliedOffset": 0, "currentVoters": voters}
        else:
            content["votedDirectoryId"] = uuid_text(state.voted_directory)
        content["data_version"] = state.kraft_version
        await self._disk.write_file(
            f"{self.folder}/{STATE_FILE}", json.dumps(content, separators=(",", ":")).encode()
        )

    # Snapshots, by name.

    async def snapshots(self) -> list[SnapshotId]:
        """Those that are there, the newest first; whether they are whole is for snapshot.py to say."""
        names = await self._disk.list_folder(self.folder)
        found = [SNAPSHOT_NAME.fullmatch(name) for name in names]
        return sorted((SnapshotId(int(m[1]), int(m[2])) for m in found if m), reverse=True)

    def snapshot_path(self, snapshot: SnapshotId) -> str:
        return f"{self.folder}/{snapshot.name}"

    async def open_snapshot(self, snapshot: SnapshotId) -> LogFile | None:
        """To read; None where it is not there, or no more. Whoever asked closes it."""
        async with self._files:
            if snapshot not in await self.snapshots():
                return None
            return await self._disk.open_log(self.snapshot_path(snapshot))

    async def remove_before(self, kept: SnapshotId) -> int:
        """Forgets snapshots older than `kept` and segments that lie below it; gives the new start of the
        log."""
        async with self._files:
            for snapshot in await self.snapshots():
                if snapshot < kept:
                    await self._disk.remove(self.snapshot_path(snapshot))
            while len(self._segments) > 1 and self._segments[0].end <= kept.end:
                segment = self._segments.pop(0)
                self.size_bytes -= self._sizes.pop(segment.base)
                await self._disk.remove(self._path(segment.base))
        return self.start

    async def restart_at(self, end: int) -> None:
        """A durable snapshot of everything below `end` takes the place of the log, which is empty then and
        goes on from `end`.

        A crash on the way leaves the beginning of a log that ends below that snapshot or in an earlier epoch,
        or none: the next start goes on here."""
        async with self._files:
            await self._close_file()
            while self._segments:
                await self._disk.remove(self._path(self._segments.pop().base))
            self._file = await self._disk.open_log(self._path(end))
            await self._file.sync()
            self._segments = [Segment(end, end)]
            self.end, self.size_bytes, self._is_roll_due = end, 0, False
            self._sizes.clear()
            self._recent.clear()
            self._recent_bytes = 0

    # Opening and reading.

    async def list_segments(self) -> list[int]:
        """Finds the segments and removes what an interrupted write of a snapshot left. Gives their first
        offsets."""
        await self._disk.make_folder(self.folder)
        names = await self._disk.list_folder(self.folder)
        for name in names:
            if name.endswith((".part", ".tmp")):
                await self._disk.remove(f"{self.folder}/{name}")
        self._segments = [Segment(int(m[1]), -1) for m in map(SEGMENT_NAME.fullmatch, names) if m]
        return [segment.base for segment in self._segments]

    async def read_all(self, start: int, visit: BatchVisitor, own_epoch: int = NO_EPOCH) -> None:
        """Gives every batch from the segment that holds `start` on, in order; cuts a torn tail; then it can
        be appended. `start`: a snapshot holds what is below. `own_epoch`: from there on this node led.

        Earlier segments are kept for an older snapshot and not read. With no segment at all, the log begins
        at `start`. Raises LogCorrupt where the log begins after `start`, a segment is missing, or one is
        damaged before the log's tail.
        """
        if not self._segments:
            self._segments.append(Segment(start, start))
        first = max((i for i, segment in enumerate(self._segments) if segment.base <= start), default=0)
        if self._segments[first].base > start:
            path = self._path(self._segments[first].base)
            raise LogCorrupt(path, 0, f"the log begins at offset {self._segments[first].base}, after {start}")
        for place, segment in enumerate(self._segments):
            is_last = place == len(self._segments) - 1
            if place < first:
                segment.end = self._segments[place + 1].base
                self._sizes[segment.base] = await self._size_of(segment.base)
                continue
            await self._read_segment(segment, TornFrom(start, own_epoch) if is_last else None, visit)
            following = None if is_last else self._segments[place + 1].base
            if following is not None and following != segment.end:
                raise LogCorrupt(
                    self._path(segment.base),
                    0,
                    f"ends at offset {segment.end}, the next begins at {following}",
                )
        self.end = self._segments[-1].end
        self._file = self._file or await self._disk.open_log(self._path(self._segments[-1].base))
        if self._file.size_bytes:
            # What a killed process appended and did not sync was read from the page cache. It counts from
            # here on.
            await self._file.sync()
        self.size_bytes = sum(self._sizes.values()) + self._file.size_bytes

    async def _size_of(self, base: int) -> int:
        file = await self._disk.open_log(self._path(base))
        try:
            return file.size_bytes
        finally:
            await file.close()

    async def _read_segment(self, segment: Segment, torn_from: TornFrom | None, visit: BatchVisitor) -> None:
        path = self._path(segment.base)
        file = await self._disk.open_log(path)
        offset, valid_bytes = segment.base, 0
        try:
            async for header, view in read_batches(file, path, segment.base, torn_from):
                if header.leader_epoch < self._epoch:
                    why = (
                        f"the batch at offset {offset} is of epoch {header.leader_epoch}, after {self._epoch}"
                    )
                    raise LogCorrupt(path, valid_bytes, why)
                self._epoch = header.leader_epoch
                visit(header, view)
                segment.note(offset, valid_bytes)
                offset = header.last_offset + 1
                valid_bytes += header.size_bytes
            segment.end = offset
            if valid_bytes < file.size_bytes:
                log.warning(
                    "%s: cutting a torn tail of %d bytes at offset %d",
                    path,
                    file.size_bytes - valid_bytes,
                    offset,
                )
                await file.truncate(valid_bytes)
            self._sizes[segment.base] = valid_bytes
        except BaseException:
            await file.close()
            raise
        if torn_from is not None:
            self._file = file
            del self._sizes[segment.base]
        else:
            await file.close()

    # Writing.

    async def append(self, batch: bytes, end: int) -> None:
        """As `append_all`, of one batch."""
        await self.append_all([batch], end)

    async def append_all(self, batches: Sequence[bytes], end: int) -> None:
        """Adds batches that follow one another, and end before offset `end`, with one sync; several are at
        most SYNCED_TOGETHER_BYTES_MAX. Durable on return. DiskFull: nothing was added, and it may be tried
        again once there is room."""
        assert len(batches) == 1 or sum(map(len, batches)) <= SYNCED_TOGETHER_BYTES_MAX
        if self._is_roll_due or (
            self._open_file.size_bytes and self._open_file.size_bytes >= self._segment_bytes
        ):
            async with self._files:
                await self._roll()
        size_bytes = self._open_file.size_bytes
        try:
            await self._open_file.append(batches)
            await self._open_file.sync()
        except DiskFull:
            async with self._files:
                await self._undo(size_bytes)
            raise
        for batch in batches:
            stored = StoredBatch.of(batch)
            self._segments[-1].note(stored.base, size_bytes)
            self._keep_recent(stored)
            size_bytes += len(batch)
            self.size_bytes += len(batch)
        self._segments[-1].end = self.end = end

    def _keep_recent(self, batch: StoredBatch) -> None:
        self._recent.append(batch)
        self._recent_bytes += len(batch.data)
        while self._recent_bytes > RECENT_BYTES_MAX:
            self._recent_bytes -= len(self._recent.popleft().data)

    async def read(self, start: int, end: int, bytes_max: int) -> list[StoredBatch]:
        """Durable batches of [start, end), in order, from the one that begins at `start` on: one at least
        where there is one, and then about `bytes_max` of them. Raises LogCorrupt where the log does not hold
        `start` any more, or cannot be read, OffsetWithinBatch where no batch begins there."""
        if self._recent and self._recent[0].base <= start:
            found = _first_of(self._recent_from(start), end, bytes_max)
        else:
            found = await self._read_files(start, end, bytes_max)
        if found and found[0].base != start:
            raise OffsetWithinBatch(self.folder, 0, f"no batch begins at offset {start}")
        return found

    async def _read_files(self, start: int, end: int, bytes_max: int) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        async with self._files:
            while start < min(end, self.end) and bytes_max > 0:
                batches = await self._read_in_segment(start, end, bytes_max)
                if not batches:
                    break
                found += batches
                bytes_max -= sum(len(batch.data) for batch in batches)
                start = batches[-1].end
        return found

    def _recent_from(self, start: int) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        for batch in reversed(self._recent):
            if batch.base < start:
                break
            found.append(batch)
        return found[::-1]

    async def _read_in_segment(self, start: int, end: int, bytes_max: int) -> list[StoredBatch]:
        """Of the segment that holds `start`."""
        place = bisect_right(self._segments, start, key=lambda segment: segment.base) - 1
        if place < 0:
            raise LogCorrupt(
                self.folder, 0, f"offset {start} is asked for, and the log begins at {self.start}"
            )
        segment, is_last = self._segments[place], place == len(self._segments) - 1
        path = self._path(segment.base)
        offset, position = segment.mark_before(start)
        file = self._open_file if is_last else await self._disk.open_log(path)
        torn_from = TornFrom(segment.end) if is_last else None
        found: list[StoredBatch] = []
        size_bytes, wanted_end = 0, min(end, segment.end)
        try:
            async for header, view in read_batches(file, path, offset, torn_from, position):
                if header.last_offset >= wanted_end or size_bytes >= bytes_max:
                    break
                offset = header.last_offset + 1
                if header.base_offset >= start:
                    found.append(StoredBatch.of(bytes(view)))
                    size_bytes += len(view)
            else:
                if offset < wanted_end:
                    raise LogCorrupt(path, 0, f"it ends at offset {offset}, and went up to {segment.end}")
        finally:
            if not is_last:
                await file.close()
        return found

    def roll_next(self) -> None:
        """The next batch begins a segment of its own, so that what is before can go once a snapshot holds
        it."""
        self._is_roll_due = self._segments[-1].end > self._segments[-1].base

    async def truncate(self, end: int) -> None:
        """Cuts the log so that it ends at `end`, which is where a batch begins. Durable on return."""
        while self._recent and self._recent[-1].end > end:
            self._recent_bytes -= len(self._recent.pop().data)
        async with self._files:
            await self._truncate(end)

    async def _truncate(self, end: int) -> None:
        while self._segments[-1].base > end or (self._segments[-1].base == end and len(self._segments) > 1):
            dropped = self._segments.pop()
            self._sizes.pop(dropped.base, None)
            await self._close_file()
            await self._disk.remove(self._path(dropped.base))
        segment = self._segments[-1]
        path = self._path(segment.base)
        if self._file is None:
            self._file = await self._disk.open_log(path)
            self._sizes.pop(segment.base, None)
        kept_bytes = 0
        async for header, _ in read_batches(self._file, path, segment.base, TornFrom(end)):
            if header.last_offset >= end:
                break
            kept_bytes += header.size_bytes
        await self._file.truncate(kept_bytes)
        segment.end = self.end = end
        segment.marks = [mark for mark in segment.marks if mark[0] < end]
        self._is_roll_due = False
        self.size_bytes = sum(self._sizes.values()) + kept_bytes

    async def close(self) -> None:
        await self._close_file()

    @property
    def _open_file(self) -> LogFile:
        assert self._file is not None, "the log was not read yet"
        return self._file

    async def _roll(self) -> None:
        last = self._segments[-1]
        following = await self._disk.open_log(self._path(self.end))
        self._sizes[last.base] = self._open_file.size_bytes
        await self._close_file()
        self._file = following
        self._segments.append(Segment(self.end, self.end))
        self._is_roll_due = False

    async def _undo(self, size_bytes: int) -> None:
        """A file refuses everything after a failed write, so it is opened anew and cut back."""
        await self._close_file()
        self._file = await self._disk.open_log(self._path(self._segments[-1].base))
        if self._file.size_bytes > size_bytes:
            await self._file.truncate(size_bytes)

    async def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            await file.close()

    def _path(self, base: int) -> str:
        return f"{self.folder}/{base:020}.log"


def _first_of(batches: Iterable[StoredBatch], end: int, bytes_max: int) -> list[StoredBatch]:
    """The first that end at or below `end`, until they are `bytes_max` in all."""
    found: list[StoredBatch] = []
    size_bytes = 0
    for batch in batches:
        if batch.end > end or size_bytes >= bytes_max:
            break
        found.append(batch)
        size_bytes += len(batch.data)
    return found


class ReadableFile(Protocol):
    @property
    def size_bytes(self) -> int: ...

    async def read_at(self, position: int, length: int) -> bytes: ...


class BytesFile:
    """Bytes that are in memory already, to be read as a file."""

    def __init__(self, content: Buffer) -> None:
        self._content = memoryview(content)

    @property
    def size_bytes(self) -> int:
        return len(self._content)

    async def read_at(self, position: int, length: int) -> bytes:
        return bytes(self._content[position : position + length])


async def read_batches(
    file: ReadableFile, path: str, offset: int, torn_from: TornFrom | None, position: int = 0
) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
    """The intact batches of a file, from `offset` on, which lies at byte `position`. Ends before a torn tail,
    where there may be one; else LogCorrupt. `position` goes on to be that of the first byte held."""
    held, at = b"", 0  # what was read and not given yet is held[at:]
    while True:
        fault, needed_bytes = batch_fault(held, at, offset)
        if fault is None and needed_bytes <= len(held) - at:
            header = BatchHeader(held, at)
            view = memoryview(held)[at : at + needed_bytes]
            if is_intact(view, header):
                yield header, view
                at += needed_bytes
                offset = header.last_offset + 1
                continue
            fault = "a wrong checksum"
        position, held, at = position + at, held[at:], 0
        if fault is None:
            more = await file.read_at(position + len(held), max(READ_BYTES, needed_bytes))
            held += more
            if more:
                continue
            fault = "no end"
        if held:
            held += await file.read_at(position + len(held), file.size_bytes)
            check_torn(held, path, position, offset, fault, torn_from)
        return


def batch_fault(held: bytes, at: int, offset: int) -> tuple[str | None, int]:
    """Why no batch stands there, by its header; else how many bytes it has, as far as is known yet."""
    if len(held) - at < HEADER_BYTES:
        return None, HEADER_BYTES
    fault = first_batch_fault(held, at, offset)
    size_bytes = BatchHeader(held, at).size_bytes
    if fault is None and size_bytes > BATCH_BYTES_MAX:
        fault = f"a length of {size_bytes} bytes"
    return fault, size_bytes


def check_torn(
    rest: bytes, path: str, position: int, offset: int, fault: str, torn_from: TornFrom | None
) -> None:
    """What follows the last good batch can be the tail of an append that a power cut stopped, or is
    refused."""
    what = f"the batch at offset {offset} has {fault}"
    if torn_from is None:
        raise LogCorrupt(path, position, f"{what}, and later segments follow")
    behind = intact_batches(rest, 1, offset)
    first = next(behind, None)
    if first is None and offset < torn_from.offset:
        raise LogCorrupt(path, position, f"{what}, and all below offset {torn_from.offset} was durable")
    if first is None:
        return
    start, header = first
    is_one_sync = len(rest) <= SYNCED_TOGETHER_BYTES_MAX and offset >= torn_from.offset
    if (
        not (is_one_sync and has_unwritten_sector(rest, start, position, offset))
        or header.leader_epoch >= torn_from.own_epoch
        or any(later.leader_epoch >= torn_from.own_epoch for _, later in behind)
    ):
        raise LogCorrupt(path, position, f"{what}, and offset {header.base_offset} behind it is whole")


def has_unwritten_sector(rest: bytes, intact: int, position: int, offset: int) -> bool:
    """Whether some sector of the file holds zeros alone where a batch of `offset` would have others, from the
    beginning of these bytes at `position` on. Of the intact batch that begins `intact` bytes further such a
    sector may hold the first zeros."""
    begin = offset.to_bytes(8)
    at, end = 0, SECTOR_BYTES - position % SECTOR_BYTES
    while at < intact:
        is_zero = rest.count(0, at, end) == end - at
        if is_zero and (end > len(begin) or any(begin[:end])):
            return True
        at, end = end, end + SECTOR_BYTES
    return False


def intact_batches(rest: bytes, position: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """The intact batches at or behind `position` whose offset is above `offset`, and where each begins."""
    view = memoryview(rest)
    for match in BATCH_START.finditer(rest, position):
        start = match.start()
        if len(rest) - start < HEADER_BYTES:
            return
        header = BatchHeader(view, start)
        is_possible = header.base_offset > offset and HEADER_BYTES <= header.size_bytes <= len(rest) - start
        if is_possible and is_intact(view[start : start + header.size_bytes], header):
            yield start, header
