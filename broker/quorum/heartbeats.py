"""Heartbeats: a broker's word to the controller that leads that it is there, from when it serves until its
end.

    begin()     on return the broker is not fenced: clients are sent to it, and it may be given partitions
    run()       every interval, until cancelled
    leave()     the broker ends in order: from now on clients are not sent to it

Not here: what the controller makes of silence (kraft/sessions.py).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millrace.broker.controller_client import ControllerClient
from millrace.runtime.errors import Fenced, MillraceError, in_words

log = logging.getLogger(__name__)
LEAVE_S: Final = 2.0


class Heartbeats:
    def __init__(self, client: ControllerClient, interval_s: float) -> None:
        self._client = client
        self._interval_s = interval_s
        self._is_fenced = True

    async def begin(self) -> None:
        """Raises Fenced where a newer incarnation of the broker has registered."""
        self._is_fenced = (await self._client.heartbeat()).is_fenced

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                response = await self._client.heartbeat()
            except Fenced as error:
                log.error("heartbeats: %s: this process has been replaced", in_words(error))
                return  # who owns the node's claims ends the process (broker/identity/ownership.py)
            if response.is_fenced != self._is_fenced:
                self._is_fenced = response.is_fenced
                log.warning("heartbeats: fenced: %s", self._is_fenced)

    async def leave(self) -> None:
        """Where nobody answers in time, its session ends by itself."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._client.heartbeat(want_shut_down=True)
        except (TimeoutError, MillraceError) as error:
            log.warning("heartbeats: the controllers do not know that this broker ends: %s", in_words(error))
