"""`millrace cluster upgrade`: what feature levels a cluster has finalized, and raising them (KIP-584).

Not here: what is judged (kraft/commands/features.py, kraft/peers/voter_changes.py), options (cluster.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.broker.cli.table import table
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millrace.broker.cluster.client import ClusterClient

CHANGE_MS = 30_000
ANSWER_S = 40.0  # longer than the controller is given


async def upgrade(client: ClusterClient, asked: Sequence[tuple[str, int]]) -> int:
    """All of what is asked, or nothing of it; with nothing asked the levels are printed. Raises Unavailable,
    WireError, KafkaError with a sentence."""
    before = await _features(client)
    if not asked:
        print(*_lines(before), sep="\n")
        return 0
    updates = [FeatureUpdateKey(name, level) for name, level in asked]
    response = await client.change(UpdateFeaturesRequest(CHANGE_MS, updates), ANSWER_S)
    faults = [(response.error_code, response.error_message)]
    faults += [(result.error_code, result.error_message) for result in response.results]
    for code, message in faults:
        if code:
            raise KafkaError(code, message or "")
    finalized = _finalized(before)
    for name, level in asked:
        print(f"{name} is {level} (it was {finalized.get(name, 0)})")
    return 0


async def _features(client: ClusterClient) -> ApiVersionsResponse:
    response = await client.ask(ApiVersionsRequest("millrace", "1"))
    assert isinstance(response, ApiVersionsResponse)
    return response


def _finalized(response: ApiVersionsResponse) -> dict[str, int]:
    return {one.name: one.max_version_level for one in response.finalized_features}


def _lines(response: ApiVersionsResponse) -> list[str]:
    finalized = _finalized(response)
    rows = [
        (one.name, str(finalized.get(one.name, 0)), str(one.max_version))
        for one in response.supported_features
    ]
    return table(("feature", "level", "this node supports"), rows)
