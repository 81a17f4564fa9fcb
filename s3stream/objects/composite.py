"""An object that links others: their index rows, so that a reader needs none of their own indexes, and no
data. Pure: bytes and values.

    links, index block, footer; docs/formats/composite.md draws them. All numbers are big-endian.

    links   16 B  "MRLK" | version u8 | flags u8 | zero u16 | link count i32 | crc, then links. crc: the 12
                  bytes
                  before it, then the links
      link  40 B  object id i64 | object size i64 | start i64 | end i64 | writer's token i64. Version 1, where
                  no
                  link names its writer: 32 B, without the token
    index         as an object's; rows of one stream, whose positions lie in the object that links them
    footer        as an object's, writer included, with the magic "MRLINKED"

A composite is of one stream, without a gap: each link starts where the one before ended, and its rows fill
it. Links are to objects with data, never to composites. Every decoder checks magic, version, bounds and
checksum, and raises ObjectCorrupt. Not here: which objects are linked (compaction/plan.py), how the bytes are
fetched (reader.py).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from millrace.protocol.crc32c import crc32c
from millrace.protocol.dataclass import dataclass
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId, Writer
from millrace.s3stream.objects.format import (
    FOOTER_BYTES,
    INDEX_HEADER_BYTES,
    INT64_MAX,
    ROW,
    ROW_BYTES,
    VERSION,
    BlockRef,
    Footer,
    check_writer,
    decode_footer,
    encode_footer,
    encode_index,
)
from millrace.s3stream.objects.index import ObjectIndex

LINKS_MAGIC = b"MRLK"
COMPOSITE_MAGIC = b"MRLINKED"
# Bounds what a reader allocates, and what one deletion of a composite means. A plan stays below it.
LINKS_COUNT_MAX = 65_536

_LINKS_HEAD = struct.Struct(">4sBBHi")
_LINKS = struct.Struct(">4sBBHiI")
_LINK = struct.Struct(">qqqqq")
_LINK_1 = struct.Struct(">qqqq")
_CRC = struct.Struct(">I")

LINKS_HEADER_BYTES = _LINKS.size
LINK_BYTES = _LINK.size
LINK_1_BYTES = _LINK_1.size
WRITER_LINKS_VERSION = 2  # of links that name who wrote what they link
assert (LINKS_HEADER_BYTES, LINK_BYTES, LINK_1_BYTES) == (16, 40, 32)


@dataclass(frozen=True, slots=True)
class Link:
    """An object that a composite links, and which offsets of the stream it reads there. `writer`: the token
    that metadata named for the object, 0 for nobody, as in check_writer."""

    object_id: ObjectId
    size_bytes: int
    start: int
    end: int
    writer: int = 0


@dataclass(frozen=True, slots=True)
class LinkedRows:
    """An object to link: its encoded rows as its own index has them. `writer`: as Link's."""

    object_id: ObjectId
    size_bytes: int
    rows: memoryview
    writer: int = 0

    @property
    def link(self) -> Link:
        start = ROW.unpack_from(self.rows, 0)[1]
        last = ROW.unpack_from(self.rows, len(self.rows) - ROW_BYTES)
        return Link(self.object_id, self.size_bytes, start, last[1] + last[2], self.writer)


def encode_composite(linked: Sequence[LinkedRows], writer: Writer | None = None) -> bytes:
    """The whole object. ValueError when the links do not continue each other."""
    links = [one.link for one in linked]
    if not 0 < len(links) <= LINKS_COUNT_MAX:
        raise ValueError(f"a composite of {len(links)} links")
    for before, after in pairwise(links):
        if before.end != after.start:
            raise ValueError(
                f"object {after.object_id} starts at {after.start}, the one before ends at {before.end}"
            )
    if any(link.writer for link in links):
        version = WRITER_LINKS_VERSION
        packed = b"".join(
            _LINK.pack(one.object_id, one.size_bytes, one.start, one.end, one.writer) for one in links
        )
    else:
        version = VERSION
        packed = b"".join(_LINK_1.pack(one.object_id, one.size_bytes, one.start, one.end) for one in links)
    head = _LINKS_HEAD.pack(LINKS_MAGIC, version, 0, 0, len(links))
    block = head + _CRC.pack(crc32c(packed, crc32c(head))) + packed
    index = encode_index(b"".join(one.rows for one in linked))
    footer = Footer(len(block), len(index), len(block) + len(index) + FOOTER_BYTES, writer)
    return block + index + encode_footer(footer, COMPOSITE_MAGIC)


