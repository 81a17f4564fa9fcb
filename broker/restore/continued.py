"""Streams that go on in several write-ahead logs (WALs) of blocks behind what a restored image knows: put in
order. Pure.

    committed, or owed         the log of node 1    of node 2            of node 1
    ─────────────────── end ───────────────── s ───────────────── t ──────────────────►
                            owed by node 1      owed by node 2     open at node 1

The image is older than the logs: a stream that it has open at one node, or closed, may have been sealed,
opened by the next owner, and so on, since. Each owner appends from the sealed end on, in a later epoch; so
what the logs hold says who owes what, as metadata did. A later epoch that begins before the end of an earlier
one began where that one's log was given up: it counts, and what lies beside it is told.

Where the node that has the stream open keeps the only log that is not read from here, and another goes on
behind it, the first one owes what lies between: the other one could begin nowhere else. With more of them
out of sight nobody can tell which has what.

Not here: reading logs (cli/restore_logs.py), streams that the image does not know
(identity/unknown_streams.py). Kept true: what a log holds beyond the image's end is in one line of pieces
without a gap, or is told with its node and offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from millrace.broker.identity.unknown_streams import WalStream
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.owed_ranges import OWED_RANGES_MAX
from millrace.kraft.tables.streams import StreamState
from millrace.protocol.dataclass import dataclass
from millrace.s3stream.ids import StreamId, StreamRange


class Piece(NamedTuple):
    """[start, end) of a stream, in the log of one node; `epoch`: the stream's, of the last of it."""

    node_id: int
    epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Continued:
    """`lines`: of streams that go on elsewhere than the image has them open; the last piece's node has the
    stream open, those before owe theirs. `behind`: by node, what has no place in a line."""

    lines: dict[StreamId, tuple[Piece, ...]] = field(default_factory=dict)
    behind: dict[int, list[StreamRange]] = field(default_factory=dict)


def continued(
    image: MetadataImage, logs: Mapping[int, Sequence[WalStream]], unread: Sequence[int] = ()
) -> Continued:
    """`logs`: by node, of blocks, and read. `unread`: nodes whose logs of blocks, or of a kind that is not
    known, are not."""
    found = Continued()
    held: dict[StreamId, list[Piece]] = {}
    for node_id, streams in logs.items():
        for one in streams:
            stream = image.streams.get(one.stream_id)
            if stream is not None and one.end > stream.end:
                piece = Piece(node_id, one.epoch, max(one.start, stream.end), one.end)
                held.setdefault(one.stream_id, []).append(piece)
    for stream_id, pieces in held.items():
        stream = image.streams.by_id[stream_id]
        is_sure = stream.node_id not in logs and all(one == stream.node_id for one in unread)
        line = _as_far_as_known(image, stream, in_order(pieces, stream.epoch), is_sure=is_sure)
        for piece in pieces:
            for start, end in _left_of(piece, line):
                found.behind.setdefault(piece.node_id, []).append(StreamRange(stream_id, start, end))
        is_as_it_was = len(line) == 1 and stream.is_open and stream.node_id == line[0].node_id
        if line and not is_as_it_was:
            found.lines[stream_id] = tuple(line)
    return found


def in_order(pieces: Iterable[Piece], epoch: int) -> list[Piece]:
    """By epochs, which is by offsets, those of earlier epochs than the stream's aside: they were given up.
    Neighbours of one node are one piece."""
    line: list[Piece] = []
    for piece in sorted(pieces, key=lambda one: (one.epoch, one.start)):
        if piece.epoch < epoch:
            continue
        while line and line[-1].start >= piece.start:
            line.pop()
        if line and line[-1].end > piece.start:
            line[-1] = line[-1]._replace(end=piece.start)
        if line and (line[-1].node_id, line[-1].end) == (piece.node_id, piece.start):
            line[-1] = line[-1]._replace(epoch=piece.epoch, end=piece.end)
        else:
            line.append(piece)
    return line


def _as_far_as_known(
    image: MetadataImage, stream: StreamState, pieces: Sequence[Piece], *, is_sure: bool
) -> list[Piece]:
    """Of these, from the stream's end on, as many as follow without a gap, and as metadata can have: a node
    owes one range of a stream, and below the level that has owed ranges none does. `is_sure`: who has it open
    has what lies before them."""
    owing = dict.fromkeys(one.node_id for one in image.streams.owed.of_stream(stream.stream_id))
    line: list[Piece] = []
    if pieces and pieces[0].start > stream.end and stream.is_open and is_sure:
        line.append(Piece(stream.node_id, stream.epoch, stream.end, pieces[0].start))
    for piece in pieces:
        if piece.start > (line[-1].end if line else stream.end):
            break
        if line:
            is_room = image.features.has_owed_ranges and len(owing) < OWED_RANGES_MAX
            if not is_room or line[-1].node_id in owing:
                break
            owing[line[-1].node_id] = None
        line.append(piece)
    return line


def _left_of(piece: Piece, line: Sequence[Piece]) -> list[tuple[int, int]]:
    """What of it is not its node's in the line."""
    for one in line:
        if one.node_id == piece.node_id and one.start <= piece.start < one.end:
            return [(one.end, piece.end)] if piece.end > one.end else []
    return [(piece.start, piece.end)]
