"""What is fuzzed: each target takes any bytes and reads them as one thing; nothing but that thing's own
error, one of the project's, may come out.

Sums would stop a fuzzer at the first byte it changes, so targets of summed formats mend the sum of the
outermost header when the first byte of their input is odd. `Guard` adds what an exception cannot show: memory
that a small input made the process take.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from struct import Struct
from typing import ClassVar

from millrace.broker.partitions.cold_producers import decode_block_head, decode_index, iter_rows
from millrace.broker.partitions.epochs import Epochs
from millrace.broker.partitions.meta_stream import decode_values
from millrace.broker.partitions.producers import Producers
from millrace.broker.partitions.segments import Segment
from millrace.kraft.errors import UnknownRecord
from millrace.kraft.image.records import ValueReader
from millrace.kraft.image.records import decode_values as decode_metadata_batch
from millrace.protocol.apis import ALL, API
from millrace.protocol.batches import (
    FROM_CRC,
    BatchHeader,
    Codec,
    ProduceRules,
    check_produced_batch,
    iter_headers,
    seal_batch,
)
from millrace.protocol.codec import decode_response
from millrace.protocol.codec_bounds import unpacked_bytes_max
from millrace.protocol.compression import decompress
from millrace.protocol.coordinator_records import (
    decode_assignment,
    decode_key,
    decode_subscription,
    decode_value,
)
from millrace.protocol.crc32c import crc32c
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.frame import FrameSplitter
from millrace.protocol.header import decode_request_header
from millrace.protocol.record_walk import walk, walk_in_python
from millrace.protocol.records import iter_records, times_in
from millrace.runtime.errors import Corrupt
from millrace.s3stream.ids import StreamId
from millrace.s3stream.objects.composite import CompositeIndex
from millrace.s3stream.objects.format import BlockRef, check_block, decode_block, decode_entry, decode_footer
from millrace.s3stream.objects.index import ObjectIndex
from millrace.wal.block.layout import DeviceHeader, Reign, choose_device_header, decode_block_header
from millrace.wal.block.recovery import REFUSE, SKIP, TRUNCATE, RecoveryScan
from millrace.wal.errors import WalCorrupt, WalMismatch
from millrace.wal.record import decode_record, epoch_seed
from tests.fuzz.cost import DECODED_FACTOR, TooManySteps, count_steps, peak_bytes
from tests.whole import decode_whole

FRAME_BYTES_MAX = 1 << 20
RECORDS_BYTES_MAX = 64 << 10
_CRC = Struct(">I")
RULES = ProduceRules()
METADATA_VALUES = ValueReader()
GOLDEN_OBJECT_BYTES = 501
DEVICE_HEADER_SUM_AT = 296


def mended(data: bytes, sum_at: int, start: int = 0) -> bytearray:
    """`data` without its first byte; when that is odd, with the right CRC32C of [start, sum_at) at
    `sum_at`."""
    body = bytearray(data[1:])
    if data[:1] and data[0] & 1 and len(body) >= sum_at + 4:
        _CRC.pack_into(body, sum_at, crc32c(bytes(body[start:sum_at])))
    return body


def frames(data: bytes) -> None:
    """A connection's bytes, in pieces whose size the first byte gives: frames, then requests of every API and
    version."""
    splitter = FrameSplitter(FRAME_BYTES_MAX)
    step = 1 + (data[0] if data else 0) * 8
    for start in range(1, len(data), step):
        for frame in splitter.feed(data[start : start + step]):
            request(bytes(frame))


def request(data: bytes) -> None:
    header, position = decode_request_header(data)
    api = API[header.api_key]
    if header.api_version in api.versions:
        decode_whole(api, header.api_version, data, position)


def response(data: bytes) -> None:
    """The first two bytes choose API and version: what brokers and controllers read of each other."""
    if len(data) > 2:
        api = ALL[data[0] % len(ALL)]
        versions = list(api.versions)
        decode_response(api, versions[data[1] % len(versions)], data[2:])


def batches(data: bytes) -> None:
    """Record batches as they come in a produce request, and as records are read."""
    view = memoryview(mended(data, 17))
    if data[:1] and data[0] & 1 and len(view) >= 61:
        view[17:21] = _CRC.pack(crc32c(bytes(view[21:])))
    check_produced_batch(view.toreadonly(), RULES, 1_700_000_000_000, 9)
    for position, header in iter_headers(view):
        found = iter_records(view[position : position + header.size_bytes], RECORDS_BYTES_MAX)
        assert (
            sum(1 for _ in found) == header.record_count
        )  # what offsets they claim is their producer's affair, as with Kafka


def records(data: bytes) -> None:
    """The same without the checks of a produce request: as compaction and the coordinators read what was
    stored."""
    view = memoryview(data)
    header = BatchHeader(view)
    if 61 <= header.size_bytes <= len(view):
        for _ in iter_records(view[: header.size_bytes], RECORDS_BYTES_MAX):
            pass


def compressed(data: bytes) -> None:
    if data:
        codec = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)[data[0] % 4]
        found = decompress(codec, data[1:], RECORDS_BYTES_MAX)
        assert len(found) <= RECORDS_BYTES_MAX, len(found)
        assert len(found) <= unpacked_bytes_max(codec, data[1:]), len(found)


def walked(data: bytes) -> None:
    """The walk that judges records, compiled and not: both say the same, and what they take can be read. The
    first byte says how many records, and whether keys are needed."""
    if data:
        count, body = data[0] >> 1 or 1, data[1:]
        found = walk(body, count, 1_000, 900, 1_100, bool(data[0] & 1))
        assert found == walk_in_python(body, count, 1_000, 900, 1_100, bool(data[0] & 1))
        if isinstance(found, int) or not found[0]:
            header = BatchHeader(
                seal_batch(0, -1, FROM_CRC.pack(0, count - 1, 1_000, 1_000, -1, -1, -1, count), body)
            )
            assert [offset for offset, _ in times_in(header, body)] == list(range(count))


def coordinator(data: bytes) -> None:
    """Keys and values of __consumer_offsets, and what members say of themselves."""
    if data:
        length = data[0]
        key, value = data[1 : 1 + length], data[1 + length :]
        decode_subscription(value) if length % 2 else decode_assignment(value)
        found = decode_key(key)
        if found is not None:
            decode_value(found, value)


def metadata(data: bytes) -> None:
    """One record's value, which is Kafka's or ours in a NoOpRecord; and a batch of them, as a restart walks
    it."""
    METADATA_VALUES.read(data[1:])


def metadata_batch(data: bytes) -> None:
    view = memoryview(data)
    if 61 <= BatchHeader(view).size_bytes <= len(view):
        decode_metadata_batch(view)


def meta_values(data: bytes) -> None:
    decode_values(memoryview(data))


def state_values(data: bytes) -> None:
    """What the values of a partition's meta stream hold; the first byte chooses."""
    if data:
        decoders = (
            Segment.decode,
            Epochs.decode,
            lambda value: Producers.restore(value, 0),
            decode_block_head,
            lambda value: list(iter_rows(value)),
            decode_index,
        )
        decoders[data[0] % len(decoders)](data[1:])


