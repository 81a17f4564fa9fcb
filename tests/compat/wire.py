"""The reference of the matrix: what lies in a partition, batch by batch, as our own codec reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.protocol.batches import iter_headers
from millrace.protocol.records import iter_records
from tests.compat.records import Record
from tests.live.client import LATEST, Client


@dataclass
class Batch:
    """A record batch as it is stored."""

    codec: int
    size_bytes: int
    records: list[Record]


class Wire(Client):
    """`with Wire(address) as wire: wire.create("topic"); wire.batches("topic")`."""

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset that the next record gets."""
        return self.offset(topic, LATEST, partition)

    def batches(self, topic: str, partition: int = 0) -> list[Batch]:
        """Everything that a partition holds."""
        found: list[Batch] = []
        offset, end = 0, 1
        while offset < end:
            answer = self.fetch([(topic, partition, offset)])[topic, partition]
            assert answer.error_code == 0, (topic, answer.error_code)
            end = answer.high_watermark
            view = memoryview(answer.records or b"")
            for position, header in iter_headers(view):
                batch = view[position : position + header.size_bytes]
                records = [seen(record, partition) for record in iter_records(batch)]
                found.append(Batch(header.codec, header.size_bytes, records))
                offset = header.last_offset + 1
        return found


def seen(record: Any, partition: int) -> Record:
    headers = tuple((bytes(name).decode(), value) for name, value in record.headers)
    return Record(record.key, record.value, headers, record.timestamp, record.offset, partition)
