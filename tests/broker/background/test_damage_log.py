"""What the operator is told of damaged data."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.background.damage_log import DamageLog, show_damage
from millrace.runtime.metrics import Registry
from millrace.runtime.objectstore import ObjectMissing
from millrace.s3stream.damaged_reads import DAMAGES_MAX, SAY_EVERY_S, DamagedReads
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import StreamRole

TOPIC_ID = bytes(15) + b"\1"
BLOCK = ObjectCorrupt("block checksum differs", 7, "c/objects/1", (10, 20))


def image_of(**starts: int) -> Any:
    """Streams 1, 2, 3 of orders-0: its states, records and time index, from these starts on; those not given
    are deleted."""
    roles = {"meta": StreamRole.META, "data": StreamRole.DATA, "time": StreamRole.TIME}
    streams = {
        role + 1: SimpleNamespace(topic_id=TOPIC_ID, partition=0, role=role, start=starts[name])
        for name, role in roles.items()
        if name in starts
    }
    return SimpleNamespace(
        streams=streams, topics=SimpleNamespace(by_id=lambda topic_id: SimpleNamespace(name="orders"))
    )


class Told:
    def __init__(self) -> None:
        self.image = image_of(meta=0, data=0, time=0)
        self.damaged = DamagedReads()
        self.log = DamageLog(self.damaged, lambda: self.image)
        self.registry = Registry()
        show_damage(self.registry, self.log)

    def publish(self, image: Any) -> None:
        """As the broker's metadata does: the newest is there when it is told of."""
        self.image = image
        self.log.on_image(image)

    @property
    def figures(self) -> tuple[int, int]:
        """Unreadable partitions and damaged reads, as shown."""
        values = [
            line.split()[-1] for line in self.registry.render().splitlines() if not line.startswith("#")
        ]
        unreadable, reads = map(int, values)
        return unreadable, reads


def test_damage_names_partition_offsets_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    """Where it is known how far the damage goes, consumers may go on behind it; for a missing object, and for
    the broker's own states, nothing helps but the object."""
    told = Told()
    told.damaged.note_failed(2, 12, BLOCK, 0)
    told.damaged.note_failed(2, 40, ObjectMissing("c/objects/2"), 0)
    told.damaged.note_failed(1, 10, ObjectCorrupt("block checksum differs", 9, "c/objects/3", (10, 11)), 0)
    remedy = "restore the object from a copy or an earlier version of it (millrace fsck lists all damage)"
    assert [record.getMessage() for record in caplog.records] == [
        "damaged data: orders-0 offsets 10 to 19 cannot be read: object c/objects/1 is damaged at byte 7: "
        "block checksum differs; "
        f"{remedy}, or let consumers go on at offset 20, which gives these records up",
        f"damaged data: orders-0 offsets 40 and up cannot be read: {ObjectMissing('c/objects/2')}; {remedy}",
        "damaged data: the stored state of orders-0, entries 10 to 10 cannot be read: object c/objects/3 is "
        "damaged at byte 9: "
        f"block checksum differs; {remedy}",
    ]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert told.figures == (1, 3)


def test_one_line_a_damage_and_period(caplog: pytest.LogCaptureFixture) -> None:
    """Consumers ask again and again, and are counted; a period later it is said again."""
    told = Told()
    for now_s in range(10):
        told.damaged.note_failed(2, 12, BLOCK, now_s)
    assert len(caplog.records) == 1
    assert told.figures == (1, 10)
    told.damaged.note_failed(2, 12, BLOCK, SAY_EVERY_S)
    assert len(caplog.records) == 2


def test_a_repair_is_told_by_the_read_that_gives_the_records(caplog: pytest.LogCaptureFixture) -> None:
    """Reads of other offsets, or of another stream, say nothing of it."""
    caplog.set_level(logging.INFO)
    told = Told()
    told.damaged.note_failed(2, 12, BLOCK, 0)
    caplog.clear()
    told.damaged.note_read(2, 20, 30, 5)
    told.damaged.note_read(3, 0, 30, 5)
    assert told.figures == (1, 1)
    assert not caplog.records
    told.damaged.note_read(2, 0, 30, 12)
    assert told.figures == (0, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "damaged data was repaired: orders-0 offsets 10 to 19 can be read again, after 12 s"
    ]


def test_what_is_deleted_is_damaged_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Records below a log start that moved beyond the damage, and all of a deleted topic, by the name that it
    had."""
    caplog.set_level(logging.INFO)
    told = Told()
    told.damaged.note_failed(2, 12, BLOCK, 0)
    told.damaged.note_failed(3, 4, ObjectMissing("c/objects/2"), 0)
    told.publish(image_of(meta=0, data=19, time=4))
    assert len(list(told.damaged)) == 2
    told.publish(image_of(meta=0, data=20, time=4))
    assert [damage.stream_id for damage in told.damaged] == [3]
    told.publish(image_of())
    assert told.figures == (0, 2)
    assert [record.getMessage() for record in caplog.records][2:] == [
        "damaged data was deleted: orders-0 offsets 10 to 19",
        "damaged data was deleted: the time index of orders-0, entries 4 and up",
    ]


def test_what_is_remembered_is_bounded() -> None:
    """However many objects are damaged."""
    told = Told()
    for number in range(DAMAGES_MAX + 5):
        told.damaged.note_failed(2, number, ObjectMissing(f"c/objects/{number}"), 0)
    assert len(list(told.damaged)) == DAMAGES_MAX
    assert told.figures == (1, DAMAGES_MAX + 5)


def test_more_damages_than_are_remembered_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A missing object of many streams is read again and again: each read is counted, and each damage that is
    remembered has its line a period, with one of the others."""
    told = Told()
    for now_s in range(3):
        for number in range(DAMAGES_MAX + 50):
            told.damaged.note_failed(2, number, ObjectMissing(f"c/objects/{number}"), now_s)
    assert len(caplog.records) == DAMAGES_MAX + 1
    assert told.figures == (1, 3 * (DAMAGES_MAX + 50))
    caplog.clear()
    for number in range(DAMAGES_MAX + 50):
        told.damaged.note_failed(2, number, ObjectMissing(f"c/objects/{number}"), SAY_EVERY_S)
    assert len(caplog.records) == DAMAGES_MAX


def test_a_topic_that_is_deleted_while_it_is_read_is_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    """Metadata names no object for its streams any more; its partition, which is read, is about to hear of
    it."""
    told = Told()
    told.image = image_of()
    told.damaged.note_failed(2, 12, ObjectMissing("(stream 2, offset 12)"), 0)
    assert not caplog.records
    assert not told.damaged
    assert told.figures == (0, 1)
