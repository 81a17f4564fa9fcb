"""The sliding window as a transcript: commands, and what is confirmed, being written and waiting after each.
Reviewed as a diff.

To make it anew: `python -m tests.wal.block.test_window > /tmp/new && mv /tmp/new
tests/transcripts/wal_window.txt`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from millrace.wal.block.layout import BLOCK_BYTES
from tests.wal.block.test_writer import Bench

TRANSCRIPT = Path(__file__).parents[2] / "transcripts" / "wal_window.txt"


class Told(Bench):
    def __init__(self) -> None:
        super().__init__(writes_in_flight=3, window_bytes=6 * BLOCK_BYTES)

    async def command(self, words: list[str]) -> None:
        name, numbers = words[0], [int(word) for word in words[1:]]
        match name:
            case "put":
                self.put(*numbers)
            case "done":
                await self.file.finish(*numbers)
            case "fail":
                await self.file.fail(*numbers)
            case "bar":
                self.writer.bar(numbers[0] * BLOCK_BYTES, numbers[1] * BLOCK_BYTES)
            case "unbar":
                self.writer.unbar()
            case "depth":
                self.writer._depth.value = numbers[0]
            case _:
                raise AssertionError(name)

    def state(self) -> str:
        flying = [(block, "d" if future.done() else "w") for future, block in self.writer._in_flight]
        closed = [(block, "c") for block in self.writer._closed]
        shown = [
            f"{mark}[{block.position // BLOCK_BYTES},{block.end // BLOCK_BYTES})"
            for block, mark in (*flying, *closed)
        ]
        told = " told " + ",".join(map(str, self.told)) if self.told else ""
        self.told.clear()
        return f"  confirmed {self.writer.confirmed // BLOCK_BYTES} {' '.join(shown)}".rstrip() + told


async def play(lines: list[str]) -> list[str]:
    """The transcript with its states anew. A comment after an empty line begins with a fresh writer."""
    out: list[str] = []
    bench = Told()
    is_after_blank = False
    for line in lines:
        if line.startswith("> "):
            out.append(line)
            await bench.command(line[2:].split())
            out.append(bench.state())
        elif not line.startswith("  "):
            if line.startswith("#") and is_after_blank:
                bench = Told()
            out.append(line)
        is_after_blank = not line
    return out


def test_the_window_behaves_as_written_down() -> None:
    """Order, slots, the window's end, bars and failures, step by step."""
    lines = TRANSCRIPT.read_text().splitlines()
    assert asyncio.run(play(lines)) == lines


def test_a_block_out_of_the_chain_is_refused() -> None:
    """A block that does not begin where the last one ended is a defect, and asserted."""

    async def run() -> None:
        bench = Bench()
        bench.put()
        bench.batcher.tail += BLOCK_BYTES
        with pytest.raises(AssertionError):
            bench.put()

    asyncio.run(run())


if __name__ == "__main__":
    sys.stdout.write("\n".join(asyncio.run(play(TRANSCRIPT.read_text().splitlines()))) + "\n")
