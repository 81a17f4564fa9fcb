"""Takes an object WAL from whoever had it, so that they can never acknowledge again; and puts an owner's
objects, as long as it is one.

The rule with conditional writes. An owner writes slots 0, 1, 2, ... of its own epoch with If-None-Match,
several at once, and acknowledges slot n when its own puts of 0..n have succeeded. A new owner finds the first
slot that is empty (after it, uploads under way may have left others) and puts a *seal* into it, on the same
condition. Then it may read. The argument:

  1. A slot holds one object for ever: the first put wins, all others lose. So slot S holds either the old
     owner's object or the seal.
  2. If it is the seal, the old owner's put of S fails, whenever it arrives, and it never acknowledges S or
     anything after it, for it acknowledges without gaps. What it acknowledges later than that lies below S
     and is part of the log that the new owner reads.
  3. If it is the old owner's object, the new owner has lost, looks again, and tries further on. It seals ever
     more slots at once, the farthest first, so that an old owner who writes without pause cannot outrun it;
     the lowest seal counts. It looks again when it has won, too: where the old owner filled slot S, trimmed
     and deleted it between the look and the seal, the seal lies below the head and shuts nobody out. Then a
     listing that begins after it shows a newer object, whose owner had confirmed S. A seal that is found at
     the end of the log is one that counts.
  4. The seal names its owner's epoch. The one after it begins there: it seals that epoch's slot 0 if nothing
     was written yet, else the first empty one. So owners form one chain in which epochs only grow, each link
     decided by one conditional put; of two that race, one loses it and finds either a higher epoch (it is
     fenced) or a lower one (whose log it then seals in turn).
  5. Whether an attempt with an unknown outcome succeeded is told by content: the bytes hold the owner's
     token, drawn at each opening, so the store's "exists" with our own bytes is success and with others' is
     loss. Retries send the same bytes.
  6. A seal is never deleted while the owner it shuts out may live: its slot would be free again for a put of
     the past. It is deleted when that owner had said that it writes no more (CLOSING), and nothing it wrote
     is needed. So a crash costs one object of 208 bytes, for ever.
  7. Deleted slots below the head may be filled again by a late duplicate. It has the bytes that were there,
     it lies below what any later header calls the head, and nobody reads it; the next opening deletes it.
  8. Two puts of one slot may be under way at once (a late one is sent again, a given up one may still
     arrive). Nothing above counts puts: they are one owner's, of the same bytes, and what is known is known
     of the slot. If either succeeds, or is answered by "exists" with our own bytes read back, the slot holds
     them, or held them until somebody trimmed it who had them: it is acknowledged once. If either finds
     another's, then a newer owner sealed the slot (2): we are fenced, and whether the other put says success
     before that makes no difference to what the new owner has read. What a loser says after the first answer
     is not listened to: by then the slot may be trimmed, deleted, and by (3) hold a late seal. A duplicate
     that arrives behind all that finds its slot (a) with its own bytes: nothing happens; (b) sealed: it is
     refused; (c) deleted: as in 7. (c) is a slot below the head or void, never the tip or beyond it: the
     tip's seal stays (6), an owner that said CLOSING has no slot under way but those up to its closing, and
     these are all its own; and a void one that comes back is void by the same links.

  9. A put that is told "exists", of a slot in which a read finds nothing, says one of two things. A newer
     owner has taken the log, with our bytes in the slot, and trimmed them: for we delete only below what we
     confirmed. Or the store shows a moment late what it took, as one that keeps an object's attributes
     beside it may. So it is put again a few times; an object of a later epoch says the first; and where
     there is none, the upload waits and goes on as with any store that does not answer. Should its put
     succeed after all, the slot had no seal, which stays while we live (6): so its bytes were ours, the new
     owner has them, and the acknowledgement is true. The seal that shuts us out lies further on.

Without conditional writes (`fence=reservation`): each owner puts a claim under its epoch before it lists the
log, and acknowledges a group of slots when a listing that began after their puts shows nothing of a higher
epoch. What an old owner acknowledged was put before a listing without the new claim, so before the new claim,
so it is in the new owner's listing. Claims are added and never changed, and only higher epochs count:
whatever arrives late, an owner that was shut out once stays shut out, and a stale process that starts late
finds the higher claim. (One object that each owner overwrites and reads back was refused: a lower epoch that
looks before and writes after a higher one's name is acknowledged, and then voided by what the higher one had
under way.) It is weaker in this: every acknowledgement waits for a listing as well, at the price of a put;
the store must list what was just put; and a replaced owner learns of it only when it asks, so that what it
wrote meanwhile is litter. A second put of a slot writes the bytes that are there, or those of a slot that was
deleted, which is below the head or void. The two fences do not stop each other's owners, so the setting
changes only after a close in order; a log whose last owner may live under the other one is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from millrace.protocol.dataclass import dataclass
from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, PreconditionFailed
from millrace.runtime.objectstore.rounds import EXISTS, NOT_THERE, Rounds, contradiction
from millrace.runtime.objectstore.watched import WAL_STORE
from millrace.runtime.rand import Rand
from millrace.wal.errors import WalCorrupt, WalFenced
from millrace.wal.identity import NO_MARK, MetadataMark
from millrace.wal.log import WalOwner
from millrace.wal.object.layout import (
    NO_EPOCH,
    FenceKind,
    Kind,
    ObjectHeader,
    Place,
    Stamp,
    claim_key,
    object_key,
    root_key,
    seal_bytes,
)
from millrace.wal.object.reader import LogReader
from millrace.wal.object.recovery import Extent, Listing, Tip, find_extent, find_tip

SEALS_MAX = 1024
SEALS_GROWTH = 8
# Before each put of a slot that the store says is taken, and shows nothing of; the first goes at once.
VANISHED_WAITS_MS = (0, 50, 100, 200, 400)
NO_STAMP = Stamp(0, 0, Place(0, 0), 0)
WAS_PUT, IS_LISTED = "a put succeeded", "a list names it"


@dataclass(frozen=True, slots=True)
class Taken:
    """The log as it was when it became ours."""

    listing: Listing
    extent: Extent
    link: Place | None  # None: nobody ever wrote to it
    root_token: bytes  # of the first owner; ours where the root is put anew
    is_root_damaged: bool = False
    mark: MetadataMark = NO_MARK  # what its owner knew as it came; without that, what the log named
    found_mark: MetadataMark = NO_MARK  # what the log named; of an owner without a mark


class Fence(Protocol):
    kind: FenceKind
    epoch: int
    token: bytes
    is_verified_after: bool  # `verify` stands between a put and its acknowledgement

    async def take(self) -> Taken:
        """On return no owner before this one can acknowledge anything that is not in the extent. Raises
        WalFenced, WalMismatch, WalCorrupt, and StoreContradicts after a bounded number of rounds."""
        ...

    async def put(self, place: Place, parts: Sequence[Buffer]) -> None:
        """One attempt, of a few puts where the store contradicts itself. Raises WalFenced when the slot is
        another's, and what the store raises when it does not answer."""
        ...

    async def verify(self) -> None:
        """Returns when we were the owner at some instant after the call. Raises WalFenced."""
        ...

    async def put_root(self) -> None:
        """Writes the root anew, where it was damaged; for an owner that has written."""
        ...

    async def check_replaced(self) -> None:
        """For an owner that has written nothing yet and misses something: raises WalFenced if a newer one has
        come, who may have trimmed it."""
        ...


