"""Heartbeats: a broker's word to the controller that leads that it is there, from its registration until its
end.

    run()       every interval, and as soon as another controller leads, until cancelled; before `begin` that
                the broker starts, and recovers its own log. One does not wait for the answer to the one
                before, so that a way that takes long leaves the broker its session; a few are under way at
                most, and none beside one that waits until somebody leads
    begin()     on return the broker is not fenced: clients are sent to it, and it may be given partitions
    leave()     the broker ends in order: on return others lead what it led, as far as others are there

While it serves it says as well whether it reaches the store, as Kafka's brokers name a log directory that
failed (KIP-858); and whether its settings cordon its directory (KIP-1066), from the heartbeat on by which it
may be given partitions.

Not here: what the controller makes of silence (kraft/sessions.py), and of a broker that wants to end
(kraft/commands/leaders.py). Kept true: an answer counts as long as none to a later word has come; one that is
lost is not asked for again, but the next word goes out at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from millrace.broker.controller_client import ControllerClient
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.news import QuorumNews
from millrace.kraft.tables.owed_ranges import OwedRanges
from millrace.kraft.tables.streams import Streams
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from millrace.runtime.errors import Exhausted, MillraceError, Unavailable, in_words

log = logging.getLogger(__name__)
ANSWER_S: Final = 2.0  # of a broker that ends
LEAVE_S: Final = 30.0  # in which nothing is handed over
# Of these while others lead all, and the store takes nothing of what is owed: less than the time after which
# who runs containers ends what does not end. The log has it.
STUCK_S: Final = 10.0
LEAVE_MAX_S: Final = 300.0  # in all: of tens of thousands of partitions
# As many as keep the controller hearing of a broker three times within the longest that an answer may take.
UNDER_WAY_MAX: Final = 3
AGAIN_S: Final = 0.05  # after one that was lost, doubled with each up to the interval


class Word(Enum):
    STARTS = auto()
    SERVES = auto()
    ENDS = auto()


class Heartbeats:
    """`on_image` is to be told of every image; `news` tells who leads. `is_cut_off`: whether the broker that
    serves does not reach the store, and has not for some time. `is_cordoned`: by its own settings."""

    def __init__(
        self,
        broker_id: int,
        client: ControllerClient,
        news: QuorumNews,
        interval_s: float,
        is_cut_off: Callable[[], bool] = lambda: False,
        *,
        is_cordoned: bool = False,
    ) -> None:
        self._broker_id = broker_id
        self._client = client
        self._news = news
        self._interval_s = interval_s
        self._is_cut_off = is_cut_off
        self._is_cordoned = is_cordoned
        self._is_fenced = True
        self._has_begun = False
        self._word = Word.STARTS
        self._said = self._answered = 0  # numbers of words
        self._under_way: dict[asyncio.Task[BrokerHeartbeatResponse], None] = {}
        self._again_s = AGAIN_S
        self._failure = ""  # why the last one was lost
        self._stuck_since_s: float | None = None  # while it leaves
        self._all_closed = asyncio.Event()  # while it leaves
        self._is_seen = asyncio.Event()  # an image came in which it is not fenced
        self._closed_s = 0.0  # when a stream of its was closed last, or what it owes committed
        self._owed: OwedRanges | None = None  # as it was then
        self._streams: Streams | None = None  # as they are now, of all brokers

    async def begin(self, image: MetadataImage) -> None:
        """`image`: as it is here now. On return an image came in which the controller takes the broker for
        one that serves: topics can be made on it. Where that is refused at first, as long as the controller
        does not know that the broker has caught up, the words of `run` ask again. Raises Fenced where a newer
        incarnation of the broker has registered."""
        self._word = Word.SERVES
        self._look(image)
        await self._say()
        self._has_begun = True
        await self._is_seen.wait()

    async def run(self) -> None:
        """Raises Fenced where another process has registered as this broker, or recovers its log."""
        try:
            while True:
                await self._until_due()
                if self._has_room():
                    word = self._say(is_repeated=False)
                    self._under_way[asyncio.create_task(word, name="heartbeat")] = None
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _until_due(self) -> None:
        """An interval, less where another leads, or one was lost."""
        loop, change = asyncio.get_running_loop(), self._news.changed()
        due_s = loop.time() + self._interval_s
        while not change.done() and (left_s := due_s - loop.time()) > 0:
            waited: list[asyncio.Future[Any]] = [change, *self._under_way]
            await asyncio.wait(waited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if self._take_answers():
                due_s = min(due_s, loop.time() + self._again_s)
                self._again_s = min(2 * self._again_s, self._interval_s)

    def _take_answers(self) -> bool:
        """Whether one was lost. Raises as `run`."""
        was_lost = False
        for task in [task for task in self._under_way if task.done()]:
            del self._under_way[task]
            try:
                task.result()
                self._again_s, self._failure = AGAIN_S, ""
            except (Unavailable, Exhausted) as error:
                was_lost, failure = True, in_words(error)
                if failure != self._failure:
                    log.warning("heartbeats: one was lost, and is followed by another: %s", failure)
                self._failure = failure
        return was_lost

    def _has_room(self) -> bool:
        is_waiting = bool(self._under_way) and self._news.leader < 0
        return len(self._under_way) < UNDER_WAY_MAX and not is_waiting

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._look(image)
        self._streams = image.streams
        if not delta.streams_changed:
            return
        if self._word is Word.ENDS and self._has_closed(delta, image):
            self._closed_s = asyncio.get_running_loop().time()
        if not image.streams.are_in_log_of(self._broker_id):
            self._all_closed.set()

    def _look(self, image: MetadataImage) -> None:
        own = image.brokers.get(self._broker_id)
        if own is not None and own.epoch == self._client.broker_epoch and not own.is_fenced:
            self._is_seen.set()

    def _has_closed(self, delta: MetadataDelta, image: MetadataImage) -> bool:
        is_committed = image.streams.owed is not self._owed
        self._owed = image.streams.owed
        if is_committed and any(True for _ in self._owed.of_node(self._broker_id)):
            return True
        changed = map(image.streams.get, delta.streams_changed)
        return any(
            stream is not None and stream.node_id == self._broker_id and not stream.is_open
            for stream in changed
        )

    async def leave(self, blocked_reason: Callable[[], str] = lambda: "") -> None:
        """Until the controllers say that the broker may end: as long as its partitions go to others, turn
        after turn. Where nobody answers in time, or nothing is handed over any more, its session ends by
        itself, and its log is recovered; so it is where others lead all and its log owes some of that for
        longer than `STUCK_S`, over a store that takes nothing. `blocked_reason`: why uploads wait, "" while
        they go on."""
        loop = asyncio.get_running_loop()
        self._word, self._closed_s = Word.ENDS, loop.time()
        try:
            async with asyncio.timeout(LEAVE_MAX_S):
                while not await self._may_end():
                    self._check_patience(loop.time(), blocked_reason())
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._interval_s):
                            await self._all_closed.wait()
        except (TimeoutError, MillraceError) as error:
            log.warning("heartbeats: the broker ends %s: %s", self._what_is_left(), in_words(error))

    def _check_patience(self, now_s: float, why: str) -> None:
        """Raises TimeoutError."""
        if now_s - self._closed_s > LEAVE_S:
            raise TimeoutError(f"no stream was closed for {LEAVE_S:.0f} s")
        if not why or self._has_open():
            self._stuck_since_s = None
            return
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        if now_s - self._stuck_since_s > STUCK_S:
            raise TimeoutError(f"the store takes nothing of it: {why}")

    def _has_open(self) -> bool:
        return self._streams is None or any(self._streams.open_on(self._broker_id))

    def _what_is_left(self) -> str:
        """To whoever recovers its log."""
        is_open = self._has_open()
        return "before others lead what it led" if is_open else "while its log owes some of what others lead"

    async def _may_end(self) -> bool:
        self._all_closed.clear()
        async with asyncio.timeout(ANSWER_S):
            return (await self._say()).should_shut_down

    async def _say(self, *, is_repeated: bool = True) -> BrokerHeartbeatResponse:
        self._said += 1
        word, number = self._word, self._said
        response = await self._client.heartbeat(
            want_fence=word is Word.STARTS,
            want_shut_down=word is Word.ENDS,
            is_well=word is not Word.SERVES or not self._is_cut_off(),
            is_cordoned=word is not Word.STARTS and self._is_cordoned,
            is_repeated=is_repeated,
        )
        if number > self._answered:  # else who led before has answered late
            self._answered = number
            self._note(is_fenced=response.is_fenced)
        return response

    def _note(self, *, is_fenced: bool) -> None:
        if is_fenced != self._is_fenced:
            self._is_fenced = is_fenced
            if self._has_begun:
                log.warning("heartbeats: fenced: %s", is_fenced)
