"""What the parts of a node are given of its settings, where a part's own words differ from the settings'
keys."""

from __future__ import annotations

from millrace.broker.config import BrokerSettings
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.settings.dynamic_configs import PRODUCER_EXPIRATION, DynamicConfigs
from millrace.broker.settings.listener_rules import KEYS, ListenerRules
from millrace.broker.settings.log_levels import KEY as LOG_LEVEL
from millrace.broker.settings.log_levels import LogLevels
from millrace.broker.settings.other_checks import OtherConfigs
from millrace.broker.settings.table import all_keys
from millrace.broker.state_memory import StateMemory
from millrace.kraft.commands.decision import BrokerConfigCheck, OtherConfigCheck
from millrace.kraft.image.publisher import MetadataPublisher


def follow_expiration(memory: StateMemory, cache: MetadataCache, publisher: MetadataPublisher) -> None:
    """What is set dynamically for producer.id.expiration.ms counts before what the node was started with,
    from now on."""
    started_ms = memory.producer_expiration_ms

    def follow() -> None:
        memory.producer_expiration_ms = int(cache.broker_values.now().get(PRODUCER_EXPIRATION, started_ms))

    publisher.subscribe(lambda delta, image: follow())
    follow()


def follow_log_levels(started: str, cache: MetadataCache, publisher: MetadataPublisher) -> LogLevels:
    """What is set dynamically for log.level counts before `started`, what the node was started with, from now
    on."""
    levels = LogLevels(started)

    def follow() -> None:
        levels.follow(cache.broker_values.now().get(LOG_LEVEL, started))

    publisher.subscribe(lambda delta, image: follow())
    follow()
    return levels


def config_checks(settings: BrokerSettings) -> tuple[BrokerConfigCheck, OtherConfigCheck]:
    """How dynamic values are judged: of brokers, and of what has no table of its own."""
    keys = all_keys()
    return DynamicConfigs(keys).check, OtherConfigs(keys, settings.static_configs).check


def listener_rules(settings: BrokerSettings) -> ListenerRules:
    return ListenerRules(settings.listeners, {key: settings.shown[key].text or "" for key in KEYS})


def internal_topics(settings: BrokerSettings) -> dict[str, tuple[int, dict[str, str]]]:
    """Partitions and configuration of topics that the broker makes for itself."""
    groups = settings.groups
    offsets = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(groups.offsets_segment_bytes),
    }
    return {"__consumer_offsets": (groups.offsets_partitions_count, offsets)}
