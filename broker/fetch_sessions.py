"""Incremental fetch sessions (KIP-227): what each consumer wants, remembered, so that it need only send what changed. Pure.

A full request (epoch 0) may open a session; the next ones (epoch 1, 2, ...) name the partitions that changed or go, and are answered
with those that have news. Epoch -1 ends a session, or wants none.

    request id, epoch      meaning
    0, 0                   full; a session is opened if there is a slot
    0, -1                  full; no session
    n, 0                   full; session n ends, another is opened
    n, -1                  full; session n ends
    n, e > 0               increment of session n, whose next epoch must be e

Slots are few. A new session may take the place of one idle for `idle_ms`, or of the smallest one that is smaller than itself and older
than `idle_ms`; else the answer has session id 0, which is always legal. `partitions_max` bounds what all sessions together remember.

Not here: reading partitions, waiting (waiters.py: a session is one watcher for as long as it lives).

Invariant: an item is in `FetchSession.items` exactly while its watch belongs to the session's watcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from millrace.broker.waiters import Watch, Watcher
from millrace.protocol.error_codes import ErrorCode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION_ID = 0
EPOCH_MAX = 2**31 - 1
NOTHING_SENT = -1

Topic = str | bytes  # a name below Fetch version 13, an id from then on
Key = tuple[Topic, int]


class FetchItem(Watch):
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
    watcher: Watcher
    created_ms: int
    used_ms: int


class FetchKind(Enum):
    SESSIONLESS = "sessionless"
    FULL = "full"
    INCREMENT = "increment"


@dataclass(slots=True)
class FetchPlan:
    """What one request turned out to be. `error_code` other than 0 is the whole answer. `session` for increments alone."""

    kind: FetchKind
    items: list[FetchItem]
    session: FetchSession | None = None
    epoch: int = 0
    error_code: int = 0


class FetchSessions:
    """The slots. `next_id` gives a random id in [1, 2^31); times are the monotonic clock's."""

    def __init__(
        self, next_id: Callable[[], int], *, slots: int = 1000, idle_ms: int = 120_000, partitions_max: int = 1_000_000
    ) -> None:
        self._next_id = next_id
        self._slots = slots
        self._idle_ms = idle_ms
        self._partitions_max = partitions_max
        self._partitions_count = 0
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.evictions_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions_count(self) -> int:
        return self._partitions_count

    def begin(
        self, session_id: int, epoch: int, uses_ids: bool, items: list[FetchItem], forgotten: Iterable[Key], now_ms: int
    ) -> FetchPlan:
        """What a request is; an increment is folded into its session here."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != NO_SESSION_ID:
                self._drop(self._sessions.get(session_id))
            return FetchPlan(FetchKind.SESSIONLESS if epoch == FINAL_EPOCH else FetchKind.FULL, items)
        session = self._sessions.get(session_id)
        if session is None:
            return FetchPlan(FetchKind.INCREMENT, [], error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return FetchPlan(FetchKind.INCREMENT, [], error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != uses_ids:
            return FetchPlan(FetchKind.INCREMENT, [], error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if self._partitions_count + len(items) > self._partitions_max + len(session.items):
            self._drop(session)
            return FetchPlan(FetchKind.INCREMENT, [], error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._fold(session, items, forgotten)
        if not session.items:
            self._drop(session)
            return FetchPlan(FetchKind.SESSIONLESS, [])
        self._touch(session, now_ms)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return FetchPlan(FetchKind.INCREMENT, items, session, session.epoch)

    def open(self, items: list[FetchItem], uses_ids: bool, watcher: Watcher, now_ms: int) -> FetchSession | None:
        """A new session over the items of a full request, or None: no slot. `watcher` becomes the session's, with all the items."""
        by_key = {item.key: item for item in items}
        if not by_key or not self._make_room(len(by_key), now_ms):
            return None
        session_id = self._next_id()
        while session_id == NO_SESSION_ID or session_id in self._sessions:
            session_id = self._next_id()
        session = FetchSession(session_id, 1, uses_ids, by_key, watcher, now_ms, now_ms)
        self._sessions[session_id] = session
        self._partitions_count += len(by_key)
        for item in items:
            if by_key[item.key] is not item:
                watcher.remove(item)
        return session

    def clear(self) -> None:
        for session in list(self._sessions.values()):
            self._drop(session)

    def _fold(self, session: FetchSession, items: list[FetchItem], forgotten: Iterable[Key]) -> None:
        for key in forgotten:
            gone = session.items.pop(key, None)
            if gone is not None:
                self._partitions_count -= 1
                session.watcher.remove(gone)
        for item in items:
            known = session.items.get(item.key)
            if known is None:
                session.items[item.key] = item
                self._partitions_count += 1
                session.watcher.add(item)
            else:
                known.want(item)
                session.watcher.mark(known)

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        session.used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)

    def _drop(self, session: FetchSession | None) -> None:
        if session is None or self._sessions.pop(session.id, None) is None:
            return
        session.epoch = FINAL_EPOCH  # a fetch that is parked in it sees that it is over
        self._partitions_count -= len(session.items)
        for item in session.items.values():
            session.watcher.remove(item)
        session.watcher.wake()

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
        settled = [s for s in self._sessions.values() if now_ms - s.created_ms > self._idle_ms and len(s.items) < size]
        return min(settled, key=lambda session: (len(session.items), session.id), default=None)
