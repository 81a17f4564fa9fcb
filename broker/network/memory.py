"""The one number that bounds requests in flight: who holds how much of it, and who waits for it, in order.

Pure: it counts and keeps the lines; connections pause and resume themselves. Charged are half-received frames
(arrival.py), frames from their admission until their reply was handed to the transport, and what a reader
leaves unsent.

    used_bytes < limit_bytes     the next in line is admitted, however large its frame

so that use is bounded by the limit plus one frame, and a frame larger than the limit still passes. While
anybody waits nobody overtakes: one that was woken is admitted for one frame, then goes to the end of the
line. Those who have done their part before take turns with those who have not, and in each of both classes
addresses take turns: a thousand connections of one address wait for each other, and those of another wait for
one of them; a thousand addresses that nobody knows yet wait for each other, too.

There is a line for each part, so that those who wait for one thing do not hold up those who want another:
producers that wait for room in the WAL keep their frames, readers that do not read keep their replies,
senders that do not send keep a part of a frame, and none of them may keep a heartbeat out, or the deletion
that would make room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from millrace.broker.requests.api_traits import Answer, keys

BRIEFLY_ANSWERED = keys(lambda traits: traits.answer is Answer.BRIEF)
ANSWERED_BY_SHARE = keys(lambda traits: traits.answer is Answer.SHARED)
# Beyond so many times what makes an unknown reader's Fetch wait, a known reader's waits too.
OTHERS_FACTOR = 5
# A frame up to this is charged whole to `small_arrivals` as soon as a part of it is here; a larger one step
# by step to `large_arrivals`.
SMALL_FRAME_BYTES = 64 << 10
BRIEF, BULK, LARGE = range(3)  # what a frame that is whole is charged to
WOKEN_AT_ONCE = 4  # of a line, in one iteration of the loop: each may begin what takes some milliseconds
# An answer whose size the broker may choose gets a quarter of what is free, and never less than this.
REPLY_SHARES = 4
REPLY_SHARE_BYTES_MIN = 64 << 10


Line = OrderedDict[Hashable, OrderedDict[Hashable, Callable[[], None]]]
"""Those who wait, by address; whose turn is next first."""


class RequestMemory:
    """`defer` runs a call soon, outside the caller's stack: a release must not run other connections'
    requests inside it.

    `has_overrun`: one of each class at a time may take what it likes beyond the limit. Where all that is used
    is held by those who wait for more, nobody would ever go on otherwise. The line's first is woken so, and
    may go on so until `end_overrun`.
    """

    def __init__(
        self, limit_bytes: int, defer: Callable[[Callable[[], None]], object], *, has_overrun: bool = False
    ) -> None:
        assert limit_bytes > 0, limit_bytes
        self._has_overrun = has_overrun
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waits_count = 0
        self._overrun_by: dict[bool, Hashable] = {}  # by class
        self._defer = defer
        self.on_short: Callable[[], object] = lambda: None  # somebody has to wait, since all is used
        self.on_crowded: Callable[[], object] = lambda: None  # several times the limit is used (arrival.py)
        self._groups: dict[Hashable, tuple[bool, Hashable]] = {}  # class and address of everybody in line
        self._lines: tuple[Line, Line] = (
            OrderedDict(),
            OrderedDict(),
        )  # of those who are not known, and of those who are
        self._is_turn_of_known = True
        self._is_waking = False
        self._watched_bytes = -1
        self._on_watched: Callable[[], object] = lambda: None

    @property
    def is_short(self) -> bool:
        """Somebody waits."""
        return bool(self._groups)

    @property
    def waiting_count(self) -> int:
        return len(self._groups)

    def take(self, size_bytes: int, *, is_turn: bool = False) -> bool:
        """Admits `size_bytes`, or says no and changes nothing. `is_turn`: the caller was just woken, the line
        is behind it."""
        if self.used_bytes >= self.limit_bytes or (self._groups and not is_turn):
            return False
        self.charge(size_bytes)
        return True

    def charge(self, size_bytes: int) -> None:
        """Counts what cannot be refused any more: bytes that wait in a transport, bytes that were
        received."""
        self.used_bytes += size_bytes
        if self.used_bytes >= self._watched_bytes >= 0:
            self._watched_bytes = -1
            self._on_watched()

    def watch(self, from_bytes: int, on_reached: Callable[[], object]) -> None:
        """Has `on_reached` called, once, when so much is used."""
        assert from_bytes > 0, from_bytes
        self._watched_bytes, self._on_watched = from_bytes, on_reached
        self.charge(0)

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, self.used_bytes
        self._wake_soon()

    def wait(
        self, who: Hashable, on_room: Callable[[], None], address: Hashable = None, *, is_known: bool = False
    ) -> None:
        """Joins the end of the line, and says so to `on_short` when all is used. `on_room` is called once, in
        turn; it may take or leave what it asked for. `is_known`: it has done its part before. The two classes
        take turns, and in each the addresses."""
        assert who not in self._groups
        self.waits_count += 1
        self._groups[who] = is_known, address
        self._lines[is_known].setdefault(address, OrderedDict())[who] = on_room
        if self.used_bytes >= self.limit_bytes:
            self.on_short()
        self._wake_soon()

    def forget(self, who: Hashable) -> None:
        """Leaves the line, if in it, and is overrun for no longer."""
        self.end_overrun(who)
        if who in self._groups:
            is_known, address = self._groups.pop(who)
            line = self._lines[is_known]
            del line[address][who]
            if not line[address]:
                del line[address]

    def end_overrun(self, who: Hashable) -> None:
        """It takes no more than others, if it did: the next one may."""
        for is_known, one in list(self._overrun_by.items()):
            if one is who:
                del self._overrun_by[is_known]
                self._wake_soon()

    @property
    def overrunning_count(self) -> int:
        return len(self._overrun_by)

    def is_overrun_by(self, who: Hashable) -> bool:
        return who in self._overrun_by.values()

    def _next_class(self) -> bool | None:
        """Whose turn it is; None when nobody may be woken."""
        has_room = self.used_bytes < self.limit_bytes
        for is_known in (self._is_turn_of_known, not self._is_turn_of_known):
            if self._lines[is_known] and (
                has_room or (self._has_overrun and is_known not in self._overrun_by)
            ):
                return is_known
        return None

    def _wake_soon(self) -> None:
        if self._groups and not self._is_waking and self._next_class() is not None:
            self._is_waking = True
            self._defer(self._wake)

    def _pop(self, is_known: bool) -> tuple[Hashable, Callable[[], None]]:
        self._is_turn_of_known = not is_known
        line = self._lines[is_known]
        address, members = next(iter(line.items()))
        who, on_room = members.popitem(last=False)
        del self._groups[who]
        if members:
            line.move_to_end(address)
        else:
            del line[address]
        return who, on_room

    def _wake(self) -> None:
        self._is_waking = False
        for _ in range(min(len(self._groups), WOKEN_AT_ONCE)):
            is_known = self._next_class()
            if is_known is None:
                return
            who, on_room = self._pop(is_known)
            if self.used_bytes >= self.limit_bytes:
                self._overrun_by[is_known] = who
            on_room()
        self._wake_soon()


class RequestBudget:
    """The whole number in seven parts, six of them each with a line of its own.

    bulk             five sixteenths: requests with records, when they are whole
    large            one: other requests in frames of SMALL_FRAME_BYTES or more, which producers do not wait
                     for
    brief            three: all other requests
    small_arrivals   one: parts of frames up to SMALL_FRAME_BYTES
    large_arrivals   two: parts of larger frames
    replies          three: what readers leave unsent. While it is used up no Fetch is begun, and while
                     anybody waits for it nothing else whose answer may be long. Who has read all that it was
                     sent before goes on, to OTHERS_FACTOR times as much
    wide             one: what is decoded and built of requests of many elements (requests/work.py); not
                     counted in `used_bytes`
    """

    def __init__(self, limit_bytes: int, defer: Callable[[Callable[[], None]], object]) -> None:
        def part(sixteenths: int, *, has_overrun: bool = False) -> RequestMemory:
            return RequestMemory(max(1, limit_bytes * sixteenths // 16), defer, has_overrun=has_overrun)

        self.brief = part(3)
        self.bulk = part(5)
        self.large = part(1)
        self.of_frames = self.brief, self.bulk, self.large  # BRIEF, BULK, LARGE
        self.small_arrivals = part(1, has_overrun=True)
        self.large_arrivals = part(2, has_overrun=True)
        self.replies = part(3)
        self.wide_bytes_max = max(1, limit_bytes // 16)
        self.parts = {
            "bulk": self.bulk,
            "large": self.large,
            "brief": self.brief,
            "small_arrivals": self.small_arrivals,
            "large_arrivals": self.large_arrivals,
            "replies": self.replies,
        }

    @property
    def used_bytes(self) -> int:
        return sum(part.used_bytes for part in self.parts.values())

    @property
    def waits_count(self) -> int:
        return sum(part.waits_count for part in self.parts.values())

    @property
    def waiting_count(self) -> int:
        return sum(part.waiting_count for part in self.parts.values())

    def of_arrivals(self, size_bytes: int) -> RequestMemory:
        return self.small_arrivals if size_bytes <= SMALL_FRAME_BYTES else self.large_arrivals

    def take_at_once(self, size_bytes: int, part: int) -> bool:
        """Admits a frame of whatever API where nobody waits and nothing is used up. False says nothing: ask
        in order then."""
        memory = self.of_frames[part]
        if (
            memory.used_bytes >= memory.limit_bytes
            or memory._groups
            or self.replies.used_bytes >= self.replies.limit_bytes
        ):
            return False
        memory.used_bytes += size_bytes
        return True

    def reply_share(self) -> int:
        """How large an answer may be now, where its size is ours to choose: less, the more readers leave
        unsent."""
        replies = self.replies
        return max(REPLY_SHARE_BYTES_MIN, (replies.limit_bytes - replies.used_bytes) // REPLY_SHARES)

    def is_held_by_readers(self, key: int, is_known: Callable[[], bool], *, is_turn: bool) -> bool:
        """Whether a request of this API has to wait until readers have read. `is_known`: its own client has
        read all that it was sent before."""
        replies = self.replies
        if replies.used_bytes < replies.limit_bytes or key in BRIEFLY_ANSWERED:
            return False
        if replies.used_bytes < OTHERS_FACTOR * replies.limit_bytes and (
            is_known() or (key not in ANSWERED_BY_SHARE and not replies.is_short)
        ):
            return False
        return not replies.take(0, is_turn=is_turn)

    def forget(self, who: Hashable) -> None:
        for part in self.parts.values():
            part.forget(who)
