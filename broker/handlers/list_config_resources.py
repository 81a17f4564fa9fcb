"""ListConfigResources (key 74): what has a configuration of its own, or could have (KIP-1142).

Version 0 lists client metrics alone, as the API did under its first name.
"""

from __future__ import annotations

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.request import RequestContext
from millrace.kraft.tables.configs import ResourceType
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

SUPPORTED = tuple(int(kind) for kind in ResourceType)


class ListConfigResources:
    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def handle(self, context: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
        if context.api_version == 0:
            kinds = [int(ResourceType.CLIENT_METRICS)]
        else:
            kinds = sorted(set(request.resource_types)) or list(SUPPORTED)
        if any(kind not in SUPPORTED for kind in kinds):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        found = [ConfigResource(name, kind) for kind in kinds for name in self._names(kind)]
        return ListConfigResourcesResponse(config_resources=found)

    def _names(self, kind: int) -> list[str]:
        image = self._cache.image
        if kind == ResourceType.TOPIC:
            return [topic.name for topic in image.topics]
        if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
            return [str(broker.broker_id) for broker in image.brokers]
        return [name for (held, name), _ in image.configs.by_resource.items() if held == kind]
