"""What configurations of groups and client metrics may hold: codes and sentences are what Apache Kafka 4.3.1
answered to the same questions."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping

import pytest

from millrace.broker.settings.java_pattern import CLASSES_MAX, is_java_pattern
from millrace.broker.settings.other_checks import OtherConfigs
from millrace.broker.settings.table import all_keys
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError

GROUP, METRICS = 32, 16
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
RESET, LEVEL = "share.auto.offset.reset", "share.isolation.level"
INVALID_CONFIG, INVALID_REQUEST = ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST


def refusal(kind: int, values: Mapping[str, str], **given: str) -> tuple[int, str | None]:
    try:
        OtherConfigs(all_keys(), {name.replace("_", "."): value for name, value in given.items()}).check(
            kind, values
        )
    except KafkaError as error:
        return error.code, error.message
    return 0, None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (SESSION, "45000"),
        (SESSION, " 50000 "),
        ("consumer.assignment.interval.ms", "+5"),
        ("share.delivery.count.limit", "10"),
        ("share.partition.max.record.locks", "100"),
        ("streams.initial.rebalance.delay.ms", "99999999"),
        ("streams.num.standby.replicas", "2"),
        ("share.renew.acknowledge.enable", " FALSE "),
        (LEVEL, " read_committed "),
        (RESET, " latest "),
        (RESET, "by_duration:P1DT2H3M4.5S"),
        (RESET, "by_duration:pt0s"),
        (RESET, "by_duration:-PT-1.5S"),
    ],
)
def test_what_a_group_may_have(name: str, value: str) -> None:
    """Blanks around it count for nothing."""
    assert refusal(GROUP, {name: value}) == (0, None)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({SESSION: "x"}, f"Invalid value x for configuration {SESSION}: Not a number of type INT"),
        (
            {SESSION: "3000000000"},
            f"Invalid value 3000000000 for configuration {SESSION}: Not a number of type INT",
        ),
        ({HEARTBEAT: "0"}, f"Invalid value 0 for configuration {HEARTBEAT}: Value must be at least 1"),
        (
            {HEARTBEAT: "4999"},
            f"{HEARTBEAT} must be greater than or equal to group.consumer.min.heartbeat.interval.ms",
        ),
        (
            {SESSION: "60001"},
            f"{SESSION} must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (
            {"share.record.lock.duration.ms": "2000"},
            "share.record.lock.duration.ms must be greater than or equal to "
            "group.share.min.record.lock.duration.ms",
        ),
        (
            {"streams.num.standby.replicas": "3"},
            "streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas",
        ),
        (
            {"share.renew.acknowledge.enable": "1"},
            "Invalid value 1 for configuration share.renew.acknowledge.enable: Expected value to be either "
            "true or false",
        ),
        (
            {LEVEL: "x"},
            f"Invalid value x for configuration {LEVEL}: String must be one of: read_committed, "
            "read_uncommitted",
        ),
        ({SESSION: "x", "no.such": "1"}, "Unknown group config name: no.such"),
        (
            {"consumer.assignor.offload.enable": "true"},
            "Unknown group config name: consumer.assignor.offload.enable",
        ),
    ],
)
def test_what_a_group_may_not_have(values: dict[str, str], text: str) -> None:
    """Each is INVALID_CONFIG; a name that is unknown comes before all values."""
    assert refusal(GROUP, values) == (INVALID_CONFIG, text)


@pytest.mark.parametrize(
    "value", ["", "none", "EARLIEST", *(f"by_duration:{x}" for x in ("", "x", "-PT1H", "P1Y"))]
)
@pytest.mark.parametrize("more", ["", "T"])
def test_where_a_share_group_may_not_begin(value: str, more: str) -> None:
    """A duration is Java's, and not below zero."""
    code, text = refusal(GROUP, {RESET: value + more})
    assert code == INVALID_CONFIG
    assert text is not None
    assert text.endswith("must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.")