def links_of(data: memoryview) -> list[Link]:
    """The links of a composite, in order of offset; `data` is the whole object. Raises ObjectCorrupt."""
    links_end = _footer(data).index_position
    block = data[:links_end]
    if len(block) < LINKS_HEADER_BYTES:
        raise ObjectCorrupt("the links' header is cut off")
    magic, version, flags, zero, count, crc = _LINKS.unpack_from(block, 0)
    layout = {VERSION: _LINK_1, WRITER_LINKS_VERSION: _LINK}.get(version)
    if magic != LINKS_MAGIC or layout is None or flags | zero:
        raise ObjectCorrupt(f"links of magic {magic!r}, version {version}, flags {flags | zero} are unknown")
    packed = block[LINKS_HEADER_BYTES:]
    if crc32c(packed, crc32c(block[: _LINKS_HEAD.size])) != crc:
        raise ObjectCorrupt("the links' checksum differs")
    if not 0 < count <= LINKS_COUNT_MAX or len(packed) != count * layout.size:
        raise ObjectCorrupt(f"{len(packed)} bytes of links say {count}")
    links = [Link(ObjectId(values[0]), *values[1:]) for values in layout.iter_unpack(packed)]
    _check_order(links)
    return links


class CompositeIndex:
    """A composite as its readers keep it. `size_bytes` is what a cache should charge for it."""

    __slots__ = ("_ends", "_rows", "links", "size_bytes")

    def __init__(self, data: memoryview, writer: int = 0) -> None:
        """`data` is the whole object; it is pinned. `writer`: the token that metadata names for it, as in
        check_writer."""
        footer = _footer(data)
        check_writer(footer, writer)
        self.links = links_of(data)
        end = footer.index_position + footer.index_size_bytes
        self._rows = ObjectIndex(data[footer.index_position : end], INT64_MAX)
        self._ends = [link.end for link in self.links]
        self.size_bytes = len(data) + len(self.links) * 160
        self._check_ends()

    def __repr__(self) -> str:
        return f"CompositeIndex({len(self.links)} links, {self._rows.count} rows)"

    @property
    def start(self) -> int:
        return self.links[0].start

    @property
    def end(self) -> int:
        return self.links[-1].end

    def find(
        self, stream_id: int, start: int, end: int, max_bytes: int
    ) -> tuple[Link, list[BlockRef]] | None:
        """The linked object that holds `start`, and its blocks as ObjectIndex.find gives them: of that one
        object, so that a reader who wants more asks again from where they end. None when `start` is not here.
        Raises ObjectCorrupt where a row lies outside its linked object."""
        place = bisect_right(self._ends, start)
        if place == len(self.links) or start < self.links[place].start:
            return None
        link = self.links[place]
        refs = self._rows.find(stream_id, start, min(end, link.end), max_bytes)
        for ref in refs:
            if ref.end > link.end or ref.position + ref.size_bytes > link.size_bytes:
                raise ObjectCorrupt(
                    f"a row up to offset {ref.end} lies outside linked object {link.object_id}"
                )
        return (link, refs) if refs else None

    def linked(self) -> list[LinkedRows]:
        """Every link with its rows, to be linked anew. Raises ObjectCorrupt where rows leave a gap."""
        rows = self._rows.encoded
        found: list[LinkedRows] = []
        place = 0
        for link in self.links:
            first = place
            while place < self._rows.count and self._rows.row(place).start < link.end:
                place += 1
            own_rows = rows[first * ROW_BYTES : place * ROW_BYTES]
            span = LinkedRows(link.object_id, link.size_bytes, own_rows, link.writer)
            if first == place or span.link != link:
                raise ObjectCorrupt(
                    f"the rows of linked object {link.object_id} do not fill [{link.start}, {link.end})"
                )
            found.append(span)
        return found

    def _check_ends(self) -> None:
        first, last = self._rows.row(0), self._rows.row(self._rows.count - 1)
        if first.start != self.start or last.end != self.end:
            raise ObjectCorrupt(
                f"rows of [{first.start}, {last.end}) under links of [{self.start}, {self.end})"
            )


def _footer(data: memoryview) -> Footer:
    footer = decode_footer(data[-FOOTER_BYTES:], len(data), COMPOSITE_MAGIC)
    if footer.index_size_bytes < INDEX_HEADER_BYTES:
        raise ObjectCorrupt(f"an index of {footer.index_size_bytes} bytes")
    return footer


def _check_order(links: Sequence[Link]) -> None:
    expected = links[0].start
    for link in links:
        if (
            link.start != expected
            or link.end <= link.start
            or min(link.object_id, link.size_bytes, link.start) < 0
        ):
            raise ObjectCorrupt(f"link {link} where offset {expected} belongs")
        expected = link.end
