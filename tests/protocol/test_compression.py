"""The codecs: each against other implementations in both directions, whole batches with real clients, and
broken input."""

from __future__ import annotations

import gzip
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import lz4.frame
import pytest
import snappy
import zstandard
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    ProduceRules,
    check_produced_batch,
    is_intact,
)
from millrace.protocol.compression import (
    CODEC_BY_NAME,
    GZIP_MEMBERS_MAX,
    RecordsTooLarge,
    compress,
    decompress,
    recompress,
    repack,
    unpack,
    unpack_into,
)
from millrace.protocol.errors import WireError
from millrace.protocol.records import Record, iter_records
from tests.patience import PATIENCE_S

NOW_MS = 1_700_000_000_000
COMPRESSED = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
TEXT = b"".join(b'{"id":%d,"square":%d}' % (index, index * index) for index in range(20_000))
NOISE = b"".join(struct.pack(">I", index * 2654435761 & 0xFFFF_FFFF) for index in range(50_000))
SAMPLES = {"empty": b"", "byte": b"x", "text": TEXT, "noise": NOISE, "zeros": bytes(3_000_000)}


def xerial(data: bytes) -> bytes:
    """What snappy-java's stream writes, by python-snappy's blocks."""
    parts = [b"\x82SNAPPY\x00", struct.pack(">ii", 1, 1)]
    for start in range(0, len(data), 32768):
        block = snappy.compress(data[start : start + 32768])
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def unxerial(data: bytes) -> bytes:
    assert data[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    position, out = 16, b""
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        out += snappy.decompress(data[position + 4 : position + 4 + length])
        position += 4 + length
    return out


def zstd_stream(data: bytes) -> bytes:
    """A zstd frame without its content size, as streaming writers (Java's among them) leave it."""
    stream = zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj()
    return stream.compress(data) + stream.flush()


OTHERS: dict[Codec, list[tuple[str, Callable[[bytes], bytes]]]] = {
    Codec.GZIP: [
        ("gzip", gzip.compress),
        ("two members", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
        ("bytes after the member", lambda data: gzip.compress(data) + b"\x00\x00"),
    ],
    Codec.SNAPPY: [
        ("raw", snappy.compress),
        ("xerial", xerial),
        ("two streams", lambda data: xerial(data[:9]) + xerial(data[9:])),
    ],
    Codec.LZ4: [
        ("linked blocks", lambda data: lz4.frame.compress(data, block_linked=True)),
        (
            "content size and checksum",
            lambda data: lz4.frame.compress(data, content_checksum=True, store_size=True),
        ),
        ("blocks of 4 MiB", lambda data: lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX4MB)),
        ("block checksums", lambda data: lz4.frame.compress(data, block_checksum=True, store_size=False)),
        ("two frames", lambda data: lz4.frame.compress(data[:9]) + lz4.frame.compress(data[9:])),
    ],
    Codec.ZSTD: [
        ("content size", lambda data: zstandard.ZstdCompressor().compress(data)),
        ("no content size", zstd_stream),
        ("two frames", lambda data: zstd_stream(data[:9]) + zstd_stream(data[9:])),
        ("skippable frame", lambda data: b"\x53\x2a\x4d\x18\x03\x00\x00\x00abc" + zstd_stream(data)),
    ],
}
READERS: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.GZIP: gzip.decompress,
    Codec.SNAPPY: unxerial,
    Codec.LZ4: lz4.frame.decompress,
    Codec.ZSTD: lambda data: zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 24),
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("codec", COMPRESSED)
def test_others_read_what_we_compress(codec: Codec, sample: bytes) -> None:
    """gzip, python-snappy, lz4 and zstandard give back what we compressed, and so do we."""
    packed = compress(codec, sample)
    assert READERS[codec](packed) == sample
    assert decompress(codec, packed) == sample
    assert decompress(codec, memoryview(packed)) == sample


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize(
    ("codec", "write"),
    [(codec, write) for codec, writers in OTHERS.items() for _, write in writers],
    ids=[f"{codec.name.lower()}: {name}" for codec, writers in OTHERS.items() for name, _ in writers],
)
def test_we_read_what_others_compress(codec: Codec, write: Callable[[bytes], bytes], sample: bytes) -> None:
    """Every form that a container may take is read, whoever wrote it."""
    assert decompress(codec, memoryview(write(sample))) == sample


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Codec.GZIP, (-1, 1, 9)), (Codec.LZ4, (1, 9, 12, 17)), (Codec.ZSTD, (-131072, -1, 1, 3, 22))],
)
def test_every_level_of_a_topics_configuration_is_taken(codec: Codec, levels: tuple[int, ...]) -> None:
    """The bounds of Kafka's level settings compress, and the default is the level that Kafka names so."""
    for level in levels:
        assert decompress(codec, compress(codec, TEXT, level)) == TEXT
    default = {Codec.GZIP: -1, Codec.LZ4: 9, Codec.ZSTD: 3}[codec]
    assert compress(codec, TEXT) == compress(codec, TEXT, default)


