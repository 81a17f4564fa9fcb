"""ControllerChannel: how a broker speaks to the active controller, in one process or not.

Requests and replies are protocol messages. What the controller refuses, it refuses with an error code in the
reply; what it could not decide or cannot promise surfaces as Unavailable (NotLeader, ProposalDropped) or
Exhausted, and may be sent again: the outcome of an Unavailable is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from millrace.kraft.controller import Controller


class ControllerChannel(Protocol):
    async def send(self, request: Any) -> Any:
        """The reply, once what it says is committed and in the local image. Cancelling gives up the wait, not
        the command."""
        ...


class LocalChannel:
    """The controller of this process."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def send(self, request: Any) -> Any:
        return await self._controller.submit(request)
