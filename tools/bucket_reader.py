"""Reads topics' records out of a bucket, by docs/formats alone: Python's library, nothing of the broker.

    python tools/bucket_reader.py BUCKET_DIR LOG_DIR          the topics, and how many records of each are
                                                              stored
    python tools/bucket_reader.py BUCKET_DIR LOG_DIR TOPIC    its records, a line of JSON each

BUCKET_DIR is a data bucket or a copy of one; LOG_DIR holds __cluster_metadata-0, which alone knows topics by
name. All checksums are verified. What retention has passed is shown while its object is there; of codecs
other than gzip only the count of records.
"""

# fmt: off
import gzip
import json
import struct
import sys
from pathlib import Path

TABLE = list(range(256))
for _ in range(8):
    TABLE = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in TABLE]

def check(crc, what, *parts):
    value = 0xFFFFFFFF
    for byte in b"".join(parts):
        value = TABLE[(value ^ byte) & 255] ^ value >> 8
    assert value ^ 0xFFFFFFFF == crc, f"{what}: its checksum differs"
def varint(data, at, is_signed=True):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return (value >> 1 ^ -(value & 1) if is_signed else value), at
def piece(data, at):
    length, at = varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)
def records(batch):
    """(offset, timestamp, key, value) of a record batch v2."""
    base, crc, attributes, first_ms, count = struct.unpack_from(">q9xIh4xq22xi", batch)
    check(crc, f"the batch at offset {base}", batch[21:])
    if attributes & 7 > 1:
        yield base, first_ms, None, (f"({count} records, "
                                    f"{('snappy', 'lz4', 'zstd')[(attributes & 7) - 2]})").encode()
        return
    data, at = gzip.decompress(batch[61:]) if attributes & 7 else batch[61:], 0
    for _ in range(count):
        length, at = varint(data, at)
        end, (delta_ms, at) = at + length, varint(data, at + 1)
        delta, at = varint(data, at)
        key, at = piece(data, at)
        yield base + delta, first_ms + delta_ms, key, piece(data, at)[0]
        at = end

def data_streams(folder):
    """Topic -> {data stream's id: partition}, and object -> its writer's token, from the metadata log's
    snapshots and segments."""
    names, streams, writers = {}, {}, {}
    for path in [*sorted(folder.glob("*.checkpoint")), *sorted(folder.glob("*.log"))]:
        log, at = path.read_bytes(), 0
        while len(log) - at >= 61 and len(log) >= (end := at + 12 + struct.unpack_from(">i", log, at + 8)[0]):
            batch, at = log[at:end], end
            # a control batch holds no metadata
            for _, _, _, value in () if batch[22] & 32 else records(batch):
                if value[1] == 2:  # TopicRecord: name, id
                    length, start = varint(value, 3, False)
                    end = start + length - 1
                    names[value[end : end + 16]] = value[start:end].decode()
                # NoOpRecord with a record of the broker's own in a tagged field
                elif value[1] == 20 and value[3]:
                    tag, start = varint(value, 4, False)
                    # before its body, the field's size and the record's version
                    start = varint(value, start, False)[1] + 1
                    if tag == 501:  # Stream
                        stream, topic, partition, role = struct.unpack_from(">q16sib", value, start)
                        streams |= {stream: (topic, partition)} if role == 1 else {}
                    elif tag == 504:  # PrepareObjects: first id, count
                        first, count = struct.unpack_from(">qi", value, start)
                        writers |= dict.fromkeys(range(first, first + count), writer(value, start + 24, 0))
                    elif tag == 510:  # CommittedObject
                        writers[struct.unpack_from(">q", value, start)[0]] = writer(value, start + 29, 6)
    found = {name: {s: p for s, (t, p) in streams.items() if t == topic} for topic, name in names.items()}
    return found, writers
def writer(value, at, wanted):
    """An i64 of a record's tagged section, 0 where it is not there."""
    count, at = varint(value, at, False)
    for _ in range(count):
        # tags are below 128
        (tag, at), (size_bytes, start) = varint(value, at, False), varint(value, at + 1, False)
        if tag == wanted:
            return struct.unpack_from(">q", value, start)[0]
        at = start + size_bytes
    return 0

def entries(bucket, wanted, writers):
    """(stream, base offset, payload) of the wanted streams, from every object that holds data; composites
    only link those."""
    for path in bucket.glob("*/objects/*/*"):
        data = path.read_bytes()
        index, size, token, crc, magic = struct.unpack(">qi16xqI8s", data[-48:])
        check(crc, f"the footer of {path}", data[-48:-12])
        if writers.get(int(path.name), 0) not in (0, token):
            print(f"{path} is passed over: somebody else wrote it under this id", file=sys.stderr)
            continue
        check(*struct.unpack_from(">I", data, index + 12), f"the index of {path}",
        data[index : index + 12] + data[index + 16 : -48])
        for row in range(index + 16, index + size, 36) if magic == b"MILLRACE" else ():
            stream, _, _, _, at, length = struct.unpack_from(">qqiiqi", data, row)
            end = at + length if stream in wanted else at
            if at < end:
                check(*struct.unpack_from(">I", data, at + 36), f"the block at {at} of "
                                                                f"{path}", data[at + 40 : end],
                                                                data[at : at + 36])
                at += 40
            while at < end:
                size_bytes, base, crc = struct.unpack_from(">8xi16xqI", data, at)
                payload = data[at + 40 : at + 40 + size_bytes]
                check(crc, f"the entry at {at} of {path}", payload[21:], payload[:21], data[at : at + 36])
                yield stream, base, payload
                at += 40 + size_bytes

def main(bucket, log_dir, *topics):
    topics_found, writers = data_streams(Path(log_dir) / "__cluster_metadata-0")
    for topic, streams in topics_found.items():
        found = sorted({(streams[s], base): one for s, base, one in entries(Path(bucket), streams,
        writers)}.items())
        if not topics:
            print(topic, len(streams), "partitions", sum(struct.unpack_from(">57xi", one)[0] for _,
            one in found), "records")
        for (partition, _), batch in found if topic in topics else ():
            for offset, ms, *pair in records(batch):
                key, value = (
                    text if text is None else text.decode(errors="backslashreplace") for text in pair
                )
                print(json.dumps({"partition": partition, "offset": offset, "timestamp": ms, "key": key,
                "value": value}))
if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) in (3, 4) else print(__doc__)
