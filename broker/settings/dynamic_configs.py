"""Which of a broker's settings may be changed while it runs, and what they may hold. Pure.

A change comes through AlterConfigs or IncrementalAlterConfigs, for one broker or for all, and is judged
before it enters the metadata log. May be changed: what Kafka changes dynamically, as far as the change holds
at once here (the defaults of topic configurations, the limits of connections, how long producers are
remembered, the listeners, how much is logged), and what is stored and shown anyway, with a sentence that says
so. The rest is refused as read-only: a value that is shown and not obeyed would be a lie. So are secrets that
nothing reads yet.

Not here: who holds the values (kraft/tables/configs.py), what a topic gets of them (kraft/topic_configs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millrace.broker.settings.addresses import parse_protocols
from millrace.broker.settings.connection_limits import FOLLOWED, parse_hosts, parse_limit
from millrace.broker.settings.key import LONG, STORED, Key, parse_value
from millrace.broker.settings.listener_rules import KEYS as LISTENER_KEYS
from millrace.broker.settings.listener_rules import PROTOCOL_MAP
from millrace.broker.settings.log_levels import KEY as LOG_LEVEL
from millrace.broker.settings.log_levels import parse_levels
from millrace.kraft.topic_configs import TOPIC_CONFIGS, validate
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError

# Dynamic in Kafka, without effect on a broker here: pools, the cleaner, throttles, tiered storage, TLS and
# SASL but their secrets, the newer groups; and directories that are cordoned, which controllers obey.
STORED_DYNAMIC = (
    "background.threads",
    "cordoned.log.dirs",
    "follower.fetch.last.tiered.offset.enable",
    "follower.replication.throttled.rate",
    "group.consumer.assignment.interval.ms",
    "group.coordinator.cached.buffer.max.bytes",
    "group.share.assignment.interval.ms",
    "group.streams.assignment.interval.ms",
    "leader.replication.throttled.rate",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.threads",
    "max.connection.creation.rate",
    "metric.reporters",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.fetch.max.wait.ms",
    "remote.list.offsets.request.timeout.ms",
    "remote.log.index.file.cache.total.size.bytes",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.copy.max.bytes.per.second",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.fetch.max.bytes.per.second",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "sasl.enabled.mechanisms",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.principal.to.local.rules",
    "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.mechanism.inter.broker.protocol",
    "share.coordinator.cached.buffer.max.bytes",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
    "ssl.keymanager.algorithm",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "transaction.partition.verification.enable",
)
LIMITS = tuple(FOLLOWED)
PRODUCER_EXPIRATION = "producer.id.expiration.ms"  # obeyed when producers are next looked at (maintenance.py)
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
DYNAMIC = frozenset(
    (*TOPIC_DEFAULTS, *STORED_DYNAMIC, *LIMITS, PRODUCER_EXPIRATION, *LISTENER_KEYS, LOG_LEVEL)
)


# What a key holds beyond its kind; raises ValueError.
SHAPES: Mapping[str, Callable[[str], object]] = {
    "max.connections": parse_limit,
    "max.connections.per.ip": parse_limit,
    "max.connections.per.ip.overrides": parse_hosts,
    PROTOCOL_MAP: parse_protocols,
    LOG_LEVEL: parse_levels,
}


class DynamicConfigs:
    """`table` is every key of a properties file."""

    def __init__(self, table: Mapping[str, Key]) -> None:
        self._table = {**table, **THROTTLES}

    def check(self, name: str, value: str | None, is_default: bool) -> None:
        """Raises KafkaError for a change that may not be. `value` None takes it back, `is_default` is for all
        brokers."""
        key = self._table.get(name)
        if key is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown broker configuration {name}")
        if name not in DYNAMIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {name}")
        if is_default and name in LISTENER_KEYS:
            text = (
                f"Cannot update these configs at default cluster level, broker id must be specified: {name}"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
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
            if key.name in SHAPES:
                SHAPES[key.name](value)
        except ValueError as error:
            return str(error)
        topic_config = TOPIC_DEFAULTS.get(key.name)
        why = None if topic_config is None else validate(topic_config, value)
        return None if why is None else f"would not be valid for topics ({why})"
