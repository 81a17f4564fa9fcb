"""CreateTopics (key 19): the controller decides; here, what must not reach it.

Versions 2 to 7. Ignored: `timeout_ms` (`request.timeout.ms` bounds the wait).

The metadata log looks like a topic to Kafka's tools and is none: that it cannot be created is said in Kafka's
code.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.broker.requests.forwarding import Forwarding
from millrace.broker.requests.request import RequestContext
from millrace.kraft.commands.create_topics import METADATA_TOPIC
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


class CreateTopics:
    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self.refuse = forwarding.refuse

    async def handle(self, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        wanted = [topic for topic in request.topics if topic.name != METADATA_TOPIC]
        response: CreateTopicsResponse = await self._forwarding.ask(replace(request, topics=wanted), context)
        if len(wanted) < len(request.topics):
            text = f"{METADATA_TOPIC} is the metadata log, and no topic that could be created"
            code = int(ErrorCode.INVALID_REQUEST)
            response.topics.append(CreatableTopicResult(METADATA_TOPIC, error_code=code, error_message=text))
        return response
