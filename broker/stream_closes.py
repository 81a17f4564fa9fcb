"""StreamCloses: closes of streams, or seals, that are asked for at about the same time go to the controller
together.

A broker that hands over a thousand partitions closes three thousand streams. One request each would stand in
the way of all else that shares the connection; and each would be a commit of its own. So one request is under
way at a time, of `CLOSES_MAX` streams at most, and who comes meanwhile goes with the next. Not here: what a
refusal means (controller_client.py). Kept true: every caller is told the code of its own stream and epoch; a
request that nobody waits for any more is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final

from millrace.protocol.messages.close_streams import ClosedStream
from millrace.protocol.messages.seal_streams import SealedStream

CLOSES_MAX: Final = 200  # in one request: two or three milliseconds of the controller that leads

Close = tuple[int, ...]  # stream and epoch; of a seal its start and end, too
Send = Callable[[Sequence[Close]], Awaitable[Sequence[ClosedStream] | Sequence[SealedStream]]]


class StreamCloses:
    """`send` asks until it is answered; what it raises is raised to all whose streams it was asked to
    close."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: dict[Close, list[asyncio.Future[int]]] = {}  # for the next request
        self._asked: dict[Close, list[asyncio.Future[int]]] = {}  # of the one that is under way
        self._sending: asyncio.Task[None] | None = None

    async def close(self, *close: int) -> int:
        """The code that the controller gave. Cancelled, the outcome is unknown."""
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(close, []).append(outcome)
        if self._sending is None:
            self._begin()
        try:
            return await outcome
        finally:
            if outcome.cancelled():
                self._give_up()

    def _begin(self) -> None:
        self._sending = asyncio.get_running_loop().create_task(self._send_next(), name="close streams")
        self._sending.add_done_callback(self._on_sent)

    def _on_sent(self, sent: asyncio.Task[None]) -> None:
        error = None if sent.cancelled() else sent.exception()
        if error is not None:
            self._tell(lambda key, outcome: outcome.set_exception(error))
        self._sending, self._asked = None, {}
        if self._waiting:
            self._begin()

    async def _send_next(self) -> None:
        """One request. It is made a step of the loop after the first stream was given: those that are closed
        together go together."""
        streams: dict[int, None] = {}  # of two epochs the later asked for goes with the next
        for key in list(islice(self._waiting, CLOSES_MAX)):
            if key[0] in streams:
                continue
            outcomes = [one for one in self._waiting.pop(key) if not one.done()]
            if outcomes:
                self._asked[key] = outcomes
                streams[key[0]] = None
        if not self._asked:
            return
        closed = await self._send(list(self._asked))
        codes = {one.stream_id: one.error_code for one in closed}
        self._tell(lambda key, outcome: outcome.set_result(codes[key[0]]))

    def _tell(self, tell: Callable[[Close, asyncio.Future[int]], None]) -> None:
        for key, outcomes in self._asked.items():
            for outcome in outcomes:
                if not outcome.done():
                    tell(key, outcome)

    def _give_up(self) -> None:
        """Where nobody waits for the request that is under way, as at the end of a broker that reaches no
        controller."""
        is_wanted = any(not one.done() for outcomes in self._asked.values() for one in outcomes)
        if self._sending is not None and self._asked and not is_wanted:
            self._sending.cancel()
