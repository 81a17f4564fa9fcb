"""Finds an object WAL's end, its records and its leftovers in a listing and a few headers. Pure: searches are generators that ask for headers.

    place = next(search) ... place = search.send(header of the object there) ... until StopIteration brings the result

What is believed. Within an epoch the objects count that stand in its slots without a gap from the first on, up to the first slot that is
empty or sealed. An epoch's objects name the epoch before theirs in the log and how many of its slots count (`link`): so whatever an
older owner wrote at or after the place where a newer one began is void, however late it arrives, and no place in the log is ever
looked for by position. The newest object that is no seal is the anchor: its owner had taken the log, and what it is stamped with
(trim, head, confirmed slots) was true when it was written and remains so.

Not here: reading and writing (reader.py, fence.py). Keeps true: what it calls garbage holds no record that counts, and none of the
seals that keep a replaced owner from writing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

from millrace.wal.errors import WalCorrupt, WalFenced, WalMismatch
from millrace.wal.log import WalRecord
from millrace.wal.object.layout import (
    HEADER_BYTES,
    NO_EPOCH,
    SEAL_BYTES,
    FenceKind,
    Kind,
    ObjectHeader,
    Place,
    decode_header,
    is_seal_size,
)
from millrace.wal.record import RECORD_HEADER_BYTES, decode_record, epoch_seed

HeaderSearch = Generator[Place, ObjectHeader, "Tip"]


class Listing:
    """What a listing of the log showed: sizes by epoch and slot, and the epochs of claims."""

    def __init__(self, found: Iterable[tuple[Place, int]], claims: Iterable[int] = ()) -> None:
        self.claims = tuple(claims)
        self.sizes: dict[int, dict[int, int]] = {}
        for place, size_bytes in sorted(found):
            self.sizes.setdefault(place.epoch, {})[place.slot] = size_bytes

    def __repr__(self) -> str:
        return " ".join(f"{epoch}:{sorted(slots)}" for epoch, slots in self.sizes.items())

    def size(self, place: Place) -> int | None:
        return self.sizes.get(place.epoch, {}).get(place.slot)

    def is_seal(self, place: Place) -> bool:
        return is_seal_size(self.size(place) or 0)

    def newest_object(self) -> Place | None:
        """The highest that is no seal."""
        for epoch in sorted(self.sizes, reverse=True):
            slots = [slot for slot, size_bytes in self.sizes[epoch].items() if not is_seal_size(size_bytes)]
            if slots:
                return Place(epoch, max(slots))
        return None

    def run_end(self, epoch: int, slot: int) -> int:
        """The first slot from this one on that is empty or sealed."""
        slots = self.sizes.get(epoch, {})
        while slot in slots and not is_seal_size(slots[slot]):
            slot += 1
        return slot

    def first_seal(self, epoch: int, start: int = 0) -> int | None:
        """From the slot `start` on."""
        seals = [slot for slot, size in self.sizes[epoch].items() if slot >= start and is_seal_size(size)]
        return min(seals) if seals else None


@dataclass(frozen=True, slots=True)
class Tip:
    """Where the owner before us would write next, and which of its slots count."""

    place: Place
    link: Place | None  # None: nothing was ever written
    is_closed: bool  # that owner said that it writes no more
    is_ours: bool  # our own seal stands there already


def find_tip(listing: Listing, first_epoch: int, own_epoch: int, own_token: bytes, fence: FenceKind) -> HeaderSearch:
    """Raises WalFenced when an owner is found that is not before us, WalMismatch when one may live that would not feel our fence."""
    anchor, is_closed = listing.newest_object(), False
    link: Place | None = None
    is_claimed = any(epoch > (NO_EPOCH if anchor is None else anchor.epoch) for epoch in listing.claims)
    if fence is FenceKind.CONDITIONAL and is_claimed:
        _refuse_fence(FenceKind.RESERVATION, fence)
    if anchor is None:
        yield from _check_never_written(listing)
        tip = Place(first_epoch, 0)
    else:
        header = yield anchor
        _check_older(own_epoch, anchor.epoch)
        tip = Place(anchor.epoch, listing.run_end(anchor.epoch, header.stamp.confirmed_slot))
        link = tip if tip.slot else header.link
        is_closed = header.kind is Kind.CLOSING and anchor.slot == tip.slot - 1
        if header.fence is not fence and not is_closed:
            _refuse_fence(header.fence, fence)
    while listing.is_seal(tip):
        if fence is FenceKind.RESERVATION:
            _refuse_fence(FenceKind.CONDITIONAL, fence)
        seal = yield tip
        if seal.token == own_token and seal.epoch == own_epoch:
            return Tip(tip, link, is_closed, is_ours=True)
        _check_older(own_epoch, seal.epoch)
        if seal.epoch <= tip.epoch:
            raise WalCorrupt(seal.position, f"epoch {tip.epoch} is sealed by epoch {seal.epoch}, which is no later one")
        tip, is_closed = Place(seal.epoch, 0), False
    _check_older(own_epoch, tip.epoch)
    return Tip(tip, link, is_closed, is_ours=False)


def _refuse_fence(found: FenceKind, own: FenceKind) -> None:
    """An owner that never closed may live: a claim does not stop one who trusts in slots, nor a seal one who looks for claims."""
    raise WalMismatch("fence", own.name.lower(), found.name.lower())


def _check_older(own_epoch: int, found_epoch: int) -> None:
    if found_epoch >= own_epoch:
        raise WalFenced(own_epoch, found_epoch)


def _check_never_written(listing: Listing) -> Generator[Place, ObjectHeader, None]:
    """The newest object of a log is never deleted: where there is none, no seal may say that there was one."""
    for epoch in listing.sizes:
        slot = listing.first_seal(epoch)
        if slot is not None and slot > 0:
            seal = yield Place(epoch, slot)
            if seal.stamp.confirmed_slot > 0:
                raise WalCorrupt(seal.position, f"objects of epoch {epoch} are gone, which was sealed at slot {slot}")


@dataclass(frozen=True, slots=True)
class Segment:
    """Slots [start, end) of an epoch: they count, and may hold something above the trim."""

    epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The log as its last owner left it."""

    trim: int
    position: int  # where the first segment begins
    end: int  # where the last one ends
    segments: tuple[Segment, ...]

    def places(self) -> Iterable[Place]:
        return (Place(run.epoch, slot) for run in self.segments for slot in range(run.start, run.end))


