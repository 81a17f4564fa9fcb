"""Offload runs a function elsewhere or in place, with the same results and errors."""

from __future__ import annotations

import asyncio
import threading
import zlib

import pytest

from millrace.runtime.offload import InlineOffload, Offload, ThreadOffload


@pytest.mark.parametrize("make", [ThreadOffload, InlineOffload])
def test_results_and_errors(make: type[Offload]) -> None:
    """The function's result comes back, and so does its exception."""

    async def run() -> None:
        offload = make()
        assert await offload.run(zlib.crc32, b"abc") == zlib.crc32(b"abc")
        assert await offload.run(int, "ff", base=16) == 255
        with pytest.raises(zlib.error):
            await offload.run(zlib.decompress, b"no stream")
        await offload.close()

    asyncio.run(run())


def test_threads_are_not_the_loops() -> None:
    """The function runs off the loop's thread, and the loop goes on meanwhile."""

    async def run() -> None:
        offload, turn = ThreadOffload(), threading.Event()
        waiting = asyncio.ensure_future(offload.run(turn.wait, 10))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        turn.set()
        assert await waiting
        assert await offload.run(threading.get_ident) != threading.get_ident()
        await offload.close()

    asyncio.run(run())