def make_fence(kind: FenceKind, store: ObjectStore, reader: LogReader, owner: WalOwner, rand: Rand) -> Fence:
    """`store` is bare: puts are repeated by who knows what they mean."""
    if kind is FenceKind.CONDITIONAL:
        return ConditionalFence(store, reader, owner, rand)
    return ReservationFence(store, reader, owner, rand)


class _Names:
    """What both fences write of themselves."""

    kind: FenceKind

    def __init__(self, store: ObjectStore, reader: LogReader, owner: WalOwner, rand: Rand) -> None:
        self.epoch = owner.epoch
        self._store = store
        self._reader = reader
        self._owner = owner
        self._rand = rand
        self.token = self._draw_token()
        self._is_root_damaged = False
        self._root_token = self.token

    def _draw_token(self) -> bytes:
        return self._rand.uuid()[:8]

    def _header(
        self, kind: Kind, place: Place, token: bytes, stamp: Stamp, link: Place | None
    ) -> ObjectHeader:
        owner = self._owner
        return ObjectHeader(
            kind, self.kind, owner.cluster_id, owner.node_id, owner.epoch, token, place, 0, 0, 0, stamp, link
        )

    def _root(self) -> bytes:
        return self._header(Kind.ROOT, Place(self.epoch, 0), self.token, NO_STAMP, None).encode()

    async def put_root(self) -> None:
        await self._reader.store.put(root_key(self._owner.node_id), [self._root()])

    async def _survey(self) -> tuple[Listing, int | None]:
        """The listing and the epoch of the root, which is there unless nobody ever took the log."""
        epoch = await self._root_epoch()
        listing = await self._reader.list()
        if epoch is None and listing.sizes and not self._is_root_damaged:
            epoch = await self._root_epoch()  # somebody takes it at this moment
            self._is_root_damaged |= epoch is None and self._reader.is_lenient
            if epoch is None and not self._is_root_damaged:
                raise WalCorrupt(
                    0, f"the object {root_key(self._owner.node_id)} is gone, where the log begins"
                )
        if self._is_root_damaged:
            if listing.newest_object() is None:
                raise WalCorrupt(
                    0, f"the object {root_key(self._owner.node_id)} cannot be read, and nothing else is there"
                )
            epoch = min(listing.sizes)
        return listing, epoch

    async def _root_epoch(self) -> int | None:
        """None when there is no root, or one that need not be sound."""
        try:
            root = await self._reader.root()
        except WalCorrupt:
            if not self._reader.is_lenient:
                raise
            self._is_root_damaged = True
            return None
        if root is None:
            return None
        self._root_token = root.token
        return root.epoch

    async def _find_tip(self, listing: Listing, first_epoch: int) -> Tip | ObjectMissing:
        """What is missing, when the log moved on under the listing."""
        try:
            return await self._reader.search(
                find_tip(listing, first_epoch, self.epoch, self.token, self.kind)
            )
        except ObjectMissing as missing:
            return missing

    async def _epoch_in(self, key: str) -> int | None:
        """Whose object lies in a slot that should be ours; None: it is gone. NO_EPOCH for one that cannot be
        read: it is not ours, whosever it is."""
        try:
            found = await self._reader.named(key)
        except WalCorrupt:
            return NO_EPOCH
        return None if found is None else found.epoch

    async def _go_round(self, rounds: Rounds, key: str, said: str) -> None:
        """Returns for a further round, after a pause. Raises StoreContradicts behind the last one: `said` is
        what the store said of the key, but for a read."""
        if await rounds.again():
            return
        found = await self._epoch_in(key)
        read = "a read that it cannot be read" if found == NO_EPOCH else f"a read that it is of epoch {found}"
        error = contradiction(key, said, NOT_THERE if found is None else read, rounds.count)
        error.store = WAL_STORE
        raise error

    async def _take(
        self, listing: Listing, tip: Tip | None, check_replaced: Callable[[], Awaitable[None]]
    ) -> Taken:
        """`tip`: None where nobody ever took the log."""
        link, passed, found_mark = (None, (), NO_MARK) if tip is None else (tip.link, tip.passed, tip.mark)
        extent = await self._extent(listing, link, passed, check_replaced)
        mark = found_mark if self._owner.mark == NO_MARK else self._owner.mark
        return Taken(listing, extent, link, self._root_token, self._is_root_damaged, mark, found_mark)

    async def _extent(
        self,
        listing: Listing,
        link: Place | None,
        passed: Sequence[Place],
        check_replaced: Callable[[], Awaitable[None]],
    ) -> Extent:
        try:
            return await self._reader.search(find_extent(link, listing, passed))
        except ObjectMissing as missing:
            await check_replaced()
            if self._reader.is_lenient:
                return await self._reader.search(find_extent(link, listing, passed), is_missing_damage=True)
            raise WalCorrupt(0, f"the object {missing.key} is gone, which was written whole") from None


