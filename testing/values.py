"""Values that tests handle: records, places, partitions; and which partition a key belongs to. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Value = bytes | str | None | Mapping[str, Any] | list[Any]
_MASK = 0xFFFFFFFF


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Place(NamedTuple):
    """Where a record was put."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    """A record as the broker holds it. `timestamp` in milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def text(self) -> str:
        """The value as UTF-8. ValueError for one that is not, or is null."""
        if self.value is None:
            raise ValueError(f"the value of {self.topic}-{self.partition} at {self.offset} is null")
        return self.value.decode()

    def json(self) -> Any:
        """The value read as JSON."""
        return json.loads(self.text)


def encoded(value: Value) -> bytes | None:
    """Bytes as they are, text as UTF-8, dictionaries and lists as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()


def partition_of(key: bytes, count: int) -> int:
    """As Kafka's Java producer chooses it: murmur2 of the key, without its sign."""
    return (_murmur2(key) & 0x7FFFFFFF) % count


def _murmur2(data: bytes) -> int:
    factor = 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        part = int.from_bytes(data[start : start + 4], "little") * factor & _MASK
        part = (part ^ part >> 24) * factor & _MASK
        value = value * factor & _MASK ^ part
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * factor & _MASK
    value = (value ^ value >> 13) * factor & _MASK
    return value ^ value >> 15
