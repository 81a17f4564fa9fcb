"""Which partition of an internal topic coordinates a key: a group, a transactional id. Pure."""

from __future__ import annotations

INT_MIN = -(1 << 31)


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, in 32 bits, signed."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(raw), 2):
        value = (31 * value + (raw[position] << 8 | raw[position + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partition_count: int) -> int:
    """Kafka's rule: the absolute hash modulo the count, with the one hash that has no absolute value as 0."""
    value = java_hash(key)
    return (0 if value == INT_MIN else abs(value)) % partition_count
