"""Streams that go on in several logs behind what a restored image knows: put in order, and told where they
have no place."""

from __future__ import annotations

from millrace.broker.identity.unknown_streams import WalStream, unknown_ranges
from millrace.broker.restore.continued import Piece, continued, in_order
from millrace.broker.restore.plan import Seen, lifted
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.owed_ranges import OwedRange
from millrace.protocol.error_codes import ErrorCode
from millrace.s3stream.ids import NO_WAL, OWED_RANGE, StreamId, StreamRange
from tests.kraft.check import check_image, holding
from tests.kraft.tables.test_owed_ranges import Movers, moved_twice
from tests.kraft.test_replay import snapshot_of

STREAM = StreamId(0)
Logs = dict[int, list[tuple[int, int, int]]]  # by node: epoch, start, end


def going_on(
    image: MetadataImage, logs: Logs, *unread: int
) -> tuple[list[tuple[int, ...]], dict[int, list[StreamRange]]]:
    held = {node: [WalStream(STREAM, *one) for one in some] for node, some in logs.items()}
    found = continued(image, held, unread)
    return [tuple(piece) for piece in found.lines.get(STREAM, ())], found.behind


def left(node_id: int, *ranges: tuple[int, int]) -> dict[int, list[StreamRange]]:
    return {node_id: [StreamRange(STREAM, *one) for one in ranges]}


def open_at_1(level: int = 3) -> Movers:
    """[0, 10) is in an object; broker 1 has the stream open, in epoch 1."""
    machine = Movers(level)
    assert machine.stream_id == STREAM
    assert machine.upload(1, (0, 10)) == (ErrorCode.NONE, 0)
    return machine


def restored(image: MetadataImage, logs: Logs) -> MetadataImage:
    line, _ = going_on(image, logs)
    pieces = [Piece(*one) for one in line]
    seen = Seen(
        owed=[OwedRange(STREAM, one.start, one.end, one.node_id, one.epoch, NO_WAL) for one in pieces[:-1]]
    )
    if pieces:
        seen.reopened[STREAM] = pieces[-1].node_id, pieces[-1].epoch
    new = lifted(image, seen)
    check_image(new)
    assert snapshot_of(new) == new
    return new


def test_who_has_it_open_goes_on() -> None:
    """Its own log needs no word: not where it was committed to its end, nor where its owner has opened it
    anew."""
    image = open_at_1().image
    assert going_on(image, {1: [(1, 0, 10)]}) == ([], {})
    assert going_on(image, {1: [(1, 5, 15)]}) == ([], {})
    assert going_on(image, {1: [(1, 5, 15), (3, 15, 20)], 2: []}) == ([], {})


def test_each_log_owes_its_part() -> None:
    """Sealed, taken over and sealed again since: the first owner's range ends where the second one's begins,
    and the last one has the stream open. The metadata of the restore is as if it had known."""
    image = open_at_1().image
    logs: Logs = {1: [(1, 4, 20)], 2: [(2, 20, 25)], 3: [(3, 25, 28)]}
    line, behind = going_on(image, logs)
    assert (line, behind) == ([(1, 1, 10, 20), (2, 2, 20, 25), (3, 3, 25, 28)], {})
    new = restored(image, logs)
    stream = new.streams.by_id[STREAM]
    assert (stream.is_open, stream.node_id, stream.epoch, stream.end) == (True, 3, 3, 25)
    assert [(one.node_id, one.start, one.end) for one in new.streams.owed] == [(1, 10, 20), (2, 20, 25)]
    assert [holding(new, STREAM, offset) for offset in (9, 10, 24)] == [[0], [OWED_RANGE], [OWED_RANGE]]


def test_one_that_was_closed_is_opened_where_it_goes_on() -> None:
    machine = open_at_1()
    assert machine.seal(10) is ErrorCode.NONE
    assert going_on(machine.image, {2: [(2, 10, 12)]}) == ([(2, 2, 10, 12)], {})
    assert going_on(machine.image, {2: [(2, 10, 12)], 3: [(3, 12, 14)]})[0] == [
        (2, 2, 10, 12),
        (3, 3, 12, 14),
    ]
    assert going_on(machine.image, {2: [(2, 11, 12)]}) == ([], left(2, (11, 12)))


