"""Which objects of a listing count, in tables: late writes of replaced owners, holes, seals, trims, several
owners who never got far."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from millrace.wal.errors import WalCorrupt, WalFenced, WalMismatch
from millrace.wal.object.layout import (
    HEADER_BYTES,
    SEAL_BYTES,
    SEAL_OF_CLOSED_BYTES,
    FenceKind,
    Kind,
    ObjectHeader,
    Place,
    Stamp,
    object_key,
    parse_key,
)
from millrace.wal.object.recovery import Listing, find_extent, find_garbage, find_tip

BODY_BYTES = 1000
OBJECT_BYTES = HEADER_BYTES + BODY_BYTES


@dataclass
class Drawn:
    """A log drawn by hand. Each object is OBJECT_BYTES; `o(epoch, slot, position in objects, ...)` puts one,
    `seal` a seal."""

    headers: dict[Place, ObjectHeader] = field(default_factory=dict)
    sizes: dict[Place, int] = field(default_factory=dict)
    claims: tuple[int, ...] = ()

    def o(
        self,
        epoch: int,
        slot: int,
        number: int,
        *,
        link: tuple[int, int] | None = None,
        confirmed: int = 0,
        head: tuple[int, int, int] | None = None,
        kind: Kind = Kind.RECORDS,
        fence: FenceKind = FenceKind.CONDITIONAL,
    ) -> Drawn:
        head_epoch, head_slot, head_number = head or (epoch, slot, number)
        stamp = Stamp(
            confirmed, head_number * OBJECT_BYTES, Place(head_epoch, head_slot), head_number * OBJECT_BYTES
        )
        place = Place(epoch, slot)
        self.headers[place] = ObjectHeader(
            kind, fence, "cluster", 1, epoch, b"t%07d" % epoch, place, number * OBJECT_BYTES, BODY_BYTES, 1,
            stamp,
            None if link is None else Place(*link),
        )  # fmt: skip
        self.sizes[place] = OBJECT_BYTES
        return self

    def seal(self, epoch: int, slot: int, by: int, size_bytes: int = SEAL_BYTES, run_end: int = 0) -> Drawn:
        place = Place(epoch, slot)
        stamp = Stamp(run_end, 0, Place(0, 0), 0)
        self.headers[place] = ObjectHeader(
            Kind.SEAL, FenceKind.CONDITIONAL, "cluster", 1, by, b"t%07d" % by, place, 0, 0, 0, stamp, None
        )
        self.sizes[place] = size_bytes
        return self

    def listing(self) -> Listing:
        return Listing(self.sizes.items(), self.claims)

    def answer(self, search):  # type: ignore[no-untyped-def]
        try:
            place = next(search)
            while True:
                place = search.send(self.headers[place])
        except StopIteration as found:
            return found.value

    def look(self, own: int = 9, fence: FenceKind = FenceKind.CONDITIONAL) -> str:
        """The tip, the slots that count and the garbage, as an owner of this epoch finds them."""
        tip = self.answer(find_tip(self.listing(), 1, own, b"t%07d" % own, fence))
        extent = self.answer(find_extent(tip.link, self.listing()))
        runs = " ".join(f"{run.epoch}:{run.start}-{run.end}" for run in extent.segments) or "nothing"
        garbage = " ".join(
            f"{place.epoch}:{place.slot}" for place in find_garbage(self.listing(), extent, own)
        )
        word = " ours" if tip.is_ours else " closed" if tip.is_closed else ""
        return f"tip {tip.place.epoch}:{tip.place.slot}{word}, {runs}" + (
            f", garbage {garbage}" if garbage else ""
        )


START = (1, 0, 0)
CASES: dict[str, tuple[Drawn, str]] = {
    "nothing was ever written": (Drawn(), "tip 1:0, nothing"),
    "one owner": (Drawn().o(1, 0, 0).o(1, 1, 1, head=START), "tip 1:2, 1:0-2"),
    "one owner, uploads behind a hole": (
        Drawn().o(1, 0, 0).o(1, 2, 2, head=START).o(1, 3, 3, head=START, confirmed=1),
        "tip 1:1, 1:0-1, garbage 1:2 1:3",
    ),
    "only what is behind a hole": (Drawn().o(1, 1, 1, head=START), "tip 1:0, nothing, garbage 1:1"),
    "trimmed": (
        Drawn().o(1, 4, 4).o(1, 5, 5, confirmed=5, head=(1, 4, 4)),
        "tip 1:6, 1:4-6",
    ),
    "trimmed, and a late copy of what was deleted": (
        Drawn().o(1, 2, 2).o(1, 4, 4).o(1, 5, 5, confirmed=5, head=(1, 4, 4)),
        "tip 1:6, 1:4-6, garbage 1:2",
    ),
    "a seal that came late below the head, and one that counts": (
        Drawn().seal(1, 2, by=2).o(1, 4, 4).o(1, 5, 5, confirmed=5, head=(1, 4, 4)).seal(1, 6, by=3).seal(1,
        7, by=3),
        "tip 3:0, 1:4-6, garbage 1:2 1:7",
    ),
    "two seals of an epoch that was trimmed: it is not told which of them counts": (
        Drawn().seal(1, 2, by=2).seal(1, 6, by=2).o(2, 3, 6, confirmed=3, link=(1, 6)),
        "tip 2:4, 2:3-4",
    ),
    "trimmed to the end": (Drawn().o(1, 7, 7, confirmed=7), "tip 1:8, 1:7-8"),
    "closed in order": (Drawn().o(1, 0, 0).o(1, 1, 1, head=START, kind=Kind.CLOSING),
    "tip 1:2 closed, 1:0-2"),
    # A late write of the old owner lands where the new one began, and further on.
    "late writes of the old owner, all untrimmed": (
        Drawn().o(1, 0, 0).o(1, 1, 1, head=START).seal(1, 2, by=2).o(1, 3, 3, head=START).o(2, 0, 2, link=(1,
        2), head=START)
        .o(2, 1, 3, link=(1, 2), head=START, confirmed=1),
        "tip 2:2, 1:0-2 2:0-2, garbage 1:3",
    ),
    "late writes of the old owner, its last object kept by the trim": (
        Drawn().o(1, 1, 1, confirmed=1).seal(1, 2, by=2).o(1, 3, 3, head=START)
        .o(2, 0, 2, link=(1, 2), head=(1, 1, 1)).o(2, 1, 3, link=(1, 2), head=(1, 1, 1), confirmed=1),
        "tip 2:2, 1:1-2 2:0-2, garbage 1:3",
    ),
    "late writes of the old owner, all of it trimmed": (
        Drawn().seal(1, 2, by=2).o(1, 3, 3, head=START).o(2, 0, 2, link=(1, 2)).o(2, 1, 3, link=(1, 2),
        head=(2, 0, 2)),
        "tip 2:2, 2:0-2, garbage 1:3",
    ),
    "late writes from the old owner's beginning on": (
        Drawn().seal(1, 0, by=2).o(1, 1, 1, head=START).o(2, 0, 0).o(2, 1, 1, head=(2, 0, 0)).o(2, 2, 2,
        head=(2, 0, 0)),
        "tip 2:3, 2:0-3, garbage 1:1",
    ),
    "the new owner's first object is behind a hole": (
        Drawn().o(1, 0, 0).o(1, 1, 1, head=START).seal(1, 2, by=2).o(2, 1, 3, link=(1, 2), head=START),
        "tip 2:0, 1:0-2, garbage 2:1",
    ),
    "owners who sealed and wrote nothing": (
        Drawn().o(1, 0, 0).seal(1, 1, by=2).seal(2, 0, by=4).seal(4, 0, by=6),
        "tip 6:0, 1:0-1",
    ),
    "an owner who never wrote, and one after it who did": (
        Drawn().o(1, 0, 0).seal(1, 1, by=2).seal(2, 0, by=4).o(4, 0, 1, link=(1, 1), head=START),
        "tip 4:1, 1:0-1 4:0-1",
    ),
    "our own seal, from an attempt that was lost": (Drawn().o(1, 0, 0).seal(1, 1, by=9),
    "tip 1:1 ours, 1:0-1"),
    "our own seal, before one who never wrote": (
        Drawn().o(1, 0, 0).seal(1, 1, by=2).seal(2, 0, by=9),
        "tip 2:0 ours, 1:0-1",
    ),
    "several seals at once, the lowest counts": (
        Drawn().o(1, 0, 0).seal(1, 1, by=2).seal(1, 3, by=3),
        "tip 2:0, 1:0-1, garbage 1:3",
    ),
    "the seal of an owner who had closed goes with its objects": (
        Drawn().seal(1, 4, by=2, size_bytes=SEAL_OF_CLOSED_BYTES).o(2, 3, 8, link=(1, 4), confirmed=3),
        "tip 2:4, 2:3-4, garbage 1:4",
    ),
    "that seal stays while one of its objects is needed": (
        Drawn().o(1, 3, 3, confirmed=3).seal(1, 4, by=2, size_bytes=SEAL_OF_CLOSED_BYTES)
        .o(2, 0, 4, link=(1, 4), head=(1, 3, 3)),
        "tip 2:1, 1:3-4 2:0-1",
    ),
    "three owners' records": (
        Drawn().o(1, 5, 5, confirmed=5).seal(1, 6, by=2).o(2, 0, 6, link=(1, 6), head=(1, 5, 5)).seal(2, 1,
        by=3)
        .o(3, 0, 7, link=(2, 1), head=(1, 5, 5)),
        "tip 3:1, 1:5-6 2:0-1 3:0-1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_counts(name: str) -> None:
    """Each drawn log is read as the table says: where the next owner seals, which slots count, what may be
    deleted."""
    drawn, expected = CASES[name]
    assert drawn.look() == expected


@pytest.mark.parametrize(
    ("drawn", "own", "found"),
    [
        (Drawn().o(3, 0, 0), 3, 3),
        (Drawn().o(3, 0, 0), 2, 3),
        (Drawn().o(1, 0, 0).seal(1, 1, by=5), 4, 5),
        (Drawn().o(1, 0, 0).seal(1, 1, by=5).seal(5, 0, by=7), 6, 7),
        (Drawn().seal(1, 0, by=5), 5, 5),
    ],
)
def test_an_owner_who_is_not_the_newest_is_fenced(drawn: Drawn, own: int, found: int) -> None:
    """Whether the newer one wrote or only sealed, it is found and named. A seal of our epoch with another's
    token is another's."""
    with pytest.raises(WalFenced) as fenced:
        drawn.answer(find_tip(drawn.listing(), 1, own, b"another!", FenceKind.CONDITIONAL))
    assert (fenced.value.own_epoch, fenced.value.found_epoch) == (own, found)


