"""Every topic configuration of Kafka 4.4: type, default, bounds, what we do with it, and where a broker-wide
value lies.

One table serves CreateTopics, AlterConfigs and IncrementalAlterConfigs (what is valid), DescribeConfigs (what
there is) and whoever asks what holds for a topic (`ConfigLookup.effective`). Sources, the most specific
first: the topic's own value, the broker's dynamic one, the dynamic default of all brokers, the broker's
properties file, Kafka's default.

Not here: what a value does (the partition), the values themselves (tables/configs.py). Kept true: a default
is valid, and a value that `validate` passed is never refused by one who reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum, IntEnum
from typing import Final

from millrace.kraft.config import NO_STATIC
from millrace.kraft.image.image import MetadataImage
from millrace.protocol.dataclass import dataclass

LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1
DAY_MS: Final = 86_400_000


class ConfigKind(IntEnum):
    """Kafka's numbers, as DescribeConfigs has them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Kafka's numbers for where a value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class Standing(Enum):
    OBEYED = "obeyed"  # changes what a partition does
    STORED = "stored"  # kept and shown; means nothing here
    REFUSED = "refused"  # any value but the default is an error


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker-wide key with the same meaning, whose value is this many times smaller."""

    key: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class TopicConfig:
    name: str
    kind: ConfigKind
    default: str
    standing: Standing
    doc: str
    synonyms: tuple[Synonym, ...] = ()  # the first that is set counts
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """`value` as the topic has it; `stated` is what was written under `key`, in that key's own unit."""

    value: str
    source: ConfigSource
    key: str
    stated: str


_BOOLEAN, _STRING, _INT, _LONG = ConfigKind.BOOLEAN, ConfigKind.STRING, ConfigKind.INT, ConfigKind.LONG
_OBEYED, _STORED, _REFUSED = Standing.OBEYED, Standing.STORED, Standing.REFUSED
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_HOURS, _MINUTES = 3_600_000, 60_000


def _log(*keys: str) -> tuple[Synonym, ...]:
    return tuple(Synonym(f"log.{key}") for key in keys)


