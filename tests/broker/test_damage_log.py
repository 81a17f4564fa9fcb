"""How often the operator is told of damaged objects."""

from __future__ import annotations

import logging

import pytest

from millrace.broker.damage_log import OBJECTS_MAX, PERIOD_S, DamageLog
from millrace.protocol.errors import KafkaError
from millrace.runtime.objectstore import ObjectMissing, StoreUnavailable
from millrace.s3stream.errors import ObjectCorrupt


def test_one_line_an_object_and_period(caplog: pytest.LogCaptureFixture) -> None:
    """Consumers ask again and again; another object, or a period later, is news."""
    damage = DamageLog()
    for now_s in range(10):
        damage.note(now_s, "t-0", ObjectCorrupt("block checksum differs", 7, "c/objects/1"))
    assert [record.getMessage() for record in caplog.records] == [
        "t-0 cannot be read: object c/objects/1 is damaged at byte 7: block checksum differs"
    ]
    damage.note(9, "t-0", ObjectMissing("c/objects/2"))
    damage.note(PERIOD_S, "t-0", ObjectCorrupt("block checksum differs", 7, "c/objects/1"))
    assert len(caplog.records) == 3
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_only_damage_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A store that is away, a refusal and a time-out have their own ways."""
    damage = DamageLog()
    for error in (StoreUnavailable("k", "503"), KafkaError(1), TimeoutError()):
        damage.note(0, "t-0", error)
    assert not caplog.records


def test_what_is_remembered_is_bounded() -> None:
    """However many objects are damaged."""
    damage = DamageLog()
    for number in range(2 * OBJECTS_MAX + 1):
        damage.note(0, "t-0", ObjectMissing(f"c/objects/{number}"))
    assert len(damage._told) <= OBJECTS_MAX
