"""Each checker sees the one thing that it is there to see, and nothing where all is well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.tables.packing import pack_ranges
from millrace.protocol.stream_records import CommitObjectRecord, PrepareObjectsRecord, StreamRecord
from millrace.s3stream.ids import ObjectId, ObjectKind, StreamId
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.writer import ObjectWriter
from tests.sim.checkers import Found, FoundLog, all_checkers
from tests.sim.history import History, TopicStory

TOPIC = b"t" * 16
PLACE = (TOPIC, 0)
CLUSTER = "cluster"
KEY = object_key(CLUSTER, ObjectId(0))


def told() -> History:
    """Three records acknowledged and read, one in doubt; a commit promised, one in doubt."""
    history = History()
    history.topics[TOPIC] = TopicStory("topic", TOPIC, 1)
    history.on_sent(PLACE, "p", [b"a", b"b", b"c", b"doubt"])
    history.on_acknowledged(PLACE, 0, [b"a", b"b", b"c"])
    history.on_watermarks(PLACE, 0, 3, (0, 0))
    for number, offset in enumerate((5, 7, 9), 1):
        assert history.on_commit_asked("g", "topic", 0, offset) == number
    history.on_commit_promised("g", "topic", 0, 2)
    history.producer_ids += [1000, 2000]
    history.corrupted[PLACE] = [b"corrupted"]
    return history


def image(*ranges: tuple[int, int], end: int) -> MetadataImage:
    """One stream, with an object for each range."""
    records: list[object] = [StreamRecord(0, TOPIC, 0, 1, 0, 1, 0, 0, 0)]
    for number, (start, stop) in enumerate(ranges):
        records.append(PrepareObjectsRecord(number, 1, 1, 10**15))
        packed = pack_ranges([(0, start, stop)])
        records.append(CommitObjectRecord(number, ObjectKind.STREAM, 100, number, 0, 1, ranges=packed))
    records.append(StreamRecord(0, TOPIC, 0, 1, 0, 1, 0, 0, end))
    return apply_records(EMPTY_IMAGE, records, 10, 0)[1]


def content(start: int, end: int) -> bytes:
    """An object that holds [start, end) of the stream."""
    writer = ObjectWriter()
    writer.add(StreamId(0), [Entry(offset, 1, memoryview(b"x")) for offset in range(start, end)])
    return b"".join(writer.finish().parts)


def sound() -> Found:
    whole = image((0, 3), end=3)
    return Found(
        is_read=True,
        logs={
            PLACE: FoundLog(
                0, 3, [(0, b"a"), (1, b"b"), (2, b"c")], [5, 9, 7], [(5, 0), (6, 1), (9, 1), (10, -1)]
            )
        },
        topics={"topic": TOPIC},
        commits={("g", "topic", 0): 7},
        image=whole,
        replayed=whole,
        cluster_id=CLUSTER,
        objects={KEY: 100, "millrace-cluster": 5},
        contents={KEY: content(0, 3), "millrace-cluster": b"name"},
    )


def check(history: History, found: Found) -> list[str]:
    return [line for checker in all_checkers() for line in checker.check(history, found)]


def test_all_is_well() -> None:
    """A history and a log that agree: no findings, and every checker looked at something."""
    checkers = all_checkers()
    history, found = told(), sound()
    history.log(PLACE).start_promised = history.log(PLACE).start_asked = 1
    found.logs[PLACE] = FoundLog(1, 4, [(1, b"b"), (2, b"c"), (3, b"doubt")], [9, 7, 8], [(7, 1)])
    history.give_up(PLACE, (0, 4))
    found.logs[PLACE].ends_of_epochs[0] = 4
    history.followed[PLACE] = {1: b"b"}
    history.log(PLACE).start_promised = 1
    found.commits["g", "topic", 0] = 9
    assert [line for checker in checkers for line in checker.check(history, found)] == []
    assert all(checker.count for checker in checkers)


def lose(found: Found) -> None:
    found.logs[PLACE] = FoundLog(0, 2, found.logs[PLACE].records[:2])


def repeat(found: Found) -> None:
    found.logs[PLACE] = FoundLog(0, 4, [*found.logs[PLACE].records, (3, b"a")])


def swap(found: Found) -> None:
    found.logs[PLACE] = FoundLog(0, 3, [(0, b"b"), (1, b"a"), (2, b"c")])


def skip(found: Found) -> None:
    found.logs[PLACE] = FoundLog(0, 5, [*found.logs[PLACE].records, (4, b"doubt")])


def invent(found: Found) -> None:
    found.logs[PLACE] = FoundLog(0, 4, [*found.logs[PLACE].records, (3, b"who?")])


def take_corrupt(found: Found) -> None:
    found.logs[PLACE] = FoundLog(0, 4, [*found.logs[PLACE].records, (3, b"corrupted")])


def prepare(found: Found, deadline_ms: int = 900) -> None:
    """An object that nobody has committed."""
    assert found.image is not None
    found.image = found.replayed = apply_records(
        found.image, [PrepareObjectsRecord(7, 1, 1, deadline_ms)], 11, 0
    )[1]
    found.expired_ms = 1_000


def forget_deadline(found: Found) -> None:
    prepare(found, 2_000)
    assert found.image is not None
    objects = replace(found.image.objects, deadlines=EMPTY_IMAGE.objects.deadlines)
    found.image = found.replayed = replace(found.image, objects=objects)


def raise_start(found: Found) -> None:
    found.logs[PLACE] = FoundLog(1, 3, found.logs[PLACE].records[1:])


def forget_topic(found: Found) -> None:
    found.topics.clear()
    found.logs.clear()


def fall_back(found: Found) -> None:
    found.commits["g", "topic", 0] = 5


def lose_object(found: Found) -> None:
    del found.objects[KEY]


def leave_object(found: Found) -> None:
    found.objects[object_key(CLUSTER, ObjectId(77))] = 1


def leave_gap(found: Found) -> None:
    other = object_key(CLUSTER, ObjectId(1))
    found.image = found.replayed = image((0, 1), (1, 3), end=3)
    found.objects[other] = 100
    found.contents |= {KEY: content(0, 1), other: content(2, 3)}


def end_early(found: Found) -> None:
    found.contents[KEY] = content(0, 2)


def look_up_wrongly(found: Found) -> None:
    found.logs[PLACE].lookups.append((8, 2))


def replay_otherwise(found: Found) -> None:
    found.replayed = image((0, 2), end=2)


@pytest.mark.parametrize(
    ("corrupt", "finding"),
    [
        (lose, "lost-write"),
        (lose, "shown-and-gone"),
        (lose, "watermark-fell"),
        (repeat, "duplicate"),
        (swap, "lost-write"),
        (swap, "disorder"),
        (skip, "gap"),
        (invent, "invented"),
        (take_corrupt, "corrupt-taken"),
        (prepare, "prepared-for-ever"),
        (forget_deadline, "prepared-for-ever"),
        (raise_start, "log-start-rose"),
        (raise_start, "lost-write"),
        (forget_topic, "lost-topic"),
        (forget_topic, "lost-log"),
        (fall_back, "lost-commit"),
        (lose_object, "missing-object"),
        (leave_object, "orphan-object"),
        (leave_gap, "range-gap"),
        (end_early, "range-gap"),
        (replay_otherwise, "replay-differs"),
        (look_up_wrongly, "wrong-time"),
    ],
)
def test_each_fault_is_found(corrupt: Callable[[Found], None], finding: str) -> None:
    """One thing is corrupted; its checker says so by name."""
    found = sound()
    corrupt(found)
    assert finding in [line.partition(":")[0] for line in check(told(), found)]


def test_what_is_prepared_may_wait_for_its_deadline() -> None:
    """Whoever prepared it may be about to commit it."""
    found = sound()
    prepare(found, 2_000)
    assert check(told(), found) == []


def test_deletions_that_do_not_hold_are_found() -> None:
    """A log start that was promised and is lower, a topic that is there again."""
    history = told()
    history.log(PLACE).start_asked = history.log(PLACE).start_promised = 2
    history.topics[TOPIC].is_gone = True
    lines = check(history, sound())
    assert [line.partition(":")[0] for line in lines] == ["deleted-is-back", "topic-is-back"]


def test_a_producer_id_given_twice_is_found() -> None:
    """Two producers with one id would pass for one another."""
    history = told()
    history.producer_ids.append(1000)
    assert check(history, sound()) == ["producer-id-again: [1000]"]


def test_contradictions_are_found_when_they_are_told() -> None:
    """An offset with two meanings, a watermark or a log start that falls, a log start that rises by
    itself."""
    history = told()
    history.on_shown(PLACE, 1, b"x")
    history.on_acknowledged(PLACE, 2, [b"y"])
    known = history.watermarks(PLACE)
    history.on_watermarks(PLACE, 2, 3, known)
    history.on_watermarks(PLACE, 0, 3, known)
    history.on_watermarks(PLACE, 0, 2, history.watermarks(PLACE))
    kinds = [line.partition(":")[0] for line in history.findings]
    assert kinds == [*["two-meanings"] * 3, "log-start-rose", "watermark-fell", "log-start-fell"]


@pytest.mark.parametrize(("value", "is_lawful"), [(b"same", True), (b"another", False)])
def test_a_consumer_that_went_on_past_other_records_is_found(value: bytes, is_lawful: bool) -> None:
    """What it read, and went back from at no change of leader epochs, is what the partition holds."""
    history, found = told(), sound()
    offset, there = found.logs[PLACE].records[0]
    history.followed[PLACE] = {offset: there if value == b"same" else value}
    lines = check(history, found)
    assert [line.partition(":")[0] for line in lines] == ([] if is_lawful else ["followed-unaware"])


@pytest.mark.parametrize(("end", "is_lawful"), [(2, True), (3, False)])
def test_an_epoch_ends_where_its_records_were_given_up(end: int, is_lawful: bool) -> None:
    """What clients knew from there on binds nobody; the epoch that held it may not reach beyond."""
    history, found = told(), sound()
    history.give_up(PLACE, (0, 2))
    found.logs[PLACE] = FoundLog(0, 2, found.logs[PLACE].records[:2], ends_of_epochs={0: end})
    lines = [line for checker in all_checkers() for line in checker.check(history, found)]
    assert [line.partition(":")[0] for line in lines] == ([] if is_lawful else ["epoch-goes-on"])
