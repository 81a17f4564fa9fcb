"""UpdateFeatures (key 57): raises or lowers the levels of features for the whole cluster."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class FeatureUpdateKey:
    feature: str = ""
    max_version_level: Int16 = 0  # below 1: take the feature away
    allow_downgrade: bool = wire(False, until=0)
    upgrade_type: Int8 = wire(1, since=1)  # 1 upgrade, 2 downgrade without loss, 3 downgrade with loss


@dataclass(slots=True)
class UpdateFeaturesRequest:
    VERSIONS = Versions(0, 2, flexible=0)

    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = array()
    validate_only: bool = wire(False, since=1)


@dataclass(slots=True)
class UpdatableFeatureResult:
    feature: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""


@dataclass(slots=True)
class UpdateFeaturesResponse:
    VERSIONS = Versions(0, 2, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    # from version 2 on there is one error for all
    results: list[UpdatableFeatureResult] = array(until=1, ignorable=True)