TOPIC_CONFIGS: Final[dict[str, TopicConfig]] = {
    config.name: config
    for config in (
        TopicConfig(
            "cleanup.policy",
            ConfigKind.LIST,
            "delete",
            _OBEYED,
            "Whether old data goes by age and size (delete), by newer values of its key (compact), both, or "
            "not at all.",
            _log("cleanup.policy"),
            choices=("compact", "delete"),
        ),
        TopicConfig(
            "compression.gzip.level",
            _INT,
            "-1",
            _OBEYED,
            "The level when compression.type is gzip; -1 is the codec's own default.",
            (Synonym("compression.gzip.level"),),
            -1,
            9,
        ),
        TopicConfig(
            "compression.lz4.level",
            _INT,
            "9",
            _OBEYED,
            "The level when compression.type is lz4.",
            (Synonym("compression.lz4.level"),),
            1,
            17,
        ),
        TopicConfig(
            "compression.type",
            _STRING,
            "producer",
            _OBEYED,
            "The codec that data is kept in; producer keeps each batch as it came.",
            (Synonym("compression.type"),),
            choices=_CODECS,
        ),
        TopicConfig(
            "compression.zstd.level",
            _INT,
            "3",
            _OBEYED,
            "The level when compression.type is zstd.",
            (Synonym("compression.zstd.level"),),
            -131_072,
            22,
        ),
        TopicConfig(
            "delete.retention.ms",
            _LONG,
            str(DAY_MS),
            _STORED,
            "How long a deletion stays visible in a compacted topic.",
            _log("cleaner.delete.retention.ms"),
            0,
        ),
        TopicConfig(
            "errors.deadletterqueue.group.enable",
            _BOOLEAN,
            "false",
            _STORED,
            "Whether share groups may use the topic for records they give up.",
        ),
        TopicConfig(
            "file.delete.delay.ms",
            _LONG,
            "60000",
            _STORED,
            "How long Kafka keeps a deleted segment's file; objects have a grace of their own.",
            _log("segment.delete.delay.ms"),
            0,
        ),
        TopicConfig(
            "flush.messages",
            _LONG,
            str(LONG_MAX),
            _STORED,
            "After how many records Kafka syncs; here every record is durable before it is acknowledged.",
            _log("flush.interval.messages"),
            1,
        ),
        TopicConfig(
            "flush.ms",
            _LONG,
            str(LONG_MAX),
            _STORED,
            "After how long Kafka syncs; here every record is durable before it is acknowledged.",
            _log("flush.interval.ms", "flush.scheduler.interval.ms"),
            0,
        ),
        TopicConfig(
            "follower.replication.throttled.replicas",
            ConfigKind.LIST,
            "",
            _STORED,
            "Replicas whose replication Kafka slows down; there is none to slow down here.",
        ),
        TopicConfig(
            "index.interval.bytes",
            _INT,
            "4096",
            _OBEYED,
            "How many bytes of data one entry of the time index covers.",
            _log("index.interval.bytes"),
            0,
            INT_MAX,
        ),
        TopicConfig(
            "leader.replication.throttled.replicas",
            ConfigKind.LIST,
            "",
            _STORED,
            "Replicas whose replication Kafka slows down; there is none to slow down here.",
        ),
        TopicConfig(
            "local.retention.bytes",
            _LONG,
            "-2",
            _STORED,
            "How much a tiered topic keeps on disk; here everything is in the object store.",
            _log("local.retention.bytes"),
            -2,
        ),
        TopicConfig(
            "local.retention.ms",
            _LONG,
            "-2",
            _STORED,
            "How long a tiered topic stays on disk; here everything is in the object store.",
            _log("local.retention.ms"),
            -2,
        ),
        TopicConfig(
            "max.compaction.lag.ms",
            _LONG,
            str(LONG_MAX),
            _STORED,
            "The longest that a record of a compacted topic waits for compaction.",
            _log("cleaner.max.compaction.lag.ms"),
            1,
        ),
        TopicConfig(
            "max.message.bytes",
            _INT,
            "1048588",
            _OBEYED,
            "The largest batch that is accepted, as it comes over the wire.",
            (Synonym("message.max.bytes"),),
            0,
            INT_MAX,
        ),
        TopicConfig(
            "message.timestamp.after.max.ms",
            _LONG,
            "3600000",
            _OBEYED,
            "How far a record's timestamp may lie in the future.",
            _log("message.timestamp.after.max.ms"),
            0,
        ),
        TopicConfig(
            "message.timestamp.before.max.ms",
            _LONG,
            str(LONG_MAX),
            _OBEYED,
            "How far a record's timestamp may lie in the past.",
            _log("message.timestamp.before.max.ms"),
            0,
        ),
        TopicConfig(
            "message.timestamp.type",
            _STRING,
            "CreateTime",
            _OBEYED,
            "Whether timestamps are the producer's or the time of the append.",
            _log("message.timestamp.type"),
            choices=("CreateTime", "LogAppendTime"),
        ),
        TopicConfig(
            "min.cleanable.dirty.ratio",
            ConfigKind.DOUBLE,
            "0.5",
            _STORED,
            "How much of a compacted topic is not yet compacted before it is.",
            _log("cleaner.min.cleanable.ratio"),
            0,
            1,
        ),
        TopicConfig(
            "min.compaction.lag.ms",
            _LONG,
            "0",
            _STORED,
            "The shortest that a record of a compacted topic stays as it was written.",
            _log("cleaner.min.compaction.lag.ms"),
            0,
        ),
        TopicConfig(
            "min.insync.replicas",
            _INT,
            "1",
            _STORED,
            "How many replicas Kafka wants for acks=all; the store replicates here, so it is not enforced.",
            (Synonym("min.insync.replicas"),),
            1,
            INT_MAX,
        ),
        TopicConfig(
            "preallocate",
            _BOOLEAN,
            "false",
            _STORED,
            "Whether Kafka reserves a segment's file beforehand; there is none here.",
            _log("preallocate"),
        ),
        TopicConfig(
            "record.validation",
            _STRING,
            "header",
            _OBEYED,
            "Whether only a batch's header is judged (header), or each record as Kafka does (records): "
            "unpacked, counted, measured, its offset, time"
            " and key looked at. A batch that fails is refused with INVALID_RECORD.",
            (Synonym("record.validation"),),
            choices=("header", "records"),
        ),
        TopicConfig(
            "remote.copy.lag.bytes",
            _LONG,
            "0",
            _STORED,
            "How much Kafka holds back from tiering; here everything is in the object store.",
            (),
            -2,
        ),
        TopicConfig(
            "remote.copy.lag.ms",
            _LONG,
            "0",
            _STORED,
            "How long Kafka holds back from tiering; here everything is in the object store.",
            (),
            -2,
        ),
        TopicConfig(
            "remote.log.copy.disable",
            _BOOLEAN,
            "false",
            _STORED,
            "Whether a tiered topic stops being tiered; it means nothing here.",
        ),
        TopicConfig(
            "remote.log.delete.on.disable",
            _BOOLEAN,
            "false",
            _STORED,
            "Whether tiered data goes when tiering is turned off; it means nothing here.",
        ),
        TopicConfig(
            "remote.storage.enable",
            _BOOLEAN,
            "false",
            _REFUSED,
            "Kafka's tiered storage. All data lies in the object store anyway, so turning it on is refused.",
        ),
        TopicConfig(
            "retention.bytes",
            _LONG,
            "-1",
            _OBEYED,
            "How much a partition keeps before its oldest segments go; -1 is without bound.",
            _log("retention.bytes"),
        ),
        TopicConfig(
            "retention.ms",
            _LONG,
            str(7 * DAY_MS),
            _OBEYED,
            "How long a segment stays after its newest record; -1 is for ever.",
            (
                Synonym("log.retention.ms"),
                Synonym("log.retention.minutes", _MINUTES),
                Synonym("log.retention.hours", _HOURS),
            ),
            -1,
        ),
        TopicConfig(
            "segment.bytes",
            _INT,
            str(1 << 30),
            _OBEYED,
            "The size at which a new segment, the unit of retention, is begun.",
            _log("segment.bytes"),
            1 << 20,
            INT_MAX,
        ),
        TopicConfig(
            "segment.index.bytes",
            _INT,
            "10485760",
            _STORED,
            "The size of Kafka's index files; there are none here.",
            _log("index.size.max.bytes"),
            4,
            INT_MAX,
        ),
        TopicConfig(
            "segment.jitter.ms",
            _LONG,
            "0",
            _OBEYED,
            "How much sooner by chance than segment.ms a new segment may begin.",
            (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOURS)),
            0,
        ),
        TopicConfig(
            "segment.ms",
            _LONG,
            str(7 * DAY_MS),
            _OBEYED,
            "The age at which a new segment is begun.",
            (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOURS)),
            1,
        ),
        TopicConfig(
            "unclean.leader.election.enable",
            _BOOLEAN,
            "false",
            _STORED,
            "Whether data may be lost to elect a leader; no election loses data here.",
            (Synonym("unclean.leader.election.enable"),),
        ),
    )
}
PAIR: Final = re.compile(r"[0-9]+:[0-9]+")  # PARTITION:BROKER
WHOLE: Final = re.compile(r"[-+]?[0-9]{1,40}")  # of more digits Python makes no number
SYNONYM_KEYS: Final = frozenset(
    synonym.key for config in TOPIC_CONFIGS.values() for synonym in config.synonyms
)


