"""The wall between the shell and the handlers: what a handler is given, and what it may give back.

A handler is a plain `def handle(context, request)`. It runs to its return in the order in which requests
arrived on the connection, and gives back one of

    a response          the dataclass of that API, at once
    an asyncio.Future   of a response; replies still leave in request order, whatever order the futures finish
                        in
    a coroutine         cold APIs only: it costs a task
    NO_REPLY            nothing is sent (Produce with acks=0)
    CLOSE               the connection ends once the replies before this one have left

A future or coroutine may also finish with NO_REPLY, CLOSE or an exception. An exception never ends the
connection when the API has a place for an error code: dispatch.py turns it into one (`refuse(request, code)`
of the handler's object first).

When a connection goes, its unfinished futures are not cancelled: what was begun is finished, and the reply is
dropped. What only waits, for news or for time to pass, is a `DelayedOperation` in the connection's purgatory:
it is force completed then, and when others wait for the memory that it is charged.
`context.connection.is_open` tells one who wakes late. Record bytes in a request are views of the frame, and a
Produce's are good until its `handle` returns: what it keeps it copies. The frame is charged to the memory
budget until its reply was handed to the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import field
from enum import Enum
from typing import Any, Final, Protocol

from millrace.broker.client_network import network_of
from millrace.broker.requests.sequence_gaps import SequenceGaps
from millrace.broker.requests.work import RequestWork
from millrace.protocol.dataclass import dataclass
from millrace.runtime.disk import Buffer
from millrace.runtime.scheduling.semaphore import Owner


class Encoded(list[Buffer]):
    """A response as the bytes of its reply."""


class Verdict(Enum):
    """What a handler may say in place of a response."""

    NO_REPLY = "no reply"
    CLOSE = "close"


NO_REPLY: Final = Verdict.NO_REPLY
CLOSE: Final = Verdict.CLOSE


class DelayedOperation(Protocol):
    """A request that waits for what may never come, and can be answered without it."""

    def force_complete(self) -> None:
        """Finishes its future soon, with what there is: as if its time were over."""


@dataclass(slots=True)
class ConnectionInfo:
    """One client connection as handlers see it. Written by the shell, `software_*` by ApiVersions,
    `principal` by authentication, `is_producing` by Produce and InitProducerId, `is_consuming` by what
    consumers ask before and while they read."""

    id: int
    listener: str
    local_host: str
    local_port: int
    peer_host: str
    peer_port: int = 0
    principal: str = "User:ANONYMOUS"
    software_name: str = "unknown"
    software_version: str = "unknown"
    is_open: bool = True
    is_producing: bool = False
    is_consuming: bool = False
    gaps: SequenceGaps | None = None
    purgatory: dict[asyncio.Future[Any], DelayedOperation] = field(
        default_factory=dict
    )  # by what their handlers gave back

    @property
    def network(self) -> str:
        """Whose share its requests count against."""
        return network_of(self.peer_host)

    @property
    def owner(self) -> Owner:
        """Of permits that connections share, by their clients' networks."""
        return Owner(self.id, self.network)


@dataclass(slots=True)
class RequestContext:
    """One request's envelope. `client_id` is "" when the client sent none. `new_work`: makes `work`, for a
    request of that connection that needs it."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    connection: ConnectionInfo
    new_work: Callable[[Owner], RequestWork]
    _work: RequestWork | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def work(self) -> RequestWork:
        """Where the handler's coroutine yields."""
        if self._work is None:
            self._work = self.new_work(self.connection.owner)
        return self._work


Handle = Callable[[RequestContext, Any], Any]
