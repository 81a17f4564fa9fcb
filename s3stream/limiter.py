"""Token buckets, and the line of those who wait for one: by tier, with ageing. Pure; time arrives as an
argument, in microseconds.

Traffic of the tiers WAL and UPLOAD is charged and never waits. The others queue: TAIL before COMPACTION
before CATCH_UP, as long as they asked at about the same time. A request's place is the time when it asked
plus its tier's handicap, so a lower tier waits behind a higher one only for what was asked within the
handicap: it ages past the rest, and none starves. A large request passes in chunks, and after each chunk
takes a new place: it does not hold up the small ones of its tier either.

    passes when the bucket is above zero        charged then, so that one slice of debt is possible and any
                                                size passes in the end
    or when the reserve is                      a tenth of the rate, which those who never wait cannot use up

What never waits runs into debt, up to DEBT_MS of the rate; beyond it is forgotten. The line holds
`waiting_max`: when one more comes, whoever has the last place is refused, be it the newcomer or not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from enum import IntEnum

from millrace.protocol.dataclass import dataclass

CHUNK_BYTES = 1 << 20
BURST_MS = 100
DEBT_MS = 4_000
RESERVE_PART = 10
WAITING_MAX = 1024
_US = 1_000_000


class Tier(IntEnum):
    """Whose traffic it is. WAL: the write-ahead log's own. UPLOAD: what was produced. TAIL: a reader waits
    for it. CATCH_UP: read ahead for a reader of history."""

    WAL = 0
    UPLOAD = 1
    TAIL = 2
    COMPACTION = 3
    CATCH_UP = 4


# How long after a lower tier a higher one may ask and still go first.
HANDICAP_US: Mapping[Tier, int] = {
    Tier.WAL: 0,
    Tier.UPLOAD: 0,
    Tier.TAIL: 0,
    Tier.COMPACTION: 500_000,
    Tier.CATCH_UP: 2_000_000,
}


class TokenBucket:
    """Counts in millionths of a byte, so that no time is lost to rounding."""

    __slots__ = ("_at_us", "_burst", "_debt", "_level", "bytes_per_s")

    def __init__(self, bytes_per_s: int, now_us: int, debt_ms: int = DEBT_MS) -> None:
        self._at_us = now_us
        self._level = 0
        self.set_rate(bytes_per_s, debt_ms)
        self._level = self._burst

    def __repr__(self) -> str:
        return f"{self._level // _US}B at {self.bytes_per_s}B/s"

    def set_rate(self, bytes_per_s: int, debt_ms: int = DEBT_MS) -> None:
        assert bytes_per_s > 0, bytes_per_s
        self.bytes_per_s = bytes_per_s
        self._burst = max(CHUNK_BYTES * _US, bytes_per_s * BURST_MS * 1000)
        self._debt = max(CHUNK_BYTES * _US, bytes_per_s * debt_ms * 1000)
        self._level = max(-self._debt, min(self._level, self._burst))

    def refill(self, now_us: int) -> None:
        if now_us > self._at_us:
            self._level = min(self._burst, self._level + self.bytes_per_s * (now_us - self._at_us))
            self._at_us = now_us

    def take(self, size_bytes: int) -> None:
        self._level = max(-self._debt, self._level - size_bytes * _US)

    @property
    def is_open(self) -> bool:
        return self._level > 0

    @property
    def opens_in_us(self) -> int:
        return 0 if self._level > 0 else -self._level // self.bytes_per_s + 1


class Ticket:
    """One request in the line. `place_us`: lower goes first."""

    __slots__ = ("asked_us", "has_passed", "is_refused", "left_bytes", "number", "place_us", "tier")

    def __init__(self, tier: Tier, size_bytes: int, now_us: int, number: int) -> None:
        self.tier = tier
        self.left_bytes = size_bytes
        self.asked_us = now_us
        self.place_us = 0
        self.number = number
        self.has_passed = False
        self.is_refused = False

    @property
    def place(self) -> tuple[int, int]:
        return (self.place_us, self.number)

    def __repr__(self) -> str:
        return f"{self.tier.name} {self.left_bytes}B at {self.place_us}"


@dataclass(slots=True)
class TierCount:
    bytes: int = 0
    requests: int = 0
    waits: int = 0
    wait_us: int = 0
    waiting: int = 0
    refused: int = 0


class TierQueue:
    """One bucket and who waits for it. `bytes_per_s` None: without a limit, everything passes and is
    counted."""

    def __init__(self, bytes_per_s: int | None, now_us: int = 0, waiting_max: int = WAITING_MAX) -> None:
        self.counts = {tier: TierCount() for tier in Tier}
        self._waiting_max = waiting_max
        self._waiting: list[Ticket] = []  # in order of their places
        self._number = 0
        self._bucket: TokenBucket | None = None
        self._reserve: TokenBucket | None = None
        self.set_rate(bytes_per_s, now_us)

    def __repr__(self) -> str:
        return f"{self._bucket or 'no limit'}: {', '.join(map(repr, self._waiting)) or 'nobody waits'}"

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def bytes_per_s(self) -> int | None:
        return None if self._bucket is None else self._bucket.bytes_per_s

    def set_rate(self, bytes_per_s: int | None, now_us: int) -> None:
        if bytes_per_s is None:
            self._bucket = self._reserve = None
        elif self._bucket is None or self._reserve is None:
            self._bucket = TokenBucket(bytes_per_s, now_us)
            self._reserve = TokenBucket(max(1, bytes_per_s // RESERVE_PART), now_us)
        else:
            self._refill(now_us)
            self._bucket.set_rate(bytes_per_s)
            self._reserve.set_rate(max(1, bytes_per_s // RESERVE_PART))

    def charge(self, tier: Tier, size_bytes: int, now_us: int) -> None:
        """Takes without waiting."""
        count = self.counts[tier]
        count.requests += 1
        count.bytes += size_bytes
        if self._bucket is not None:
            self._refill(now_us)
            self._bucket.take(size_bytes)

    def ask(self, tier: Tier, size_bytes: int, now_us: int) -> tuple[Ticket, list[Ticket]]:
        """The request's ticket, and all that were settled by this: passed or refused, the newcomer perhaps
        among them."""
        self._number += 1
        ticket = Ticket(tier, size_bytes, now_us, self._number)
        count = self.counts[tier]
        count.requests += 1
        self._join(ticket, now_us)
        settled = self.pass_due(now_us)
        if not ticket.has_passed:
            count.waits += 1
            if len(self._waiting) > self._waiting_max:
                last = self._waiting[-1]
                last.is_refused = True
                self.counts[last.tier].refused += 1
                self.leave(last, now_us)
                settled.append(last)
        return ticket, settled

    def leave(self, ticket: Ticket, now_us: int) -> None:
        """Gives its place up; what it took of the bucket is gone. Nothing happens when it has passed."""
        place = bisect_left(self._waiting, ticket.place, key=_place_of)
        if place < len(self._waiting) and self._waiting[place] is ticket:
            del self._waiting[place]
            self.counts[ticket.tier].waiting -= 1
            self.counts[ticket.tier].wait_us += now_us - ticket.asked_us

    def pass_due(self, now_us: int) -> list[Ticket]:
        """Lets through, in order, those for whom there is enough by now."""
        passed: list[Ticket] = []
        self._refill(now_us)
        while self._waiting:
            ticket = self._waiting[0]
            chunk_bytes = ticket.left_bytes if self._bucket is None else min(ticket.left_bytes, CHUNK_BYTES)
            if not self._pays(chunk_bytes):
                break
            del self._waiting[0]
            count = self.counts[ticket.tier]
            count.waiting -= 1
            count.bytes += chunk_bytes
            ticket.left_bytes -= chunk_bytes
            if ticket.left_bytes:
                self._join(ticket, now_us)
            else:
                count.wait_us += now_us - ticket.asked_us
                ticket.has_passed = True
                passed.append(ticket)
        return passed

    def wakes_in_us(self) -> int | None:
        """After how long `pass_due` has something to do; None when nobody waits."""
        if not self._waiting:
            return None
        if self._bucket is None or self._reserve is None:
            return 0
        return min(self._bucket.opens_in_us, self._reserve.opens_in_us)

    def _join(self, ticket: Ticket, now_us: int) -> None:
        ticket.place_us = now_us + HANDICAP_US[ticket.tier]
        insort(self._waiting, ticket, key=_place_of)
        self.counts[ticket.tier].waiting += 1

    def _pays(self, size_bytes: int) -> bool:
        if self._bucket is None or self._reserve is None:
            return True
        for bucket in (self._bucket, self._reserve):
            if bucket.is_open:
                bucket.take(size_bytes)
                return True
        return False

    def _refill(self, now_us: int) -> None:
        if self._bucket is not None and self._reserve is not None:
            self._bucket.refill(now_us)
            self._reserve.refill(now_us)


def _place_of(ticket: Ticket) -> tuple[int, int]:
    return ticket.place
