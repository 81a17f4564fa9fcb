"""Finds an object WAL's end, its records and its leftovers in a listing and a few headers. Pure: searches are
generators that ask for headers.

    place = next(search) ... place = search.send(header of the object there) ... until StopIteration brings
    the result

What is believed. Within an epoch the objects count that stand in its slots without a gap from the first on,
up to the first slot that is empty or sealed. An epoch's objects name the epoch before theirs in the log and
how many of its slots count (`link`): so whatever an older owner wrote at or after the place where a newer one
began is void, however late it arrives, and no place in the log is ever looked for by position. The newest
object that is no seal is the anchor: its owner had taken the log, and what it is stamped with (trim, head,
confirmed slots) was true when it was written and remains so.

Not here: reading and writing (reader.py, fence.py). Keeps true: what it calls garbage holds no record that
counts, and none of the seals that keep a replaced owner from writing.

What must be there and is not, or is damaged, is treated as the policy says:

    refuse      WalCorrupt names the place: position and object
    skip        the walk goes on at the next record or object that is sound; what lies between is lost. Where
                that leaves a hole in a stream that its objects do not fill, the stream engine refuses it
    truncate    the log ends before the damage; all that lies behind it is lost

Whoever skips or truncates finds the places in `damages`. A search that was started for them gets None for a
header that cannot be read, and believes another object of the same owner: links are the same in all of them,
and an older stamp is true still, but for the trim, which may be further on. An object whose header cannot be
read, behind a slot that is empty (or sealed, as by a start that ended early), may have counted all the same:
it is damage, too. Where no object of an owner can be read, or not the seal that the log ends with, every
policy refuses: nobody could say what counts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace

from millrace.protocol.dataclass import dataclass
from millrace.wal.errors import WalCorrupt, WalFenced, WalMismatch
from millrace.wal.identity import NO_MARK, MetadataMark
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
from millrace.wal.record import RECORD_HEADER_BYTES, decode_record, epoch_seed, record_end

HeaderSearch = Generator[Place, ObjectHeader | None, "Tip"]
REFUSE, SKIP, TRUNCATE = "refuse", "skip", "truncate"


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

    def objects_before(self, epoch: int, end: int) -> list[int]:
        """Slots below `end`, the last first; no seals."""
        slots = self.sizes.get(epoch, {})
        return sorted(
            (slot for slot, size in slots.items() if slot < end and not is_seal_size(size)), reverse=True
        )

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
    # objects of the anchor's owner behind the end of its log, whose headers cannot be read
    passed: tuple[Place, ...] = ()
    # the metadata that the last owner on the way named, who knew what those before it did
    mark: MetadataMark = NO_MARK


def find_tip(
    listing: Listing, first_epoch: int, own_epoch: int, own_token: bytes, fence: FenceKind | None
) -> HeaderSearch:
    """Raises WalFenced when an owner is found that is not before us, WalMismatch when one may live that would
    not feel our fence; None: of who only looks."""
    anchor, is_closed = listing.newest_object(), False
    mark = NO_MARK
    link: Place | None = None
    passed: tuple[Place, ...] = ()
    is_claimed = any(epoch > (NO_EPOCH if anchor is None else anchor.epoch) for epoch in listing.claims)
    if fence is FenceKind.CONDITIONAL and is_claimed:
        _refuse_fence(FenceKind.RESERVATION, fence)
    if anchor is None:
        yield from _check_never_written(listing)
        tip = Place(first_epoch, 0)
    else:
        _check_older(own_epoch, anchor.epoch)
        header = yield from _last_readable(listing, anchor.epoch, anchor.slot + 1)
        tip = Place(anchor.epoch, listing.run_end(anchor.epoch, header.stamp.confirmed_slot))
        link, mark = tip if tip.slot else header.link, header.stamp.mark
        last = max(header.place.slot + 1, tip.slot)
        passed = tuple(
            Place(anchor.epoch, slot)
            for slot in listing.objects_before(anchor.epoch, anchor.slot + 1)
            if slot >= last
        )
        is_closed = header.kind is Kind.CLOSING and header.place.slot == tip.slot - 1
        if fence is not None and header.fence is not fence and not is_closed:
            _refuse_fence(header.fence, fence)
    while listing.is_seal(tip):
        if fence is FenceKind.RESERVATION:
            _refuse_fence(FenceKind.CONDITIONAL, fence)
        seal = yield tip
        if seal is None:
            raise WalCorrupt(0, f"the seal at {tip} cannot be read, and nobody can say who owns the log")
        mark = mark if seal.stamp.mark == NO_MARK else seal.stamp.mark
        if seal.token == own_token and seal.epoch == own_epoch:
            return Tip(tip, link, is_closed, is_ours=True, passed=passed, mark=mark)
        _check_older(own_epoch, seal.epoch)
        if seal.epoch <= tip.epoch:
            raise WalCorrupt(
                seal.position, f"epoch {tip.epoch} is sealed by epoch {seal.epoch}, which is no later one"
            )
        tip, is_closed = Place(seal.epoch, 0), False
    _check_older(own_epoch, tip.epoch)
    return Tip(tip, link, is_closed, is_ours=False, passed=passed, mark=mark)


def _last_readable(
    listing: Listing, epoch: int, end: int
) -> Generator[Place, ObjectHeader | None, ObjectHeader]:
    """Of the epoch's slots below `end`: the last, unless damage was stepped over."""
    last = Place(epoch, end - 1)
    header = yield last
    if header is not None:
        return header
    for slot in listing.objects_before(epoch, last.slot):
        header = yield Place(epoch, slot)
        if header is not None:
            return header
    raise WalCorrupt(
        0,
        f"no header of the owner of epoch {epoch} can be read, and nobody can say what of its objects counts",
    )


