"""Inputs to begin with: a message of every API at every version, batches of every codec, and what the golden
files hold."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

from millrace.broker.partitions.meta_stream import decode_values
from millrace.broker.partitions.state import EPOCHS, PRODUCERS, SEGMENT
from millrace.protocol.apis import ALL
from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import FROM_CRC, HEADER_BYTES, Codec, iter_headers, seal_batch
from millrace.protocol.codec import encode_request
from millrace.protocol.compile import encoder
from millrace.protocol.compression import compress
from millrace.protocol.coordinator_records import OffsetCommitKey, OffsetCommitValue, encode_key, encode_value
from millrace.protocol.errors import WireError
from millrace.protocol.records import Record, encode_record
from tests.fuzz.targets import NAMES
from tests.protocol.values import build

GOLDEN = Path(__file__).parent.parent / "golden"
STATE_KINDS = (SEGMENT, EPOCHS, PRODUCERS)  # as targets.state_values counts them
_COMMENT = re.compile(r"#.*")


def seeds() -> Iterator[bytes]:
    """In the form of `targets.run`: each begins with the number of its target."""
    for name, data in _of_wire():
        yield bytes([NAMES.index(name)]) + data
    for name, data in _of_batches():
        yield bytes([NAMES.index(name)]) + data
    for name, data in _of_golden():
        yield bytes([NAMES.index(name)]) + data


def _of_wire() -> Iterator[tuple[str, bytes]]:
    for place, api in enumerate(ALL):
        for number, version in enumerate(api.versions):
            random = Random(f"{api.key} {version}")
            frame = encode_request(api, version, 1, "seed", build(random, api.request_type, version))
            yield "request", frame[4:]
            if number == 0:
                yield "frames", b"\x20" + frame
            answer = encoder(api.response_type, version)(build(random, api.response_type, version))
            yield "response", bytes([place % 256, number]) + b"\0\0\0\1" + answer


def _of_batches() -> Iterator[tuple[str, bytes]]:
    records = [Record(b"key", b"value" * 20, 1_700_000_000_000, [(b"h", b"1")]) for _ in range(3)]
    raw = b"".join(b"record %d " % number for number in range(60))
    for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        batch = build_batch(records, codec=codec)
        yield "batches", b"\0" + batch
        yield "batches", b"\1" + batch + batch
        yield "records", batch
        if codec == Codec.NONE:
            yield "walked", bytes([2 * len(records)]) + batch[HEADER_BYTES:]
        if codec:
            yield "compressed", bytes([codec - 1]) + compress(codec, raw)
    body = FROM_CRC.pack(Codec.NONE, 0, 0, 0, -1, -1, -1, 1)
    yield "batches", b"\0" + seal_batch(0, -1, body, encode_record(-3, 0, None, b"before its batch"))
    key, value = encode_key(OffsetCommitKey("group", "topic", 1)), encode_value(OffsetCommitValue(offset=5))
    yield "coordinator", bytes([len(key)]) + key + value


def _hex(name: str) -> bytes:
    """The bytes of a golden file's first part, without its comments."""
    text = _COMMENT.sub("", (GOLDEN / name).read_text().split("\n--", 1)[0])
    return bytes.fromhex("".join(text.split()))


def _of_golden() -> Iterator[tuple[str, bytes]]:
    image = bytearray(64 << 10)
    for line in (GOLDEN / "block_wal_v1.hex").read_text().splitlines():
        place, _, content = line.partition(" ")
        start = int(place, 16)
        image[start : start + len(content) // 2] = bytes.fromhex(content)
    yield "wal_header", b"\0" + bytes(image[:8192])
    for start in range(8192, len(image), 4096):
        if any(image[start : start + 64]):
            for policy in (0, 2, 4, 10):
                yield "wal_blocks", bytes([policy]) + bytes(image[start : start + 8192]).rstrip(b"\0")
            yield "wal_record", b"\1" + bytes(image[start + 64 : start + 512])
    stored = _hex("object_v2.hex")
    yield "blocks", b"\1" + stored[:125]
    yield "entry", b"\0" + stored[40:125]
    at = stored.index(b"MRIX")
    yield "index", b"\1" + stored[at:-48]
    yield "footer", b"\1" + stored[-48:]
    yield "composite", b"\1" + _hex("composite_v1.hex")
    partition = _hex("partition_streams_v1.hex")
    yield "meta_values", partition
    for (kind, _), value in decode_values(memoryview(partition)):
        if value is not None and kind in STATE_KINDS:
            yield "state_values", bytes([STATE_KINDS.index(kind)]) + value
    text = (GOLDEN / "metadata_log_v1.txt").read_text()
    log = bytes.fromhex("".join(line for line in text.splitlines() if re.fullmatch("[0-9a-f]+", line)))
    with contextlib.suppress(WireError):  # behind the log stands a snapshot's name
        for start, header in iter_headers(log):
            yield "metadata_batch", log[start : start + header.size_bytes]
    for found in re.finditer(rb"\x01[\x00-\x7f]\x00", log):
        yield "metadata", b"\0" + log[found.start() : found.start() + 80]
