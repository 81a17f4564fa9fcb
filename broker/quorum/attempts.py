"""Attempts at write-ahead logs, which their devices may not answer: one that does not end is left behind, so
that another broker is asked, and other logs are recovered meanwhile.

A thread that waits for a device cannot be called off, and what it was asked for may still be done when the
device answers. So the log is not tried again here before the attempt that was left behind has ended, and
every thread with it, also where the attempt itself ended without them; and that one was cancelled: it asks
for nothing more but to close what it had open.

Not here: an attempt (log_recovery.py), when there is one (failovers.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from millrace.broker.quorum.log_recovery import LogUnreachable
from millrace.runtime.disk.watched import DiskWatch

log = logging.getLogger(__name__)
LOOK_S: Final = 1.0
CLEAN_UP_S: Final = 15.0  # for an attempt that is cancelled to give back what it has; closing a log takes 5 s
T = TypeVar("T")


class Attempts:
    """By the node whose log it is."""

    def __init__(self) -> None:
        self._left: dict[int, asyncio.Task[Any]] = {}

    async def make(
        self, node_id: int, work: Coroutine[Any, Any, T], hung: Callable[[], str], device: DiskWatch
    ) -> T:
        """What the work gives. `hung`: why it will not end, "" as long as it may. `device`: what the work
        asks of one. Raises LogUnreachable where it will not end, or one of before has not ended yet.
        Cancelled, the work is too, and waited for, for `CLEAN_UP_S` at most."""
        if node_id in self._left:
            work.close()
            raise LogUnreachable(
                "an attempt of before waits for the device of the log, which gives no answer; its volume has "
                "to be brought back, or its broker be given up by `millrace cluster give-up`"
            )
        task = asyncio.get_running_loop().create_task(work, name=f"recovery of the log of {node_id}")
        try:
            while not (await asyncio.wait([task], timeout=LOOK_S))[0]:
                if why := hung():
                    raise LogUnreachable(why)
            return task.result()
        finally:
            try:
                if not task.done():
                    task.cancel()
                    await asyncio.wait([task], timeout=CLEAN_UP_S)
            finally:  # also where this is cancelled while it waits
                self._leave_unended(node_id, task, device)

    def _leave_unended(self, node_id: int, task: asyncio.Task[Any], device: DiskWatch) -> None:
        # an error of its own takes the place of being cancelled, and is nobody's then
        is_well = task.done() and not task.cancelled() and task.exception() is None
        if is_well or (task.done() and not device.is_waiting):
            return
        log.warning(
            "failover: of broker %d is left behind: it waits for a device that gives no answer", node_id
        )
        loop, name = asyncio.get_running_loop(), f"end of the recovery of the log of {node_id}"
        self._left[node_id] = loop.create_task(_end(task, device), name=name)
        self._left[node_id].add_done_callback(lambda done: self._left.pop(node_id))


async def _end(task: asyncio.Task[Any], device: DiskWatch) -> None:
    await asyncio.gather(task, return_exceptions=True)
    await device.answered()