def wal_header(data: bytes) -> None:
    copy = mended(data, DEVICE_HEADER_SUM_AT)
    choose_device_header(bytes(copy[:4096].ljust(4096, b"\0")), bytes(copy[4096:8192].ljust(4096, b"\0")))


def wal_record(data: bytes) -> None:
    body = mended(data, 20)
    if data[:1] and data[0] & 1 and len(body) >= 24:
        _CRC.pack_into(body, 20, crc32c(bytes(body[:20]), epoch_seed(1)))
    decode_record(memoryview(body), 0, len(body), 8192, epoch_seed(1))


RING_BYTES = 64 * 4096


def wal_blocks(data: bytes) -> None:
    """A whole recovery over a ring that holds the input, of two owners, under the policy that the first byte
    chooses: it ends, and within the ring."""
    body = mended(data, 60)
    decode_block_header(memoryview(body), 0)
    ring = bytes(body[:RING_BYTES]).ljust(RING_BYTES, b"\0")
    start = (data[0] >> 3) * 4096 if data else 0
    header = DeviceHeader(
        "c", 1, 1, start // 2 & -4096, 66 * 4096, 0, 0, start, 8 * 4096, 16 * 4096, 0, -1, 1, (Reign(0, 0),)
    )
    scan = RecoveryScan(header, 16 * 4096, (REFUSE, SKIP, TRUNCATE)[(data[0] >> 1) % 3 if data else 0])
    for _ in range(200):
        wanted = scan.wanted()
        if wanted is None:
            return
        start, length = wanted
        scan.feed(ring[start % len(ring) : start % len(ring) + length])
    raise AssertionError("recovery does not end")


def entry(data: bytes) -> None:
    decode_entry(memoryview(mended(data, 36)), 0)


def blocks(data: bytes) -> None:
    body = mended(data, 36)
    if data[:1] and data[0] & 1 and len(body) >= 40:
        _CRC.pack_into(body, 36, crc32c(bytes(body[:36]), crc32c(bytes(body[40:]))))
    ref = BlockRef(StreamId(3), 0, 3, 2, 0, len(body))
    for call in (check_block, decode_block):
        call(ref, memoryview(body))


def index(data: bytes) -> None:
    body = mended(data, 12)
    if data[:1] and data[0] & 1 and len(body) >= 16:
        _CRC.pack_into(body, 12, crc32c(bytes(body[16:]), crc32c(bytes(body[:12]))))
    found = ObjectIndex(memoryview(body), 1 << 40)
    for place in range(found.count):
        found.row(place)
    found.find(3, 0, 100, 1 << 20)


