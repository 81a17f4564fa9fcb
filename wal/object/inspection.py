"""Looks at an object WAL without taking it: what lies there and of which kind, and whether what counts is
sound. It writes nothing.

The owner may be at work meanwhile: objects come and go. What is damaged is therefore looked at once more when
all else was read, and what has been trimmed by then is left out. An object of the current owner behind the
end of the log is under way, or lies behind one that is; only the owner knows. Memory: a name and a size for
each object of the log, and what is read ahead. Not here: what counts (recovery.py), what is printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import asdict, field
from enum import StrEnum
from typing import Any

from millrace.protocol.dataclass import dataclass
from millrace.runtime.objectstore import ObjectMissing, ObjectStore
from millrace.runtime.objectstore.retry import RetryPolicy
from millrace.runtime.rand import Rand
from millrace.wal.errors import WalCorrupt
from millrace.wal.identity import NO_MARK, MetadataMark
from millrace.wal.kind import WalReport
from millrace.wal.log import WalOwner, WalRecord
from millrace.wal.object.layout import (
    HEADER_BYTES,
    ObjectHeader,
    Place,
    claim_key,
    decode_header,
    is_seal_size,
    log_prefix,
    object_key,
    parse_claim,
    parse_key,
    root_key,
)
from millrace.wal.object.reader import LogReader
from millrace.wal.object.recovery import (
    SKIP,
    Damage,
    Extent,
    Listing,
    ObjectScan,
    Tip,
    damages_behind,
    find_extent,
    find_garbage,
    find_tip,
)

NEWEST = 1 << 62  # above every epoch
AHEAD_BYTES = 32 << 20
LOOKS_MAX = 5
RETRIES = RetryPolicy(attempts_max=4, longest_wait_ms=2_000, attempt_timeout_ms=60_000)
LISTED_MAX = 100
FOLDERS_MAX = 1000  # clusters that are looked for where roots do not name them
LAST = "~"  # above every part of a key of ours
_NO_TOKEN = b""


class Kind(StrEnum):
    ROOT = "root"
    RECORDS = "records"
    MARK = "mark"
    SEAL = "seal"
    CLAIM = "claim"
    UNDER_WAY = "under way"
    # What nobody needs: the next start deletes it.
    LITTER = "litter"
    # Keys that no log would have made.
    STRANGE = "strange key"


@dataclass(frozen=True, slots=True)
class Held:
    key: str
    kind: Kind
    size_bytes: int
    what: str = ""


@dataclass(slots=True)
class Inspected:
    """`faults` are sentences about what keeps a start from finding the log at all; `damages` are what
    wal.corruption speaks of."""

    cluster_id: str
    node_id: int
    epoch: int = -1  # of the newest owner that is seen
    is_closed: bool = False
    trim: int = 0
    position: int = 0  # where the log begins
    end: int = 0
    mark: MetadataMark = NO_MARK
    record_count: int = 0
    held: list[Held] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    is_found: bool = False  # what the log is was told by its objects, whatever became of its root

    @property
    def is_sound(self) -> bool:
        return not self.damages and not self.faults

    def counts(self) -> dict[str, tuple[int, int]]:
        """Objects and bytes by kind."""
        objects: Counter[Kind] = Counter()
        size_bytes: Counter[Kind] = Counter()
        for one in self.held:
            objects[one.kind] += 1
            size_bytes[one.kind] += one.size_bytes
        return {kind.value: (objects[kind], size_bytes[kind]) for kind in Kind if objects[kind]}

    @property
    def listed(self) -> list[Held]:
        """What is named one by one."""
        return [one for one in self.held if one.kind in (Kind.LITTER, Kind.STRANGE, Kind.UNDER_WAY)]

    def facts(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "node_id": self.node_id,
            "epoch": self.epoch,
            "is_closed": self.is_closed,
            "head": self.position,
            "trim": self.trim,
            "tail": self.end,
            "metadata": None if self.mark == NO_MARK else self.mark._asdict(),
            "objects": {
                kind: {"count": count, "bytes": size} for kind, (count, size) in self.counts().items()
            },
            "listed": [asdict(one) for one in self.listed],
            "damages": [asdict(damage) for damage in self.damages],
            "faults": self.faults,
            "is_found": self.is_found,
        }

    def report(self) -> WalReport:
        """Who owns it, how far it reaches, what lies there by kind, and what is wrong."""
        who = f"cluster {self.cluster_id}, node {self.node_id}"
        if self.epoch < 0 and not self.faults:
            return WalReport(self.facts(), [f"{who}: the log was never used"], [], [], [])
        state = "closed in order" if self.is_closed else "not closed in order, or in use"
        reach = f"begins at {self.position}, forgotten below {self.trim}, ends at {self.end}"
        about = [f"{who}, epoch {self.epoch}; {state}", reach]
        if self.mark != NO_MARK:
            about.append(
                f"written when metadata was committed up to offset {self.mark.offset} of epoch "
                f"{self.mark.epoch}"
            )
        rows = [(kind, count, size) for kind, (count, size) in self.counts().items()]
        harms = [
            f"{fault}; the log was found by its other objects"
            if self.is_found
            else f"the log cannot be found: {fault}"
            for fault in self.faults
        ]
        harms += [damage_line(damage) for damage in self.damages]
        return WalReport(self.facts(), about, rows, self._notes(), harms)

    def _notes(self) -> list[str]:
        listed = self.listed
        notes = [
            f"{one.kind}: {one.key}" + (f" ({one.what})" if one.what else "") for one in listed[:LISTED_MAX]
        ]
        if len(listed) > LISTED_MAX:
            notes.append(f"... and {len(listed) - LISTED_MAX} more: --json lists all")
        if any(one.kind is Kind.LITTER for one in listed):
            notes.append("litter holds no record that counts; the next start deletes it")
        return notes


def damage_line(damage: Damage) -> str:
    place = damage.place
    return (
        f"damaged from position {damage.start} to {damage.end}, from epoch {place.epoch}, slot "
        f"{place.slot} on: {damage.reason}"
    )


@dataclass(frozen=True, slots=True)
class _Look:
    """The log as it is found at one moment."""

    listing: Listing
    strange: list[Held]
    tip: Tip | None
    extent: Extent


async def nodes_of(store: ObjectStore) -> list[tuple[int, str]]:
    """Nodes that have a log in the store, and their clusters: by their roots, and by its objects where a root
    is gone or cannot be read. "" where nothing names the cluster."""
    roots = {node_id: cluster_id async for node_id, cluster_id in _roots(store)}
    found = [(node_id, cluster_id) for node_id, cluster_id in roots.items() if cluster_id]
    found += [
        (node_id, cluster_id) async for node_id, cluster_id in _folders(store) if not roots.get(node_id)
    ]
    known = [node_id for node_id, _ in found]
    return sorted([*found, *((node_id, "") for node_id in roots if node_id not in known)])


async def _roots(store: ObjectStore) -> AsyncIterator[tuple[int, str]]:
    """ "" for the cluster where the root cannot be read."""
    prefix = root_key(0)[:-1]
    async for entry in store.list(prefix):
        number = entry.key[len(prefix) :]
        if number.isdecimal() and root_key(int(number)) == entry.key:
            try:
                header = decode_header(await store.get_range(entry.key, 0, HEADER_BYTES), 0)
                yield int(number), header.cluster_id
            except (WalCorrupt, ObjectMissing):
                yield int(number), ""


async def _folders(store: ObjectStore) -> AsyncIterator[tuple[int, str]]:
    """Nodes and clusters under whose keys objects of a log lie. A listing for each cluster and log, and no
    more."""
    after = ""
    for _ in range(FOLDERS_MAX):
        key = await _first_key(store, "", after)
        if key is None:
            return
        cluster_id = key.partition("/")[0]
        after = f"{cluster_id}/{LAST}"
        prefix = log_prefix(cluster_id, 0)[: -len("0/")]
        log_key = await _first_key(store, prefix, "")
        while log_key is not None:
            name = log_key[len(prefix) :].partition("/")[0]
            if name.isdecimal() and log_key.startswith(log_prefix(cluster_id, int(name))):
                yield int(name), cluster_id
            log_key = await _first_key(store, prefix, f"{prefix}{name}/{LAST}")


async def _first_key(store: ObjectStore, prefix: str, after: str) -> str | None:
    """Of those that have a folder."""
    async for entry in store.list(prefix, after):
        if "/" in entry.key:
            return entry.key
    return None


class LogInspection:
    def __init__(self, store: ObjectStore, cluster_id: str, node_id: int, rand: Rand) -> None:
        self._store = store
        self._owner = WalOwner(cluster_id, node_id, NEWEST)
        self._reader = LogReader(store, self._owner, rand, is_lenient=True, policy=RETRIES)
        self._prefix = log_prefix(cluster_id, node_id)
        self._found = Inspected(cluster_id, node_id)

    async def run(
        self, on_record: Callable[[WalRecord], None] = lambda record: None, *, reads_data: bool = True
    ) -> Inspected:
        """`reads_data` False: what lies there and what is gone, without reading any object. Raises what the
        store raises when it does not answer, WalMismatch for another cluster's log or one of another
        version."""
        found = self._found
        root = await self._root()
        if root is None and not found.faults:
            return found
        try:
            look = await self._look(root)
        except WalCorrupt as fault:
            found.faults.append(str(fault))
            return found
        if reads_data:
            damages = await self._walk(look, on_record)
        else:
            damages = await self._missing(look)
        if damages:
            damages = await self._still_damaged(root, damages)
        found.damages = damages
        self._tell(look)
        return found

    async def _root(self) -> ObjectHeader | None:
        key = root_key(self._owner.node_id)
        entry = await self._store.head(key)
        if entry is not None:
            self._found.held.append(Held(key, Kind.ROOT, entry.size_bytes))
        try:
            root = await self._reader.root()
        except WalCorrupt as fault:
            self._found.faults.append(fault.reason)
            return None
        if root is None and (await self._reader.list()).sizes:
            self._found.faults.append(f"the object {key} is gone, where the log begins")
        return root

    async def _look(self, root: ObjectHeader | None) -> _Look:
        """Begins again when the log moves on under a listing."""
        for left in reversed(range(LOOKS_MAX)):
            listing, strange = await self._list()
            first_epoch = min(listing.sizes, default=0) if root is None else root.epoch
            try:
                search = find_tip(listing, first_epoch, NEWEST, _NO_TOKEN, None)
                tip = await self._reader.search(search, is_missing_damage=not left)
                walk = find_extent(tip.link, listing, tip.passed)
                extent = await self._reader.search(walk, is_missing_damage=not left)
                return _Look(listing, strange, tip, extent)
            except ObjectMissing:
                continue
        raise AssertionError("the last look takes what is missing for damage")

    async def _list(self) -> tuple[Listing, list[Held]]:
        places, claims, strange = [], [], []
        async for entry in self._reader.store.list(self._prefix):
            place = parse_key(self._prefix, entry.key)
            if place is not None:
                places.append((place, entry.size_bytes))
            elif (epoch := parse_claim(self._prefix, entry.key)) is not None:
                claims.append(epoch)
            else:
                strange.append(Held(entry.key, Kind.STRANGE, entry.size_bytes))
        return Listing(places, claims), strange

    async def _walk(self, look: _Look, on_record: Callable[[WalRecord], None]) -> list[Damage]:
        scan = ObjectScan(look.extent, SKIP)
        async with aclosing(self._reader.objects(look.extent.places(), look.listing, AHEAD_BYTES)) as objects:
            async for place, data in objects:
                for record in scan.feed(place, None if data is None else memoryview(data)):
                    self._found.record_count += 1
                    on_record(record)
        scan.finish()
        return scan.damages

    async def _missing(self, look: _Look) -> list[Damage]:
        extent = look.extent
        gone = [place for place in extent.places() if look.listing.size(place) is None]
        if not extent.is_head_certain:
            gone = []
        damages = [
            Damage(extent.position, extent.end, place, f"the object {place} is gone") for place in gone
        ]
        return damages + damages_behind(extent)

    async def _still_damaged(self, root: ObjectHeader | None, damages: list[Damage]) -> list[Damage]:
        """An owner at work may have trimmed the log while it was read: what lies below its head now is no
        loss."""
        extent = (await self._look(root)).extent
        places = {*extent.places(), *(place for place, _ in extent.behind)}
        return [damage for damage in damages if damage.place in places]

    def _tell(self, look: _Look) -> None:
        found, listing, extent, tip = self._found, look.listing, look.extent, look.tip
        assert tip is not None, "it was found"
        found.is_found = listing.newest_object() is not None
        found.epoch = max([tip.place.epoch, *listing.claims, *listing.sizes])
        found.is_closed, found.trim, found.position, found.end = (
            tip.is_closed,
            extent.trim,
            extent.position,
            extent.end,
        )
        found.mark = tip.mark
        garbage = dict.fromkeys(find_garbage(listing, extent, tip.place.epoch))
        live = dict.fromkeys(extent.places())
        ends = {segment.epoch: segment.end for segment in extent.segments}
        for epoch, slots in listing.sizes.items():
            for slot, size_bytes in slots.items():
                place = Place(epoch, slot)
                kind, what = _kind_of(
                    place, size_bytes, tip, ends, is_live=place in live, is_garbage=place in garbage
                )
                found.held.append(Held(object_key(self._prefix, place), kind, size_bytes, what))
        for claim in listing.claims:
            kind = Kind.LITTER if claim < found.epoch else Kind.CLAIM
            found.held.append(
                Held(claim_key(self._prefix, claim), kind, HEADER_BYTES, f"claim of epoch {claim}")
            )
        found.held += look.strange


def _kind_of(
    place: Place, size_bytes: int, tip: Tip, ends: dict[int, int], *, is_live: bool, is_garbage: bool
) -> tuple[Kind, str]:
    """`ends`: of each owner of whom something counts, how many slots do."""
    if is_live:
        return (Kind.MARK, "") if size_bytes == HEADER_BYTES else (Kind.RECORDS, "")
    if is_seal_size(size_bytes):
        return (Kind.LITTER, "a seal that shuts nobody out") if is_garbage else (Kind.SEAL, "")
    if place.epoch == tip.place.epoch and place.slot >= tip.place.slot:
        return Kind.UNDER_WAY, "behind the end of the log"
    if is_garbage and place.slot >= ends.get(place.epoch, 0) > 0:
        return Kind.LITTER, "behind the place where a newer owner began"
    return Kind.LITTER, "below the head"
