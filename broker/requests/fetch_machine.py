"""The course of one Fetch request as a state machine. Pure: what happened comes in as an event, what to do
goes out as an effect.

                   not open              +---------+
            +--------------------------> | OPENING |
            | <------------------------- '---------'
            |       opened, or late
       +---------+   not cached          +-------------+  enough
 ----> | READING | --------------------> | REMOTE_READ | ---------+
       '---------'                       '-------------'          v
        |   ^  |     enough                     | too little   +------+
        |   |  '--------------------------------+------------> | DONE |
        |   |       bytes came, or deadline     v              '------'
        |   '--------------------------- +---------+
        '------------------------------> | DELAYED |
                    too little           '---------'

A request for very many partitions reads in chunks, with others between: events may come while it is READING
too. What becomes visible during such a pass, or during a remote read, counts: with enough of it, or a
partition that changed its leader, READING is next. A delayed operation that is force completed expires, as at
its deadline. From any state but DONE a defect leads to DONE, and DONE has no way out.

Not here: which bytes a pass finds (read_pass.py), which bytes count meanwhile (purgatory.py), timers, tasks
and the response (handlers/fetch.py, which carries the effects out). Keeps true: a request is answered once;
what expired is never delayed again.
"""

from __future__ import annotations

from collections.abc import Sized
from enum import IntEnum
from typing import Protocol


class FetchState(IntEnum):
    READING = 0  # a read pass is due, or under way
    OPENING = 1  # partitions are being opened
    REMOTE_READ = 2  # bytes come from objects
    DELAYED = 3  # in the purgatory: until enough bytes came, or its time is over
    DONE = 4  # answered, or nobody wants the answer


class FetchEvent(IntEnum):
    NOT_OPEN = 0  # a pass needs partitions that are not open
    NOT_CACHED = 1  # a pass needs bytes that are in objects
    ENOUGH = 2  # there is an answer: the minimum, an error, or whatever there is once it expired
    TOO_LITTLE = 3
    # too little was found, and so much came during the pass or the remote read that there may be enough
    OVERTAKEN = 4
    OPENED = 5
    OPENED_LATE = 6  # the wait for partitions is over, and some are not open
    SATISFIED = 7  # the missing bytes came, or a partition of it cannot wait
    EXPIRED = 8  # its time is over, or it is force completed
    ABANDONED = 9  # its session went on without it, or its connection is closed
    FAILED = 10  # a defect


class FetchEffect(IntEnum):
    NOTHING = 0
    READ = 1  # run a read pass
    READ_OR_REFUSE = 2  # the same, and partitions that are not open yet are errors of it
    OPEN = 3  # wait for the partitions that the pass has begun to open
    READ_REMOTE = 4  # read what the pass did not find cached
    DELAY = 5  # wait for `missing_bytes` more, at most until the deadline
    ANSWER = 6
    DROP = 7  # finish without an answer that anybody reads
    FAIL = 8


# As names of the module: up to Python 3.11 a class of members is searched each time.
READING, OPENING, REMOTE_READ, DELAYED, DONE = FetchState
(
    NOT_OPEN,
    NOT_CACHED,
    ENOUGH,
    TOO_LITTLE,
    OVERTAKEN,
    OPENED,
    OPENED_LATE,
    SATISFIED,
    EXPIRED,
    ABANDONED,
    FAILED,
) = FetchEvent
NOTHING, READ, READ_OR_REFUSE, OPEN, READ_REMOTE, DELAY, ANSWER, DROP, FAIL = FetchEffect

_NEXT = {
    (READING, NOT_OPEN): (OPENING, OPEN),
    (READING, NOT_CACHED): (REMOTE_READ, READ_REMOTE),
    (READING, ENOUGH): (DONE, ANSWER),
    (READING, TOO_LITTLE): (DELAYED, DELAY),
    (READING, OVERTAKEN): (READING, READ),
    (READING, SATISFIED): (READING, NOTHING),
    (READING, EXPIRED): (READING, NOTHING),
    (READING, ABANDONED): (DONE, DROP),
    (OPENING, OPENED): (READING, READ),
    (OPENING, OPENED_LATE): (READING, READ_OR_REFUSE),
    (OPENING, SATISFIED): (OPENING, NOTHING),
    (OPENING, EXPIRED): (OPENING, NOTHING),
    (REMOTE_READ, ENOUGH): (DONE, ANSWER),
    (REMOTE_READ, TOO_LITTLE): (DELAYED, DELAY),
    (REMOTE_READ, OVERTAKEN): (READING, READ),
    (REMOTE_READ, SATISFIED): (REMOTE_READ, NOTHING),
    (REMOTE_READ, EXPIRED): (REMOTE_READ, NOTHING),
    (REMOTE_READ, ABANDONED): (DONE, DROP),
    (DELAYED, SATISFIED): (READING, READ),
    (DELAYED, EXPIRED): (READING, READ),
}
TRANSITIONS: dict[tuple[FetchState, FetchEvent], tuple[FetchState, FetchEffect]] = {
    **_NEXT,
    **{(state, FAILED): (DONE, FAIL) for state in FetchState},
    **{(DONE, event): (DONE, NOTHING) for event in FetchEvent},
}


