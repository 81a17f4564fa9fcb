"""LeftOpen: streams that were open when this node's process before ended, while the next one serves already.

    recovered, committed, WAL reset ─► left ─► closed, some at a time, the oldest first
                                          └──► taken by who opens its partition: not closed any more

Nothing of them is in the WAL, so that nobody has to wait until metadata has them closed: a hundred thousand
take it many seconds, in which no partition would take writes. The node that has them may open them as they
are; another waits for each as it waits for any that its last owner closes. Killed meanwhile, the next start
finds what is left. Not here: what is left so (storage.py). Kept true: a stream is not closed from here once
it was taken, nor opened before a close of it that was begun has come to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice

from millrace.s3stream.ids import StreamId
from millrace.s3stream.metadata import StreamCatalog
from millrace.s3stream.recovery import close_in_catalog

log = logging.getLogger(__name__)

CLOSED_AT_ONCE = 200  # as many as go to the controller in one request


class LeftOpen:
    """`on_failed`: told once of what ends the closing, which is no refusal."""

    def __init__(self, catalog: StreamCatalog, on_failed: Callable[[BaseException], None]) -> None:
        self._catalog = catalog
        self._on_failed = on_failed
        self._left: dict[StreamId, int] = {}  # epochs
        self._closing: dict[StreamId, int] = {}  # of these, in the request that is under way
        self._is_closed = asyncio.Event()  # pulsed when that is answered
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._left) + len(self._closing)

    def begin(self, streams: Iterable[tuple[StreamId, int]]) -> None:
        """Closes them from now on, in the background."""
        self._left.update(streams)
        self._task = asyncio.create_task(self._run(), name="close what was left open")

    async def take(self, stream_ids: Iterable[StreamId]) -> dict[StreamId, int]:
        """Of these those that were left: nobody closes them but who takes them. On return none of the others
        is being closed any more."""
        asked = list(stream_ids)
        taken = {one: self._left.pop(one) for one in asked if one in self._left}
        while any(one in self._closing for one in asked):
            await self._is_closed.wait()
        return taken

    def give_back(self, taken: dict[StreamId, int]) -> None:
        """They were not opened."""
        if taken:
            self._left.update(taken)
            if self._task is not None and self._task.done():
                self.begin(())

    async def stop(self) -> list[tuple[StreamId, int]]:
        """Nothing is closed from here any more. Gives what is left, some of which may be closed already."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        rest, self._left = list(self._left.items()), {}
        return rest

    async def _run(self) -> None:
        began_s, count = asyncio.get_running_loop().time(), len(self._left)
        try:
            while self._left:
                await self._close_some()
        except Exception as error:
            self._on_failed(error)
            return
        seconds = asyncio.get_running_loop().time() - began_s
        log.info("%d streams that were left open are closed, or opened anew, after %.1f s", count, seconds)

    async def _close_some(self) -> None:
        """Cancelled or failed, those count as left that may be closed."""
        self._closing = dict(islice(self._left.items(), CLOSED_AT_ONCE))
        for stream_id in self._closing:
            del self._left[stream_id]
        is_closed = False
        try:
            await close_in_catalog(self._catalog, list(self._closing.items()))
            is_closed = True
        finally:
            if not is_closed:
                self._left.update(self._closing)
            self._closing = {}
            self._is_closed.set()
            self._is_closed.clear()
