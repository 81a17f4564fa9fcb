"""What an object in the bucket says that it holds, by its own index: ranges by stream, and the objects that a
composite links."""

from __future__ import annotations

from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.objects.composite import COMPOSITE_MAGIC, links_of
from millrace.s3stream.objects.format import FOOTER_BYTES, decode_footer
from millrace.s3stream.objects.index import ObjectIndex

Span = tuple[int, int, int]  # stream, start, end


def is_composite(content: bytes) -> bool:
    return COMPOSITE_MAGIC in content[-FOOTER_BYTES:]


def linked_ids(content: bytes) -> list[int]:
    return [link.object_id for link in links_of(memoryview(content))] if is_composite(content) else []


def held_spans(content: bytes, stream_id: int) -> list[Span]:
    """What of this stream; a composite is of one stream. ObjectCorrupt when it cannot be told."""
    if is_composite(content):
        return [(stream_id, link.start, link.end) for link in links_of(memoryview(content))]
    footer = decode_footer(memoryview(content)[-FOOTER_BYTES:], len(content))
    index_end = footer.index_position + footer.index_size_bytes
    index = ObjectIndex(memoryview(content)[footer.index_position : index_end], footer.index_position)
    return [(span.stream_id, span.start, span.end) for span in index.ranges() if span.stream_id == stream_id]


def first_gap(contents: list[bytes], stream_id: int, start: int, end: int) -> int | None:
    """The first offset of [start, end) that none of these objects holds."""
    spans: list[Span] = []
    for content in contents:
        try:
            spans += held_spans(content, stream_id)
        except ObjectCorrupt:
            continue  # rot is another finding
    at = start
    for _, low, high in sorted(spans):
        if low > at:
            break
        at = max(at, high)
    return at if at < end else None
