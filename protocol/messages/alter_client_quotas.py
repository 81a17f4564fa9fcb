"""AlterClientQuotas (key 49): sets and removes quotas."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Float64, Int16, Int32, Versions, array


@dataclass(slots=True)
class EntityData:
    entity_type: str = ""
    entity_name: str | None = ""  # null: the default


@dataclass(slots=True)
class OpData:
    key: str = ""
    value: Float64 = 0.0
    remove: bool = False


@dataclass(slots=True)
class AlterClientQuotasRequestEntryData:
    entity: list[EntityData] = array()
    ops: list[OpData] = array()


@dataclass(slots=True)
class AlterClientQuotasRequest:
    VERSIONS = Versions(0, 1, flexible=1)

    entries: list[AlterClientQuotasRequestEntryData] = array()
    validate_only: bool = False


@dataclass(slots=True)
class AlterClientQuotasResponseEntryData:
    error_code: Int16 = 0
    error_message: str | None = ""
    entity: list[EntityData] = array()


@dataclass(slots=True)
class AlterClientQuotasResponse:
    VERSIONS = Versions(0, 1, flexible=1)

    throttle_time_ms: Int32 = 0
    entries: list[AlterClientQuotasResponseEntryData] = array()
