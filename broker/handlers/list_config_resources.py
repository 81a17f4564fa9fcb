"""ListConfigResources (key 74): what has a configuration of its own, or could have (KIP-1142).

Versions 0 to 1. No field is ignored.

Version 0 lists client metrics alone, as the API did under its first name.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.requests.request import RequestContext
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.configs import ResourceType
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from millrace.runtime.scheduling.chunks import in_chunks

RESOURCES_PER_CHUNK = 2000
SUPPORTED = tuple(int(kind) for kind in ResourceType)


class ListConfigResources:
    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def handle(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse | Coroutine[Any, Any, ListConfigResourcesResponse]:
        if context.api_version == 0:
            kinds = [int(ResourceType.CLIENT_METRICS)]
        else:
            kinds = sorted(set(request.resource_types)) or list(SUPPORTED)
        if any(kind not in SUPPORTED for kind in kinds):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        image = self._cache.image
        found = (ConfigResource(name, kind) for kind in kinds for name in _names(image, kind))
        if len(image.topics) + len(image.configs.by_resource) > RESOURCES_PER_CHUNK:
            return self._answer_many(context, found)
        return ListConfigResourcesResponse(config_resources=list(found))

    async def _answer_many(
        self, context: RequestContext, found: Iterator[ConfigResource]
    ) -> ListConfigResourcesResponse:
        """Of one image."""
        response = ListConfigResourcesResponse()
        async for part in in_chunks(found, RESOURCES_PER_CHUNK, context.work):
            response.config_resources += part
        return response


def _names(image: MetadataImage, kind: int) -> Iterator[str]:
    if kind == ResourceType.TOPIC:
        return (topic.name for topic in image.topics)
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return (str(broker.broker_id) for broker in image.brokers)
    return (name for (held, name), _ in image.configs.by_resource.items() if held == kind)