EMPTY = Extent(0, 0, 0, ())


def find_extent(link: Place | None) -> Generator[Place, ObjectHeader, Extent]:
    """`link` is that of the tip, once it is sealed. The last object that counts knows the trim; links lead back to the head."""
    if link is None:
        return EMPTY
    last = header = yield Place(link.epoch, link.slot - 1)
    head, segments = last.stamp.head, []
    epoch, end = link.epoch, link.slot
    while epoch != head.epoch:
        segments.append(Segment(epoch, 0, end))
        before = header.link
        if before is None or before.epoch >= epoch or before.epoch < head.epoch:
            raise WalCorrupt(header.position, f"epoch {epoch} continues {before}, and the log begins at {head}")
        epoch, end = before.epoch, before.slot
        header = yield Place(epoch, end - 1)
    segments.append(Segment(epoch, head.slot, end))
    return Extent(last.stamp.trim, last.stamp.head_position, last.end, tuple(reversed(segments)))


@dataclass(slots=True)
class ObjectScan:
    """Takes the objects of an extent in order and gives their records. `ends` are the objects found, for a later trim."""

    extent: Extent
    ends: list[tuple[Place, int]] = field(default_factory=list)

    @property
    def position(self) -> int:
        return self.ends[-1][1] if self.ends else self.extent.position

    def feed(self, place: Place, data: memoryview) -> list[WalRecord]:
        """The records of the object at `place` that are not trimmed. Raises WalCorrupt: what counts was durable whole, there is no torn tail."""
        position = self.position
        header = decode_header(data, position)
        if header.place != place or header.epoch != place.epoch or header.position != position:
            raise WalCorrupt(position, f"at {place} lies the object of {header.place}, position {header.position}")
        if header.kind not in (Kind.RECORDS, Kind.CLOSING) or len(data) != HEADER_BYTES + header.body_bytes:
            raise WalCorrupt(position, f"the object at {place} has {len(data)} bytes; {header.body_bytes} were written")
        records = self._records(header, data)
        self.ends.append((place, header.end))
        return [record for record in records if record.end > self.extent.trim]

    def _records(self, header: ObjectHeader, data: memoryview) -> list[WalRecord]:
        seed, at, found = epoch_seed(header.epoch), HEADER_BYTES, []
        for _ in range(header.record_count):
            position = header.position + at
            payload = decode_record(data, at, len(data), position, seed)
            if payload is None:
                raise WalCorrupt(position, f"no sound record in the object at {header.place}")
            at += RECORD_HEADER_BYTES + len(payload)
            found.append(WalRecord(position, header.position + at, payload))
        if at != len(data):
            raise WalCorrupt(header.position + at, f"bytes behind the last record of the object at {header.place}")
        return found

    def finish(self) -> None:
        if self.position != self.extent.end:
            raise WalCorrupt(self.position, f"the log ends here, and {self.extent.end} is where it did")


def find_garbage(listing: Listing, extent: Extent, own_epoch: int) -> list[Place]:
    """What no recovery needs and no owner minds: objects below the head, and what replaced owners wrote behind their seals. The first seal
    behind what counts of an epoch stays, for its owner may live. Where nothing counts any more it cannot be told from one that came
    late into a slot that had been deleted: all stay, unless that owner had closed."""
    live = {segment.epoch: segment for segment in extent.segments}
    found = []
    for epoch, slots in listing.sizes.items():
        if epoch >= own_epoch:
            continue
        segment = live.get(epoch)
        seal = None if segment is None else listing.first_seal(epoch, segment.end)
        for slot, size_bytes in slots.items():
            is_live = segment is not None and segment.start <= slot < segment.end
            is_needed_seal = size_bytes == SEAL_BYTES if segment is None else slot == seal
            if not is_live and not is_needed_seal:
                found.append(Place(epoch, slot))
    return found