def footer(data: bytes) -> None:
    decode_footer(memoryview(mended(data, 36)), GOLDEN_OBJECT_BYTES)


def composite(data: bytes) -> None:
    body = bytearray(data[1:])
    if len(body) >= 68 and data[0] & 1:
        _CRC.pack_into(body, len(body) - 12, crc32c(bytes(body[-48:-12])))
        links_end = int.from_bytes(body[-48:-40], "big")
        _CRC.pack_into(body, 12, crc32c(bytes(body[16:links_end]), crc32c(bytes(body[:12]))))
    CompositeIndex(memoryview(body))


# name -> (target, what may be raised)
TARGETS: dict[str, tuple[Callable[[bytes], None], tuple[type[Exception], ...]]] = {
    "frames": (frames, (WireError,)),
    "request": (request, (WireError,)),
    "response": (response, (WireError,)),
    "batches": (batches, (WireError, KafkaError)),
    "records": (records, (WireError,)),
    "compressed": (compressed, (WireError,)),
    "coordinator": (coordinator, (WireError,)),
    "metadata": (metadata, (WireError, UnknownRecord)),
    "metadata_batch": (metadata_batch, (WireError,)),
    "meta_values": (meta_values, (Corrupt,)),
    "wal_header": (wal_header, (WalCorrupt, WalMismatch)),
    "wal_record": (wal_record, ()),
    "wal_blocks": (wal_blocks, (WalCorrupt,)),
    "entry": (entry, (Corrupt,)),
    "blocks": (blocks, (Corrupt,)),
    "index": (index, (Corrupt,)),
    "footer": (footer, (Corrupt,)),
    "composite": (composite, (Corrupt,)),
    "state_values": (state_values, (Corrupt,)),
    "walked": (walked, ()),
}
NAMES = list(TARGETS)


def run(data: bytes) -> None:
    """One input: its first byte chooses the target. The form in which seeds and findings are kept."""
    if data:
        target, allowed = TARGETS[target_of(data)]
        try:
            target(data[1:])
        except allowed:
            pass


def target_of(data: bytes) -> str:
    return NAMES[data[0] % len(NAMES)]


class Guard:
    """Refuses an input that took more memory than it may: of what Python holds, by the input's own size; and,
    for what libraries in C hold, by how much larger than ever before it made the process."""

    FACTOR, BESIDE_BYTES = DECODED_FACTOR, 32 << 10
    # Where the input is unpacked first, a record's headers may be what is tiny; a recovery is given a whole
    # ring, holds what it read of it, and joins that with the rest of what it read before.
    MORE_BYTES: ClassVar[dict[str, int]] = {
        "batches": DECODED_FACTOR * RECORDS_BYTES_MAX,
        "records": DECODED_FACTOR * RECORDS_BYTES_MAX,
        "compressed": 2 * RECORDS_BYTES_MAX,
        "wal_blocks": 3 * RING_BYTES,
    }
    PROCESS_FACTOR, PROCESS_BESIDE_BYTES = 64, 96 << 20

    def __init__(self) -> None:
        self._peak_bytes = self._now()

    @staticmethod
    def _now() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def __call__(self, data: bytes) -> None:
        before_bytes = self._peak_bytes
        if not data:
            return
        allowed_bytes = self.FACTOR * len(data) + self.BESIDE_BYTES + self.MORE_BYTES.get(target_of(data), 0)
        held_bytes = peak_bytes(lambda: run(data))
        if held_bytes > allowed_bytes:
            held_bytes = peak_bytes(lambda: run(data))  # its codec was made then
        if held_bytes > allowed_bytes:
            raise MemoryError(f"{len(data)} bytes took {held_bytes}")
        self._peak_bytes = self._now()
        grown_bytes = self._peak_bytes - before_bytes
        if grown_bytes > self.PROCESS_FACTOR * len(data) + self.PROCESS_BESIDE_BYTES:
            raise MemoryError(f"{len(data)} bytes made the process grow by {grown_bytes}")


STEPS_PER_BYTE, STEPS_BESIDE = 24, 3000  # a frame that comes byte by byte takes 19 a byte
CODEC_STEPS = 1_000_000  # what making one takes, by far


def run_in_bounds(data: bytes) -> None:
    """An input in as many steps as its bytes allow, and those that may be unpacked from it."""
    unpacked_bytes = RECORDS_BYTES_MAX if target_of(data) in ("batches", "records") else 0
    steps_max = STEPS_BESIDE + STEPS_PER_BYTE * (len(data) + unpacked_bytes)
    try:
        count_steps(lambda: run(data), steps_max)
    except TooManySteps:
        count_steps(lambda: run(data), CODEC_STEPS + steps_max)  # its codec is made
        count_steps(lambda: run(data), steps_max)
