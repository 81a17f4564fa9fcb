"""kcat, and so a librdkafka of 2023: one process a call.

It sends the headers of a whole call, no timestamps, and a header without a value as an empty one. It shows
headers as text, `name=value` by commas, each value up to its first NUL, and where there is none `NULL`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.compat.records import MAX_MESSAGE_BYTES, Record
from tests.patience import PATIENCE_S

KEY_MARK, END_MARK = "<-key|", "|end->"
HEAD = re.compile(rb"(\d+) (\d+) (-?\d+) (-?\d+) (-?\d+)\n")


def kcat(*words: str, given: bytes = b"", timeout_s: float = PATIENCE_S) -> bytes:
    """What kcat prints; what is not success fails the test with what it said."""
    assert shutil.which("kcat"), "kcat is missing: run `make tools-system` (Debian: apt-get install kcat)"
    done = subprocess.run(["kcat", *words], input=given, capture_output=True, timeout=timeout_s)
    assert done.returncode == 0, f"kcat {' '.join(words)}: {done.stderr.decode()}"
    return done.stdout


class Kcat:
    name = "kcat"

    def version(self) -> str:
        said = kcat("-V").decode()
        found = re.search(r"Version (\S+) .*librdkafka (\S+) builtin", said)
        assert found, said
        return f"{found[1]} (librdkafka {found[2]})"

    def can_send(self, record: Record) -> bool:
        if record.timestamp is not None:
            return False
        names_values = all(value is not None and b"\0" not in value for _, value in record.headers)
        return names_values and not (record.key == b"" and record.value is None)

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Record]) -> None:
        """In runs of records with the same headers and the same way with empty ones."""
        for (headers, nulls), run in groupby(records, lambda record: (record.headers, has_null(record))):
            words = ["-b", address, "-P", "-t", topic, "-p", "0", "-z", codec, "-K", KEY_MARK, "-D", END_MARK]
            words += ["-X", f"message.max.bytes={2 * MAX_MESSAGE_BYTES}", "-X", "enable.idempotence=true"]
            for name, value in headers:
                words += ["-H", f"{name}={(value or b'').decode('utf-8', 'surrogateescape')}"]
            if nulls:
                words.append("-Z")
            with TemporaryDirectory() as folder:
                file = Path(folder, "records")
                file.write_bytes(END_MARK.encode().join(line(record) for record in run))
                kcat(*words, "-l", str(file))

    def read(self, address: str, topics: Sequence[str]) -> dict[str, list[Record]]:
        return {topic: list(self._read(address, topic)) for topic in topics}

    def _read(self, address: str, topic: str) -> list[Record]:
        words = ["-b", address, "-C", "-t", topic, "-o", "beginning", "-e", "-q"]
        words += [
            "-X",
            f"fetch.message.max.bytes={MAX_MESSAGE_BYTES}",
            "-f",
            "%p %o %T %K %S\n%k%s%h\n%%%%\n",
        ]
        return parse(kcat(*words))

    def show(self, record: Record) -> Record:
        return replace(record, headers=shown_headers(record))


def has_null(record: Record) -> bool:
    return record.key is None or record.value is None


def line(record: Record) -> bytes:
    return (record.key or b"") + KEY_MARK.encode() + (record.value or b"")


def shown_headers(record: Record) -> tuple[tuple[str, bytes | None], ...]:
    """All headers as one text, since values may hold what stands between them."""
    texts = [
        name.encode() + b"=" + (b"NULL" if value is None else value.split(b"\0")[0])
        for name, value in record.headers
    ]
    return (("shown", b",".join(texts)),) if texts else ()


def parse(printed: bytes) -> list[Record]:
    found = []
    position = 0
    while position < len(printed):
        head = HEAD.match(printed, position)
        assert head, printed[position : position + 80]
        partition, offset, timestamp, key_bytes, value_bytes = map(int, head.groups())
        position = head.end()
        key, position = take(printed, position, key_bytes)
        value, position = take(printed, position, value_bytes)
        end = printed.index(b"\n%%\n", position)
        headers = (("shown", printed[position:end]),) if end > position else ()
        found.append(Record(key, value, headers, timestamp, offset, partition))
        position = end + 4
    return found


def take(printed: bytes, position: int, count: int) -> tuple[bytes | None, int]:
    if count < 0:
        return None, position
    return printed[position : position + count], position + count