def test_lz4_at_its_default_level_is_fast() -> None:
    """Kafka's default level 9 names the fast compressor, which packs less than any level that is asked
    for."""
    assert len(compress(Codec.LZ4, TEXT)) > len(compress(Codec.LZ4, TEXT, 1))


def test_lz4_blocks_are_independent() -> None:
    """Java's consumers refuse frames whose blocks need one another."""
    for level in (None, 1, 12):
        assert lz4.frame.get_frame_info(compress(Codec.LZ4, TEXT, level))["block_linked"] is False


def test_codecs_are_named_as_in_topic_configuration() -> None:
    """`compression.type` names the codecs by Kafka's words, which spell none as uncompressed."""
    assert {name: int(codec) for name, codec in CODEC_BY_NAME.items()} == {
        "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4,
    }  # fmt: skip


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_bound_is_exact(codec: Codec) -> None:
    """Exactly as many bytes as allowed come out; one more is refused, whoever wrote it and however small it
    is packed."""
    for sample in (TEXT, SAMPLES["zeros"]):
        for packed in (compress(codec, sample), *(write(sample) for _, write in OTHERS[codec])):
            assert decompress(codec, packed, len(sample)) == sample
            with pytest.raises(WireError):
                decompress(codec, packed, len(sample) - 1)


def test_a_claim_is_not_believed() -> None:
    """A few bytes that claim to hold gigabytes are refused by the claim or by what they hold, never by
    running out."""
    claims = [
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x"),
        (Codec.SNAPPY, b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 0x7FFF_FFFF)),
        (Codec.SNAPPY, b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, -5) + b"abc"),
        (Codec.LZ4, bytes.fromhex("04224d18 60 70 73 ffffff7f 00")),
        (Codec.LZ4, bytes.fromhex("532a4d18 ffffffff")),
        (Codec.ZSTD, bytes.fromhex("28b52ffd e0 ffffffffffffff7f 030000 41")),
        (Codec.ZSTD, bytes.fromhex("28b52ffd 00 ff 0b0000 41")),
        (Codec.GZIP, gzip.compress(b"") * (GZIP_MEMBERS_MAX + 1)),
    ]
    for codec, packed in claims:
        with pytest.raises(WireError):
            decompress(codec, packed)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_input_cut_anywhere_is_malformed(codec: Codec) -> None:
    """No prefix of compressed bytes gives records: it is a WireError, or for snappy at a block's edge too few
    bytes."""
    sample = TEXT[:300]
    for packed in (compress(codec, sample), *(write(sample) for _, write in OTHERS[codec])):
        for size in range(len(packed) - 2):
            try:
                assert decompress(codec, packed[:size]) != sample
            except WireError:
                pass


@given(st.sampled_from(COMPRESSED), st.binary(max_size=80))
def test_any_bytes_are_decompressed_or_malformed(codec: Codec, data: bytes) -> None:
    """Random bytes raise nothing but WireError, with and without a container's magic before them."""
    magic = {
        Codec.GZIP: gzip.compress(b"")[:10],
        Codec.SNAPPY: xerial(b""),
        Codec.LZ4: b"\x04\x22\x4d\x18\x60\x40\x82",
    }
    for packed in (data, magic.get(codec, b"\x28\xb5\x2f\xfd") + data):
        try:
            decompress(codec, packed, 1 << 20)
        except WireError:
            pass


def test_codecs_without_a_name_are_refused() -> None:
    """Numbers 5 to 7 in a stored batch are malformed bytes; asked of us they are a mistake."""
    for codec in (5, 6, 7):
        with pytest.raises(WireError):
            decompress(codec, b"")
        with pytest.raises(ValueError, match="no codec"):
            compress(codec, b"")


