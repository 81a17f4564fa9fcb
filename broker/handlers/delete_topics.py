"""DeleteTopics (key 20): refused where `delete.topic.enable` is false, else the controller decides. It may be
another node's, which is asked in the newest version: names of older ones are put where that has them.

Versions 1 to 6. Ignored: `timeout_ms` (`request.timeout.ms` bounds the wait).
"""

from __future__ import annotations

from typing import Any

from millrace.broker.requests.forwarding import Forwarding
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

FIRST_WITH_DISABLED = 3  # before it, clients do not know TOPIC_DELETION_DISABLED


class DeleteTopics:
    def __init__(self, forwarding: Forwarding, is_enabled: bool) -> None:
        self._forwarding = forwarding
        self._is_enabled = is_enabled
        self.refuse = forwarding.refuse

    async def handle(self, context: RequestContext, request: DeleteTopicsRequest) -> Any:
        if not self._is_enabled:
            is_told = context.api_version >= FIRST_WITH_DISABLED
            return self.refuse(
                request, ErrorCode.TOPIC_DELETION_DISABLED if is_told else ErrorCode.INVALID_REQUEST
            )
        named = [*request.topics, *map(DeleteTopicState, request.topic_names)]
        return await self._forwarding.ask(DeleteTopicsRequest(named, timeout_ms=request.timeout_ms), context)
