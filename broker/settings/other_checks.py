"""What configurations of groups and of client metrics may hold, as Apache Kafka 4.3.1 judges them. Pure.

All that a resource would have set is judged together: names first, then each value, then the broker's bounds
(group.consumer.min.session.timeout.ms) and what limits one another. Codes and sentences are Kafka's. Not
here: what DescribeConfigs says of them (other_configs.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from millrace.broker.settings.java_pattern import is_java_pattern
from millrace.broker.settings.key import BOOLEAN, INT, Key
from millrace.broker.settings.other_configs import CLIENT_METRICS_KEYS, GROUP_KEYS
from millrace.kraft.tables.configs import ResourceType, Values
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
WHOLE = re.compile(r"[-+]?[0-9]{1,40}")
INTERVAL_MIN_MS, INTERVAL_MAX_MS = 100, 3_600_000
MATCH_NAMES = frozenset(
    (
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    )
)
RESETS = "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)


class OtherConfigs:
    """`table`: every key of a properties file; `given`: those that this node's has."""

    def __init__(self, table: Mapping[str, Key], given: Mapping[str, str]) -> None:
        self._table = table
        self._given = given

    def check(self, resource_type: int, values: Values) -> None:
        """Raises KafkaError for what may not be."""
        if resource_type == ResourceType.GROUP:
            self._check_group(values)
        else:
            check_client_metrics(values)

    def _check_group(self, values: Values) -> None:
        for name in values:
            if name not in GROUP_KEYS:
                raise _invalid(f"Unknown group config name: {name}")
        numbers = {}
        for name, value in values.items():
            kind, _ = GROUP_KEYS[name]
            if kind == INT:
                numbers[name] = _whole(name, value, self._table[f"group.{name}"].low)
            elif kind == BOOLEAN and value.strip().lower() not in ("true", "false"):
                raise _refused(name, value, "Expected value to be either true or false")
            elif name == "share.auto.offset.reset" and not _is_reset(value.strip()):
                raise _refused(name, value, f"Invalid value `{value}` for configuration {name}. {RESETS}")
            elif name == "share.isolation.level" and value.strip() not in ISOLATION_LEVELS:
                raise _refused(name, value, f"String must be one of: {', '.join(ISOLATION_LEVELS)}")
        for name, number in numbers.items():
            self._check_bounds(name, number)
        for kind_name in ("consumer", "share", "streams"):
            session, heartbeat = f"{kind_name}.session.timeout.ms", f"{kind_name}.heartbeat.interval.ms"
            if self._number(numbers, session) <= self._number(numbers, heartbeat):
                raise _invalid(f"{session} must be greater than {heartbeat}")

    def _check_bounds(self, name: str, number: int) -> None:
        kind_name, _, rest = name.partition(".")
        for word, relation in (("min", "greater"), ("max", "less")):
            key = f"group.{kind_name}.{word}.{rest.removeprefix('num.')}"
            bound = self._of_broker(key)
            if bound is not None and (number < bound if word == "min" else number > bound):
                raise _invalid(f"{name} must be {relation} than or equal to {key}")

    def _number(self, numbers: Mapping[str, int], name: str) -> int:
        found = numbers[name] if name in numbers else self._of_broker(f"group.{name}")
        assert found is not None, name
        return found

    def _of_broker(self, key: str) -> int | None:
        """What the broker was started with; None for a key that there is not."""
        known = self._table.get(key)
        if known is None:
            return None
        text = self._given.get(key, known.default)
        assert text is not None, key
        return int(text)


def check_client_metrics(values: Values) -> None:
    """Raises KafkaError for what may not be."""
    for name in values:
        if name not in CLIENT_METRICS_KEYS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    lists = {name: _items(name, values[name]) for name in ("metrics", "match") if name in values}
    if "interval.ms" in values:
        interval_ms = _whole("interval.ms", values["interval.ms"], None)
        if not INTERVAL_MIN_MS <= interval_ms <= INTERVAL_MAX_MS:
            text = f"interval must be between {INTERVAL_MIN_MS} and {INTERVAL_MAX_MS} (1 hour)"
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Invalid value {interval_ms} for interval.ms, {text}"
            )
    for item in lists.get("match", ()):
        name, _, pattern = (part.strip() for part in item.partition("="))
        if name not in MATCH_NAMES or not pattern or "=" in pattern or not is_java_pattern(pattern):
            raise _invalid(f"Illegal client matching pattern: {item}")


def _items(name: str, value: str) -> list[str]:
    items = [item.strip() for item in value.split(",")] if value.strip() else []
    if "" in items:
        raise _invalid(f"Configuration '{name}' values must not be empty.")
    return items


def _whole(name: str, value: str, low: float | None) -> int:
    text = value.strip()
    if WHOLE.fullmatch(text) is None or not -INT_MAX - 1 <= int(text) <= INT_MAX:
        raise _refused(name, value, "Not a number of type INT")
    if low is not None and int(text) < low:
        raise _refused(name, str(int(text)), f"Value must be at least {int(low)}")
    return int(text)


def _is_reset(text: str) -> bool:
    """Earliest, latest, or how far back, which is ISO 8601 as Java reads it and not below zero."""
    if text in ("earliest", "latest"):
        return True
    word, _, given = text.partition(":")
    found = DURATION.fullmatch(given) if word == "by_duration" else None
    if found is None:
        return False
    sign, days, time, hours, minutes, seconds, fraction = found.groups()
    if (time is not None and len(time) == 1) or all(part is None for part in (days, hours, minutes, seconds)):
        return False
    parts = ((days, 86_400), (hours, 3_600), (minutes, 60), (seconds, 1))
    if any(len(part or "") > 20 for part, _ in parts):
        return False
    whole_s = sum(int(part or 0) * factor for part, factor in parts)
    nanos = int((fraction or "").ljust(9, "0")) * (-1 if (seconds or "").startswith("-") else 1)
    total = (whole_s * 10**9 + nanos) * (-1 if sign == "-" else 1)
    return total >= 0 and abs(whole_s) <= LONG_MAX


def _refused(name: str, value: str, why: str) -> KafkaError:
    return _invalid(f"Invalid value {value} for configuration {name}: {why}")


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, text)
