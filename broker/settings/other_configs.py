"""What DescribeConfigs says of groups and of client metrics: each key of Kafka 4.3 with what is set, the
broker's default and Kafka's. Pure.

None of them has an effect here: the newer group protocols and client telemetry are turned off. Not here: what
may be set (kraft/commands/configs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from millrace.broker.settings.key import BOOLEAN, INT, LIST, STRING
from millrace.kraft.tables.configs import Values
from millrace.kraft.topic_configs import ConfigSource
from millrace.protocol.messages.describe_configs import DescribeConfigsResourceResult, DescribeConfigsSynonym

GROUP_SOURCE, CLIENT_METRICS_SOURCE = 8, 7
Listing = Sequence[tuple[str, str, ConfigSource]]  # key, text, whose it is
# Kinds; those without a text have the broker's default, whose key is `group.` and the name.
GROUP_KEYS: Mapping[str, tuple[int, str | None]] = {
    "consumer.assignment.interval.ms": (INT, None),
    "consumer.heartbeat.interval.ms": (INT, None),
    "consumer.session.timeout.ms": (INT, None),
    "share.assignment.interval.ms": (INT, None),
    "share.auto.offset.reset": (STRING, "latest"),
    "share.delivery.count.limit": (INT, None),
    "share.heartbeat.interval.ms": (INT, None),
    "share.isolation.level": (STRING, "read_uncommitted"),
    "share.partition.max.record.locks": (INT, None),
    "share.record.lock.duration.ms": (INT, None),
    "share.renew.acknowledge.enable": (BOOLEAN, "true"),
    "share.session.timeout.ms": (INT, None),
    "streams.assignment.interval.ms": (INT, None),
    "streams.heartbeat.interval.ms": (INT, None),
    "streams.initial.rebalance.delay.ms": (INT, None),
    "streams.num.standby.replicas": (INT, None),
    "streams.session.timeout.ms": (INT, None),
}
CLIENT_METRICS_KEYS: Mapping[str, tuple[int, str]] = {
    "interval.ms": (INT, "300000"),
    "match": (LIST, ""),
    "metrics": (LIST, ""),
}


def describe_group(
    values: Values, stated: Callable[[str], Listing]
) -> Iterator[DescribeConfigsResourceResult]:
    """`values` are the group's own; `stated` gives what the broker says of one of its keys, what holds
    first."""
    for name in sorted({**GROUP_KEYS, **values}):
        kind, default = GROUP_KEYS.get(name, (STRING, ""))
        broad = stated(f"group.{name}") if default is None else [(name, default, ConfigSource.DEFAULT)]
        listing = [(key, text, int(source)) for key, text, source in broad]
        yield _result(name, kind, values, GROUP_SOURCE, listing, listing)


def describe_client_metrics(values: Values) -> Iterator[DescribeConfigsResourceResult]:
    for name in sorted({**CLIENT_METRICS_KEYS, **values}):
        kind, default = CLIENT_METRICS_KEYS[name]
        yield _result(
            name, kind, values, CLIENT_METRICS_SOURCE, [(name, default, int(ConfigSource.DEFAULT))], []
        )


def _result(
    name: str,
    kind: int,
    values: Values,
    own: int,
    broad: list[tuple[str, str, int]],
    shown: list[tuple[str, str, int]],
) -> DescribeConfigsResourceResult:
    """`broad`: what holds where nothing is set; `shown`: what of it is listed."""
    mine = [(name, values[name], own)] if name in values else []
    _, value, source = [*mine, *broad][0]
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        config_source=source,
        config_type=kind,
        documentation="",
        synonyms=[DescribeConfigsSynonym(*one) for one in (*mine, *shown)],
    )
