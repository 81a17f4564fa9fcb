"""Registered brokers: their epochs, endpoints and fences.

A broker's epoch is the offset of its registration record, so a later incarnation always has the higher one:
it fences the earlier. Not here: sessions and their timing. Kept true: at most one registration an id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from millrace.kraft.tables.sorted_map import SortedMap, SortedMapEdit
from millrace.protocol.dataclass import dataclass
from millrace.protocol.metadata_records import (
    BrokerRegistrationChangeRecord,
    RecordEndpoint,
    RecordFeature,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

UNASSIGNED_DIRECTORY: Final = bytes(15) + b"\x01"  # Kafka's id for a replica whose folder is not known


@dataclass(frozen=True, slots=True)
class Endpoint:
    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class Broker:
    broker_id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: tuple[tuple[str, int, int], ...]  # name, lowest and highest supported level
    rack: str | None
    is_fenced: bool
    is_shutting_down: bool
    log_dirs: tuple[bytes, ...]
    cordoned_log_dirs: tuple[bytes, ...] | None

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.name == listener), None)

    @property
    def directory(self) -> bytes:
        """Where its partitions are said to lie."""
        return self.log_dirs[0] if self.log_dirs else UNASSIGNED_DIRECTORY

    @property
    def is_usable(self) -> bool:
        """May be given partitions."""
        return not self.is_fenced and not self.is_shutting_down


@dataclass(frozen=True, slots=True)
class Brokers:
    by_id: SortedMap[int, Broker]

    def get(self, broker_id: int) -> Broker | None:
        return self.by_id.get(broker_id)

    def __iter__(self) -> Iterator[Broker]:
        return self.by_id.values()

    def __len__(self) -> int:
        return len(self.by_id)


NO_BROKERS = Brokers(SortedMap())


class BrokersEdit:
    def __init__(self, origin: Brokers) -> None:
        self._by_id: SortedMapEdit[int, Broker] = origin.by_id.edit()

    def done(self) -> Brokers:
        return Brokers(self._by_id.done())

    def apply_register(self, record: RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self._by_id[record.broker_id] = Broker(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
            tuple((f.name, f.min_supported_version, f.max_supported_version) for f in record.features),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            tuple(record.log_dirs),
            None if cordoned is None else tuple(cordoned),
        )

    def apply_change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._by_id[record.broker_id]
        if record.fenced:
            broker = replace(broker, is_fenced=record.fenced > 0)
        if record.in_controlled_shutdown:
            broker = replace(broker, is_shutting_down=True)
        if record.log_dirs:
            broker = replace(broker, log_dirs=tuple(record.log_dirs))
        if record.cordoned_log_dirs is not None:
            broker = replace(broker, cordoned_log_dirs=tuple(record.cordoned_log_dirs))
        self._by_id[record.broker_id] = broker

    def apply_fence(self, broker_id: int, is_fenced: bool) -> None:
        """Kafka's old records, before BrokerRegistrationChangeRecord."""
        self._by_id[broker_id] = replace(self._by_id[broker_id], is_fenced=is_fenced)

    def apply_unregister(self, record: UnregisterBrokerRecord) -> None:
        self._by_id.pop(record.broker_id)


def registration_record(broker: Broker) -> RegisterBrokerRecord:
    """The record that makes `broker` as it is now; for snapshots."""
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[RecordEndpoint(e.name, e.host, e.port, e.security_protocol) for e in broker.endpoints],
        features=[RecordFeature(*feature) for feature in broker.features],
        rack=broker.rack,
        fenced=broker.is_fenced,
        in_controlled_shutdown=broker.is_shutting_down,
        log_dirs=list(broker.log_dirs),
        cordoned_log_dirs=None if broker.cordoned_log_dirs is None else list(broker.cordoned_log_dirs),
    )
