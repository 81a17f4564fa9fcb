"""Decides UpdateFeatures: a level that is not supported here is refused, and with it the whole request.
Pure. Not here: kraft.version of a quorum that others can join, and asking controllers what they support
(kraft/peers/voter_changes.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millrace.kraft.commands.decision import Decision
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.features import KRAFT_VERSION, MILLRACE_VERSION, SUPPORTED_BY_NAME
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from millrace.protocol.metadata_records import FeatureLevelRecord

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
NO_OTHERS: Final = (
    "This process is broker and whole quorum in one, without a listener for other controllers: start it once "
    "with CONTROLLER in its listeners; where it has that, its log says why nobody is served there."
)
UPGRADE_TYPES: Final = (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE)


def decide_update_features(image: MetadataImage, request: UpdateFeaturesRequest) -> Decision:
    """All updates or none: raises KafkaError for the first that is refused, or is named twice."""
    response = UpdateFeaturesResponse(error_message=None)
    decision = Decision(response)
    seen: set[str] = set()
    for update in request.feature_updates:
        if update.feature in seen:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Feature {update.feature} is named twice.")
        seen.add(update.feature)
        check(image, update)
        response.results.append(UpdatableFeatureResult(update.feature, 0, None))
        if update.max_version_level != image.features.level(update.feature) and not request.validate_only:
            decision.records.append(FeatureLevelRecord(update.feature, update.max_version_level))
    return decision


def check_brokers(image: MetadataImage, feature: str, level: int, prefix: str) -> None:
    """Raises KafkaError INVALID_UPDATE_VERSION where a registered broker could not run at the level; one that
    is gone comes back, unless it is unregistered. A feature that a broker does not name it runs without."""
    for broker in image.brokers:
        supported = {name: (low, high) for name, low, high in broker.features}
        low, high = supported.get(feature, (0, 0))
        if not low <= level <= high:
            text = f"{prefix} Broker {broker.broker_id} supports versions {low}-{high}: upgrade it first."
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)


def raised_level(image: MetadataImage, updates: Sequence[FeatureUpdateKey]) -> int | None:
    """To which millrace.version is raised; None where it is not."""
    asked = [one.max_version_level for one in updates if one.feature == MILLRACE_VERSION]
    return next((level for level in asked if level > image.features.level(MILLRACE_VERSION)), None)


def check_controllers(said: Mapping[int, tuple[int, int] | str], level: int) -> None:
    """`said`: of each controller that is no broker the levels of millrace.version that it runs at, or why it
    does not say; brokers said so when they registered. Raises KafkaError INVALID_UPDATE_VERSION for the first
    that could not read what is written at this level."""
    prefix = f"Invalid update version {level} for feature {MILLRACE_VERSION}."
    for node_id, levels in said.items():
        if isinstance(levels, str):
            text = f"{prefix} Controller {node_id} does not say what it supports: {levels}."
        elif not levels[0] <= level <= levels[1]:
            text = (
                f"{prefix} Controller {node_id} supports versions {levels[0]}-{levels[1]}: upgrade it first."
            )
        else:
            continue
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)


def check(image: MetadataImage, update: FeatureUpdateKey) -> None:
    """Raises KafkaError INVALID_UPDATE_VERSION for a feature or a level that is not supported, or a downgrade
    that was not asked for or cannot be, and for an unknown upgrade type."""
    supported = SUPPORTED_BY_NAME.get(update.feature)
    level, current = update.max_version_level, image.features.level(update.feature)
    prefix = f"Invalid update version {level} for feature {update.feature}."
    if update.upgrade_type not in UPGRADE_TYPES:
        text = f"{prefix} The controller does not support the given upgrade type."
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)
    if supported is None:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"{prefix} The feature is not known here.")
    if not supported.min_level <= level <= supported.max_level:
        text = f"{prefix} Supported are versions {supported.min_level}-{supported.max_level}."
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)
    if update.feature == KRAFT_VERSION and level != current:
        text = f"{prefix} {NO_OTHERS}"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)
    if level != current:
        check_brokers(image, update.feature, level, prefix)
    if update.feature == MILLRACE_VERSION and level < current:
        text = (
            f"{prefix} What was written at level {current} cannot be read at a lower one: there is no "
            "way "
            "back."
        )
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)
    is_downgrade = update.upgrade_type != UPGRADE or update.allow_downgrade
    if level < current and not is_downgrade:
        text = (
            f"{prefix} Can't downgrade the version of this feature without setting the upgrade type to a "
            "downgrade."
        )
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)