def test_a_seal_is_ours_by_epoch_and_token() -> None:
    """An earlier opening of the same process, which may have drawn the same token, is another owner."""
    drawn = Drawn().o(1, 0, 0).seal(1, 1, by=5)
    tip = drawn.answer(find_tip(drawn.listing(), 1, 7, b"t%07d" % 5, FenceKind.CONDITIONAL))
    assert (tip.place, tip.is_ours) == (Place(5, 0), False)


@pytest.mark.parametrize(
    ("drawn", "own", "expected"),
    [
        (Drawn().o(1, 0, 0), FenceKind.RESERVATION, "conditional"),
        (Drawn().o(1, 0, 0).seal(1, 1, by=2), FenceKind.RESERVATION, "conditional"),
        (Drawn().o(1, 0, 0, kind=Kind.CLOSING).seal(1, 1, by=2), FenceKind.RESERVATION, "conditional"),
        (Drawn().o(1, 0, 0, kind=Kind.CLOSING), FenceKind.RESERVATION, "tip 1:1 closed, 1:0-1"),
        (Drawn().o(1, 0, 0, fence=FenceKind.RESERVATION), FenceKind.CONDITIONAL, "reservation"),
        (Drawn(claims=(1,)), FenceKind.CONDITIONAL, "reservation"),
        (Drawn(claims=(1, 2)).o(1, 0, 0, kind=Kind.CLOSING), FenceKind.CONDITIONAL, "reservation"),
        (
            Drawn(claims=(1,)).o(1, 0, 0, kind=Kind.CLOSING, fence=FenceKind.RESERVATION),
            FenceKind.CONDITIONAL,
            "tip 1:1 closed, 1:0-1",
        ),
    ],
)
def test_a_fence_is_changed_only_after_a_close(drawn: Drawn, own: FenceKind, expected: str) -> None:
    """An owner that may live by another fence would not feel ours, whether it wrote or only came: the log is
    refused unless it was closed."""
    if expected.startswith("tip"):
        assert drawn.look(fence=own) == expected
        return
    with pytest.raises(WalMismatch) as mismatch:
        drawn.look(fence=own)
    assert (mismatch.value.field, mismatch.value.expected, mismatch.value.found) == (
        "fence",
        own.name.lower(),
        expected,
    )