def sample_records(count: int = 300) -> list[Record]:
    return [
        Record(
            None if index % 3 == 0 else b"key%d" % index,
            None if index % 5 == 4 else b"value %d, some words that repeat" % index * 9,
            NOW_MS + index % 7 - 3,
            ((b"h", b"1"), (b"h", None)) if index % 4 == 1 else (),
        )
        for index in range(count)
    ]


def told(record: Any) -> tuple[Any, ...]:
    """What one record says, in whichever library's words."""
    headers = [(key.encode() if isinstance(key, str) else key, value) for key, value in record.headers]
    return record.offset, record.timestamp, record.key, record.value, headers


def expected(base_offset: int = 0) -> list[tuple[Any, ...]]:
    return [
        (base_offset + index, record.timestamp, record.key, record.value, list(record.headers))
        for index, record in enumerate(sample_records())
    ]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("builder", [KafkaPythonBuilder, AiokafkaBuilder])
def test_we_read_batches_of_python_clients(builder: Any, codec: Codec) -> None:
    """A batch from kafka-python's and aiokafka's producers, in each codec, is taken and read."""
    batch = builder(2, int(codec), False, -1, -1, -1, 1 << 20)
    for offset, record in enumerate(sample_records()):
        batch.append(
            offset, record.timestamp, record.key, record.value, [(k.decode(), v) for k, v in record.headers]
        )
    view = memoryview(bytes(batch.build()))
    assert check_produced_batch(view, ProduceRules(), NOW_MS, 9).codec == codec
    assert [told(record) for record in iter_records(view)] == expected()


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("reader", [KafkaPythonBatch, AiokafkaBatch])
def test_python_clients_read_our_batches(reader: Any, codec: Codec) -> None:
    """kafka-python and aiokafka read our batches in each codec."""
    batch = reader(build_batch(sample_records(), base_offset=8, codec=codec))
    assert batch.validate_crc()
    assert [told(record) for record in batch] == expected(8)


@pytest.mark.parametrize("source", list(Codec))
def test_recompression_changes_the_codec_and_nothing_else(source: Codec) -> None:
    """Under any other codec the records, their offsets and times and the producer's fields stay, and the
    checksum is right."""
    before = build_batch(
        sample_records(),
        base_offset=8,
        leader_epoch=3,
        codec=source,
        producer_id=5,
        producer_epoch=1,
        base_sequence=70,
        is_transactional=True,
    )
    for target in Codec:
        after = recompress(memoryview(before), target)
        old, new = BatchHeader(before), BatchHeader(after)
        assert is_intact(memoryview(after), new)
        assert (new.codec, new.attributes & ~7) == (target, old.attributes & ~7)
        for name in set(BatchHeader.__slots__) - {"attributes", "crc", "batch_length"}:
            assert getattr(new, name) == getattr(old, name)
        assert [told(record) for record in KafkaPythonBatch(after)] == expected(8)
        assert [told(record) for record in iter_records(memoryview(after))] == expected(8)


# Batches that Java's own writer made (kafka-clients 4.3.1), each of the three records below.
JAVA_RECORDS = [
    (7, 1699999999997, None, b"value 0 some words that repeat, some words that repeat", []),
    (8, 1700000000997, b"key1", b"value 1 some words that repeat, some words that repeat",
     [("hé".encode(), b"\x01\x02"), ("hé".encode(), None)]),
    (9, 1700000001997, b"key2", b"value 2 some words that repeat, some words that repeat", []),
]  # fmt: skip
JAVA_BATCHES = {
    Codec.GZIP: (
        "0000000000000007000000980000000302b38511220011000000020000018bcfe567fd0000018bcfe56fcd00000000000004"
        "d2000500000009000000031f8b08000000000000ffab60606060cc294bcc294d55305028cecf4d5528cf2f4a295628c9482c"
        "51284a2d484d2cd1c121ce308b91e1023f1347766aa521d40843128d6061cb38bc9285910944313631322c90670119670435"
        "ce8854170100942025cccf000000"
    ),
    Codec.SNAPPY: (
        "0000000000000007000000a500000003022d2a66a00012000000020000018bcfe567fd0000018bcfe56fcd00000000000004"
        "d20005000000090000000382534e4150505900000000010000000100000060cf019078000000016c76616c7565203020736f"
        "6d6520776f7264732074686174207265706561742c5a18002c009a0100d00f02086b6579310d43043120b643001c040668c3"
        "a904010201071801820100a01f04014f00320d4f0032ba4f000000"
    ),
    Codec.LZ4: (
        "0000000000000007000000a60000000302396ab8c40013000000020000018bcfe567fd0000018bcfe56fcd00000000000004"
        "d20005000000090000000304224d1860408266000000ff1678000000016c76616c7565203020736f6d6520776f7264732074"
        "686174207265706561742c180004c3009a0100d00f02086b65793143001f312b00040f43000580040668c3a9040102070070"
        "01820100a01f044f0013324f001f324f001850706561740000000000"
    ),
    Codec.ZSTD: (
        "00000000000000070000009a0000000302a4f9d6c50014000000020000018bcfe567fd0000018bcfe56fcd00000000000004"
        "d20005000000090000000328b52ffd0058ec0200c40478000000016c76616c7565203020736f6d6520776f72647320746861"
        "74207265706561742c009a0100d00f02086b65793131040668c3a90401020668c3a901820100a01f04086b65793232000500"
        "401448211b401446c852b79e4f010000"
    ),
}


