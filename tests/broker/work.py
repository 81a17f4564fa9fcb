"""The work of requests that tests make themselves."""

from __future__ import annotations

from collections.abc import Hashable

from millrace.broker.requests.work import LARGE_AT_ONCE, RequestWork
from millrace.runtime.scheduling.semaphore import Semaphore
from millrace.runtime.scheduling.yield_queue import YieldQueue


def new_work(owner: int = 0, address: Hashable = None) -> RequestWork:
    """That of a request alone: a queue and permits of its own."""
    return RequestWork(YieldQueue(), Semaphore(LARGE_AT_ONCE), owner, address)