class Found(Protocol):
    """What a read pass found, as far as the course goes by it."""

    @property
    def openings(self) -> Sized: ...
    @property
    def remote(self) -> Sized: ...
    @property
    def is_urgent(self) -> bool: ...
    @property
    def counted_bytes(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...


class FetchMachine:
    """State of one request. Every event returns the effect that must be carried out. `is_expired`: it is
    answered with whatever there is. `deadline_s`: by the clock of the `now_s` that events bring.
    `missing_bytes`: what it is delayed for. An event that cannot come in its state is a KeyError."""

    __slots__ = ("deadline_s", "is_expired", "min_bytes", "missing_bytes", "state")

    def __init__(self, min_bytes: int, is_expired: bool) -> None:
        self.state = READING
        self.min_bytes = min_bytes
        self.is_expired = is_expired
        self.deadline_s = 0.0
        self.missing_bytes = 0

    def __repr__(self) -> str:
        return f"{self.state.name.lower()}{' expired' if self.is_expired else ''}"

    def on_pass(self, found: Found, heard_bytes: int = 0, is_interrupted: bool = False) -> FetchEffect:
        """A read pass is over. Of one in chunks: `heard_bytes` became visible meanwhile, `is_interrupted` by
        what cannot wait."""
        if found.openings:
            event = NOT_OPEN
        elif found.remote:
            event = NOT_CACHED
        else:
            event = self._judge(found, heard_bytes, is_interrupted)
        self.state, effect = TRANSITIONS[self.state, event]
        return effect

    def on_opened(self, now_s: float, *, is_late: bool) -> FetchEffect:
        """Partitions are open, or could not be opened, which the next pass tells; or some are late."""
        self._look_at_clock(now_s)
        return self._take(OPENED_LATE if is_late else OPENED)

    def on_remote_read(
        self, found: Found, now_s: float, heard_bytes: int = 0, is_interrupted: bool = False
    ) -> FetchEffect:
        """What was not cached was read, or failed. `heard_bytes` and `is_interrupted` as of a pass, since
        that began."""
        self._look_at_clock(now_s)
        return self._take(self._judge(found, heard_bytes, is_interrupted))

    def on_satisfied(self) -> FetchEffect:
        """The bytes that it was delayed for came. It may have expired in the same iteration of the loop: then
        this is nothing."""
        return self._take(SATISFIED)

    def on_expired(self) -> FetchEffect:
        """Its time is over, or others need what it holds."""
        self.is_expired = True
        return self._take(EXPIRED)

    def on_abandoned(self) -> FetchEffect:
        """Nobody reads the answer, seen where a pass or a remote read begins or ends."""
        return self._take(ABANDONED)

    def on_failed(self) -> FetchEffect:
        """A defect of ours was met."""
        return self._take(FAILED)

    def _judge(self, found: Found, heard_bytes: int, is_interrupted: bool) -> FetchEvent:
        counted_bytes, min_bytes = found.counted_bytes, self.min_bytes
        if (
            counted_bytes >= min_bytes
            or self.is_expired
            or found.is_urgent
            or counted_bytes >= found.max_bytes
        ):
            return ENOUGH
        self.missing_bytes = min_bytes - counted_bytes - heard_bytes
        return OVERTAKEN if is_interrupted or self.missing_bytes <= 0 else TOO_LITTLE

    def _look_at_clock(self, now_s: float) -> None:
        if now_s >= self.deadline_s:
            self.is_expired = True

    def _take(self, event: FetchEvent) -> FetchEffect:
        self.state, effect = TRANSITIONS[self.state, event]
        return effect
