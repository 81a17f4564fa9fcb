"""What may be changed of a broker while it runs."""

from __future__ import annotations

import pytest

from millrace.broker.settings.dynamic_configs import (
    DYNAMIC,
    LIMITS,
    PRODUCER_EXPIRATION,
    STORED_DYNAMIC,
    THROTTLES,
    TOPIC_DEFAULTS,
    DynamicConfigs,
)
from millrace.broker.settings.key import LIST, STORED
from millrace.broker.settings.listener_rules import KEYS as LISTENER_KEYS
from millrace.broker.settings.log_levels import KEY as LOG_LEVEL
from millrace.broker.settings.table import all_keys
from millrace.kraft.commands.configs import BROKER_LISTS
from millrace.kraft.topic_configs import TOPIC_CONFIGS, validate
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError

CHECK = DynamicConfigs(all_keys()).check


def refusal(name: str, value: str | None) -> tuple[int, str]:
    with pytest.raises(KafkaError) as raised:
        CHECK(name, value, False)
    return raised.value.code, raised.value.message


def code_of(name: str, value: str) -> int:
    try:
        CHECK(name, value, False)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_what_may_change_changes_at_once_or_does_nothing() -> None:
    """Each dynamic key is a default of a topic configuration, a limit of connections, how long producers are
    remembered, the listeners or how much is logged, which hold at once, or is stored without effect anyway
    and no secret."""
    table = {**all_keys(), **THROTTLES}
    assert (
        set(TOPIC_DEFAULTS)
        | set(STORED_DYNAMIC)
        | set(LIMITS)
        | {PRODUCER_EXPIRATION}
        | set(LISTENER_KEYS)
        | {LOG_LEVEL}
        == DYNAMIC
    )
    assert not any(table[name].is_secret for name in DYNAMIC)
    assert [name for name in STORED_DYNAMIC if table[name].standing != STORED] == []
    assert [name for name in TOPIC_DEFAULTS if name not in table] == []


@pytest.mark.parametrize("name", sorted(TOPIC_DEFAULTS))
def test_a_value_that_passes_is_valid_for_topics(name: str) -> None:
    """So that no topic is broken by a broker's default: the bounds of both tables are asked."""
    config = TOPIC_CONFIGS[TOPIC_DEFAULTS[name]]
    CHECK(name, config.default, False)
    CHECK(name, None, True)
    for value in ("", "x", "-1", "-2", "0", "1", "1.5", "true", "9" * 25, "compact", "delete,delete", "zstd"):
        if code_of(name, value) == ErrorCode.NONE:
            assert validate(config.name, value) is None, value


@pytest.mark.parametrize("value", ["nan", "inf", "1_0", "٣", "", "1e", "."])
def test_what_is_a_number_in_python_alone_is_refused(value: str) -> None:
    """As by Kafka; what is one in both is taken."""
    name = "log.cleaner.io.max.bytes.per.second"
    assert code_of(name, value) == ErrorCode.INVALID_REQUEST
    for other in (" 1.5 ", "-5", "+1.", ".5", "1E+3", "1e400", "Infinity"):
        assert code_of(name, other) == ErrorCode.NONE


def test_refusals() -> None:
    """Kafka's codes: a key nobody knows, one that takes a restart (set or taken back), a value that cannot
    be."""
    assert refusal("no.such.key", "1") == (
        ErrorCode.INVALID_CONFIG,
        "Unknown broker configuration no.such.key",
    )
    for value in ("2", None):
        code, text = refusal("node.id", value)
        assert (code, text) == (ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically: node.id")
    assert refusal("log.retention.hours", "1")[0] == ErrorCode.INVALID_REQUEST
    code, text = refusal("log.segment.bytes", "10")
    assert (code, text) == (
        ErrorCode.INVALID_REQUEST,
        "Invalid value 10 for configuration log.segment.bytes: it is below 1048576",
    )


def test_throttles_of_a_reassignment_are_taken() -> None:
    """Kafka's tools set them on brokers around a reassignment; there is nothing to hold back."""
    for name in THROTTLES:
        CHECK(name, "1000000", False)
        assert refusal(name, "-1")[0] == ErrorCode.INVALID_REQUEST


def test_a_host_that_is_none_is_refused_before_it_is_stored() -> None:
    """Else the broker would have no limit that it could obey."""
    code, text = refusal("max.connections.per.ip.overrides", "h")
    assert (code, text.endswith("it holds 'h', which is not ADDRESS:COUNT")) == (
        ErrorCode.INVALID_REQUEST,
        True,
    )
    CHECK("max.connections.per.ip.overrides", "10.0.0.1:1,[::1]:2", False)
    for name in ("ssl.keystore.password", "sasl.jaas.config"):
        assert refusal(name, "x")[0] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", ["max.connections", "max.connections.per.ip"])
@pytest.mark.parametrize("is_default", [False, True])
def test_a_limit_that_nobody_could_take_back_is_refused(name: str, is_default: bool) -> None:
    """0 would let no client in, past every restart too."""
    with pytest.raises(KafkaError, match="lets no client in") as raised:
        CHECK(name, "0", is_default)
    assert raised.value.code == ErrorCode.INVALID_REQUEST
    CHECK(name, "1", is_default)


def test_a_number_is_written_in_digits() -> None:
    """As Kafka's parser has it: Python's would take 1_000."""
    assert refusal("producer.id.expiration.ms", "1_000")[1].endswith("it is not a whole number")
    CHECK("producer.id.expiration.ms", " +1000 ", False)


def test_what_is_shown_as_a_list_is_changed_as_one() -> None:
    """APPEND and SUBTRACT are taken for each dynamic key whose type DescribeConfigs tells as LIST."""
    table = {**all_keys(), **THROTTLES}
    assert {name for name in DYNAMIC if table[name].kind == LIST} == BROKER_LISTS
