"""Topics that were deleted take their committed offsets with them, some at a time: a shard may have a hundred thousand of them.

The search goes through all offsets that the shard has when it begins, and begins once more behind itself when another topic was deleted
meanwhile. Whoever asks before it is done may still be told an offset of a topic that there is not. Not here: what is gone
(offsets.py). Keeps true: tombstones go to the log in the order of decisions, as everything does; of what is not durable yet
there is no more than a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from millrace.broker.coordinators.append_queue import AppendQueue
from millrace.broker.coordinators.rewriting import Step
from millrace.broker.coordinators.shard import Decision, Now, Shard
from millrace.runtime.steps import line_of

QUEUED_BYTES_MAX = 256 << 10  # not appended yet: beyond it the search goes on when that is durable


class Forgetting:
    """`topic_id_of` tells the id that a name has now, None without one. `carry_out` and `now` are the shard's loop's."""

    def __init__(
        self,
        shard: Shard,
        queue: AppendQueue,
        topic_id_of: Callable[[str], bytes | None],
        now: Callable[[], Now],
        carry_out: Callable[[Decision], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._shard = shard
        self._queue = queue
        self._topic_id_of = topic_id_of
        self._now = now
        self._carry_out = carry_out
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._search: Iterator[list[tuple[str, str, int]]] | None = None
        self._is_again = False
        self._durable_step = Step(lambda _: self._go_on())

    def begin(self) -> None:
        """Topics may be gone. What is little is decided on return."""
        if self._search is not None:
            self._is_again = True
            return
        self._search = self._shard.offsets.orphans(self._topic_id_of)
        self._step()

    def _go_on(self) -> None:
        line_of(self._loop).call(self._step)

    def _step(self) -> None:
        if self._queue.is_ended or self._search is None:
            return
        try:
            places = next(self._search, None)
            if places is None:
                self._search = None
                if self._is_again:
                    self._is_again = False
                    self.begin()
                return
            if places:
                self._carry_out(self._shard.delete_offsets(places, self._now()))
            if self._queue.queued_bytes > QUEUED_BYTES_MAX:
                self._queue.add([], [(self._durable_step, None)])
            else:
                self._go_on()
        except Exception as error:
            self._on_failed(error)
