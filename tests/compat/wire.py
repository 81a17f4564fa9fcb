"""The reference of the matrix: what lies in a partition, batch by batch, as our own codec reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from millrace.protocol.batches import iter_headers
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.protocol.records import iter_records
from tests.compat.records import Record
from tests.live.client import LATEST, Client
from tests.patience import until

T = TypeVar("T")


@dataclass
class Batch:
    """A record batch as it is stored."""

    codec: int
    size_bytes: int
    records: list[Record]


class Wire(Client):
    """`with Wire(address) as wire: wire.create("topic"); wire.batches("topic")`. `address` may be several
    with commas, of a cluster whose nodes may be away: a partition is asked of who leads it, until that
    answers."""

    def __init__(self, address: str) -> None:
        self._addresses = address.split(",")
        if len(self._addresses) == 1:
            super().__init__(address)
        else:
            self.socket = self._of_any(lambda client: client.socket.dup())

    def create(self, topic: str, partitions: int = 1, **configs: object) -> None:
        if len(self._addresses) == 1:
            super().create(topic, partitions, **configs)
        else:
            self._of_any(
                lambda client: topic in client.topic_ids() or client.create(topic, partitions, **configs)
            )

    def __enter__(self) -> Wire:
        return self

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset that the next record gets."""
        return self._of_leader(topic, partition, lambda client: client.offset(topic, LATEST, partition))

    def batches(self, topic: str, partition: int = 0) -> list[Batch]:
        """Everything that a partition holds."""
        return self._of_leader(topic, partition, lambda client: batches_of(client, topic, partition))

    def _of_leader(self, topic: str, partition: int, ask: Callable[[Client], T]) -> T:
        if len(self._addresses) == 1:
            return ask(self)

        def ask_it(client: Client) -> T:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
            told = client.ask("Metadata", asked)
            leader = told.topics[0].partitions[partition].leader_id
            (address,) = [f"{one.host}:{one.port}" for one in told.brokers if one.node_id == leader]
            with Client(address) as at_leader:
                return ask(at_leader)

        return self._of_any(ask_it)

    def _of_any(self, ask: Callable[[Client], T]) -> T:
        """What the first of the nodes says that answers; asked again where all are away, or refuse."""
        answers: list[T] = []
        wrong: list[str] = []

        def is_answered() -> bool:
            for address in self._addresses:
                try:
                    with Client(address) as client:
                        answers.append(ask(client))
                        return True
                except (OSError, AssertionError, ValueError) as error:
                    wrong.append(repr(error))
            return False

        until(is_answered, f"no node answers: {wrong[-3:]}", pause_s=0.1)
        return answers[0]


def batches_of(client: Client, topic: str, partition: int) -> list[Batch]:
    found: list[Batch] = []
    offset, end = 0, 1
    while offset < end:
        answer = client.fetch([(topic, partition, offset)])[topic, partition]
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
