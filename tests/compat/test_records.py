"""Each client writes every kind of record in every codec; each client reads what each other wrote.

Between them stands the log as it is stored, read by our own codec: it must hold what was sent, and each
reader must show what it holds. In the short form the records of 1 MiB go through two of the codecs only, as
do all of Spark's, which takes seconds a codec; in the full matrix everything goes through all.

What is read first is in the broker's log cache. Each reader then reads it all a second time after a restart
of the broker, from objects.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cache

import pytest

from millrace.protocol.batches import Codec
from tests.compat.clients.client import Client
from tests.compat.conftest import IS_FULL, Clients
from tests.compat.records import CODECS, MAX_MESSAGE_BYTES, MIB, Record, sample
from tests.compat.wire import Batch, Wire
from tests.live import LiveBroker

SHORT_CODECS = ("none", "zstd")


def codecs_of(writer: str) -> tuple[str, ...]:
    return SHORT_CODECS if writer == "spark" and not IS_FULL else CODECS


def samples(codec: str) -> list[Record]:
    is_with_large = IS_FULL or codec in SHORT_CODECS
    return [record for record in sample(codec) if is_with_large or len(record.value or b"") < MIB]


@dataclass
class Written:
    """A topic that one client filled, and what it sent."""

    sent: list[Record] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    seconds: tuple[float, float] = (0.0, 0.0)
    error: Exception | None = None

    @property
    def stored(self) -> list[Record]:
        return [record for batch in self.batches for record in batch.records]


class Matrix:
    """Each client writes once and reads once, when a test first asks. What a writer could not write, readers
    leave out."""

    def __init__(self, clients: Clients, broker: LiveBroker) -> None:
        self._clients = clients
        self._broker = broker
        self._address = broker.address
        self._large: dict[bytes, bytes] = {}
        self._written = cache(self._write)
        self.read = cache(self._read)

    def client(self, name: str) -> Client:
        return self._clients.named(name)

    def written(self, name: str) -> Written:
        written = self._written(name)
        if written.error is not None:
            raise AssertionError(f"{name} could not write") from written.error
        return written

    def _write(self, name: str) -> Written:
        client = self.client(name)
        written = Written()
        with Wire(self._address) as wire:
            wire.create(f"of-{name}", max_message_bytes=MAX_MESSAGE_BYTES)
            started = time.time()
            try:
                for codec in codecs_of(name):
                    records = [record for record in samples(codec) if client.can_send(record)]
                    client.produce(self._address, f"of-{name}", codec, records)
                    written.sent += records
            except Exception as error:
                written.error = error
            written.seconds = started, time.time()
            written.batches = wire.batches(f"of-{name}")
        return written

    def writers(self) -> list[str]:
        """Those that could write."""
        return [writer for writer in Clients.NAMES if self._written(writer).error is None]

    def read_cold(self, name: str) -> dict[str, list[Record]]:
        writers = self.writers()
        with self._broker.cold_reads():
            return self.client(name).read(self._address, [f"of-{writer}" for writer in writers])

    def check(self, reader: str, writer: str, read: list[Record]) -> None:
        show = self.client(reader).show
        stored = [show(record) for record in self.written(writer).stored]
        assert len(read) == len(stored)
        for seen, expected in zip(read, stored, strict=True):
            assert seen == expected

    def _read(self, name: str) -> dict[str, list[Record]]:
        read = self.client(name).read(self._address, [f"of-{writer}" for writer in self.writers()])
        return {topic: list(map(self._shared, records)) for topic, records in read.items()}

    def _shared(self, record: Record) -> Record:
        """With the one copy of its value that is kept: eight times a 1 MiB value of every writer would be
        half a gigabyte."""
        value = record.value
        return (
            record
            if value is None or len(value) < 4096
            else replace(record, value=self._large.setdefault(value, value))
        )


@pytest.fixture(scope="session")
def matrix(clients: Clients, broker: LiveBroker) -> Matrix:
    return Matrix(clients, broker)


@pytest.mark.parametrize("writer", Clients.NAMES)
def test_what_is_written_is_stored(matrix: Matrix, writer: str) -> None:
    """Keys, values, headers, nulls, sizes, order; the timestamps given, and the time of sending elsewhere;
    each codec."""
    written = matrix.written(writer)
    assert len(written.sent) >= 60 * len(codecs_of(writer))
    assert [record.offset for record in written.stored] == list(range(len(written.sent)))
    earliest, latest = (int(seconds * 1000) for seconds in written.seconds)
    for sent, stored in zip(written.sent, written.stored, strict=True):
        if sent.timestamp is None:
            assert stored.timestamp is not None
            assert earliest - 1 <= stored.timestamp <= latest + 1
        assert replace(stored, offset=-1, timestamp=sent.timestamp) == sent
    assert {Codec(batch.codec).name.lower() for batch in written.batches} == set(codecs_of(writer))


@pytest.mark.parametrize("reader", Clients.NAMES)
@pytest.mark.parametrize("writer", Clients.NAMES)
def test_what_is_stored_is_read(matrix: Matrix, writer: str, reader: str) -> None:
    """A reader shows every record of a writer as it is stored, offsets and timestamps too."""
    matrix.written(writer)
    matrix.check(reader, writer, matrix.read(reader)[f"of-{writer}"])


@pytest.mark.parametrize("reader", Clients.NAMES)
def test_what_is_stored_is_read_from_objects(matrix: Matrix, reader: str) -> None:
    """The same of every writer, with everything uploaded, the WAL trimmed and all caches empty."""
    read = matrix.read_cold(reader)
    assert read
    for writer in matrix.writers():
        matrix.check(reader, writer, read[f"of-{writer}"])