class ConditionalFence(_Names):
    kind = FenceKind.CONDITIONAL
    is_verified_after = False

    async def take(self) -> Taken:
        seal_count, rounds = 1, Rounds()
        while True:
            listing, first_epoch = await self._survey()
            if first_epoch is None:
                if await self._begin():
                    return await self._take(listing, None, self.check_replaced)
                await self._go_round(rounds, root_key(self._owner.node_id), EXISTS)
                continue
            tip = await self._find_tip(listing, first_epoch)
            if isinstance(tip, ObjectMissing):
                await self._go_round(rounds, tip.key, IS_LISTED)
                continue
            if tip.is_ours:
                return await self._take(listing, tip, self.check_replaced)
            is_won = await self._seal(tip, seal_count)
            if not is_won:
                seal_count = min(SEALS_MAX, SEALS_GROWTH * seal_count)
            await self._go_round(
                rounds, object_key(self._reader.prefix, tip.place), WAS_PUT if is_won else EXISTS
            )

    async def put(self, place: Place, parts: Sequence[Buffer]) -> None:
        """Raises WalFenced where another owner's object is in the place, StoreContradicts where the store
        says time after time that there is one, and shows none, and nobody has taken the log."""
        key = object_key(self._reader.prefix, place)
        for wait_ms in VANISHED_WAITS_MS:
            if wait_ms:
                await asyncio.sleep(wait_ms / 1000)
            try:
                await self._store.put_if_absent(key, parts)
            except PreconditionFailed:
                found = await self._epoch_in(key)
            else:
                return
            if found is not None:
                raise WalFenced(self.epoch, found)
        async for epoch in self._reader.epochs_after(self.epoch):
            raise WalFenced(self.epoch, epoch)
        error = contradiction(key, EXISTS, NOT_THERE, len(VANISHED_WAITS_MS))
        error.store = WAL_STORE
        raise error

    async def verify(self) -> None:
        """A put that succeeded is proof enough."""

    async def check_replaced(self) -> None:
        """Raises WalFenced where another owner's object is in this epoch's first place."""
        found = await self._epoch_in(object_key(self._reader.prefix, Place(self.epoch, 0)))
        if found not in (None, self.epoch):
            raise WalFenced(self.epoch, found)

    async def _begin(self) -> bool:
        """Whether we are the first owner."""
        try:
            await self._reader.store.put_if_absent(root_key(self._owner.node_id), [self._root()])
        except PreconditionFailed:
            return False
        return True

    async def _seal(self, tip: Tip, count: int) -> bool:
        """Tries to seal so many slots from the tip on; whether a seal of ours lies in the tip's. The farthest
        goes first: an owner who writes faster than we seal would fill one after the other just before we come
        to it."""
        slots = range(tip.place.slot + count - 1, tip.place.slot - 1, -1)
        won = await asyncio.gather(*(self._seal_one(tip, slot) for slot in slots))
        return won[-1]

    async def _seal_one(self, tip: Tip, slot: int) -> bool:
        place = Place(tip.place.epoch, slot)
        stamp = replace(NO_STAMP, confirmed_slot=tip.place.slot, mark=self._owner.mark)
        header = self._header(Kind.SEAL, place, self.token, stamp, tip.link)
        try:
            key = object_key(self._reader.prefix, place)
            await self._reader.store.put_if_absent(key, [seal_bytes(header, is_of_closed=tip.is_closed)])
        except PreconditionFailed:
            return False
        return True


