"""Watches that this process is still the owner of its node: looks for the claim that would follow its own,
every few seconds.

    look (a HEAD of the next number of each series) ──none──► verified, as of when the look began
                                                   └─found──► replaced: told once, and verify fails for good

A newer claim is seen within EVERY_S + JITTER_S + two attempts while the store answers, which is under ten
seconds; while it does not the process goes on and a gauge says since when nothing is known. What is made
final (a commit, a deletion) waits for a look that began after the work did, and for one that is no older than
TRUSTED_S, since a process may have been halted in between.

    open ──HALT_MS passed between two notes──► held, looks at once
        ──a look without a halt in it, none newer──► open
                                                                 └─found──► replaced: held for good

A note of the time is taken every second, by a timer, and whenever somebody asks for the gate. A stop
(SIGSTOP), a suspended machine and a loop that stood are all the same to it: within HALT_MS nobody has noticed
that this process is away, claimed its node and begun to serve; after that, what became durable is
acknowledged by nobody before a look that began later. A store that is away holds nothing up by itself. Not
seen: a hypervisor that stops a machine together with all its clocks. Not here: claims (claims.py), what ends
when it was replaced (app.py), what is held (s3stream/storage.py, kraft/driver.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from millrace.broker.identity.claim_format import (
    ClaimCorrupt,
    OwnerClaim,
    claim_key,
    decode_claim,
)
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.protocol.ids import uuid_text
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Closed, Exhausted, Fenced, MillraceError, Unavailable
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, StoreDenied
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import StreamRange, StreamRole, Writer, token_of

log = logging.getLogger(__name__)
EVERY_S, JITTER_S = 5.0, 1.0
AGAIN_S = 1.0  # after a look that was not answered
ATTEMPT_MS = 2_000  # for one HEAD
TRUSTED_S = 10.0
HALT_MS = 5_000
NOTE_S = 1.0
TOLD_MAX, NAMED_MAX = 1000, 20  # partitions in the log, and in the sentence
ASKED_MAX = 4  # looks for one who waits, before it is told that the store does not answer
NODE_TAKEN = (
    "is another broker, which recovers this node's write-ahead log while the node is away (then nothing is "
    "lost), or was started on a copy of this node's log directory, or took over by an operator's word"
)
LOG_TAKEN = (
    "is the controller that leads now (then all is well), or leads another quorum over this bucket, of "
    "voters that were told another list or restored, or was started on a copy of this node's log directory"
)
NOT_NOW = (Unavailable, Exhausted, StoreDenied, ObjectMissing)


class Replaced(Fenced):
    """Another incarnation has claimed the node. `left`: what was acknowledged here and is in this process's
    WAL alone, in words."""

    def __init__(self, own: OwnerClaim, key: str, found: OwnerClaim | None) -> None:
        super().__init__(own, key, found)
        self.own = own
        self.key = key
        self.found = found
        self.left = ""

    def __str__(self) -> str:
        who = "another process" if self.found is None else f"incarnation {uuid_text(self.found.incarnation)}"
        what, why, remedy = f"node {self.own.series}", NODE_TAKEN, "let one process run with this node.id"
        if self.own.series == METADATA_SERIES:
            what, why, remedy = "the metadata log", LOG_TAKEN, "let one quorum use this bucket, and " + remedy
        return (
            f"{who} has taken {what} over from this one, incarnation {uuid_text(self.own.incarnation)}, by "
            f"the claim {self.key}: it {why}; nothing more is committed or deleted here{self.left}; {remedy}"
        )


class Owner:
    """An Ownership and an AckGate. `on_replaced` is told once, from the look that found it: whether that is
    as it should be is known there."""

    def __init__(
        self,
        store: ObjectStore,
        claims: Sequence[OwnerClaim],
        node_id: int,
        rand: Rand,
        on_replaced: Callable[[Replaced], None],
        clock: Clock,
        *,
        is_conditional: bool,
    ) -> None:
        """`store` fails what is not answered within ATTEMPT_MS, at the first attempt. `claims` are of one
        incarnation, just made."""
        self.writer = Writer(node_id, token_of(claims[0].incarnation))
        self.is_conditional = is_conditional
        self.unanswered_count = 0
        self._store = store
        self._claims = tuple(claims)
        self._rand = rand
        self._on_replaced = on_replaced
        self.halt_count = 0
        self._elapsed_ms = clock.elapsed_ms
        self._noted_ms = clock.elapsed_ms()
        self._is_open = True
        self._held_since_s = 0.0
        self._halted = asyncio.Event()  # set while a halt waits for its look
        self._settled = asyncio.Event()  # cleared while it does
        self._settled.set()
        self._is_over = False
        self._timer: asyncio.TimerHandle
        self._looking = asyncio.Lock()
        self._verified_s = asyncio.get_running_loop().time()
        self._replaced: Replaced | None = None

    @property
    def age_s(self) -> float:
        """Since the last look that the store answered."""
        return asyncio.get_running_loop().time() - self._verified_s

    @property
    def held_s(self) -> float:
        """For how long acknowledgements wait; 0 while they do not."""
        return 0.0 if self._is_open else asyncio.get_running_loop().time() - self._held_since_s

    @property
    def held_reason(self) -> str:
        """Why acknowledgements wait, or "" while they do not."""
        if self._is_open:
            return ""
        if self._replaced is not None:
            return "another process has taken the node over"
        return (
            "the process stood still, and the store has not said yet whether the node was taken over "
            "meanwhile"
        )

    def may_acknowledge(self) -> bool:
        """As AckGate."""
        self._note()
        return self._is_open

    async def wait_to_acknowledge(self) -> None:
        """As AckGate: raises Fenced where a newer owner was found, Closed where the looks have ended."""
        while not self.may_acknowledge():
            if self._replaced is not None:
                raise self._replaced
            if self._is_over:
                raise Closed(f"the looks for a newer owner have ended, and {self.held_reason}")
            await self._settled.wait()

    def _note(self) -> None:
        """That the process runs now."""
        now_ms = self._elapsed_ms()
        away_ms, self._noted_ms = now_ms - self._noted_ms, now_ms
        if away_ms > HALT_MS:
            self._on_halt(away_ms)

    def _note_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(NOTE_S, self._note_again)
        self._note()

    def _on_halt(self, away_ms: int) -> None:
        self.halt_count += 1
        log.warning(
            "ownership: the process stood still for %.1f s: nothing is acknowledged until the store has said "
            "that nobody took the "
            "node over meanwhile",
            away_ms / 1000,
        )
        if self._is_open:
            self._is_open, self._held_since_s = False, asyncio.get_running_loop().time()
        self._halted.set()
        if self._replaced is None and not self._is_over:
            self._settled.clear()

    def _release(self) -> None:
        if not self._is_open:
            log.info(
                "ownership: nobody has claimed the node in the bucket meanwhile: acknowledgements are held "
                "no more for that, after %.2f s",
                self.held_s,
            )
            self._is_open = True
            self._halted.clear()
            self._settled.set()

    async def run(self) -> None:
        """Until cancelled, or replaced."""
        self._note_again()
        try:
            await self._look_for_ever()
        finally:
            self._timer.cancel()

    def close(self) -> None:
        """Behind the end of `run`: who waits to acknowledge is told that nobody looks any more."""
        self._is_over = True
        self._settled.set()

    async def _look_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while self._replaced is None:
            before_s = self._verified_s
            await self._until_due(before_s + EVERY_S + JITTER_S * self._rand.fraction())
            if self._verified_s > before_s and self._is_open:
                continue  # a commit has looked meanwhile
            try:
                await self._look(loop.time())
            except Replaced:
                return
            except NOT_NOW as error:
                what = (
                    "the node goes on"
                    if self._is_open
                    else "acknowledgements wait, for the process stood still"
                )
                log.warning(
                    "ownership: the store did not answer whether this node was taken over, %s: %s",
                    what,
                    error,
                )
                await asyncio.sleep(AGAIN_S)

    async def _until_due(self, due_s: float) -> None:
        """Or until there was a halt."""
        try:
            async with asyncio.timeout_at(due_s):
                await self._halted.wait()
        except TimeoutError:
            pass

    async def verify(self, since_s: float) -> None:
        """As Ownership. Cancelling loses nothing."""
        loop = asyncio.get_running_loop()
        self._note()
        since_s = max(since_s, loop.time() - TRUSTED_S)
        for left in reversed(range(ASKED_MAX)):
            try:
                await self._look(since_s)
                return
            except NOT_NOW:
                if not left:
                    raise
            await asyncio.sleep(AGAIN_S * self._rand.fraction())

    async def _look(self, since_s: float) -> None:
        """Unless a look since then has been answered, with no halt behind it; those who ask meanwhile share
        it."""
        async with self._looking:
            if self._replaced is not None:
                raise self._replaced
            while self._verified_s < since_s or not self._is_open:
                await self._look_once()

    async def _look_once(self) -> None:
        """Again where the process was halted meanwhile."""
        self._note()
        began_s, halt_count = asyncio.get_running_loop().time(), self.halt_count
        try:
            keys = [claim_key(one.cluster_id, one.series, one.number + 1) for one in self._claims]
            heads = await asyncio.gather(*map(self._store.head, keys))
        except NOT_NOW:
            self.unanswered_count += 1
            raise
        for claim, key, head in zip(self._claims, keys, heads, strict=True):
            if head is not None:
                await self._end(claim, key)
        self._verified_s = began_s
        self._note()
        if self.halt_count == halt_count:
            self._release()

    async def _end(self, own: OwnerClaim, key: str) -> None:
        """Raises Replaced, whoever it was."""
        found = None
        try:
            found = decode_claim(await self._store.get(key), key)
        except (ClaimCorrupt, MillraceError) as error:
            log.warning("ownership: the claim %s cannot be read: %s", key, error)
        self._replaced = Replaced(own, key, found)
        if self._is_open:
            self._is_open, self._held_since_s = False, asyncio.get_running_loop().time()
        self._settled.set()
        self._on_replaced(self._replaced)
        raise self._replaced


def left_in_wal(
    ranges: Sequence[StreamRange],
    size_bytes: int,
    image: MetadataImage,
    wal: str,
    member_id: int | None = None,
) -> str:
    """What this process acknowledged and knows in its WAL alone, in words that go on a sentence; also to the
    log, partition by partition. What `image` has as committed is left out. `member_id`: the broker that this
    is of a cluster, where another one may recover its WAL, and have done so unseen; None: of none."""
    names = {bytes(topic.topic_id): topic.name for topic in image.topics}
    rows: list[tuple[str, int, int, int]] = []
    for one in ranges:
        stream = image.streams.get(one.stream_id)
        if stream is not None and stream.role is StreamRole.DATA and stream.topic_id in names:
            start = max(one.start, image.streams.uncommitted_from(one))
            if start < one.end:
                rows.append((names[stream.topic_id], stream.partition, start, one.end))
    rows.sort()
    if not rows:
        return "; nothing was acknowledged here that is not in objects"
    count = sum(end - start for _, _, start, end in rows)
    where = f"in the WAL {wal} alone" if member_id is None else f"in the WAL {wal}, and seen in no object"
    level = logging.CRITICAL if member_id is None else logging.WARNING
    for name, partition, start, end in rows[:TOLD_MAX]:
        log.log(level, "ownership: acknowledged and %s: %s-%d [%d, %d)", where, name, partition, start, end)
    first = ", ".join(
        f"{name}-{partition} [{start}, {end})" for name, partition, start, end in rows[:NAMED_MAX]
    )
    more = f" and {len(rows) - NAMED_MAX} more partitions, in the log" if len(rows) > NAMED_MAX else ""
    told = f"; {count} records ({size_bytes} bytes) were acknowledged here and are {where}: {first}{more}"
    return told if member_id is None else told + _recovered_by(image, member_id)


def _recovered_by(image: MetadataImage, member_id: int) -> str:
    """What becomes of the WAL of a member of a cluster, as far as is known here."""
    failover = image.failovers.get(member_id)
    if failover is not None and failover.by_node >= 0:
        return f"; broker {failover.by_node} recovers that WAL, and them with it"
    return (
        "; if another broker took over it recovers that WAL, or has, and them with it: millrace cluster "
        "status tells whether partitions still wait; a process on a copy of this node's log directory does "
        "not"
    )
