"""APIs that a KRaft broker passes on to the active controller as they are: CreatePartitions 37, ElectLeaders
43, AlterPartitionReassignments 45, ListPartitionReassignments 46, DescribeQuorum 55, UnregisterBroker 64,
AddRaftVoter 80, RemoveRaftVoter 81, in all versions. None says in an older version what the newest does not.

Ignored: `timeout_ms` (`request.timeout.ms` bounds the wait).

Not here: what must be known of the client's connection, which is nothing yet.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from millrace.broker.requests.forwarding import Forwarding
from millrace.broker.requests.request import RequestContext


class Forward:
    """One class for every forwarded API."""

    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self.refuse = forwarding.refuse

    def handle(self, context: RequestContext, request: Any) -> Coroutine[Any, Any, Any]:
        return self._forwarding.ask(request, context)
