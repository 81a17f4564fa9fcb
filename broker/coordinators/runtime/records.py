"""What the runtime knows of a coordinator's record: its size, and the type that its key begins with. Pure."""

from __future__ import annotations

import struct

from millrace.protocol.records import Record

NO_TYPE = -1

_TYPE = struct.Struct(">h")


def record_bytes(record: Record) -> int:
    """What it takes in a batch, or a little more."""
    size_bytes = 24 + len(record.key or b"") + len(record.value or b"")
    if record.headers:
        size_bytes += sum(10 + len(key) + len(value or b"") for key, value in record.headers)
    return size_bytes


def record_type(key: bytes) -> int:
    """The int16 before the key's fields (Kafka's key version); NO_TYPE where there is none."""
    return int(_TYPE.unpack_from(key)[0]) if len(key) >= _TYPE.size else NO_TYPE
