"""Owners of streams in a simulated cluster: one at a time, the next one behind a close, at a later epoch.

Looked at with each record that any node applies: a close and the opening behind it may be one commit, so that
images would not tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.kraft.tables.streams import StreamsEdit, StreamState
from tests.sim.history import History


def fault(before: StreamState, after: StreamState) -> str:
    """Why the one may not follow the other; "" where it may."""
    if not after.is_open or after.node_id == before.node_id:
        return ""
    stream, owner, opener = after.stream_id, before.node_id, after.node_id
    if before.is_open:
        return f"stream {stream} is open at node {owner}, and node {opener} opens it"
    if after.epoch <= before.epoch:
        return f"stream {stream}: epoch {after.epoch} of node {opener} is no later than node {owner}'s"
    return ""


def watched(history: History) -> tuple[Any, str, Callable[[Any], Any]]:
    """What puts a stream into a table, and tells the history of what may not be (tests.sim.bugs.in_place)."""

    def make(put: Any) -> Any:
        def looked_at(self: StreamsEdit, before: StreamState | None, stream: StreamState) -> None:
            found = "" if before is None else fault(before, stream)
            if found:
                history.find("stream-taken", found)
            put(self, before, stream)

        return looked_at

    return StreamsEdit, "_put", make
