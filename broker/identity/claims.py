"""Claims on the ownership of a node's series and of the metadata log: read, checked, put, released.

    check (reads alone) -> record the incarnation in the metadata log
        -> put the claim under the next number, if it is absent

A series may be continued only by who knows its newest claim from its own metadata log: a start on a copy of
that log, or on an older one, finds a claim that it does not know, and is refused. Kept true, whatever a kill
falls between: an incarnation is recorded before its claim can be in the bucket; a claim is put once and never
changed; a claim that a killed start left under way, and that lands late, is known when it is met, and the
start goes on to the number behind it.

Where the store ignores or lacks If-None-Match a claim is put and read back: two that start in the same
instant may then both believe that they were first, until the next look at the number that follows
(ownership.py). Not here: bytes and keys (claim_format.py), what an owner does with its claim (ownership.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import field
from functools import partial
from typing import NamedTuple, TypeVar

from millrace.broker.controller_client import ControllerClient
from millrace.broker.identity.binding import MARKER_KEY, BindingRefused
from millrace.broker.identity.claim_format import (
    NOBODY,
    ClaimCorrupt,
    ClaimKind,
    OwnerClaim,
    claim_key,
    decode_claim,
    encode_claim,
    owners_prefix,
    series_prefix,
)
from millrace.broker.identity.known_time_text import shown
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.protocol.dataclass import dataclass
from millrace.protocol.ids import uuid_text
from millrace.runtime.clock import Clock
from millrace.runtime.errors import MillraceError, in_words
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, PreconditionFailed, StoreFull
from millrace.runtime.objectstore.probe import brief_condition_fault
from millrace.runtime.objectstore.rounds import EXISTS, NOT_THERE, Rounds, contradiction

log = logging.getLogger(__name__)
RELEASE_S = 5.0
FULL_WAIT_S = 2.0  # before a full bucket is asked again

T = TypeVar("T")
# (operation, attempts so far, error): a start that waits says why.
OnFull = Callable[[str, int, StoreFull], None]
# (series, number, the newest claim in the bucket): on return the incarnation that claims is durable in the
# metadata log.
Record = Callable[[int, int, OwnerClaim | None], Awaitable[None]]


class NewestClaims(NamedTuple):
    """Those in the bucket, which the metadata log knows; None where there never was one. Who claimed before
    them has been replaced."""

    of_log: OwnerClaim | None
    of_node: OwnerClaim | None


NO_CLAIMS = NewestClaims(None, None)


async def read_newest_claim(
    store: ObjectStore, cluster_id: str, series: int, known_number: int = 0
) -> OwnerClaim | None:
    """The claim or release with the highest number, None where there never was one. `known_number`: the
    highest that the asker's metadata has, so that a long series is not listed from its beginning. Raises
    ClaimCorrupt, and what the store raises."""
    after = claim_key(cluster_id, series, known_number - 2) if known_number > 2 else ""
    keys = [entry.key async for entry in store.list(series_prefix(cluster_id, series), after)]
    return decode_claim(await store.get(keys[-1]), keys[-1]) if keys else None


async def claimed_nodes(store: ObjectStore, cluster_id: str) -> list[int]:
    """Nodes that have ever been claimed, by id; a request each. Raises what the store raises."""
    found: list[int] = []
    prefix, after = owners_prefix(cluster_id), ""
    while True:
        name = ""
        async for entry in store.list(prefix, after):
            name = entry.key.removeprefix(prefix).partition("/")[0]
            break
        if not name:
            return sorted(found)
        if name.isascii() and name.isdecimal():
            found.append(int(name))
        after = f"{prefix}{name}/~"


async def check_claims(
    store: ObjectStore, bucket: str, cluster_id: str, image: MetadataImage, node_id: int
) -> NewestClaims:
    """Changes nothing. Raises BindingRefused when the node or the metadata log was claimed by somebody whom
    this log does not know."""
    of_log = await known_newest(store, bucket, cluster_id, image, METADATA_SERIES)
    return NewestClaims(of_log, await known_newest(store, bucket, cluster_id, image, node_id))


async def known_newest(
    store: ObjectStore, bucket: str, cluster_id: str, image: MetadataImage, series: int
) -> OwnerClaim | None:
    """The newest claim of the series, which the metadata log knows; or BindingRefused."""
    try:
        newest = await read_newest_claim(store, cluster_id, series, image.claims.highest(series))
    except ClaimCorrupt as error:
        raise BindingRefused(unreadable(bucket, error)) from None
    reason = why_refused(newest, image) if newest is not None else ""
    if reason:
        raise BindingRefused(f"{bucket} {reason}")
    return newest


def unreadable(bucket: str, error: ClaimCorrupt) -> str:
    """The sentence of a start or a restore that meets it. Who made the newest claim is known from it alone,
    so a person has to say that nobody is at work; behind a removed one a restore goes on."""
    told = f"in {bucket}, {error}; nothing was changed"
    if error.is_later:
        return told
    return (
        f"{told}: put it back from a copy of the bucket; or, where there is none, see that no process of "
        "this node runs, remove that object, empty "
        "the log directory (log.dirs) and build it again with `millrace restore --take-over`"
    )


def why_refused(newest: OwnerClaim, image: MetadataImage) -> str:
    """Why the log of this image may not follow that claim, in words that follow the bucket's name; "" when it
    may."""
    what = (
        "as the writer of the metadata log"
        if newest.series == METADATA_SERIES
        else f"for node {newest.series}"
    )
    verb = "claimed" if newest.is_standing else "released"
    told = (
        f"was {verb} {what} by incarnation {uuid_text(newest.incarnation)} (number {newest.number}, at "
        f"{shown(newest.wall_ms)} by its clock)"
    )
    remedy = (
        "nothing was changed: start with the log directory (log.dirs) that was in use last; a copy of it may "
        "not run beside it, "
        "and a further node needs a node.id and a log directory of its own"
    )
    if not image.claims.has_incarnation(newest.series, newest.incarnation):
        return (
            f"{told}, of which this metadata log knows nothing: it is another one's copy, or an older "
            f"one; {remedy}"
        )
    if newest.metadata_end > image.offset:
        end = (
            f"when the metadata log ended at offset {newest.metadata_end}, and this one ends at "
            f"{image.offset}"
        )
        return f"{told} {end}: it is an older copy; {remedy}"
    return ""


async def are_conditions_kept(store: ObjectStore, bucket: str, cluster_id: str, incarnation: bytes) -> bool:
    """Whether this store keeps If-None-Match, by trying it: one that ignores it answers 200 to everyone."""
    fault = await brief_condition_fault(store, f"{MARKER_KEY}-test-{cluster_id}/{incarnation.hex()}-")
    if fault is not None:
        log.warning(
            "%s %s: a second process on a copy of this node is found by looking every few seconds, not by "
            "the store, and "
            "objects are put without a condition: never start one",
            bucket,
            fault,
        )
    return fault is None


@dataclass(slots=True)
class Claimant:
    """What a start claims with, and what it has to release. `has_conditions`: the store was seen to keep
    If-None-Match. `image`: what is committed now."""

    store: ObjectStore
    bucket: str
    cluster_id: str
    incarnation: bytes
    has_conditions: bool
    clock: Clock
    image: Callable[[], MetadataImage]
    record: Record
    on_full: OnFull
    _held: list[OwnerClaim] = field(default_factory=list)
    _under_way: OwnerClaim | None = None  # whose put was not seen to end: it may land yet

    async def claim(self, series: int) -> OwnerClaim:
        """The series is this incarnation's on return, durably. Raises BindingRefused when somebody else was
        first, StoreContradicts where the store says that a claim is there and shows none. Cancelled or killed
        at any point, the next start with the same metadata log goes on from there. Waits while the bucket is
        full."""
        rounds = Rounds()
        while True:
            newest = await known_newest(self.store, self.bucket, self.cluster_id, self.image(), series)
            number = max(1 if newest is None else newest.number + 1, self.image().claims.highest(series))
            await self.record(series, number, newest)
            before = NOBODY if newest is None else newest.incarnation
            made = self._under_way = self._made(ClaimKind.CLAIMED, series, number, before)
            try:
                await when_there_is_room("a claim", partial(self._put, made), self.on_full)
            except PreconditionFailed:
                self._under_way = None
                if not await rounds.again():  # else the next look tells whose it is
                    raise await self._not_claimed(made.key, rounds) from None
                continue
            self._under_way = None
            self._held.append(made)
            log.info(
                "claims: series %d is ours: number %d, incarnation %s",
                series,
                number,
                uuid_text(self.incarnation),
            )
            return made

    async def _not_claimed(self, key: str, rounds: Rounds) -> Exception:
        """Claims of killed starts may land one after another between two looks of ours; so many are somebody
        at work, or a store's contradiction."""
        if await self._found(key) is None:
            return contradiction(key, EXISTS, NOT_THERE, rounds.count)
        return BindingRefused(
            f"{self.bucket} was claimed {rounds.count} times while this start tried to: let one process run "
            "with this node.id"
        )

    async def release_all(self) -> None:
        """Says that this incarnation has ended in order, of each series that it claimed, or may have where it
        was cancelled meanwhile. Within RELEASE_S; what the store does not take by then stands, which the next
        start bears."""
        try:
            async with asyncio.timeout(RELEASE_S):
                await self._settle()
                while self._held:
                    await self._release(self._held[-1])
                    self._held.pop()
        except PreconditionFailed:
            log.info("claims: another has claimed since what this node had: nothing is left to be released")
        except (MillraceError, TimeoutError) as error:
            log.warning(
                "claims: this node's were not released, the next start takes them as they are: %s",
                in_words(error),
            )

    async def _settle(self) -> None:
        """A release under the number of the claim that is under way keeps that from landing; where it has
        landed, it is released as any other. Where the store has no conditions it may land later."""
        if self._under_way is None:
            return
        made = self._under_way
        try:
            await self._put(self._made(ClaimKind.RELEASED, made.series, made.number, made.before))
        except PreconditionFailed:
            if await self._found(made.key) == encode_claim(made):
                self._held.append(made)
        self._under_way = None

    async def _release(self, claimed: OwnerClaim) -> None:
        """PreconditionFailed when somebody has claimed the series since."""
        number = claimed.number + 1
        await self._put(self._made(ClaimKind.RELEASED, claimed.series, number, self.incarnation))

    def _made(self, kind: ClaimKind, series: int, number: int, before: bytes) -> OwnerClaim:
        image = self.image()
        ends = image.offset, image.epoch, self.clock.wall_ms()
        return OwnerClaim(kind, self.cluster_id, series, number, self.incarnation, before, *ends)

    async def _put(self, made: OwnerClaim) -> None:
        """PreconditionFailed when the key is somebody's. Our own earlier attempt is told by its content,
        which nobody else writes."""
        content = encode_claim(made)
        if self.has_conditions:
            await self.store.put_if_absent(made.key, [content])
            return
        if await self._found(made.key) not in (None, content):
            raise PreconditionFailed(made.key)
        await self.store.put(made.key, [content])
        if await self._found(made.key) != content:
            raise PreconditionFailed(made.key)

    async def _found(self, key: str) -> bytes | None:
        try:
            return await self.store.get(key)
        except ObjectMissing:
            return None


async def claimant_of(
    store: ObjectStore,
    bucket: str,
    cluster_id: str,
    incarnation: bytes,
    clock: Clock,
    publisher: MetadataPublisher,
    client: ControllerClient,
    on_full: OnFull,
) -> Claimant:
    """The start's, which records by `client`. Tries the store's conditions."""

    async def record(series: int, number: int, found: OwnerClaim | None) -> None:
        of_found = (0, NOBODY) if found is None else (found.number, found.incarnation)
        await client.claim_node(series, number, incarnation, *of_found)

    has_conditions = await when_there_is_room(
        "a conditional put", lambda: are_conditions_kept(store, bucket, cluster_id, incarnation), on_full
    )
    return Claimant(
        store,
        bucket,
        cluster_id,
        incarnation,
        has_conditions,
        clock,
        lambda: publisher.image,
        record,
        on_full,
    )


async def when_there_is_room(what: str, put: Callable[[], Awaitable[T]], on_full: OnFull) -> T:
    """What `put` gives, once the store has room for it: others delete, or the operator does."""
    attempts = 0
    while True:
        try:
            return await put()
        except StoreFull as error:
            attempts += 1
            on_full(what, attempts, error)
            await asyncio.sleep(FULL_WAIT_S)