@pytest.mark.parametrize("codec", COMPRESSED)
def test_we_read_batches_of_the_java_client(codec: Codec) -> None:
    """What Java's producer writes in each codec is intact and holds its records."""
    view = memoryview(bytes.fromhex(JAVA_BATCHES[codec]))
    header = BatchHeader(view)
    assert is_intact(view, header)
    assert (header.codec, header.producer_id, header.base_sequence, header.is_transactional) == (
        codec,
        1234,
        9,
        True,
    )
    assert [told(record) for record in iter_records(view)] == JAVA_RECORDS


class RawConnection:
    """Produce v3 and Fetch v4 in hand-written bytes, against the broker that librdkafka carries for its own
    tests."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        self._socket = socket.create_connection((host, port), timeout=PATIENCE_S)
        self._stream = self._socket.makefile("rb")

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def call(self, key: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhih3s", key, version, 1, 3, b"raw") + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._stream.read(4))
        return self._stream.read(size)[4:]

    def produce(self, topic: str, batch: bytes) -> int:
        head = struct.pack(
            f">hhiih{len(topic)}siii", -1, -1, 10_000, 1, len(topic), topic.encode(), 1, 0, len(batch)
        )
        answer = self.call(0, 3, head + batch)
        return int(struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)[0])

    def fetch(self, topic: str, offset: int) -> bytes:
        """What it gives from `offset` on: one batch."""
        head = struct.pack(">iiiib", -1, 500, 1, 1 << 24, 0)
        wanted = struct.pack(f">ih{len(topic)}siiqi", 1, len(topic), topic.encode(), 1, 0, offset, 1 << 24)
        answer = self.call(1, 4, head + wanted)
        position = 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8  # throttle, topic, partition, error, watermarks
        (aborted,) = struct.unpack_from(">i", answer, position)
        position += 4 + 16 * max(aborted, 0)
        (size,) = struct.unpack_from(">i", answer, position)
        return answer[position + 4 : position + 4 + size]


@pytest.fixture(scope="module")
def librdkafka() -> Iterator[RawConnection]:
    """A connection to a broker inside librdkafka, which lives as long as the producer that made it."""
    owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0})
    (broker,) = owner.list_topics(timeout=PATIENCE_S).brokers.values()
    connection = RawConnection(broker.host, broker.port)
    yield connection
    connection.close()
    owner.flush(1)


@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_batches_of_librdkafka(librdkafka: RawConnection, codec: Codec) -> None:
    """What confluent-kafka's producer writes in each codec is taken and read."""
    name = "none" if codec == Codec.NONE else codec.name.lower()
    topic = produce_all(librdkafka.address, f"theirs-{name}", name)
    told_records: list[tuple[object, ...]] = []
    codecs = set()
    while len(told_records) < len(expected()):
        view = memoryview(librdkafka.fetch(topic, len(told_records)))
        as_sent = memoryview(bytes(8) + view[8:])  # the base offset is the broker's
        codecs.add(check_produced_batch(as_sent, ProduceRules(), NOW_MS, 9).codec)
        told_records += [told(record) for record in iter_records(view)]
    assert told_records == expected()
    assert codec in codecs <= {codec, Codec.NONE}  # what compression would make larger goes as it is


def produce_all(address: str, topic: str, codec_name: str) -> str:
    """All sample records in two batches, or more where a busy machine makes the sender wake between two
    records; gives the topic."""
    producer = Producer({"bootstrap.servers": address, "compression.type": codec_name, "linger.ms": 5000})
    for number, record in enumerate(sample_records()):
        if number == 10:
            assert producer.flush(PATIENCE_S) == 0
        headers = [(key.decode(), value) for key, value in record.headers]
        producer.produce(topic, record.value, record.key, 0, timestamp=record.timestamp, headers=headers)
    assert producer.flush(PATIENCE_S) == 0
    return topic