def _refuse_fence(found: FenceKind, own: FenceKind) -> None:
    """An owner that never closed may live: a claim does not stop one who trusts in slots, nor a seal one who
    looks for claims."""
    raise WalMismatch("fence", own.name.lower(), found.name.lower())


def _check_older(own_epoch: int, found_epoch: int) -> None:
    if found_epoch >= own_epoch:
        raise WalFenced(own_epoch, found_epoch)


def _check_never_written(listing: Listing) -> Generator[Place, ObjectHeader | None, None]:
    """The newest object of a log is never deleted: where there is none, no seal may say that there was
    one."""
    for epoch in listing.sizes:
        slot = listing.first_seal(epoch)
        if slot is not None and slot > 0:
            seal = yield Place(epoch, slot)
            if seal is None or seal.stamp.confirmed_slot > 0:
                raise WalCorrupt(0, f"objects of epoch {epoch} are gone, which was sealed at slot {slot}")


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
    is_head_certain: bool = True  # else what it begins with may be trimmed and gone
    # objects and their sizes that may have counted, and nobody can say whether they did
    behind: tuple[tuple[Place, int], ...] = ()

    def places(self) -> Iterable[Place]:
        return (Place(run.epoch, slot) for run in self.segments for slot in range(run.start, run.end))


EMPTY = Extent(0, 0, 0, ())


def find_extent(
    link: Place | None, listing: Listing, passed: Iterable[Place] = ()
) -> Generator[Place, ObjectHeader | None, Extent]:
    """`link` and `passed` are those of the tip, once it is sealed. The last object that counts knows the
    trim; links lead back to the head."""
    extent = EMPTY if link is None else (yield from _walk_back(link, listing))
    return replace(extent, behind=tuple((place, listing.size(place) or 0) for place in passed))


def _walk_back(link: Place, listing: Listing) -> Generator[Place, ObjectHeader | None, Extent]:
    last = header = yield from _last_readable(listing, link.epoch, link.slot)
    is_certain = last.place == Place(link.epoch, link.slot - 1)
    head, segments = last.stamp.head, []
    epoch, end = link.epoch, link.slot
    while epoch != head.epoch:
        segments.append(Segment(epoch, 0, end))
        before = header.link
        if before is None or before.epoch >= epoch or before.epoch < head.epoch:
            raise WalCorrupt(
                header.position, f"epoch {epoch} continues {before}, and the log begins at {head}"
            )
        if not is_certain and not listing.objects_before(before.epoch, before.slot):
            return _extent(last, link, listing, segments, is_certain)
        epoch, end = before.epoch, before.slot
        header = yield from _last_readable(listing, epoch, end)
    segments.append(Segment(epoch, head.slot, end))
    return _extent(last, link, listing, segments, is_certain)


def _extent(
    last: ObjectHeader, link: Place, listing: Listing, segments: list[Segment], is_certain: bool
) -> Extent:
    """Of objects behind the last one that could be read the sizes are known."""
    left = (listing.size(Place(link.epoch, slot)) or 0 for slot in range(last.place.slot + 1, link.slot))
    stamp = last.stamp
    return Extent(
        stamp.trim, stamp.head_position, last.end + sum(left), tuple(reversed(segments)), is_certain
    )


@dataclass(frozen=True, slots=True)
class Damage:
    """Nothing sound from `start` to `end`, though it was durable."""

    start: int
    end: int
    place: Place  # of the object
    reason: str


