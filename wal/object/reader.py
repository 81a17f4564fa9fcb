"""Reads an object WAL's store, however long it takes to answer: the listing, single headers, and whole
objects some way ahead.

Decides nothing (recovery.py does) and writes nothing (fence.py does). Keeps true: a call that the store
leaves unanswered is repeated for ever (who only looks may be less patient), a listing from the last key it
gave; what is read ahead is bounded by bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable
from typing import TypeVar

from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore import ObjectMissing, ObjectStore
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy
from millrace.runtime.rand import Rand
from millrace.wal.errors import WalCorrupt, WalMismatch
from millrace.wal.log import WalOwner
from millrace.wal.object.layout import (
    HEADER_BYTES,
    ObjectHeader,
    Place,
    decode_header,
    end_of_epoch,
    log_prefix,
    object_key,
    parse_claim,
    parse_epoch,
    parse_key,
    root_key,
)
from millrace.wal.object.recovery import Listing

log = logging.getLogger(__name__)

T = TypeVar("T")
PATIENT = RetryPolicy(attempts_max=None, first_wait_ms=50, longest_wait_ms=5_000, attempt_timeout_ms=60_000)
READS_MAX = 16
LOGGED_EVERY = 10


class LogReader:
    def __init__(
        self,
        store: ObjectStore,
        owner: WalOwner,
        rand: Rand,
        *,
        is_lenient: bool = False,
        policy: RetryPolicy = PATIENT,
    ) -> None:
        """`is_lenient`: a search is given None for a header that cannot be read."""
        self._owner = owner
        self.is_lenient = is_lenient
        self.store = RetryingObjectStore(store, rand.split("wal retries"), policy, on_retry=self._on_retry)
        self.prefix = log_prefix(owner.cluster_id, owner.node_id)

    async def list(self) -> Listing:
        found, claims = [], []
        async for entry in self.store.list(self.prefix):
            place = parse_key(self.prefix, entry.key)
            if place is not None:
                found.append((place, entry.size_bytes))
            elif (epoch := parse_claim(self.prefix, entry.key)) is not None:
                claims.append(epoch)
        return Listing(found, claims)

    async def epochs_after(self, epoch: int) -> AsyncIterator[int]:
        """Of everything that lies in later epochs, in order."""
        async for entry in self.store.list(self.prefix, after=end_of_epoch(self.prefix, epoch)):
            found = parse_epoch(self.prefix, entry.key)
            if found is not None:
                yield found

    async def root(self) -> ObjectHeader | None:
        """Raises WalMismatch when another cluster has its log here."""
        return await self.named(root_key(self._owner.node_id))

    async def named(self, key: str) -> ObjectHeader | None:
        """The header under a key, None when there is no object. Raises WalCorrupt, WalMismatch."""
        try:
            header = decode_header(await self.store.get_range(key, 0, HEADER_BYTES), 0)
        except ObjectMissing:
            return None
        except WalCorrupt as damage:
            raise WalCorrupt(damage.position, f"{key}: {damage.reason}") from None
        self._check_owner(header)
        return header

    async def search(
        self, search: Generator[Place, ObjectHeader | None, T], *, is_missing_damage: bool = False
    ) -> T:
        """Answers what a search asks for. Raises ObjectMissing when one of the objects is gone, unless that
        is to be damage as any other."""
        try:
            place = next(search)
            while True:
                place = search.send(await self._searched(place, is_missing_damage=is_missing_damage))
        except StopIteration as found:
            result: T = found.value
            return result

    async def _searched(self, place: Place, *, is_missing_damage: bool) -> ObjectHeader | None:
        key = object_key(self.prefix, place)
        try:
            header = decode_header(await self.store.get_range(key, 0, HEADER_BYTES), 0)
            self._check_owner(header)
            if header.place != place:
                raise WalCorrupt(header.position, f"at {place} lies the object of {header.place}")
            return header
        except ObjectMissing:
            if not is_missing_damage:
                raise
            reason = "no such object"
        except WalCorrupt as damage:
            if not self.is_lenient:
                raise WalCorrupt(damage.position, f"{key}: {damage.reason}") from None
            reason = damage.reason
        log.error("of the WAL's object %s the header cannot be read: %s", key, reason)
        return None

    async def objects(
        self, places: Iterable[Place], listing: Listing, ahead_bytes: int
    ) -> AsyncGenerator[tuple[Place, bytes | None], None]:
        """Whole objects in order, several on their way at once, as long as they are expected to be no more
        than `ahead_bytes` together. None for one that is gone."""
        left = iter(places)
        under_way: deque[tuple[Place, int, asyncio.Task[bytes]]] = deque()
        held_bytes = 0
        try:
            while True:
                while len(under_way) < READS_MAX and (not under_way or held_bytes < ahead_bytes):
                    place = next(left, None)
                    if place is None:
                        break
                    size_bytes = listing.size(place) or 0
                    held_bytes += size_bytes
                    read = asyncio.create_task(
                        self.store.get(object_key(self.prefix, place)), name="wal-read"
                    )
                    under_way.append((place, size_bytes, read))
                if not under_way:
                    return
                place, size_bytes, read = under_way[0]
                try:
                    data: bytes | None = await read
                except ObjectMissing:
                    data = None
                under_way.popleft()
                yield place, data
                held_bytes -= size_bytes
        finally:
            for _, _, read in under_way:
                read.cancel()
            await asyncio.gather(*(read for _, _, read in under_way), return_exceptions=True)

    def _check_owner(self, header: ObjectHeader) -> None:
        owner = self._owner
        if header.cluster_id != owner.cluster_id:
            raise WalMismatch("cluster", owner.cluster_id, header.cluster_id)
        if header.node_id != owner.node_id:
            raise WalMismatch("node", owner.node_id, header.node_id)

    def _on_retry(self, operation: str, attempts: int, error: Unavailable) -> None:
        if attempts % LOGGED_EVERY == 1:
            log.warning("the WAL's store does not answer (%s, %d attempts): %s", operation, attempts, error)
