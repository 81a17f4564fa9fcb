"""UpdateFeatures (key 57): the controller decides. It may be another node's, which is asked in the newest
version; what only older ones say is told apart here: how a downgrade is asked for, and each feature's result.

Versions 0 to 2. Ignored: `timeout_ms` (`request.timeout.ms` bounds the wait).
"""

from __future__ import annotations

from millrace.broker.requests.forwarding import Forwarding
from millrace.broker.requests.request import RequestContext
from millrace.kraft.commands.features import SAFE_DOWNGRADE
from millrace.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


class UpdateFeatures:
    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self.refuse = forwarding.refuse

    async def handle(self, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        updates = [_as_newest(update) for update in request.feature_updates]
        asked = UpdateFeaturesRequest(request.timeout_ms, updates, request.validate_only)
        response: UpdateFeaturesResponse = await self._forwarding.ask(asked, context)
        if not response.error_code:
            response.results = [UpdatableFeatureResult(update.feature, 0, None) for update in updates]
        return response


def _as_newest(update: FeatureUpdateKey) -> FeatureUpdateKey:
    kind = SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type
    return FeatureUpdateKey(update.feature, update.max_version_level, upgrade_type=kind)
