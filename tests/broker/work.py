"""The work of requests that tests make themselves."""

from __future__ import annotations

from millrace.broker.requests.work import LARGE_AT_ONCE, RequestWork, WideRequests
from millrace.runtime.scheduling.semaphore import NOBODY, Owner, Semaphore
from millrace.runtime.scheduling.yield_queue import YieldQueue


def new_work(owner: Owner = NOBODY) -> RequestWork:
    """That of a request alone: a queue and permits of its own."""
    return RequestWork(YieldQueue(), Semaphore(LARGE_AT_ONCE), WideRequests(1 << 20), owner)
