"""What a topic's configuration means to its partitions, read from text once a change, not once a batch. Pure.

Values come as text under Kafka's names: the topic's own over the broker's defaults, merged by the caller and
valid by then. What is missing has Kafka's default. Not here: which values are allowed and where defaults come
from (kraft/topic_configs.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from millrace.protocol.batches import INT64_MAX, Codec, ProduceRules
from millrace.protocol.dataclass import dataclass

RECORD_VALIDATION_DEFAULT = "header"  # as kraft/topic_configs.py has it
NO_VALUES: Mapping[str, str] = {}
_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """One topic's. `codec` None: batches keep the producer's. `retention_*` below zero: without bound.
    `rules`: by which a batch's header is judged; `record_rules`: by which each of its records is, None where
    none is looked at."""

    rules: ProduceRules = field(default_factory=ProduceRules)
    record_rules: ProduceRules | None = None
    codec: Codec | None = None
    codec_level: int | None = None
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    is_deleted_by_retention: bool = True
    is_compacted: bool = False
    is_rewriting: bool = field(
        init=False, default=False
    )  # batches are looked into, or changed, before they are appended

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "is_rewriting", self.rules.is_append_time or self.codec is not None or self.is_compacted
        )

    @property
    def has_retention(self) -> bool:
        """Whether retention may ever drop anything."""
        return self.is_deleted_by_retention and (self.retention_ms >= 0 or self.retention_bytes >= 0)


def parse_settings(values: Mapping[str, str]) -> TopicSettings:
    """Raises ValueError for a value that is no number where one is due. Blanks around values are none of
    them: earlier releases stored those."""
    values = {name: value.strip() for name, value in values.items()}

    def number(name: str, default: int) -> int:
        return int(values.get(name, default))

    codec_name = values.get("compression.type", "producer")
    codec = _CODECS.get(codec_name)
    policies = [word.strip() for word in values.get("cleanup.policy", "delete").split(",")]
    is_level_set = codec_name in ("gzip", "lz4", "zstd") and f"compression.{codec_name}.level" in values
    rules = ProduceRules(
        batch_bytes_max=number("max.message.bytes", 1_048_588),
        segment_bytes=number("segment.bytes", 1 << 30),
        timestamp_before_max_ms=number("message.timestamp.before.max.ms", INT64_MAX),
        timestamp_after_max_ms=number("message.timestamp.after.max.ms", 3_600_000),
        is_append_time=values.get("message.timestamp.type", "CreateTime") == "LogAppendTime",
    )
    is_walked = values.get("record.validation", RECORD_VALIDATION_DEFAULT) == "records"
    # Where each record's time is judged, nothing is left to ask of the header's two.
    without_times = replace(rules, timestamp_before_max_ms=INT64_MAX, timestamp_after_max_ms=INT64_MAX)
    return TopicSettings(
        rules=without_times if is_walked else rules,
        record_rules=rules if is_walked else None,
        codec=codec,
        codec_level=number(f"compression.{codec_name}.level", 0) if is_level_set else None,
        segment_ms=number("segment.ms", 604_800_000),
        segment_jitter_ms=number("segment.jitter.ms", 0),
        index_interval_bytes=number("index.interval.bytes", 4096),
        retention_ms=number("retention.ms", 604_800_000),
        retention_bytes=number("retention.bytes", -1),
        is_deleted_by_retention="delete" in policies,
        is_compacted="compact" in policies,
    )
