"""DescribeClientQuotas (key 48): quotas of users, clients and addresses."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Float64, Int8, Int16, Int32, Versions, array


@dataclass(slots=True)
class ComponentData:
    entity_type: str = ""
    match_type: Int8 = 0  # 0 by name, 1 the default, 2 any that has a name
    match: str | None = ""


@dataclass(slots=True)
class DescribeClientQuotasRequest:
    VERSIONS = Versions(0, 1, flexible=1)

    components: list[ComponentData] = array()
    strict: bool = False  # without entities of types that are not named


@dataclass(slots=True)
class EntityData:
    entity_type: str = ""
    entity_name: str | None = ""  # null: the default


@dataclass(slots=True)
class ValueData:
    key: str = ""
    value: Float64 = 0.0


@dataclass(slots=True)
class EntryData:
    entity: list[EntityData] = array()
    values: list[ValueData] = array()


@dataclass(slots=True)
class DescribeClientQuotasResponse:
    VERSIONS = Versions(0, 1, flexible=1)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = array()  # null with an error