def test_a_log_without_its_newest_object_is_damage() -> None:
    """A seal that says there were objects, and none is left: somebody emptied the place, and it is not taken
    for a new log."""
    with pytest.raises(WalCorrupt, match="gone"):
        Drawn().seal(1, 3, by=2, run_end=3).look()
    assert Drawn().seal(1, 0, by=2).seal(1, 1, by=2).look() == "tip 2:0, nothing"


def test_links_that_lead_nowhere_are_damage() -> None:
    """A chain of owners that does not come back to the head is refused."""
    with pytest.raises(WalCorrupt, match="continues"):
        Drawn().o(3, 0, 5, link=None, head=(1, 2, 2)).look()


def test_keys_are_read_back() -> None:
    """Keys sort by epoch and slot as numbers; a key that we would not have made is nobody's place."""
    places = [Place(epoch, slot) for epoch in (0, 3, 20, 1 << 40) for slot in (0, 7, 100)]
    keys = [object_key("p/", place) for place in places]
    assert keys == sorted(keys)
    assert [parse_key("p/", key) for key in keys] == places
    for key in ("p/1/2", f"{keys[0]}0", f"{keys[0]}/x", "p/claim", f"p/{3:020}/claim", f"p/{3:020}/{-1:020}"):
        assert parse_key("p/", key) is None
