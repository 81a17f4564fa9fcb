"""Composites: round trips, what is found where, and that no damaged byte passes."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.protocol.crc32c import crc32c
from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId, Writer
from millrace.s3stream.objects.composite import (
    LINK_BYTES,
    LINKS_HEADER_BYTES,
    CompositeIndex,
    Link,
    LinkedRows,
    encode_composite,
    links_of,
)
from millrace.s3stream.objects.format import FOOTER_BYTES, Entry, decode_footer
from millrace.s3stream.objects.index import ObjectIndex
from millrace.s3stream.objects.reader import CompositeReader
from millrace.s3stream.objects.writer import ObjectWriter

GOLDEN = Path(__file__).parent.parent / "golden" / "composite_v1.hex"
GOLDEN_2 = GOLDEN.with_name("composite_v2.hex")
GOLDEN_3 = GOLDEN.with_name("composite_v3.hex")
STREAM = 7


def stream_object(start: int, count: int, entry_bytes: int = 50, block_bytes: int = 200) -> bytes:
    """An object of one stream: entries of two offsets each."""
    writer = ObjectWriter(block_bytes)
    writer.add(
        STREAM,
        [Entry(start + 2 * n, 2, memoryview(b"%d" % n * entry_bytes)[:entry_bytes]) for n in range(count)],
    )
    return b"".join(writer.finish().parts)


def linked(object_id: int, data: bytes) -> LinkedRows:
    footer = decode_footer(memoryview(data)[-FOOTER_BYTES:], len(data))
    index = ObjectIndex(memoryview(data)[footer.index_position : -FOOTER_BYTES], footer.index_position)
    return LinkedRows(ObjectId(object_id), len(data), index.encoded)


OBJECTS = {30: stream_object(100, 5), 31: stream_object(110, 1), 5: stream_object(112, 9)}
DATA = encode_composite([linked(key, data) for key, data in OBJECTS.items()])


def test_rows_of_every_linked_object_are_found_under_its_own_id() -> None:
    """Each offset leads to the object that holds it and to the blocks that its own index names, never across
    to the next object."""
    index = CompositeIndex(memoryview(DATA))
    assert (index.start, index.end) == (100, 130)
    assert [(link.object_id, link.start, link.end) for link in index.links] == [
        (30, 100, 110),
        (31, 110, 112),
        (5, 112, 130),
    ]
    for offset in range(100, 130):
        own = next(one for one in index.links if one.start <= offset < one.end)
        rows = linked(own.object_id, OBJECTS[own.object_id])
        found = index.find(STREAM, offset, 1000, 1 << 30)
        assert found is not None
        link, refs = found
        assert link == own == rows.link
        assert refs[0].start <= offset < refs[0].end
        assert refs[-1].end == own.end
        assert all(ref.position + ref.size_bytes <= own.size_bytes for ref in refs)
    assert index.find(STREAM, 99, 1000, 1000) is None
    assert index.find(STREAM, 130, 1000, 1000) is None
    assert index.find(STREAM + 1, 105, 1000, 1000) is None


def test_a_budget_and_an_end_stop_the_search() -> None:
    """The first block comes whatever the budget; blocks at or beyond the end do not."""
    index = CompositeIndex(memoryview(DATA))
    first = index.find(STREAM, 100, 1000, 1)
    assert first is not None
    assert len(first[1]) == 1
    until = index.find(STREAM, 112, first[1][0].end - 100 + 112, 1 << 30)
    assert until is not None
    assert len(until[1]) == 1


def test_a_composite_of_composites_is_one_of_their_links() -> None:
    """What `linked` gives makes the same composite again, and with a link left out the rest."""
    index = CompositeIndex(memoryview(DATA))
    assert encode_composite(index.linked()) == DATA
    rest = CompositeIndex(memoryview(encode_composite(index.linked()[1:])))
    assert [link.object_id for link in rest.links] == [31, 5]
    assert rest.start == 110


def test_links_must_continue_each_other() -> None:
    """A gap, an overlap and an empty list are refused when a composite is made."""
    for wrong in ([30, 5], [31, 30], []):
        with pytest.raises(ValueError, match=r"composite of 0|starts at"):
            encode_composite([linked(key, OBJECTS[key]) for key in wrong])


def test_no_damaged_byte_passes() -> None:
    """Each byte is under a checksum: whichever is changed, and wherever the object is cut, it is refused."""
    for place in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[place] ^= 0x40
        with pytest.raises(ObjectCorrupt):
            CompositeIndex(memoryview(bytes(damaged)))
        with pytest.raises(ObjectCorrupt):
            CompositeIndex(memoryview(DATA)[:place])
    with pytest.raises(ObjectCorrupt):
        CompositeIndex(memoryview(OBJECTS[30]))


def test_links_with_a_sound_checksum_that_make_no_sense_are_refused() -> None:
    """A gap between links, an empty one, and links that end elsewhere than the rows: the checksum is right
    and the reader still says no."""
    for place, field, value in ((1, 16, 111), (0, 24, 100), (2, 24, 131), (0, 16, 99)):
        wrong = bytearray(DATA)
        struct.pack_into(">q", wrong, LINKS_HEADER_BYTES + place * LINK_BYTES + field, value)
        end = LINKS_HEADER_BYTES + 3 * LINK_BYTES
        struct.pack_into(">I", wrong, 12, crc32c(wrong[LINKS_HEADER_BYTES:end], crc32c(wrong[:12])))
        with pytest.raises(ObjectCorrupt):
            CompositeIndex(memoryview(bytes(wrong)))


def test_the_links_alone_are_read_for_a_deletion() -> None:
    """`links_of` needs the object's links and nothing of its rows."""
    assert [link.object_id for link in links_of(memoryview(DATA))] == [30, 31, 5]
    with pytest.raises(ObjectCorrupt):
        links_of(memoryview(OBJECTS[30]))


