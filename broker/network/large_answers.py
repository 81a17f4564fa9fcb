"""When a large answer may be built: not while readers leave all unsent that they may."""

from __future__ import annotations

import asyncio
from functools import partial

from millrace.broker.network.memory import RequestBudget, RequestMemory
from millrace.broker.requests.work import WideRequests
from millrace.runtime.scheduling.semaphore import Owner


def wide_requests(budget: RequestBudget) -> WideRequests:
    """Those of a server: what they may hold is a part of its budget."""
    return WideRequests(budget.wide_bytes_max, partial(wait_for_readers, budget.replies))


async def wait_for_readers(replies: RequestMemory, owner: Owner) -> None:
    """Until they leave less unsent than they may, those who ask taking turns by their addresses."""
    while replies.used_bytes >= replies.limit_bytes:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        replies.wait(room, partial(_wake, room), owner.address)
        try:
            await room
        finally:
            replies.forget(room)


def _wake(room: asyncio.Future[None]) -> None:
    if not room.done():  # cancelled in the same iteration
        room.set_result(None)