class ReservationFence(_Names):
    kind = FenceKind.RESERVATION
    is_verified_after = True

    async def take(self) -> Taken:
        """A claim shuts out whoever has the log, so it is looked at before: who is to be refused puts
        none."""
        await self._look()
        await self._claim()
        rounds = Rounds()
        while True:
            listing, root_epoch, tip = await self._look()
            if root_epoch is None:
                await self.put_root()
            await self.verify()
            if isinstance(tip, Tip):
                return await self._take(listing, tip, self.check_replaced)
            await self._go_round(rounds, tip.key, IS_LISTED)

    async def _look(self) -> tuple[Listing, int | None, Tip | ObjectMissing]:
        listing, root_epoch = await self._survey()
        is_ours = root_epoch is None or root_epoch >= self.epoch
        tip = await self._find_tip(listing, NO_EPOCH if is_ours or root_epoch is None else root_epoch)
        return listing, root_epoch, tip

    async def put(self, place: Place, parts: Sequence[Buffer]) -> None:
        await self._store.put(object_key(self._reader.prefix, place), parts)

    async def verify(self) -> None:
        """Raises WalFenced where a later epoch has an object."""
        highest = self.epoch
        async for epoch in self._reader.epochs_after(self.epoch):
            highest = max(highest, epoch)
        if highest > self.epoch:
            raise WalFenced(self.epoch, highest)

    async def check_replaced(self) -> None:
        await self.verify()

    async def _claim(self) -> None:
        key = claim_key(self._reader.prefix, self.epoch)
        present = await self._reader.named(key)
        if present is not None and present.token != self.token:
            raise WalFenced(self.epoch, present.epoch)
        claim = self._header(
            Kind.CLAIM, Place(self.epoch, 0), self.token, replace(NO_STAMP, mark=self._owner.mark), None
        )
        await self._reader.store.put(key, [claim.encode()])
