"""The orderly end of a streaming query: asked for by a signal, come to between two batches.

A signal's handler only notes it: calls into the JVM are not made from a handler, which may stand in the
middle of another. Stopping a query interrupts the batch under way, so that batch is waited for, at most
BATCH_WAIT_S; one that is interrupted is left to the next start, which runs it again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_WAIT_S = 20.0
WAITING = ("Waiting for next trigger", "Waiting for data to arrive")  # what Spark says between two batches
WriteBatch = Callable[[DataFrame, int], None]


class Ended(RuntimeError):
    """A batch began while the query was being stopped; nothing of it was written."""


class Ending:
    def __init__(self, batch_wait_s: float = BATCH_WAIT_S) -> None:
        self.signal = 0  # the first that came
        self.has_left_batch = False  # to the next start: the query then ends by an error that is none
        self.has_read = False  # a batch was done, or the query waits for more
        self._batch_wait_s = batch_wait_s
        self._is_ending = False
        self._batch = threading.Lock()  # held by the batch under way, and for good by whoever stops the query

    def listen(self) -> None:
        """To SIGTERM and SIGINT. For when the session is built, which takes SIGINT for itself; until then
        they end the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda signalled, _: self._ask(signalled))

    def _ask(self, number: int) -> None:
        self.signal = self.signal or number

    def is_asked(self) -> bool:
        return self.signal != 0

    def between_batches(self, write: WriteBatch) -> WriteBatch:
        """The same, and waited for before the query is stopped."""

        def write_batch(frame: DataFrame, batch: int) -> None:
            if not self._batch.acquire(blocking=False):
                self.has_left_batch = True
                raise Ended(f"batch {batch} is left to the next start")
            try:
                write(frame, batch)
            finally:
                self._batch.release()

        return write_batch

    def wait(self, query: StreamingQuery) -> bool:
        """For a second at most. True when the query has ended, by itself or because it was asked to; raises
        what it failed with."""
        if self.signal and not self._is_ending:
            self._is_ending = True
            if not self._batch.acquire(timeout=self._batch_wait_s):
                self.has_left_batch = True
            query.stop()
        try:
            has_ended = bool(query.awaitTermination(1))
        except Exception:  # the JVM's own exception classes
            if self.has_left_batch:
                return True
            raise
        self.has_read = self.has_read or bool(query.recentProgress) or query.status["message"] in WAITING
        return has_ended
