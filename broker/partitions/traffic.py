"""What clients wrote to and read from a topic, or all topics, since the start: counted on the hot path, shown
by broker/meters/topics.py."""

from __future__ import annotations


class Traffic:
    """`in_*` of acknowledged and unacknowledged produce requests alike, once an offset is given; `out_bytes`
    of fetch responses. Bytes are those of record batches as they travel."""

    __slots__ = ("in_bytes", "in_records", "out_bytes")

    def __init__(self) -> None:
        self.in_bytes = 0
        self.in_records = 0
        self.out_bytes = 0