def test_a_reader_loads_a_composite_once() -> None:
    """Whoever asks meanwhile shares the load; a damaged one is told with its key, and asked for again the
    next time."""

    async def main() -> None:
        store = MemoryObjectStore(SystemClock())
        await store.put("key", [DATA[:-1] + b"X"])
        reader = CompositeReader(store, "key")
        with pytest.raises(ObjectCorrupt, match="object key is damaged"):
            await reader.index()
        await store.put("key", [DATA])
        both = await asyncio.gather(reader.index(), reader.index())
        assert both[0] is both[1] is reader.known_index
        found = await reader.find(STREAM, 111, 1000, 1000)
        assert found is not None
        assert found[0] == Link(ObjectId(31), len(OBJECTS[31]), 110, 112)

    asyncio.run(main())


def test_version_3_stays_readable_and_unchanged() -> None:
    """Links name who wrote what they link, or nobody; linking anew keeps it."""
    lines = GOLDEN_3.read_text(encoding="ascii").splitlines()
    golden = bytes.fromhex("".join(line.partition("#")[0] for line in lines))
    parts = [
        replace(linked(2**40, stream_object(2**50, 2, 4)), writer=-(2**62)),
        linked(3, stream_object(2**50 + 4, 1, 4)),
    ]
    assert golden == encode_composite(parts, Writer(7, 2**62 + 1))
    index = CompositeIndex(memoryview(golden))
    assert [link.writer for link in index.links] == [-(2**62), 0]
    assert [one.writer for one in index.linked()] == [-(2**62), 0]
    assert encode_composite(index.linked(), Writer(7, 2**62 + 1)) == golden


def test_version_2_stays_readable_and_unchanged() -> None:
    """With a writer the composite is another in its footer alone, and is read for that writer or for whoever
    it may be."""
    lines = GOLDEN_2.read_text(encoding="ascii").splitlines()
    golden = bytes.fromhex("".join(line.partition("#")[0] for line in lines))
    parts = [linked(2**40, stream_object(2**50, 2, 4)), linked(3, stream_object(2**50 + 4, 1, 4))]
    assert golden == encode_composite(parts, Writer(7, 2**62 + 1))
    assert golden[:-FOOTER_BYTES] == encode_composite(parts)[:-FOOTER_BYTES]
    for token in (0, 2**62 + 1):
        assert len(CompositeIndex(memoryview(golden), token).links) == 2
    with pytest.raises(
        ObjectCorrupt, match=r"incarnation 4000000000000001 of node 7, and metadata names incarnation 0{15}2"
    ):
        CompositeIndex(memoryview(golden), 2)


def test_version_1_stays_readable_and_unchanged() -> None:
    """The composite in tests/golden is what is made today. A change of layout is a new version, beside a new
    file."""
    lines = GOLDEN.read_text(encoding="ascii").splitlines()
    golden = bytes.fromhex("".join(line.partition("#")[0] for line in lines))
    assert golden == encode_composite(
        [linked(2**40, stream_object(2**50, 2, 4)), linked(3, stream_object(2**50 + 4, 1, 4))]
    )
    index = CompositeIndex(memoryview(golden))
    assert [(link.object_id, link.start, link.end) for link in index.links] == [
        (2**40, 2**50, 2**50 + 4),
        (3, 2**50 + 4, 2**50 + 6),
    ]