def test_a_node_that_got_back_what_it_owes_has_it_open_beside() -> None:
    """The bucket knows what it owes, and not that it has uploaded that, nor that it leads again: directly, or
    behind another's part."""
    machine = open_at_1()
    assert machine.seal(20) is ErrorCode.NONE
    back: Logs = {1: [(1, 4, 20), (2, 20, 23)]}
    assert going_on(machine.image, back) == ([(1, 2, 20, 23)], {})
    new = restored(machine.image, back)
    assert new.streams.in_log_of(1) == {STREAM: 10}
    assert machine.move(2) is ErrorCode.NONE
    behind: Logs = {1: [(1, 4, 20), (3, 25, 30)], 2: [(2, 20, 25)]}
    assert going_on(machine.image, behind) == ([(2, 2, 20, 25), (1, 3, 25, 30)], {})
    new = restored(machine.image, behind)
    assert [(one.node_id, one.start, one.end) for one in new.streams.owed] == [(1, 10, 20), (2, 20, 25)]
    assert (new.streams.by_id[STREAM].node_id, new.streams.by_id[STREAM].end) == (1, 25)


def test_what_a_log_that_is_not_read_must_have_is_owed_by_it() -> None:
    """The node that had the stream open: another one could begin behind it alone. Not where its log is read,
    and lacks that; nor where a third one is not read that may have some of it."""
    image = open_at_1().image
    assert going_on(image, {2: [(2, 17, 20)]}, 1) == ([(1, 1, 10, 17), (2, 2, 17, 20)], {})
    assert going_on(image, {2: [(2, 17, 20)]}, 1, 3) == ([], left(2, (17, 20)))
    assert going_on(image, {2: [(2, 17, 20)]}, 3) == ([], left(2, (17, 20)))
    assert going_on(image, {2: [(2, 10, 20)]}, 1, 3) == ([(2, 2, 10, 20)], {})
    assert going_on(image, {2: [(2, 17, 20)]}) == ([(1, 1, 10, 17), (2, 2, 17, 20)], {})
    assert going_on(image, {1: [(1, 10, 15)], 2: [(2, 17, 20)]}) == ([], left(2, (17, 20)))
    assert going_on(image, {2: [(2, 10, 20)]}) == ([(2, 2, 10, 20)], {})


def test_what_has_no_place_is_told() -> None:
    """Behind a hole; of a node that would owe two ranges; below the level that has owed ranges; of an epoch
    that was over, or whose log was given up, in which case the later owner counts."""
    image = open_at_1().image
    line, behind = going_on(image, {1: [(1, 10, 20)], 2: [(2, 20, 25), (4, 27, 30)]})
    assert (line, behind) == ([(1, 1, 10, 20), (2, 2, 20, 25)], left(2, (27, 30)))
    twice: Logs = {1: [(1, 10, 20), (3, 25, 30)], 2: [(2, 20, 25), (4, 30, 35)]}
    line, behind = going_on(image, twice)
    assert (line, behind) == ([(1, 1, 10, 20), (2, 2, 20, 25), (1, 3, 25, 30)], left(2, (30, 35)))
    restored(image, twice)
    assert going_on(open_at_1(level=2).image, {1: [(1, 10, 20)], 2: [(2, 20, 25)]}) == ([], left(2, (20, 25)))
    assert going_on(image, {1: [(1, 10, 20)], 2: [(0, 20, 25)]}) == ([], left(2, (20, 25)))
    line, behind = going_on(image, {1: [(1, 10, 20)], 2: [(2, 15, 25)]})
    assert (line, behind) == ([(1, 1, 10, 15), (2, 2, 15, 25)], left(1, (15, 20)))
    assert going_on(image, {1: [(1, 10, 20)], 2: [(2, 10, 25)]}) == ([(2, 2, 10, 25)], left(1, (10, 20)))
    assert going_on(moved_twice().image, {2: [(2, 20, 27)]})[1] == left(2, (25, 27))


def test_neighbours_of_one_node_are_one_piece() -> None:
    pieces = [Piece(1, 1, 0, 5), Piece(1, 2, 5, 9), Piece(2, 3, 9, 12)]
    assert in_order(reversed(pieces), 0) == [Piece(1, 2, 0, 9), Piece(2, 3, 9, 12)]


def test_what_lies_in_the_place_of_what_another_owes_is_not_dropped() -> None:
    """A third log, which was not read at the restore, has some of what the first one is taken to owe: no
    object has that, so that its node asks for the word, as for what lies behind the stream's end."""
    image = restored(open_at_1().image, {3: [(3, 25, 28)]})
    assert [(one.node_id, one.start, one.end) for one in image.streams.owed] == [(1, 10, 25)]
    held = [StreamRange(STREAM, 2, 10), StreamRange(STREAM, 20, 25), StreamRange(STREAM, 25, 27)]
    assert unknown_ranges(held, image, 1) == held[1:]
