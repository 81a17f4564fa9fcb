"""Batches with a right checksum whose records nobody can read, or that say something else than their header;
by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

from millrace.protocol.apis import NAMED
from millrace.protocol.batches import FROM_CRC, Codec, seal_batch
from millrace.protocol.codec import encode_request
from millrace.protocol.compression import compress
from millrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from millrace.protocol.primitives import varint
from millrace.protocol.records import encode_record
from tests.live.client import VERSION_BY_NAME, Client

COMPRESSED = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
NOISE = Random(7).randbytes(300)
DAY_MS = 86_400_000


def batch_of(
    payload: bytes, count: int, codec: int = Codec.NONE, max_delta_ms: int = 0, time_ms: int = 0
) -> bytes:
    """A batch with these records; its header says `count`, and that the largest timestamp is so much behind
    now."""
    now_ms = time_ms or int(time.time() * 1000)
    body = FROM_CRC.pack(codec, count - 1, now_ms, now_ms + max_delta_ms, -1, -1, -1, count)
    return seal_batch(0, -1, body, payload)


def records(*deltas: int, key: bytes | None = b"k", times: tuple[int, ...] = ()) -> bytes:
    """Records with these offset deltas, and times behind the base."""
    return b"".join(
        encode_record(delta, times[place] if times else 0, key, b"value %d" % delta)
        for place, delta in enumerate(deltas)
    )


def framed(body: bytes) -> bytes:
    return varint(len(body)) + body


PAYLOADS: dict[str, tuple[bytes, int]] = {
    "random bytes": (NOISE, 3),
    "count too small": (records(0, 1, 2), 2),
    "count too large": (records(0, 1, 2), 4),
    "bytes after the last record": (records(0, 1, 2) + b"\0\0", 3),
    "a record cut off": (records(0, 1, 2)[:-3], 3),
    "negative size of a record": (records(0) + varint(-5) + records(1)[1:], 2),
    "size of a record too small": (records(0) + framed(records(1)[1:-2]) + b"\0\0", 2),
    "size of a record too large": (records(0) + framed(records(1)[1:] + b"\0\0"), 2),
    "key beyond its record": (framed(b"\0\0\0" + varint(99) + b"k\1\0"), 1),
    "negative count of headers": (framed(b"\0\0\0\1\1\1"), 1),
    "more headers than bytes": (framed(b"\0\0\0\1\1" + varint(9) + b"\0\0"), 1),
    "header without a key": (framed(b"\0\0\0\1\1" + varint(1) + b"\1\1"), 1),
    "number of six bytes": (b"\xff\xff\xff\xff\xff\x01" + records(0), 1),
    "deltas twice": (records(0, 0, 1), 3),
    "deltas in the wrong order": (records(0, 2, 1), 3),
    "deltas with a gap": (records(0, 2, 4), 3),
    "negative delta": (records(-1, 0, 1), 3),
}
READABLE = (
    "key of -7 bytes",
    "attributes of a record",
    "header tells a later time",
    "header tells an earlier time",
)


def odd_batches() -> Iterator[tuple[str, bytes]]:
    """Each by name: uncompressed, and within each codec; then what is junk to a codec."""
    for name, (payload, count) in PAYLOADS.items():
        yield name, batch_of(payload, count)
        for codec in COMPRESSED:
            yield f"{name}, {codec.name.lower()}", batch_of(compress(codec, payload), count, codec)
    for codec in COMPRESSED:
        sound = compress(codec, records(0, 1, 2))
        name = codec.name.lower()
        yield f"junk as {name}", batch_of(NOISE, 3, codec)
        yield f"{name} cut off", batch_of(sound[:-9], 3, codec)
        yield f"{name} behind junk", batch_of(b"\0\0" + sound, 3, codec)
        yield f"nothing as {name}", batch_of(compress(codec, b""), 1, codec)
        yield f"no bytes as {name}", batch_of(b"", 1, codec)


def readable_batches() -> Iterator[tuple[str, bytes]]:
    """Odd ones that every consumer reads."""
    yield READABLE[0], batch_of(framed(b"\0\0\0" + varint(-7) + varint(1) + b"v\0"), 1)
    yield READABLE[1], batch_of(framed(b"\x07" + records(0)[2:]), 1)
    yield READABLE[2], batch_of(records(0, 1), 2, max_delta_ms=1_000_000)
    yield READABLE[3], batch_of(records(0, 1, times=(0, 5_000)), 2, max_delta_ms=1)


def record_error_batches() -> Iterator[tuple[str, bytes]]:
    """Sound ones in which some records are to blame: for a compacted topic, or for their times."""
    early = records(0, 1, 2, 3, times=(0, -20 * DAY_MS, 0, 20 * DAY_MS))
    keyless = records(0) + encode_record(1, 0, None, b"v") + encode_record(2, -20 * DAY_MS, None, b"v")
    both = keyless + encode_record(3, 20 * DAY_MS, b"k", b"v")
    for codec in Codec:
        name = codec.name.lower()
        yield f"times, {name}", batch_of(compress(codec, early), 4, codec)
        yield f"keys, {name}", batch_of(compress(codec, keyless), 3, codec)
        yield f"keys and times, {name}", batch_of(compress(codec, both), 4, codec)


def send_batch(client: Client, topic: str, batch: bytes) -> PartitionProduceResponse:
    """The answer to a request of one batch, as it is."""
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, memoryview(batch))])]
    request = ProduceRequest(None, -1, 30_000, data)
    client.socket.sendall(encode_request(NAMED["Produce"], VERSION_BY_NAME, 1, "live", request))
    return client.end_send()
