"""The one number that bounds requests in flight: who holds how much of it, and who waits for it, in order.

Pure: it counts and keeps the line; connections pause and resume themselves. Charged are frames from their admission until their
reply was handed to the transport, large frames whole once a part of them is here, and what a slow reader leaves unsent.

    used_bytes < limit_bytes     the next in line is admitted, however large its frame

so that use is bounded by the limit plus one frame, and a frame larger than the limit still passes. While anybody waits nobody
overtakes: one that was woken is admitted for one frame, then goes to the end of the line.

There are three such lines, so that those who wait for one thing do not hold up those who want another: producers that wait for room in
the WAL keep their frames, readers that do not read keep their replies, and neither may keep a heartbeat out, or the deletion that would
make room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

FETCH_KEY = 1
# APIs whose answers are about as small as their requests: produce, offsets, coordinators and groups, handshakes, creations and deletions,
# producer ids and transactions. They never wait for those who do not read.
BRIEFLY_ANSWERED = frozenset((0, 8, 10, 11, 12, 13, 14, 17, 18, 19, 20, 21, 22, 24, 25, 26, 28, 36, 68))
OTHERS_FACTOR = 4
# JoinGroup and SyncGroup: what they bring is the group's from then on, and their answers may be a long time coming.
KEPT_BY_GROUPS = frozenset((11, 14))


class RequestMemory:
    """`defer` runs a call soon, outside the caller's stack: a release must not run other connections' requests inside it."""

    def __init__(self, limit_bytes: int, defer: Callable[[Callable[[], None]], object]) -> None:
        assert limit_bytes > 0, limit_bytes
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waits_count = 0
        self._defer = defer
        self.on_short: Callable[[], object] = lambda: None  # somebody has to wait, since all is used
        self._line: OrderedDict[Hashable, Callable[[], None]] = OrderedDict()
        self._is_waking = False

    @property
    def is_short(self) -> bool:
        """Somebody waits."""
        return bool(self._line)

    @property
    def waiting_count(self) -> int:
        return len(self._line)

    def take(self, size_bytes: int, *, is_turn: bool = False) -> bool:
        """Admits `size_bytes`, or says no and changes nothing. `is_turn`: the caller was just woken, the line is behind it."""
        if self.used_bytes >= self.limit_bytes or (self._line and not is_turn):
            return False
        self.used_bytes += size_bytes
        return True

    def charge(self, size_bytes: int) -> None:
        """Counts what cannot be refused any more: bytes that wait in a transport."""
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, self.used_bytes
        if self._line and not self._is_waking and self.used_bytes < self.limit_bytes:
            self._is_waking = True
            self._defer(self._wake)

    def wait(self, who: Hashable, on_room: Callable[[], None]) -> None:
        """Joins the end of the line, and says so to `on_short` when all is used. `on_room` is called once, in turn; it may take or leave what
        it asked for."""
        assert who not in self._line
        self.waits_count += 1
        self._line[who] = on_room
        if self.used_bytes >= self.limit_bytes:
            self.on_short()
        elif not self._is_waking:
            self._is_waking = True
            self._defer(self._wake)

    def forget(self, who: Hashable) -> None:
        """Leaves the line, if in it."""
        self._line.pop(who, None)

    def _wake(self) -> None:
        self._is_waking = False
        for _ in range(len(self._line)):
            if not self._line or self.used_bytes >= self.limit_bytes:
                return
            self._line.popitem(last=False)[1]()
        if self._line and self.used_bytes < self.limit_bytes and not self._is_waking:
            self._is_waking = True
            self._defer(self._wake)


class RequestBudget:
    """The whole number in three parts, each with a line of its own.

    bulk      a half: requests with records, and all large frames
    brief     a quarter: all other requests
    replies   a quarter: what readers leave unsent. While it is used up no Fetch is begun, nor, far above it, anything else whose answer may
              be long
    """

    def __init__(self, limit_bytes: int, defer: Callable[[Callable[[], None]], object]) -> None:
        self.bulk = RequestMemory(max(1, limit_bytes // 2), defer)
        self.brief = RequestMemory(max(1, limit_bytes // 4), defer)
        self.replies = RequestMemory(max(1, limit_bytes // 4), defer)
        self._all = (self.bulk, self.brief, self.replies)

    @property
    def used_bytes(self) -> int:
        return sum(part.used_bytes for part in self._all)

    @property
    def waits_count(self) -> int:
        return sum(part.waits_count for part in self._all)

    @property
    def waiting_count(self) -> int:
        return sum(part.waiting_count for part in self._all)

    def of_frames(self, is_bulk: bool) -> RequestMemory:
        return self.bulk if is_bulk else self.brief

    def take_at_once(self, size_bytes: int, is_bulk: bool) -> bool:
        """Admits a frame of whatever API where nobody waits and nothing is used up. False says nothing: ask in order then."""
        memory = self.bulk if is_bulk else self.brief
        if (
            memory.used_bytes >= memory.limit_bytes
            or memory.is_short
            or self.replies.used_bytes >= self.replies.limit_bytes
        ):
            return False
        memory.used_bytes += size_bytes
        return True

    def is_held_by_readers(self, key: int, *, is_turn: bool) -> bool:
        """Whether a request of this API has to wait until readers have read."""
        replies = self.replies
        if replies.used_bytes < replies.limit_bytes or key in BRIEFLY_ANSWERED:
            return False
        if key != FETCH_KEY and replies.used_bytes < OTHERS_FACTOR * replies.limit_bytes:
            return False
        return not replies.take(0, is_turn=is_turn)

    def forget(self, who: Hashable) -> None:
        for part in self._all:
            part.forget(who)
