"""Replies in chunks: what goes when, in which order, and what is held meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from millrace.broker.network.reply_writer import CHUNK_BYTES, ReplyWriter


class Wire:
    """A transport that takes what it is given, up to `room_bytes`: beyond, it pauses the writer, as asyncio's
    do from within `writelines`."""

    def __init__(self, room_bytes: int = 1 << 40) -> None:
        self.room_bytes = room_bytes
        self.came = bytearray()
        self.writes: list[int] = []
        self.is_closed = False
        self.turns: list[Callable[[], None]] = []
        self.changes = 0
        self.writer = ReplyWriter(cast(Any, self), self.turns.append, self.on_change)

    def writelines(self, parts: list[bytes]) -> None:
        assert not self.is_closed
        self.writes.append(sum(map(len, parts)))
        for part in parts:
            self.came += part
        if self.get_write_buffer_size():
            self.writer.on_paused()

    def get_write_buffer_size(self) -> int:
        return max(0, len(self.came) - self.room_bytes)

    def close(self) -> None:
        self.is_closed = True

    def on_change(self) -> None:
        self.changes += 1

    def turn(self) -> None:
        due, self.turns[:] = list(self.turns), []
        for call in due:
            call()

    def drain(self, room_bytes: int = 1 << 40) -> None:
        self.room_bytes = room_bytes
        self.writer.on_resumed()


def write(wire: Wire, *parts: bytes) -> bytes:
    wire.writer.write(list(parts), sum(map(len, parts)))
    return b"".join(parts)


def test_a_small_reply_goes_at_once() -> None:
    """In one call, and no iteration of the loop is asked for."""
    wire = Wire()
    sent = write(wire, b"head", bytes(1000)) + write(wire, bytes(CHUNK_BYTES - 4), b"tail")
    assert wire.came == sent
    assert (len(wire.writes), wire.turns, wire.writer.is_held) == (2, [], False)


def test_a_large_reply_goes_a_slice_each_turn() -> None:
    """Others have the loop between chunks; a reply behind it keeps its place; when all is gone it is told,
    once."""
    wire = Wire()
    sent = write(wire, b"head", bytes(range(256)) * (CHUNK_BYTES // 100), b"tail")
    assert wire.writes == [CHUNK_BYTES]
    assert wire.writer.is_held
    assert wire.writer.unsent_bytes == len(sent) - CHUNK_BYTES
    sent += write(wire, b"small")
    for count in (2, 3):
        assert wire.changes == count - 2
        wire.turn()
        assert len(wire.writes) == count
    assert wire.came == sent
    assert max(wire.writes) == CHUNK_BYTES
    assert not wire.writer.is_held
    wire.turn()
    assert (wire.turns, wire.changes) == ([], 2)


def test_a_slow_client_holds_what_follows() -> None:
    """While the transport is over its mark nothing is handed on, and all that waits is counted."""
    wire = Wire(room_bytes=CHUNK_BYTES // 2)
    sent = write(wire, bytes(5 * CHUNK_BYTES))
    wire.turn()
    wire.turn()
    assert wire.writes == [CHUNK_BYTES]
    assert wire.writer.unsent_bytes == 5 * CHUNK_BYTES - CHUNK_BYTES // 2
    wire.drain(2 * CHUNK_BYTES)
    wire.turn()
    assert wire.writes == [CHUNK_BYTES] * 3
    assert wire.writer.unsent_bytes == 3 * CHUNK_BYTES
    wire.drain()
    while wire.turns:
        wire.turn()
    assert wire.came == sent
    assert wire.writer.unsent_bytes == 0


def test_a_close_waits_for_what_was_written() -> None:
    """All of it is handed over first; without anything waiting it closes at once."""
    wire = Wire()
    sent = write(wire, bytes(3 * CHUNK_BYTES))
    wire.writer.close()
    assert not wire.is_closed
    while wire.turns:
        wire.turn()
    assert wire.is_closed
    assert wire.came == sent
    quick = Wire()
    write(quick, b"x")
    quick.writer.close()
    assert quick.is_closed


def test_nothing_is_written_after_a_drop() -> None:
    """The connection is gone: what waited is forgotten, and the turn that was due does nothing."""
    wire = Wire()
    write(wire, bytes(3 * CHUNK_BYTES))
    wire.writer.drop()
    wire.turn()
    assert wire.writes == [CHUNK_BYTES]
    assert not wire.writer.is_held


@pytest.mark.parametrize("seed", range(20))
def test_order_is_kept(seed: int) -> None:
    """Whatever is written, drained and awaited in whatever order: every byte comes, once, in order."""
    chance, wire, sent = random.Random(seed), Wire(CHUNK_BYTES), bytearray()
    for number in range(60):
        match chance.randrange(4):
            case 0:
                sizes = [
                    chance.choice((1, 100, CHUNK_BYTES // 3, CHUNK_BYTES, 3 * CHUNK_BYTES)) for _ in range(3)
                ]
                sent += write(wire, *(bytes([number]) * size for size in sizes))
            case 1:
                wire.drain(len(wire.came) + chance.randrange(4 * CHUNK_BYTES))
            case _:
                wire.turn()
        assert wire.writer.is_held or wire.came == sent
    wire.drain()
    while wire.turns:
        wire.turn()
    assert wire.came == sent
    assert not wire.writer.is_held
