"""Kafka's console producer and consumer: lines of text, in the JVM that takes orders.

The producer takes what is text without line ends, and no timestamps. The consumer prints bytes as they are; a
header's value, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from tests.compat.jvm import Jvm, kafka_version
from tests.compat.records import MAX_MESSAGE_BYTES, Record
from tests.compat.wire import Wire

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
KEY_MARK, HEADERS_MARK, HEADER_MARK, NAME_MARK, NULL, END_MARK = (
    "<key~",
    "<headers~",
    "~;~",
    "~=~",
    "~null~",
    "~end>\n",
)


class Console:
    name = "console"

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def version(self) -> str:
        return kafka_version()

    def can_send(self, record: Record) -> bool:
        texts = (record.key, record.value, *(value for _, value in record.headers))
        return record.timestamp is None and all(map(is_line, texts))

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Record]) -> None:
        """In runs with and without headers, since a line has them or not for all."""
        for with_headers, run in groupby(records, lambda record: bool(record.headers)):
            properties = {
                "parse.key": "true",
                "parse.headers": str(with_headers).lower(),
                "key.separator": KEY_MARK,
                "headers.delimiter": HEADERS_MARK,
                "headers.separator": HEADER_MARK,
                "headers.key.separator": NAME_MARK,
                "null.marker": NULL,
            }
            words = ["--bootstrap-server", address, "--topic", topic, "--compression-codec", codec]
            words += ["--command-property", f"max.request.size={2 * MAX_MESSAGE_BYTES}"]
            for key, value in properties.items():
                words += ["--reader-property", f"{key}={value}"]
            self._jvm.tool(PRODUCER, *words, given="".join(map(line, run)))

    def read(self, address: str, topics: Sequence[str]) -> dict[str, list[Record]]:
        return {topic: self._read(address, topic) for topic in topics}

    def _read(self, address: str, topic: str) -> list[Record]:
        with Wire(address) as wire:
            count = wire.end(topic)
        words = ["--bootstrap-server", address, "--topic", topic, "--partition", "0", "--offset", "earliest"]
        words += ["--max-messages", str(count), "--timeout-ms", "20000"]
        words += ["--command-property", f"max.partition.fetch.bytes={MAX_MESSAGE_BYTES}"]
        for shown in ("timestamp", "partition", "offset", "headers", "key", "value"):
            words += ["--formatter-property", f"print.{shown}=true"]
        marks = {"key": KEY_MARK, "headers": HEADER_MARK, "line": END_MARK}
        for name, mark in marks.items():
            words += ["--formatter-property", f"{name}.separator={mark}"]
        words += ["--formatter-property", f"null.literal={NULL}"]
        printed = self._jvm.tool_bytes(CONSUMER, *words).split(END_MARK.encode())
        assert printed.pop().strip() in (b"", f"Processed a total of {count} messages".encode())
        return [parsed(text) for text in printed]

    def show(self, record: Record) -> Record:
        return replace(
            record,
            headers=tuple(
                (name, NULL.encode() if value is None else value) for name, value in record.headers
            ),
        )


def is_line(data: bytes | None) -> bool:
    """Text in which neither lines nor our marks are."""
    if data is None:
        return True
    try:
        return len(data.decode().splitlines()) <= 1 and b"~" not in data
    except UnicodeDecodeError:
        return False


def line(record: Record) -> str:
    headers = HEADER_MARK.join(f"{name}{NAME_MARK}{text(value)}" for name, value in record.headers)
    return (
        (headers + HEADERS_MARK if headers else "") + text(record.key) + KEY_MARK + text(record.value) + "\n"
    )


def text(data: bytes | None) -> str:
    return NULL if data is None else data.decode()


def parsed(printed: bytes) -> Record:
    time, partition, offset, headers, key, value = printed.split(KEY_MARK.encode(), 5)
    pairs = (
        []
        if headers == b"NO_HEADERS"
        else [pair.split(b":", 1) for pair in headers.split(HEADER_MARK.encode())]
    )
    return Record(
        None if key == NULL.encode() else key,
        None if value == NULL.encode() else value,
        tuple((name.decode(), held) for name, held in pairs),
        int(time.removeprefix(b"CreateTime:")),
        int(offset.removeprefix(b"Offset:")),
        int(partition.removeprefix(b"Partition:")),
    )
