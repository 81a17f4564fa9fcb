"""Room in the ring: places, the lower bound on what fits, and what a trim gives back."""

from __future__ import annotations

from millrace.runtime.rand import Rand
from millrace.wal.block.layout import BLOCK_BYTES, BLOCK_HEADER_BYTES, Geometry, align_up
from millrace.wal.block.space import BlockEnds, RingSpace
from millrace.wal.record import RECORD_HEADER_BYTES

KIB = 1024
RING = 2048 * KIB
ARENA = 1024 * KIB
SOFT = 256 * KIB
BLOCK_MAX = 600 * KIB


def space_at(head: int) -> RingSpace:
    return RingSpace(Geometry(RING), head, BLOCK_MAX, SOFT, ARENA)


def fits_all(space: RingSpace, tail: int, arena_left: int, lengths: list[int]) -> bool:
    """Places records as the log does when nothing is written in between; whether all of them found room."""
    fill = limit = 0
    for length in lengths:
        if fill + RECORD_HEADER_BYTES + length > limit:
            needed = align_up(BLOCK_HEADER_BYTES + RECORD_HEADER_BYTES + length)
            tail = tail + align_up(fill)
            place = space.place(tail, needed)
            if place is None:
                return False
            arena_left -= align_up(fill)
            if arena_left < needed:
                arena_left = max(ARENA, needed)
            tail, fill = place, BLOCK_HEADER_BYTES
            limit = min(max(SOFT, needed), space.limit(place) - place, arena_left)
        fill += RECORD_HEADER_BYTES + length
    return True


def lengths_within(rand: Rand, room: int) -> list[int]:
    """Records of 64 bytes or more that use up the room: all small, all awkward, all large, or mixed."""
    awkward = SOFT // 2 - RECORD_HEADER_BYTES - BLOCK_HEADER_BYTES + 1
    largest = BLOCK_MAX - BLOCK_HEADER_BYTES - RECORD_HEADER_BYTES
    mixed = (awkward, largest, 64, 5000, 33 * KIB, SOFT, BLOCK_BYTES)
    choices = ((64,), (awkward,), (largest,), mixed)[rand.below(4)]
    found = []
    while room >= 64:
        length = min(room, choices[rand.below(len(choices))])
        found.append(length)
        room -= length
    return found


def test_what_fits_the_room_is_placed() -> None:
    """From every place of the ring, however full, records that use up `room_bytes` exactly find their
    places."""
    rand = Rand(b"space")
    spoken_for = 0
    for head in range(0, RING, 37 * BLOCK_BYTES):
        for used in range(0, RING, 29 * BLOCK_BYTES):
            space = space_at(RING + head)
            tail = RING + head + used
            room = space.room_bytes(tail)
            spoken_for += room
            for _ in range(3):
                arena_left = rand.below(ARENA // BLOCK_BYTES) * BLOCK_BYTES
                assert fits_all(space, tail, arena_left, lengths_within(rand, room)), (head, used, room)
    assert spoken_for > 0


def test_the_room_is_not_stingy() -> None:
    """A ring of the usual size, empty, promises seven tenths of itself, at any place."""
    ring = 2 << 30
    for head in (0, 4096, ring - 4096, ring // 2):
        space = RingSpace(Geometry(ring), head, 64 << 20, 1 << 20, 4 << 20)
        assert space.room_bytes(head) > 0.68 * ring
        assert space.room_bytes(head + ring) == 0


def test_a_block_goes_to_the_next_lap_or_nowhere() -> None:
    """A block that does not fit before the ring's end begins the next lap; one that would meet live records
    has no place."""
    space = space_at(head=2 * BLOCK_BYTES)
    assert space.place(RING - 2 * BLOCK_BYTES, 2 * BLOCK_BYTES) == RING - 2 * BLOCK_BYTES
    assert space.place(RING - BLOCK_BYTES, 2 * BLOCK_BYTES) == RING
    assert space.place(RING - BLOCK_BYTES, 3 * BLOCK_BYTES) is None
    assert space.place(RING + 2 * BLOCK_BYTES, BLOCK_BYTES) is None


def test_a_trim_gives_back_whole_blocks() -> None:
    """The head moves to the end of the last block whose whole content is trimmed, and stays when none is."""
    ends = BlockEnds()
    for end in (1000, 5000, 9000):
        ends.add(end)
    assert ends.head_for(999, 0) == 0
    assert ends.head_for(1000, 0) == 4096
    assert ends.head_for(8999, 0) == 8192
    assert ends.head_for(9000, 0) == 12288
    ends.forget(8192)
    assert len(ends) == 1
    assert ends.head_for(8192, 8192) == 8192


def test_ends_do_not_pile_up() -> None:
    """What was forgotten takes no memory, over a million blocks."""
    ends = BlockEnds()
    for number in range(1, 200_000):
        ends.add(number * BLOCK_BYTES)
        ends.forget(max(0, number - 10) * BLOCK_BYTES)
    assert len(ends) == 10
    assert len(ends._ends) < 20_000
