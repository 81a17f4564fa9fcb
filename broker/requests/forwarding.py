"""What handlers pass on to the active controller: bounded in time, and refused in the place where a client of
that API looks for it.

The controller answers with Kafka's codes inside the response. What it could not decide, or did not answer
within `request.timeout.ms`, is an error here; the outcome of such a request is unknown, as it is in Kafka.
"""

from __future__ import annotations

import asyncio
from typing import Any

from millrace.kraft.channel import ControllerChannel
from millrace.kraft.commands.table import COMMANDS
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError

TIMED_OUT = "the controller did not answer in time; the request may still be carried out"


class Forwarding:
    """Of requests that are commands of the controller (kraft/commands/table.py)."""

    def __init__(self, channel: ControllerChannel, timeout_ms: int) -> None:
        self._channel = channel
        self._timeout_ms = timeout_ms

    async def ask(self, request: Any) -> Any:
        """Cancelling gives up the wait, not the command."""
        async with asyncio.timeout(self._timeout_ms / 1000):
            return await self._channel.send(request)

    def refuse(self, request: Any, code: int) -> Any:
        """The response that says `code` of everything in the request."""
        message = TIMED_OUT if code == ErrorCode.REQUEST_TIMED_OUT else ""
        return COMMANDS[type(request)].refuse(request, KafkaError(code, message))
