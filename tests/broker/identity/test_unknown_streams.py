"""What a write-ahead log holds of streams that restored metadata has closed, or does not have: recovered, or
named, never neither."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.unknown_streams import (
    NAMED_MAX,
    WalStream,
    refuse_unknown,
    unknown_ranges,
)
from millrace.broker.identity.wal_binding import WalBinding
from millrace.broker.identity.wal_start import give_up_unknown
from millrace.broker.restore.continued import Continued, Piece, continued
from millrace.broker.restore.plan import Seen, lifted
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.streams import stream_record
from millrace.kraft.tables.wals import NodeWal, WalState, wal_record
from millrace.s3stream.ids import StreamId, StreamRange
from millrace.s3stream.recovery import Recovered
from tests.broker.restore.test_plan import history
from tests.kraft.build import NODE, run, sim_disk
from tests.sim.settings import node_settings

META, DATA, MADE_SINCE = StreamId(0), StreamId(1), StreamId(2)


async def closed() -> MetadataImage:
    """Stream 1 is committed up to 10, and closed; 2 is the next id."""
    image = await history()
    delta = MetadataDelta(image)
    delta.apply(stream_record(image.streams.by_id[DATA]._replace(is_open=False)))
    return delta.done(image.offset, image.epoch)


def test_a_stream_that_was_opened_since_is_opened_again_by_the_restore() -> None:
    """Where the log holds more than is committed; the recovery of the next start asks for the open ones, at
    an epoch that is none below."""

    async def main() -> None:
        image = await closed()
        assert image.streams.next_id == MADE_SINCE
        committed, is_open = WalStream(DATA, 3, 4, 10), WalStream(META, 3, 0, 9)
        assert continued(image, {NODE: [committed, is_open]}) == Continued()
        held = [WalStream(DATA, 3, 4, 12), WalStream(MADE_SINCE, 0, 0, 5)]
        assert continued(image, {NODE: held}) == Continued({DATA: (Piece(NODE, 3, 10, 12),)})
        new = lifted(image, Seen(reopened={DATA: (NODE, 3)}))
        assert {stream.stream_id: stream.epoch for stream in new.streams.open_on(NODE)} == {META: 0, DATA: 3}
        assert new.streams.by_id[DATA].end == 10

    run(main())


def test_what_cannot_be_recovered_is_named_once_with_its_offsets() -> None:
    """Streams that were made since, and what lies beyond the committed end; not what is committed, nor
    streams that were deleted before."""

    async def main() -> None:
        image = await closed()
        found = [StreamRange(DATA, 4, 12), StreamRange(MADE_SINCE, 0, 5), StreamRange(DATA, 0, 10)]
        assert unknown_ranges(found, image, 2) == [StreamRange(DATA, 10, 12), StreamRange(MADE_SINCE, 0, 5)]
        assert (
            unknown_ranges([StreamRange(MADE_SINCE, 0, 5)], image, 3) == []
        )  # its id was given before: deleted
        assert unknown_ranges([StreamRange(MADE_SINCE, 0, 5)], image, 0) != []  # nobody can tell: named

    run(main())


def test_the_sentence_names_some_and_counts_the_rest() -> None:
    """Stream, node and offsets; the remedies; and no sentence without bound."""
    refuse_unknown([], "/data/wal", NODE)
    lost = [StreamRange(StreamId(number), 0, number) for number in range(1, NAMED_MAX + 4)]
    with pytest.raises(BindingRefused) as refused:
        refuse_unknown(lost, "/data/wal", NODE)
    said = str(refused.value)
    assert "stream 20 of node 1: offsets [0, 20) and 3 more." in said
    assert "stream 21 " not in said
    assert "wal.lost.accept=true" in said


@pytest.mark.parametrize("first", [None, MADE_SINCE, MADE_SINCE + 1])
@pytest.mark.parametrize("is_unlisted", [False, True])
def test_a_node_whose_cluster_was_restored_asks_before_it_drops_records(
    first: int | None, is_unlisted: bool
) -> None:
    """By its log in metadata, which says from which stream on nothing is known; of a log that is not there at
    all, for all that it holds. In other metadata an unknown stream was deleted."""

    async def main() -> None:
        image, settings = await closed(), node_settings(NODE, "10.0.0.1")
        if first is not None and not is_unlisted:
            delta = MetadataDelta(image)
            delta.apply(
                wal_record(
                    NodeWal(NODE, b"w" * 16, "block", "w", 1, b"i" * 16, 0, WalState.RECOVERING, first)
                )
            )
            image = delta.done(image.offset, image.epoch)
        stream_id = StreamId(MADE_SINCE)
        recovered = Recovered(unknown={stream_id: StreamRange(stream_id, 0, 5)})
        binding = WalBinding(is_unlisted=is_unlisted)
        if is_unlisted or first == MADE_SINCE:
            with pytest.raises(BindingRefused, match=r"stream 2 of node .*: offsets \[0, 5\)"):
                await give_up_unknown(settings, sim_disk(), image, recovered, binding)
            settings = replace(settings, is_lost_wal_accepted=True)
        await give_up_unknown(settings, sim_disk(), image, recovered, binding)

    run(main())
