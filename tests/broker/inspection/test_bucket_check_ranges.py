"""What fsck says of a gap: which object had the offsets, and what became of it; a reason accuses nobody who
has what it should."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millrace.broker.inspection.bucket_check_ranges import Contents, Fault, faults_of
from millrace.broker.inspection.inventory import Held, KnownStream
from millrace.s3stream.ids import ObjectId, StreamId
from millrace.s3stream.objects.composite import Link

STREAM = StreamId(7)
MISSING, SIZE = "is missing", "is not of the size that was written"
NOT_IN = "not in object {}, which metadata names for it"


def stream(*held: Held, start: int = 24, end: int = 32) -> KnownStream:
    return KnownStream(STREAM, "t", 0, "data", 0, 1, False, start, end, held)


def four(*, is_ordered: bool = True) -> KnownStream:
    """Four objects that were uploaded one after the other, two offsets each: 8 has [24, 26)."""
    return stream(Held(24, 32, tuple(map(ObjectId, (8, 9, 10, 11))), is_ordered))


def contents(spans: Mapping[int, tuple[int, int]], unread: Mapping[int, str] | None = None) -> Contents:
    held = {ObjectId(object_id): [(STREAM, *span)] for object_id, span in spans.items()}
    return Contents(held, {ObjectId(object_id): why for object_id, why in (unread or {}).items()})


Told = list[tuple[int, int, str]]


@pytest.mark.parametrize(
    ("spans", "unread", "told"),
    [
        ({8: (24, 26), 9: (26, 28), 10: (28, 30), 11: (30, 32)}, {}, []),
        ({9: (26, 28), 10: (28, 30), 11: (30, 32)}, {8: SIZE}, [(24, 26, f"object 8 {SIZE}")]),
        (
            {9: (26, 28), 10: (26, 28), 11: (30, 32)},  # 10 is a copy of 9
            {8: SIZE},
            [(24, 26, f"object 8 {SIZE}"), (28, 30, NOT_IN.format(10))],
        ),
        (
            {8: (24, 26), 9: (30, 32), 11: (30, 32)},  # 9 is a copy of 11
            {10: MISSING},
            [(26, 30, f"{NOT_IN.format(9)}; object 10 {MISSING}")],
        ),
        (
            {8: (24, 26), 11: (30, 32)},
            {9: MISSING, 10: SIZE},
            [(26, 30, f"object 9 {MISSING}; object 10 {SIZE}")],
        ),
        (
            {9: (0, 2), 10: (28, 30), 11: (30, 32)},
            {8: MISSING},
            [(24, 28, f"object 8 {MISSING}; {NOT_IN.format(9)}")],
        ),
        (
            {9: (26, 27), 10: (28, 30), 11: (30, 32)},  # 9 has a part of what it had
            {8: MISSING},
            [(24, 26, f"object 8 {MISSING}"), (27, 28, "; ".join(NOT_IN.format(one) for one in (9, 10, 11)))],
        ),
    ],
)
def test_a_gap_is_blamed_on_who_had_the_offsets(
    spans: Mapping[int, tuple[int, int]], unread: Mapping[int, str], told: Told
) -> None:
    """Of uploads, by the order in which they hold the stream."""
    found = [fault for fault in faults_of(four(), contents(spans, unread)) if fault.object_id < 0]
    assert [(fault.start, fault.end, fault.what) for fault in found] == told


def test_without_an_order_whoever_has_nothing_of_its_own_is_named() -> None:
    """What compaction made need not lie in order: one that could not be read, and one that has what another
    has, may have had any gap."""
    known = four(is_ordered=False)
    found = list(faults_of(known, contents({9: (26, 28), 10: (28, 30), 11: (24, 26)}, {8: MISSING})))
    assert found == [Fault(30, 32, f"object 8 {MISSING}")]
    found = list(faults_of(known, contents({9: (26, 28), 10: (28, 30), 11: (0, 2)}, {8: MISSING})))
    why = f"object 8 {MISSING}; {NOT_IN.format(11)}"
    assert found == [Fault(24, 26, why), Fault(30, 32, why)]


def test_offsets_that_two_objects_have_name_both() -> None:
    """The later one, and in words the one that was there before."""
    found = faults_of(four(), contents({8: (24, 26), 9: (26, 29), 10: (28, 30), 11: (30, 32)}))
    assert list(found) == [Fault(28, 29, "object 9 has them too", 10)]


def test_what_a_composite_links_is_named_where_it_is_lost() -> None:
    """The linked object with its composite, and its offsets alone; a composite that could not be read costs
    all of it."""
    known = stream(Held(0, 30, (ObjectId(5),), False), start=0, end=30)
    links = [Link(ObjectId(one), 100, 10 * place, 10 * place + 10) for place, one in enumerate((1, 2, 3))]
    found = contents({1: (0, 10), 3: (20, 25)}, {2: MISSING})
    found.links[ObjectId(5)] = links
    assert list(faults_of(known, found)) == [
        Fault(10, 20, f"object 2, which composite 5 links, {MISSING}"),
        Fault(25, 30, "not in object 3, which composite 5 links for it"),
    ]
    assert list(faults_of(known, contents({}, {5: MISSING}))) == [Fault(0, 30, f"object 5 {MISSING}")]


def test_what_metadata_names_nobody_for_is_a_gap() -> None:
    """Before, between and behind the ranges that it names."""
    known = stream(Held(2, 4, (ObjectId(1),), True), Held(6, 8, (ObjectId(2),), True), start=0, end=9)
    found = list(faults_of(known, contents({1: (2, 4), 2: (6, 8)})))
    assert [(fault.start, fault.end) for fault in found] == [(0, 2), (4, 6), (8, 9)]
    assert {fault.what for fault in found} == {"metadata names no object for it"}