def test_bounds_are_those_that_the_broker_was_started_with() -> None:
    """And so is what a group's own value is compared with."""
    started = {
        "group_consumer_max_session_timeout_ms": "90000",
        "group_consumer_heartbeat_interval_ms": "80000",
    }
    assert refusal(GROUP, {SESSION: "80001"}, **started) == (0, None)
    text = f"{SESSION} must be greater than {HEARTBEAT}"
    assert refusal(GROUP, {SESSION: "80000"}, **started) == (INVALID_CONFIG, text)


@pytest.mark.parametrize(
    ("values", "code", "text"),
    [
        ({"interval.ms": " 100 ", "metrics": "*,a,a", "match": ""}, 0, None),
        ({"match": " client_id = a ,client_source_port=.*"}, 0, None),
        (
            {"interval.ms": "x"},
            INVALID_CONFIG,
            "Invalid value x for configuration interval.ms: Not a number of type INT",
        ),
        (
            {"interval.ms": "0"},
            INVALID_REQUEST,
            "Invalid value 0 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        ),
        (
            {"no.such": "1", "interval.ms": "x"},
            INVALID_REQUEST,
            "Unknown client metrics configuration: no.such",
        ),
        ({"metrics": "a,,b"}, INVALID_CONFIG, "Configuration 'metrics' values must not be empty."),
        ({"match": "client_id"}, INVALID_CONFIG, "Illegal client matching pattern: client_id"),
        ({"match": "other=a"}, INVALID_CONFIG, "Illegal client matching pattern: other=a"),
        ({"match": "client_id=a=b"}, INVALID_CONFIG, "Illegal client matching pattern: client_id=a=b"),
        ({"match": "client_id=*"}, INVALID_CONFIG, "Illegal client matching pattern: client_id=*"),
    ],
)
def test_client_metrics(values: dict[str, str], code: int, text: str | None) -> None:
    """How often is a mistake of the request, all else of the configuration."""
    assert refusal(METRICS, values) == (code, text)


@pytest.mark.parametrize(
    "text",
    [
        "a++",
        "(?<n>a)",
        r"\p{Alpha}",
        "[]a]",
        "[^]a]",
        "^*",
        "a{2}",
        "[a[b]*]+",
        r"\Q(*[\E?",
        "(a|b)*",
        "]",
        r"[\]]",
    ],
)
def test_java_takes(text: str) -> None:
    """Also what Python would not."""
    assert is_java_pattern(text)


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "*",
        "a|+",
        "(?",
        "(",
        "a)",
        "(*)",
        "a**",
        "a{",
        r"\p{L",
        "(?i)*a",
        "a+++",
        "[a[b]",
        "x[",
        "a[b",
        "a\\",
        r"[\]",
        "[]",
    ],
)
def test_java_refuses(text: str) -> None:
    """Brackets that do not end, and what repeats nothing."""
    assert not is_java_pattern(text)


def test_classes_lie_in_one_another_so_deep() -> None:
    """Java takes more, and nobody writes them."""
    assert is_java_pattern("[" * CLASSES_MAX + "a" + "]" * CLASSES_MAX)
    assert not is_java_pattern("[" * (CLASSES_MAX + 1) + "a" + "]" * (CLASSES_MAX + 1))


def calls_of(call: Callable[[], object]) -> int:
    """How many functions it calls, of Python's and of its library's. Nothing is collected meanwhile: that
    calls what others left behind."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("part", ["a.*", "(a)*|", "[[a]]", "(?i)", "()", r"\Q(\E", r"\a", "a{1,2}"])
def test_a_long_pattern_is_judged_in_one_step_of_the_engine(part: str) -> None:
    """Not letter by letter, which took 90 ms for 32 KB, and half a minute for as many as one request may
    hold."""
    assert is_java_pattern(part)
    assert is_java_pattern(part * 5_000)
    assert calls_of(lambda: is_java_pattern(part * 5_000)) == calls_of(lambda: is_java_pattern(part))
