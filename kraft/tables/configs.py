"""Dynamic configuration by resource, as stored. What a name means and may hold is in topic_configs.py and the
broker's.

Kept true: a resource without values is absent; a topic's values go with the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from millrace.kraft.tables.sorted_map import SortedMap, SortedMapEdit
from millrace.protocol.dataclass import dataclass
from millrace.protocol.metadata_records import ConfigRecord


class ResourceType(IntEnum):
    """Kafka's numbers for what can be configured."""

    TOPIC = 2
    BROKER = 4  # by id as text; "" is the default of all brokers
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


Values = Mapping[str, str]
NO_VALUES: Values = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Configs:
    by_resource: SortedMap[tuple[int, str], Values]

    def of(self, resource_type: int, name: str) -> Values:
        """What is set for one resource, in order of names; empty when nothing is."""
        return self.by_resource.get((int(resource_type), name)) or NO_VALUES

    def topic(self, name: str) -> Values:
        return self.of(ResourceType.TOPIC, name)

    def broker(self, node_id: int | None) -> Values:
        """Of one broker, or the default of all brokers when None."""
        return self.of(ResourceType.BROKER, "" if node_id is None else str(node_id))


NO_CONFIGS = Configs(SortedMap())


class ConfigsEdit:
    def __init__(self, origin: Configs) -> None:
        self._by_resource: SortedMapEdit[tuple[int, str], Values] = origin.by_resource.edit()

    def done(self) -> Configs:
        return Configs(self._by_resource.done())

    def apply(self, record: ConfigRecord) -> None:
        key = record.resource_type, record.resource_name
        values = dict(self._by_resource.get(key) or NO_VALUES)
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self._by_resource[key] = dict(sorted(values.items()))
        else:
            self._by_resource.pop(key)

    def remove(self, resource_type: int, name: str) -> None:
        self._by_resource.pop((int(resource_type), name))
