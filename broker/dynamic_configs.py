"""Which of a broker's settings may be changed while it runs, and what they may hold. Pure.

A change comes through AlterConfigs or IncrementalAlterConfigs, for one broker or for all, and is judged before it enters the metadata log.
May be changed: what Kafka changes dynamically, as far as the change holds at once here (the defaults of topic configurations), and
what is stored and shown anyway. The rest is refused as read-only: a value that is shown and not obeyed would be a lie.

Not here: who holds the values (kraft/tables/configs.py), what a topic gets of them (kraft/topic_configs.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.broker.config_key import LONG, STORED, Key, parse_value
from millrace.kraft.topic_configs import TOPIC_CONFIGS, validate
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError

# Dynamic in Kafka, without effect here: pools, the cleaner, throttles.
STORED_DYNAMIC = (
    "background.threads",
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.threads",
    "max.connection.creation.rate",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
# Those of them that no properties file holds: tools set them around a reassignment.
THROTTLES: Mapping[str, Key] = {
    name: Key(name, LONG, None, "No replica is copied, so there is nothing to hold back.", STORED, low=0)
    for name in (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
}
# As in Kafka the first name of each default, not its other units (log.retention.ms, not log.retention.hours).
TOPIC_DEFAULTS: Mapping[str, str] = {
    config.synonyms[0].key: name for name, config in TOPIC_CONFIGS.items() if config.synonyms
}
DYNAMIC = frozenset((*TOPIC_DEFAULTS, *STORED_DYNAMIC))


class DynamicConfigs:
    """`table` is every key of a properties file."""

    def __init__(self, table: Mapping[str, Key]) -> None:
        self._table = {**table, **THROTTLES}

    def check(self, name: str, value: str | None, is_default: bool) -> None:
        """Raises KafkaError for a change that may not be. `value` None takes it back, `is_default` is for all brokers."""
        key = self._table.get(name)
        if key is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown broker configuration {name}")
        if name not in DYNAMIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {name}")
        if value is None:
            return
        why = self._fault(key, value)
        if why is not None:
            shown = "[hidden]" if key.is_secret else value
            text = f"Invalid value {shown} for configuration {name}: it {why}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)

    def _fault(self, key: Key, value: str) -> str | None:
        try:
            parse_value(key, value)
        except ValueError as error:
            return str(error)
        topic_config = TOPIC_DEFAULTS.get(key.name)
        why = None if topic_config is None else validate(topic_config, value)
        return None if why is None else f"would not be valid for topics ({why})"
