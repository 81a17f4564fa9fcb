"""ApiVersions (key 18): which APIs this broker serves, in which versions, and which features are finalized.

Versions 0 to 5. No field is ignored.

What is shown is what is in the handler table and nothing else; the ranges are those of protocol/apis.py,
where Kafka 4.4's stand. Features whose highest level is 0 are not shown: level 0 means that the feature is
absent. Since version 5 a client says whom it believes it talks to, and one that took a wrong turn is sent
back to its bootstrap servers (KIP-1242).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from millrace.broker.requests.request import RequestContext
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.raft.voters import STATIC
from millrace.kraft.tables.features import KRAFT_VERSION, SUPPORTED
from millrace.protocol.apis import API
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.header import API_VERSIONS_KEY
from millrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")
FIRST_WITH_SOFTWARE = 3
SOFTWARE_CHARS_MAX = 100  # kept for as long as the connection lives
FIRST_WITH_MIN_ZERO = 4  # before it, a feature whose lowest level is 0 breaks Java clients (KAFKA-17011)


class ApiVersions:
    """`api_keys` are the keys of the handler table, this one included or not. `listener`: of whom, "broker"
    or "controller".
    `kraft_version`: in force, which stands in no image."""

    def __init__(
        self,
        api_keys: Iterable[int],
        cluster_id: str,
        node_id: int,
        image: Callable[[], MetadataImage],
        listener: str = "broker",
        kraft_version: Callable[[], int] = lambda: STATIC,
    ) -> None:
        self._api_keys = shown_ranges({*api_keys, API_VERSIONS_KEY}, listener)
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._image = image
        self._kraft_version = kraft_version
        self._supported = [
            SupportedFeatureKey(feature.name, feature.min_level, feature.max_level)
            for feature in SUPPORTED
            if feature.max_level > 0
        ]

    def handle(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        version = context.api_version
        if version >= FIRST_WITH_SOFTWARE:
            names = (request.client_software_name, request.client_software_version)
            if not all(map(_SOFTWARE.fullmatch, names)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            info = context.connection
            info.software_name, info.software_version = (name[:SOFTWARE_CHARS_MAX] for name in names)
        if request.cluster_id is not None and request.node_id >= 0:
            is_elsewhere = (request.cluster_id, request.node_id) != (self._cluster_id, self._node_id)
            if is_elsewhere:
                return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        image = self._image()
        levels = dict(image.features.levels)
        if (kraft_version := self._kraft_version()) != STATIC:
            levels[KRAFT_VERSION] = kraft_version
        return ApiVersionsResponse(
            api_keys=self._api_keys,
            supported_features=[
                shown for shown in self._supported if shown.min_version > 0 or version >= FIRST_WITH_MIN_ZERO
            ],
            finalized_features_epoch=image.offset,
            finalized_features=[FinalizedFeatureKey(name, level, level) for name, level in levels.items()],
        )

    def refuse(self, request: ApiVersionsRequest | None, code: int) -> ApiVersionsResponse:
        """An unknown version is told this API's own range, so that the client can ask again (KIP-511)."""
        own = shown_ranges({API_VERSIONS_KEY}) if code == ErrorCode.UNSUPPORTED_VERSION else []
        return ApiVersionsResponse(error_code=code, api_keys=own)


def shown_ranges(api_keys: set[int], listener: str = "broker") -> list[ApiVersion]:
    """The ranges in key order. Private and controller-only APIs are shown on a controller's listener
    alone, to other nodes of the cluster."""
    found = []
    for key in sorted(api_keys):
        api = API[key]
        if listener in api.listeners:
            lowest = api.min_version if api.advertised_min is None else api.advertised_min
            found.append(ApiVersion(key, lowest, api.max_stable_version))
    return found
