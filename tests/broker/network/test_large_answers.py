"""Answers that are large wait for readers."""

from __future__ import annotations

import asyncio

from millrace.broker.network.large_answers import wait_for_readers
from millrace.broker.network.memory import RequestBudget
from millrace.runtime.scheduling.semaphore import Owner


def test_no_more_is_built_while_readers_leave_all_unsent() -> None:
    """Those who would build go on when that is sent, in turns by their addresses; one that is cancelled
    meanwhile leaves the line, also in the moment in which its turn comes."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        budget, went = RequestBudget(1600, loop.call_soon), list[str]()
        budget.replies.charge(400)

        async def build(address: str) -> None:
            await wait_for_readers(budget.replies, Owner(1, address))
            went.append(address)

        tasks = [loop.create_task(build(address)) for address in ("one", "one", "one", "other")]
        await asyncio.sleep(0.01)
        assert not went
        assert budget.replies.waiting_count == 4
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        budget.replies.release(200)
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.wait(tasks)
        assert went == ["one", "other"]
        assert budget.replies.waiting_count == 0

    asyncio.run(scenario())
