"""What handlers pass on to the active controller: bounded in time and in number, and refused in the place
where a client of that API looks for it.

The controller answers with Kafka's codes inside the response. What it could not decide, or did not answer
within `request.timeout.ms`, is an error here; the outcome of such a request is unknown, as it is in Kafka.
The controller decides one command after the other, and one that names thousands of topics for tens of
milliseconds: COMMANDS_AT_ONCE are passed on, and those who ask take turns for that. A change of the quorum's
voters waits for the node that is to be added, for half a minute: what waits so has permits of its own, and
keeps no topic from being made.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

from millrace.broker.requests.request import RequestContext
from millrace.kraft.channel import ControllerChannel
from millrace.kraft.commands.table import COMMANDS, is_question
from millrace.protocol.apis import NAMED, api_of
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.scheduling.semaphore import Semaphore

COMMANDS_AT_ONCE = 4
NAMES_AT_ONCE = 100  # of topics, or resources
# Each may wait for other nodes; the last where it is kraft.version that is raised.
OF_VOTERS = frozenset(NAMED[name].key for name in ("AddRaftVoter", "RemoveRaftVoter", "UpdateFeatures"))
NOT_ANSWERED = "the controller did not answer in time"
TIMED_OUT = f"{NOT_ANSWERED}; the request may still be carried out"


class Forwarding:
    """Of requests that are commands of the controller (kraft/commands/table.py)."""

    def __init__(self, channel: ControllerChannel, timeout_ms: int) -> None:
        self._channel = channel
        self._timeout_ms = timeout_ms
        self._permits = Semaphore(COMMANDS_AT_ONCE)
        self._permits_of_voters = Semaphore(COMMANDS_AT_ONCE)

    async def ask(self, request: Any, context: RequestContext) -> Any:
        """Cancelling gives up the wait, not the command. The answer to one that names much is not built
        before its connection may have a large one."""
        asker = context.connection.owner
        permits = self._permits_of_voters if api_of(request).key in OF_VOTERS else self._permits
        async with asyncio.timeout(self._timeout_ms / 1000):
            if _names_count(request) > NAMES_AT_ONCE:
                await context.work.begin()
            await permits.acquire(asker)
            try:
                return await self._channel.send(request)
            finally:
                permits.release(asker)

    def refuse(self, request: Any, code: int) -> Any:
        """The response that says `code` of everything in the request."""
        message = ""
        if code == ErrorCode.REQUEST_TIMED_OUT:
            message = NOT_ANSWERED if is_question(request) else TIMED_OUT
        return COMMANDS[type(request)].refuse(request, KafkaError(code, message))


def _names_count(request: Any) -> int:
    values = (getattr(request, declared.name) for declared in fields(request))
    return sum(len(value) for value in values if isinstance(value, list))
