"""The table of topic configurations: what is valid, and what holds."""

from __future__ import annotations

import pytest

from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.topic_configs import (
    TOPIC_CONFIGS,
    ConfigLookup,
    ConfigSource,
    Standing,
    as_stored,
    is_list,
    validate,
    validate_all,
)
from millrace.protocol.metadata_records import ConfigRecord


@pytest.mark.parametrize("name", TOPIC_CONFIGS)
def test_a_default_is_valid(name: str) -> None:
    """And every row says what it is for, in a sentence."""
    config = TOPIC_CONFIGS[name]
    assert validate(name, config.default) is None
    assert config.doc.endswith(".")
    assert isinstance(config.standing, Standing)


OWN = "record.validation"


def test_the_table_is_kafkas() -> None:
    """Every topic configuration that tools know of Kafka 4.4, by name, in order; and one of our own."""
    assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)
    assert len([name for name in TOPIC_CONFIGS if name != OWN]) == 36
    assert {
        "retention.ms",
        "cleanup.policy",
        "remote.copy.lag.ms",
        "errors.deadletterqueue.group.enable",
    } <= set(TOPIC_CONFIGS)
    assert OWN in TOPIC_CONFIGS


@pytest.mark.parametrize(
    ("name", "value", "is_valid"),
    [
        ("retention.ms", "-1", True),
        ("retention.ms", "-2", False),
        ("retention.ms", "9223372036854775807", True),
        ("retention.ms", "9223372036854775808", False),
        ("retention.ms", "1.5", False),
        ("retention.ms", "", False),
        ("retention.ms", " 7 ", True),
        ("retention.ms", "٣", False),
        ("retention.ms", "1_000", False),
        ("retention.ms", "-+5", False),
        ("retention.ms", "9" * 5_000, False),
        ("retention.bytes", "-5", True),
        ("segment.bytes", "1048576", True),
        ("segment.bytes", "1048575", False),
        ("segment.bytes", "2147483648", False),
        ("max.message.bytes", "0", True),
        ("min.cleanable.dirty.ratio", "0.25", True),
        ("min.cleanable.dirty.ratio", "1.01", False),
        ("min.cleanable.dirty.ratio", "nan", False),
        ("min.cleanable.dirty.ratio", "0_0", False),
        ("min.cleanable.dirty.ratio", "much", False),
        ("min.cleanable.dirty.ratio", "\u0660.\u0665", False),
        ("cleanup.policy", "compact,delete", True),
        ("cleanup.policy", "compact, delete", True),
        ("cleanup.policy", "", True),
        ("cleanup.policy", "compact,compact", True),
        ("cleanup.policy", "shred", False),
        ("compression.type", "zstd", True),
        ("compression.type", "ZSTD", False),
        ("compression.gzip.level", "9", True),
        ("compression.gzip.level", "10", False),
        ("compression.zstd.level", "-131072", True),
        ("message.timestamp.type", "LogAppendTime", True),
        ("message.timestamp.type", "Never", False),
        ("preallocate", "TRUE", True),
        ("preallocate", "yes", False),
        ("remote.storage.enable", "false", True),
        ("remote.storage.enable", "true", False),
        ("leader.replication.throttled.replicas", "*", True),
        ("leader.replication.throttled.replicas", "0:1,1:2", True),
        ("leader.replication.throttled.replicas", "0:1,x", False),
        ("leader.replication.throttled.replicas", ":1", False),
        ("follower.replication.throttled.replicas", "0:", False),
        ("follower.replication.throttled.replicas", "\u00b2:\u0663", False),
        ("no.such", "1", False),
        ("retention.ms", None, False),
    ],
)
def test_values(name: str, value: str | None, is_valid: bool) -> None:
    """Kafka's bounds; a refusal names the configuration."""
    why = validate(name, value)
    assert (why is None) == is_valid
    assert why is None or name in why


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("retention.ms", " +0500 ", "500"),
        ("preallocate", " TRUE ", "true"),
        ("compression.type", " gzip ", "gzip"),
        ("cleanup.policy", " delete , compact,delete ", "delete,compact"),
        ("cleanup.policy", " ", ""),
        ("min.cleanable.dirty.ratio", " 0.5 ", "0.5"),
    ],
)
def test_a_value_is_stored_in_one_spelling(name: str, value: str, stored: str) -> None:
    """That of Kafka's DescribeConfigs."""
    assert validate(name, value) is None
    assert as_stored(name, value) == stored


def test_a_bound_is_said_in_all_its_digits() -> None:
    """As in Kafka's text, which people search for; a fraction only where there is one."""
    said = "Invalid value {} for configuration {}: Value must be {}"
    for name, value, rule in (
        ("segment.bytes", "20000", "at least 1048576"),
        ("min.cleanable.dirty.ratio", "1.5", "no more than 1"),
        ("retention.ms", "-2", "at least -1"),
    ):
        assert validate(name, value) == said.format(value, name, rule)


def test_values_that_limit_one_another() -> None:
    """The compaction lags, the least against the largest."""
    assert validate_all({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}) is None
    assert "conflict" in (validate_all({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}) or "")
    assert "retention" in (validate_all({"retention.ms": "x"}) or "")


def test_lists() -> None:
    """What can be appended to."""
    assert is_list("cleanup.policy")
    assert not is_list("retention.ms")
    assert not is_list("no.such")


def image_with(*records: ConfigRecord) -> MetadataImage:
    return apply_records(EMPTY_IMAGE, records, len(records), 1)[1]


def test_what_holds_is_the_most_specific() -> None:
    """Topic, broker, all brokers, properties file, default: each covers the next."""
    lookup = ConfigLookup(1, {"log.retention.hours": "2", "log.retention.minutes": "60"})
    layers = [
        (ConfigRecord(2, "t", "retention.ms", "11"), ("11", ConfigSource.TOPIC, "retention.ms")),
        (
            ConfigRecord(4, "1", "log.retention.ms", "22"),
            ("22", ConfigSource.DYNAMIC_BROKER, "log.retention.ms"),
        ),
        (
            ConfigRecord(4, "", "log.retention.ms", "33"),
            ("33", ConfigSource.DYNAMIC_DEFAULT_BROKER, "log.retention.ms"),
        ),
    ]
    rest = [  # minutes come before hours
        ("3600000", ConfigSource.STATIC_BROKER, "log.retention.minutes"),
        ("7200000", ConfigSource.STATIC_BROKER, "log.retention.hours"),
        ("604800000", ConfigSource.DEFAULT, "log.retention.hours"),
    ]
    for count in range(len(layers) + 1):
        image = image_with(*(record for record, _ in layers[count:]))
        found = [(v.value, v.source, v.key) for v in lookup.listing(image, "t", "retention.ms")]
        assert found == [value for _, value in layers[count:]] + rest
        assert lookup.effective(image, "t", "retention.ms").value == found[0][0]
    assert (
        ConfigLookup(2).effective(image_with(layers[1][0]), "t", "retention.ms").source
        is ConfigSource.DEFAULT
    )


def test_broker_wide_names_and_units() -> None:
    """Hours and minutes become milliseconds, -1 stays what it is, other names are looked up as they are."""
    lookup = ConfigLookup(1, {"log.roll.hours": "3", "message.max.bytes": "77", "log.retention.hours": "-1"})
    found = lookup.effective_all(EMPTY_IMAGE, "t")
    assert (found["segment.ms"], found["max.message.bytes"], found["retention.ms"]) == (
        "10800000",
        "77",
        "-1",
    )
    assert list(found) == list(TOPIC_CONFIGS)