def validate(name: str, value: str | None) -> str | None:
    """Why `value` cannot be the topic's `name`, in a sentence; None when it can."""
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        return f"Unknown topic config name: {name}"
    if value is None:
        return f"Null value not supported for topic configs: {name}"
    why = CHECKS[config.kind](config, value.strip())
    if why is None and config.standing is Standing.REFUSED and value.strip().lower() != config.default:
        why = config.doc
    return None if why is None else f"Invalid value {value} for configuration {name}: {why}"


def as_stored(name: str, value: str) -> str:
    """A valid value without blanks around it and in one spelling, as Kafka shows it: who reads it later reads
    what was judged."""
    kind, value = TOPIC_CONFIGS[name].kind, value.strip()
    if kind is ConfigKind.BOOLEAN:
        return value.lower()
    if kind in (ConfigKind.INT, ConfigKind.LONG):
        return str(int(value))
    return ",".join(dict.fromkeys(_items(value))) if kind is ConfigKind.LIST else value


def validate_all(values: Mapping[str, str]) -> str | None:
    """Checks what a topic would have set as a whole: each value, then those that limit one another."""
    for name, value in values.items():
        why = validate(name, value)
        if why is not None:
            return why
    low = int(values.get("min.compaction.lag.ms", "0"))
    high = int(values.get("max.compaction.lag.ms", str(LONG_MAX)))
    if low > high:
        return f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
    return None


def is_list(name: str) -> bool:
    """Values can be appended to it and taken from it."""
    config = TOPIC_CONFIGS.get(name)
    return config is not None and config.kind is ConfigKind.LIST


