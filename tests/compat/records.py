"""What every client is asked to carry: one record of each kind that has ever been told apart wrongly.

Kept true: the list is the same for every client; a client that cannot send one says so in its own module, by
`can_send`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MIB = 1 << 20
# Large enough for a value of 1 MiB that no codec makes smaller, with what stands around it.
MAX_MESSAGE_BYTES = 2 * MIB

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One record as clients see it. `timestamp` None: the moment of sending; `offset` -1: not sent yet."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    offset: int = -1
    partition: int = 0

    def __repr__(self) -> str:
        shown = [short(self.key), short(self.value)]
        shown += [f"{name}={short(value)}" for name, value in self.headers]
        return f"Record({self.partition}/{self.offset} at {self.timestamp}: {' '.join(shown)})"


def short(data: bytes | None) -> str:
    if data is None or len(data) <= 40:
        return repr(data)
    return f"{data[:16]!r}..({len(data)} bytes)"


def sample(codec: str) -> list[Record]:
    """The records of one codec, in the order of sending. Their keys and values differ by codec."""
    chance = Random(codec)
    name = codec.encode()
    lines = [
        Record(b"%s-%d" % (name, n), b"a line that repeats, number %d of %s" % (n, name) * (n % 9 + 1))
        for n in range(60)
    ]
    return [
        Record(b"key-" + name, b"value-" + name),
        Record(None, b"no key " + name),
        Record(b"tombstone-" + name, None),
        Record(b"empty value " + name, b""),
        Record(b"", b"empty key " + name),
        Record(None, None),
        Record(None, b"\x00"),
        Record(None, b"x"),
        Record("schlüssel-ключ-鍵".encode(), "wert-значение-値-😀".encode()),
        Record(bytes(range(256)), bytes(reversed(range(256)))),
        Record(b"headers", b"three", (("codec", name), ("second", b"2"), ("second", b"again"))),
        Record(b"headers", b"empty", (("empty", b""),)),
        Record(b"headers", b"null", (("null", None),)),
        Record(b"headers", b"binary", (("bytes", b"\xff\x00\x01"), ("имя", "значение".encode()))),
        Record(b"dated", b"2020", timestamp=1_577_836_800_123),
        Record(b"dated", b"2001", timestamp=1_000_000_000_001),
        *lines,
        Record(b"1 MiB of chance", chance.randbytes(MIB)),
        Record(b"1 MiB of text", (b"%s: all work and no play makes a long line. " % name * MIB)[:MIB]),
    ]


def everything() -> list[Record]:
    """The samples of all codecs, one after another, as they stand in a topic of one partition."""
    return [record for codec in CODECS for record in sample(codec)]


def without_time(record: Record) -> Record:
    return replace(record, timestamp=None)