@pytest.mark.parametrize("codec", list(Codec))
def test_librdkafka_reads_our_batches(librdkafka: RawConnection, codec: Codec) -> None:
    """confluent-kafka's consumer, checking checksums, reads our batches in each codec."""
    topic = f"ours-{codec.name.lower()}"
    Producer({"bootstrap.servers": librdkafka.address}).list_topics(topic, timeout=PATIENCE_S)
    assert librdkafka.produce(topic, build_batch(sample_records(), codec=codec)) == 0
    consumer = Consumer({"bootstrap.servers": librdkafka.address, "group.id": "g", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(len(sample_records()), timeout=PATIENCE_S)
    consumer.close()
    assert [message.error() for message in messages] == [None] * len(sample_records())
    assert [
        (
            message.offset(),
            message.timestamp()[1],
            message.key(),
            message.value(),
            list(message.headers() or []),
        )
        for message in messages
    ] == [(*row[:4], [(key.decode(), value) for key, value in row[4]]) for row in expected()]


@pytest.mark.parametrize("size_bytes", [5000, 100_000, 300_000, 3_000_000])
@pytest.mark.parametrize(
    ("codec", "write"),
    [(codec, write) for codec, writers in OTHERS.items() for _, write in writers],
    ids=[f"{codec.name.lower()}: {name}" for codec, writers in OTHERS.items() for name, _ in writers],
)
def test_what_comes_to_more_than_the_bound_is_told_apart(
    codec: Codec, write: Callable[[bytes], bytes], size_bytes: int
) -> None:
    """Exactly the bound comes out, on the heap as in memory of its own; a byte less is RecordsTooLarge, and
    damage is not."""
    data = random.Random(size_bytes).randbytes(size_bytes // 2).ljust(size_bytes, b"a")
    packed = write(data)
    assert unpack(codec, packed, size_bytes) == data == unpack(codec, packed)
    with pytest.raises(RecordsTooLarge):
        unpack(codec, packed, size_bytes - 1)
    with pytest.raises(WireError) as damage:
        unpack(codec, packed[: len(packed) // 2], 2 * size_bytes)
    assert not isinstance(damage.value, RecordsTooLarge)


def test_a_batch_that_would_be_too_large_is_not_made() -> None:
    """`repack` says how large it would be."""
    batch = build_batch([Record(None, bytes(1000), 0)], codec=Codec.ZSTD)
    header = BatchHeader(batch)
    records = unpack(Codec.ZSTD, batch[HEADER_BYTES:])
    size_bytes = len(recompress(memoryview(batch), Codec.NONE))
    assert len(repack(header, records, Codec.NONE, None, size_bytes)) == size_bytes
    with pytest.raises(RecordsTooLarge, match=f"batch of {size_bytes} bytes"):
        repack(header, records, Codec.NONE, None, size_bytes - 1)


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=400), is_damaged=st.booleans(), place=st.integers(0, 500))
def test_what_is_unpacked_into_memory_at_hand_is_the_same(
    codec: Codec, data: bytes, is_damaged: bool, place: int
) -> None:
    """The bytes that `unpack` gives, whatever lay there before; what it refuses; and RecordsTooLarge for more
    than the memory."""
    packed = bytearray(compress(codec, data))
    if is_damaged and packed:
        packed[place % len(packed)] ^= 0x41
    scratch = memoryview(bytearray(b"\xee" * 4096))
    try:
        expected = bytes(unpack(codec, bytes(packed), 4096))
    except WireError:
        with pytest.raises(WireError):
            unpack_into(codec, bytes(packed), scratch)
    else:
        assert bytes(unpack_into(codec, bytes(packed), scratch)) == expected


@pytest.mark.parametrize("codec", COMPRESSED)
def test_memory_at_hand_is_a_bound(codec: Codec) -> None:
    """What fills it is given; a byte more is RecordsTooLarge."""
    scratch = memoryview(bytearray(5000))
    assert len(unpack_into(codec, compress(codec, bytes(5000)), scratch)) == 5000
    with pytest.raises(RecordsTooLarge):
        unpack_into(codec, compress(codec, bytes(5001)), scratch)
