"""The course of one client connection as a state machine. Pure: what happened comes in as an event, what to
do goes out as an effect.

                  held                     frames left
    READING <----------------> EXECUTING ---------------> YIELDING
       |          free          |  ^  ^                      |
       |                        |  |  '------- yielded ------'
       |       no memory        v  | room
       '---------------------> QUEUED

    any of these --- end ---> DRAINING --- abort ---> CLOSING      (abort leads there from any state)

Not here: what holds a frame back, who may begin, order and replies (connection.py, which carries the effects
out). Keeps true: the transport is read in READING alone; frames are begun in READING and EXECUTING alone;
what ends begins nothing any more.
"""

from __future__ import annotations

from enum import IntEnum


class ConnectionState(IntEnum):
    """In this order: up to EXECUTING frames are begun, from DRAINING on the connection ends."""

    READING = 0  # nothing holds the next frame back
    EXECUTING = 1  # what was begun, or is unsent, has to move before more is read
    YIELDING = 2  # it has begun as many frames as it may in one iteration of the loop, and waits for its next
    QUEUED = 3  # it stands in the line of a part of the memory
    DRAINING = 4  # the replies of what was begun leave, then it is closed
    CLOSING = 5  # nothing is sent any more


class ConnectionEvent(IntEnum):
    # a frame cannot be begun: too many are unfinished, one of them is a barrier, or replies are unread
    HELD = 0
    FREE = 1  # nothing of that any more
    FRAMES_LEFT = 2  # behind as many as one iteration begins
    YIELDED = 3
    NO_MEMORY = 4
    ROOM = 5  # its turn in the line of the memory has come
    END = 6  # it takes no more: the listener closes, the server stops, or it is at fault
    ABORT = 7  # cut, aborted, or its peer is gone


class ConnectionEffect(IntEnum):
    NOTHING = 0
    PAUSE = 1  # stop reading from the transport
    RESUME = 2
    YIELD = 3  # have YIELDED told in an iteration of the loop to come
    PAUSE_AND_YIELD = 4
    ADVANCE = 5  # begin what may be begun


# As names of the module: up to Python 3.11 a class of members is searched each time.
READING, EXECUTING, YIELDING, QUEUED, DRAINING, CLOSING = ConnectionState
HELD, FREE, FRAMES_LEFT, YIELDED, NO_MEMORY, ROOM, END, ABORT = ConnectionEvent
NOTHING, PAUSE, RESUME, YIELD, PAUSE_AND_YIELD, ADVANCE = ConnectionEffect

TRANSITIONS: dict[tuple[ConnectionState, ConnectionEvent], tuple[ConnectionState, ConnectionEffect]] = {
    (READING, HELD): (EXECUTING, PAUSE),
    (READING, FRAMES_LEFT): (YIELDING, PAUSE_AND_YIELD),
    (READING, NO_MEMORY): (QUEUED, PAUSE),
    (READING, END): (DRAINING, PAUSE),
    (READING, ABORT): (CLOSING, PAUSE),
    (EXECUTING, FREE): (READING, RESUME),
    (EXECUTING, FRAMES_LEFT): (YIELDING, YIELD),
    (EXECUTING, NO_MEMORY): (QUEUED, NOTHING),
    (YIELDING, YIELDED): (EXECUTING, ADVANCE),
    (QUEUED, ROOM): (EXECUTING, ADVANCE),
    **{(state, END): (DRAINING, NOTHING) for state in (EXECUTING, YIELDING, QUEUED, DRAINING)},
    **{(state, ABORT): (CLOSING, NOTHING) for state in (EXECUTING, YIELDING, QUEUED, DRAINING, CLOSING)},
    (CLOSING, END): (CLOSING, NOTHING),
    **{(state, YIELDED): (state, NOTHING) for state in (DRAINING, CLOSING)},  # that was asked for before
}


class ConnectionMachine:
    """State of one connection. An event that cannot come in its state is a KeyError."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = READING

    def on(self, event: ConnectionEvent) -> ConnectionEffect:
        """What is to be done of it."""
        self.state, effect = TRANSITIONS[self.state, event]
        return effect