def damages_behind(extent: Extent) -> list[Damage]:
    """Of what may have counted."""
    words = "its header cannot be read, and a slot before it is empty or sealed: it may have counted"
    return [
        Damage(
            extent.end,
            extent.end + size_bytes,
            place,
            f"the object of epoch {place.epoch}, slot {place.slot}: {words}",
        )
        for place, size_bytes in extent.behind
    ]


class ObjectScan:
    """Takes the objects of an extent in order and gives their records. `ends` are the objects found, for a
    later trim: place, start, end."""

    def __init__(self, extent: Extent, policy: str = REFUSE) -> None:
        self._extent = extent
        self._policy = policy
        self._is_loose = not extent.is_head_certain  # where the next object begins is not known
        self._open: tuple[int, Place, str] | None = None  # damage whose end is not known yet
        self.position = extent.position
        self.ends: list[tuple[Place, int, int]] = []
        self.damages: list[Damage] = []
        self.is_done = False

    def feed(self, place: Place, data: memoryview | None) -> list[WalRecord]:
        """The records of the object at `place` that are not trimmed; None: it is gone. Raises WalCorrupt,
        where the policy refuses: what counts was durable whole, there is no torn tail."""
        if self.is_done or (data is None and not self.ends and not self._extent.is_head_certain):
            return []
        header = self._header(place, data)
        if header is None or data is None:
            return []
        self._close(header.position)
        self.position = header.position
        found = self._records(header, data)
        self._close(header.end)
        self.position, self._is_loose = header.end, False
        if not self.is_done:
            self.ends.append((place, header.position, header.end))
        return [record for record in found if record.end > self._extent.trim]

    def finish(self) -> None:
        if self.position != self._extent.end and self._open is None and not self.is_done:
            self._on_damage(
                self.ends[-1][0] if self.ends else Place(0, 0), self.position, "the log ends here too early"
            )
        self._close(self._extent.end)
        self.damages += damages_behind(self._extent)

    def _header(self, place: Place, data: memoryview | None) -> ObjectHeader | None:
        """None for one that is damaged."""
        position, fault = self.position, "it is gone, which was written whole"
        if data is not None:
            try:
                header = decode_header(data, position)
            except WalCorrupt as damage:
                fault = damage.reason
            else:
                is_here = header.position >= position if self._is_loose else header.position == position
                if header.place != place or header.epoch != place.epoch or not is_here:
                    fault = f"there lies that of {header.place}, position {header.position}"
                elif header.kind not in (Kind.RECORDS, Kind.CLOSING):
                    fault = f"it is a {header.kind.name.lower()}"
                else:
                    return header
        self._on_damage(place, position, fault)
        return None

    def _records(self, header: ObjectHeader, data: memoryview) -> list[WalRecord]:
        size_bytes = HEADER_BYTES + header.body_bytes
        if len(data) > size_bytes:
            self._on_damage(
                header.place, header.position, f"it has {len(data)} bytes; {size_bytes} were written"
            )
            self._close(header.position)
            if self.is_done:
                return []
        seed, at, limit = epoch_seed(header.epoch), HEADER_BYTES, min(len(data), size_bytes)
        found: list[WalRecord] = []
        for _ in range(header.record_count):
            position = header.position + at
            decoded = decode_record(data, at, limit, position, seed)
            if decoded is not None:
                at += RECORD_HEADER_BYTES + len(decoded.payload)
                found.append(WalRecord(position, header.position + at, *decoded))
                continue
            end = record_end(data, at, limit, position, seed)
            self._on_damage(header.place, position, "it has no sound record there")
            if end is None or self.is_done:
                return found
            at = end
            self._close(header.position + at)
        if at != size_bytes:
            self._on_damage(
                header.place, header.position + at, "its last record does not end where the object does"
            )
        return found

    def _on_damage(self, place: Place, start: int, reason: str) -> None:
        reason = f"the object of epoch {place.epoch}, slot {place.slot}: {reason}"
        if self._policy == REFUSE:
            raise WalCorrupt(start, reason)
        if self.is_done:
            return
        if self._open is None:
            self._open = start, place, reason
        self._is_loose = True
        if self._policy == TRUNCATE:
            self._close(self._extent.end)
            self.is_done = True

    def _close(self, end: int) -> None:
        """The damage that is open reaches to there."""
        if self._open is not None:
            start, place, reason = self._open
            self.damages.append(Damage(start, max(start, end), place, reason))
            self._open = None


def find_garbage(listing: Listing, extent: Extent, own_epoch: int) -> list[Place]:
    """What no recovery needs and no owner minds: objects below the head, and what replaced owners wrote
    behind their seals. The first seal behind what counts of an epoch stays, for its owner may live. Where
    nothing counts any more it cannot be told from one that came late into a slot that had been deleted: all
    stay, unless that owner had closed."""
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
