"""Finalized feature levels, what we support of each, and UpdateFeatures.

Not here: what a level changes (the code that asks for it). Kept true: a finalized level lies within what is
supported, and metadata.version is finalized before anything else in every log and snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from millrace.kraft.raft.voters import DYNAMIC, STATIC
from millrace.protocol.dataclass import dataclass
from millrace.protocol.metadata_records import FeatureLevelRecord

METADATA_VERSION: Final = "metadata.version"
METADATA_VERSION_LEVEL: Final = 30  # 4.3-IV0: what kraft/image/records.py writes
# Formats of our own. Level 1: write-ahead logs and incarnations in metadata, the writer in each object's
# footer, metadata in the bucket. Level 2: failovers. Level 3: ranges that an earlier owner's log owes.
MILLRACE_VERSION: Final = "millrace.version"
MILLRACE_VERSION_LEVEL: Final = 3
OWED_RANGES_LEVEL: Final = 3
KRAFT_VERSION: Final = "kraft.version"  # stands in control records, and never in an image


@dataclass(frozen=True, slots=True)
class SupportedFeature:
    """The levels of a feature that this build can run at; `bootstrap` is finalized in a new cluster."""

    name: str
    min_level: int
    max_level: int
    bootstrap: int


# Only what is truly served: a client takes a finalized level for a promise.
SUPPORTED: Final = (
    SupportedFeature(
        METADATA_VERSION, METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL
    ),
    SupportedFeature(MILLRACE_VERSION, 0, MILLRACE_VERSION_LEVEL, MILLRACE_VERSION_LEVEL),
    SupportedFeature(KRAFT_VERSION, STATIC, DYNAMIC, STATIC),
    SupportedFeature("transaction.version", 0, 0, 0),
    SupportedFeature("group.version", 0, 0, 0),
    SupportedFeature("eligible.leader.replicas.version", 0, 0, 0),
    SupportedFeature("share.version", 0, 0, 0),
    SupportedFeature("streams.version", 0, 0, 0),
)
SUPPORTED_BY_NAME: Final = {feature.name: feature for feature in SUPPORTED}


@dataclass(frozen=True, slots=True)
class Features:
    """Finalized levels by name; a feature at level 0 is absent."""

    levels: Mapping[str, int] = field(default_factory=dict)

    def level(self, name: str) -> int:
        return self.levels.get(name, 0)

    @property
    def has_identities(self) -> bool:
        """millrace.version 1 is finalized: write-ahead logs, incarnations and objects' writers are recorded
        and checked."""
        return self.level(MILLRACE_VERSION) >= 1

    @property
    def has_failovers(self) -> bool:
        """millrace.version 2 is finalized: who recovers whose write-ahead log is recorded."""
        return self.level(MILLRACE_VERSION) >= 2

    @property
    def has_owed_ranges(self) -> bool:
        """millrace.version 3 is finalized: a stream may be closed while its owner's log owes a range of
        it."""
        return self.level(MILLRACE_VERSION) >= OWED_RANGES_LEVEL

    def with_level(self, name: str, level: int) -> Features:
        levels = {key: value for key, value in self.levels.items() if key != name}
        if level:
            levels[name] = level
        return Features(levels)


def bootstrap_records() -> list[FeatureLevelRecord]:
    """The first records of a new cluster."""
    return [FeatureLevelRecord(feature.name, feature.bootstrap) for feature in SUPPORTED if feature.bootstrap]
