"""Incremental fetch sessions (KIP-227): what each consumer wants, remembered, so that it need only send what
changed. Pure.

A full request (epoch 0) may open a session; the next ones (epoch 1, 2, ...) name the partitions that changed
or go, and are answered with those that have news. Epoch -1 ends a session, or wants none.

    request id, epoch      meaning
    0, 0                   full; a session is opened if there is a slot
    0, -1                  full; no session
    n, 0                   full; session n ends, another is opened
    n, -1                  full; session n ends
    n, e > 0               increment of session n, whose next epoch must be e

Slots are few. A new session may take the place of one idle for `idle_ms`, or of the smallest one that is
smaller than itself and older than `idle_ms`; else the answer has session id 0, which is always legal.
`partitions_max` bounds what all sessions together remember, and with it their memory (`partitions_within`).

A session may hold 100,000 partitions: what an increment changes may be folded in in parts, and what a large
session leaves behind goes ITEMS_PER_CHUNK at a time, after the session is gone from its slot.

Not here: reading partitions, waiting (purgatory.py: a session is one subscriber for as long as it lives).

Invariant: an item is in `FetchSession.items` exactly while its subscription belongs to the session's
subscriber.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum

from millrace.broker.purgatory import Subscriber, Subscription
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION_ID = 0
EPOCH_MAX = 2**31 - 1
NOTHING_SENT = -1
PARTITIONS_MAX = 1_000_000
PARTITION_BYTES = 320  # what a remembered partition takes: the item, its key and its places
MEMORY_SHARES = 4
ITEMS_PER_CHUNK = 1_000  # about a millisecond

Topic = str | bytes  # a name below Fetch version 13, an id from then on
Key = tuple[Topic, int]


class FetchItem(Subscription):
    """One partition of a fetch: what is wanted of it, and of a session's what its consumer was last told."""

    __slots__ = (
        "fetch_offset",
        "last_fetched_epoch",
        "leader_epoch",
        "max_bytes",
        "partition",
        "sent_high_watermark",
        "sent_log_start",
        "topic",
    )

    def __init__(
        self,
        topic: Topic,
        partition: int,
        fetch_offset: int,
        max_bytes: int,
        leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.sent_high_watermark = NOTHING_SENT
        self.sent_log_start = NOTHING_SENT

    @property
    def key(self) -> Key:
        return self.topic, self.partition

    def want(self, other: FetchItem) -> None:
        """Takes over what a later request asks of the same partition."""
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.leader_epoch = other.leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch

    def is_news(self, error_code: int, high_watermark: int, log_start: int, has_records: bool) -> bool:
        """Whether an increment has to hold this partition; from now on its consumer counts as told."""
        is_news = (
            error_code != 0
            or has_records
            or high_watermark != self.sent_high_watermark
            or log_start != self.sent_log_start
        )
        self.sent_high_watermark = NOTHING_SENT if error_code else high_watermark
        self.sent_log_start = log_start
        return is_news


@dataclass(slots=True, eq=False)
class FetchSession:
    """`epoch` is what the next request of the session must carry; -1 once it is over."""

    id: int
    epoch: int
    uses_ids: bool
    items: dict[Key, FetchItem]
    subscriber: Subscriber
    created_ms: int
    used_ms: int


class FetchKind(Enum):
    SESSIONLESS = "sessionless"
    FULL = "full"
    INCREMENT = "increment"


@dataclass(slots=True)
class FetchPlan:
    """What one request turned out to be. `error_code` other than 0 is the whole answer. `session` for
    increments alone."""

    kind: FetchKind
    items: dict[Key, FetchItem]
    session: FetchSession | None = None
    epoch: int = 0
    error_code: int = 0


def partitions_within(requests_bytes: int) -> int:
    """How many partitions sessions may remember beside so much memory for requests in flight: a share of
    it."""
    return min(PARTITIONS_MAX, requests_bytes // MEMORY_SHARES // PARTITION_BYTES)


class FetchSessions:
    """The slots. `next_id` gives a random id in [1, 2^31); times are the monotonic clock's."""

    def __init__(
        self,
        next_id: Callable[[], int],
        *,
        slots: int = 1000,
        idle_ms: int = 120_000,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self._next_id = next_id
        self._slots = slots
        self._idle_ms = idle_ms
        self._partitions_max = partitions_max
        self._partitions_count = 0
        self._leaving: deque[FetchSession] = deque()  # gone, with items that are subscribed yet
        self.on_leaving: Callable[[], None] = lambda: (
            None
        )  # `leave_some` is to be called until nothing is left
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.evictions_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions_count(self) -> int:
        return self._partitions_count

    def begin(
        self, session_id: int, epoch: int, uses_ids: bool, items: dict[Key, FetchItem], now_ms: int
    ) -> FetchPlan:
        """What a request is; an increment is to be folded into its session then."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != NO_SESSION_ID:
                self._drop(self._sessions.get(session_id))
            return FetchPlan(FetchKind.SESSIONLESS if epoch == FINAL_EPOCH else FetchKind.FULL, items)
        session = self._sessions.get(session_id)
        if session is None:
            return FetchPlan(FetchKind.INCREMENT, {}, error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return FetchPlan(FetchKind.INCREMENT, {}, error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != uses_ids:
            return FetchPlan(FetchKind.INCREMENT, {}, error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self._touch(session, now_ms)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return FetchPlan(FetchKind.INCREMENT, items, session, session.epoch)

    def fold(self, plan: FetchPlan, forgotten: Iterable[Key], items: Iterable[tuple[Key, FetchItem]]) -> None:
        """Makes its session what an increment asks for, or a part of that; what it both asks for and forgets
        is forgotten, as in Kafka. Nothing where the session went on without it. Changes the plan where it
        would be too much."""
        session = plan.session
        if session is None or session.epoch != plan.epoch:
            return
        for key, item in items:
            known = session.items.get(key)
            if known is not None:
                known.want(item)
                session.subscriber.mark_dirty(known)
            elif self._partitions_count >= self._partitions_max:
                self._drop(session)
                plan.session, plan.error_code = None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
                return
            else:
                session.items[key] = item
                self._partitions_count += 1
                session.subscriber.add(item)
        for key in forgotten:
            gone = session.items.pop(key, None)
            if gone is not None:
                self._partitions_count -= 1
                session.subscriber.remove(gone)

    def end_fold(self, plan: FetchPlan) -> None:
        """All of it was: a session that has nothing left ends, and what was asked for is answered without
        one."""
        session = plan.session
        if session is not None and not session.items:
            self._drop(session)
            plan.kind, plan.session = FetchKind.SESSIONLESS, None

    def open(
        self, items: dict[Key, FetchItem], uses_ids: bool, subscriber: Subscriber, now_ms: int
    ) -> FetchSession | None:
        """A new session over the items of a full request, or None: no slot. `subscriber` becomes the
        session's, with all the items."""
        if not items or not self._make_room(len(items), now_ms):
            return None
        session_id = self._next_id()
        while session_id == NO_SESSION_ID or session_id in self._sessions:
            session_id = self._next_id()
        session = FetchSession(session_id, 1, uses_ids, items, subscriber, now_ms, now_ms)
        self._sessions[session_id] = session
        self._partitions_count += len(items)
        return session

    def clear(self) -> None:
        for session in list(self._sessions.values()):
            self._drop(session)

    def leave_some(self) -> bool:
        """Ends the subscriptions of some that a session left behind; whether there are more."""
        left = ITEMS_PER_CHUNK
        while self._leaving and left:
            session = self._leaving[0]
            while session.items and left:
                session.subscriber.remove(session.items.popitem()[1])
                left -= 1
            if not session.items:
                self._leaving.popleft()
        return bool(self._leaving)

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        session.used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)

    def _drop(self, session: FetchSession | None) -> None:
        if session is None or self._sessions.pop(session.id, None) is None:
            return
        session.epoch = FINAL_EPOCH  # a fetch that is delayed in it sees that it is over
        self._partitions_count -= len(session.items)
        session.subscriber.complete()
        self._leaving.append(session)
        if len(self._leaving) == 1 and self.leave_some():
            self.on_leaving()

    def _make_room(self, size: int, now_ms: int) -> bool:
        while len(self._sessions) >= self._slots or self._partitions_count + size > self._partitions_max:
            victim = self._victim(size, now_ms)
            if victim is None:
                return False
            self._drop(victim)
            self.evictions_count += 1
        return True

    def _victim(self, size: int, now_ms: int) -> FetchSession | None:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return None
        if now_ms - oldest.used_ms > self._idle_ms:
            return oldest
        settled = [
            s
            for s in self._sessions.values()
            if now_ms - s.created_ms > self._idle_ms and len(s.items) < size
        ]
        return min(settled, key=lambda session: (len(session.items), session.id), default=None)
