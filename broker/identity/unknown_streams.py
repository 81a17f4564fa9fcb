"""What a write-ahead log (WAL) holds of streams that a restored metadata log does not know: opened, or made,
after what the bucket has. Pure.

A block WAL's node acknowledges before the opening of a stream is in the bucket: metadata that is restored
from there may have the stream closed, or not at all. One that it has is opened again by the restore, and
recovered. Of one that it does not have nobody knows the topic: it is named by its id and offsets, by the
restore and by the start, which goes on only when the loss was accepted. Not here: recovery
(s3stream/recovery.py), reading a WAL (cli/restore_logs.py). Kept true: what the WAL holds beyond what is
committed is recovered or named.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from millrace.broker.identity.binding import BindingRefused
from millrace.kraft.image.image import MetadataImage
from millrace.s3stream.ids import StreamId, StreamRange

NAMED_MAX: Final = 20


class WalStream(NamedTuple):
    """What a WAL holds of a stream without a gap, of one epoch; where there is more of it, another one
    follows."""

    stream_id: StreamId
    epoch: int
    start: int
    end: int


def unknown_ranges(
    found: Iterable[StreamRange], image: MetadataImage, next_stream_id: int
) -> list[StreamRange]:
    """What cannot be recovered, of ranges whose streams are not open here: of streams that were made since,
    from `next_stream_id` on, and of those that are known what no object has: behind the committed end, or in
    the place of what another log is taken to owe. One below that id which is not known was deleted before."""
    lost = []
    for one in found:
        stream = image.streams.get(one.stream_id)
        if stream is None:
            if one.stream_id >= next_stream_id:
                lost.append(one)
        elif one.end > (start := image.streams.uncommitted_from(one)):
            lost.append(StreamRange(one.stream_id, max(one.start, start), one.end))
    return lost


def range_text(one: StreamRange, node_id: int) -> str:
    return f"stream {one.stream_id} of node {node_id}: offsets [{one.start}, {one.end})"


def refuse_unknown(lost: list[StreamRange], wal: str, node_id: int) -> None:
    """Raises BindingRefused when there are any."""
    if not lost:
        return
    named = ", ".join(range_text(one, node_id) for one in lost[:NAMED_MAX])
    more = f" and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
    raise BindingRefused(
        f"the WAL {wal} holds records of {len(lost)} streams that were opened after what the metadata "
        f"here knows: {named}{more}. Nothing was "
        "discarded: put the lost log directory back (log.dirs) if it is found; where the WAL was not at hand "
        "when it was restored, empty "
        "log.dirs and run `millrace restore` again; or start once with wal.lost.accept=true, which gives "
        "these records up"
    )