MIN_INSYNC: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class ConfigLookup:
    """What holds for topics on one node: `static` is the node's properties file, by Kafka's broker keys."""

    node_id: int
    static: Mapping[str, str] = field(default_factory=lambda: NO_STATIC)

    def effective(self, image: MetadataImage, topic: str, name: str) -> ConfigValue:
        return self.listing(image, topic, name)[0]

    def broker_default(self, key: str) -> str | None:
        """A broker-wide key without what was set dynamically."""
        defaults = (c.default for c in TOPIC_CONFIGS.values() if c.synonyms and c.synonyms[0].key == key)
        return self.static.get(key) or next(defaults, None)

    def of_all_brokers(self, image: MetadataImage) -> Mapping[str, str]:
        """What is set dynamically for all brokers. min.insync.replicas is among it with the value of the
        start, until it is set: a cluster of Kafka 4.1 and later has it written when it is made (for eligible
        leader replicas, KIP-966)."""
        values = image.configs.broker(None)
        if MIN_INSYNC in values:
            return values
        return {**values, MIN_INSYNC: self.static.get(MIN_INSYNC, TOPIC_CONFIGS[MIN_INSYNC].default)}

    def effective_all(self, image: MetadataImage, topic: str) -> dict[str, str]:
        """Every configuration of a topic."""
        return {name: self.effective(image, topic, name).value for name in TOPIC_CONFIGS}

    def listing(self, image: MetadataImage, topic: str, name: str) -> list[ConfigValue]:
        """Every value there is for `name`, the one that holds first and Kafka's default last."""
        config = TOPIC_CONFIGS[name]
        own = image.configs.topic(topic).get(name)
        found = [] if own is None else [ConfigValue(own, ConfigSource.TOPIC, name, own)]
        every = self.of_all_brokers(image) if name == MIN_INSYNC else image.configs.broker(None)
        levels = (
            (image.configs.broker(self.node_id), ConfigSource.DYNAMIC_BROKER),
            (every, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self.static, ConfigSource.STATIC_BROKER),
        )
        for values, source in levels:
            found += from_synonyms(config, values, source)
        found.append(default_value(config))
        return found


def default_value(config: TopicConfig) -> ConfigValue:
    """As Kafka states it: where there are several units, under the largest."""
    synonym = config.synonyms[-1] if config.synonyms else Synonym(config.name)
    stated = config.default if synonym.factor == 1 else str(int(config.default) // synonym.factor)
    return ConfigValue(config.default, ConfigSource.DEFAULT, synonym.key, stated)


def from_synonyms(config: TopicConfig, values: Mapping[str, str], source: ConfigSource) -> list[ConfigValue]:
    """What broker-wide `values` of one source say of a topic configuration, the one that counts first."""
    found = []
    for synonym in config.synonyms:
        stated = values.get(synonym.key)
        if stated is not None:
            is_scaled = synonym.factor != 1 and int(stated) > 0
            value = str(int(stated) * synonym.factor) if is_scaled else stated
            found.append(ConfigValue(value, source, synonym.key, stated))
    return found


def _check_boolean(config: TopicConfig, value: str) -> str | None:
    return None if value.lower() in ("true", "false") else "Expected value to be either true or false"


def _check_string(config: TopicConfig, value: str) -> str | None:
    return (
        None
        if not config.choices or value in config.choices
        else f"String must be one of: {', '.join(config.choices)}"
    )


def _check_whole(config: TopicConfig, value: str) -> str | None:
    width = INT_MAX if config.kind is ConfigKind.INT else LONG_MAX
    if WHOLE.fullmatch(value) is None or not -width - 1 <= int(value) <= width:
        return f"Not a number of type {config.kind.name}"
    return _check_bounds(config, int(value))


def _check_double(config: TopicConfig, value: str) -> str | None:
    try:
        # 0_5 and digits of other scripts make a number in Python alone
        return _check_bounds(config, float(value.replace("_", " ").encode("ascii")))
    except ValueError:
        return "Not a number of type DOUBLE"


def _check_bounds(config: TopicConfig, number: float) -> str | None:
    if config.low is not None and not number >= config.low:
        return f"Value must be at least {_plain(config.low)}"
    if config.high is not None and not number <= config.high:
        return f"Value must be no more than {_plain(config.high)}"
    return None


def _plain(bound: float) -> str:
    """All its digits, and no fraction that it has not."""
    return str(int(bound)) if bound == int(bound) else str(bound)


def _check_list(config: TopicConfig, value: str) -> str | None:
    items = _items(value)
    if "throttled.replicas" in config.name:
        return _check_throttled(items)
    if config.choices and any(item not in config.choices for item in items):
        return f"Valid items are: {', '.join(config.choices)}"
    return None


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",")] if value else []


def _check_throttled(items: list[str]) -> str | None:
    """Empty, a star, or pairs PARTITION:BROKER."""
    is_good = items in ([], ["*"]) or all(PAIR.fullmatch(item) for item in items)
    return None if is_good else "Must be the literal '*' or a list of pairs: [partitionId]:[brokerId]"


CHECKS: Final = {
    ConfigKind.BOOLEAN: _check_boolean,
    ConfigKind.STRING: _check_string,
    ConfigKind.INT: _check_whole,
    ConfigKind.LONG: _check_whole,
    ConfigKind.DOUBLE: _check_double,
    ConfigKind.LIST: _check_list,
}
