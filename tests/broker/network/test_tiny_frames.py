"""Reads that hold thousands of frames."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from millrace.broker.network.connection import FRAMES_CUT_AT_ONCE
from millrace.broker.requests.request import RequestContext
from millrace.protocol.frame import FrameSplitter
from millrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.broker.shell import Shell
from tests.patience import PATIENCE_S, eventually

HEARTBEAT = 12
COUNT = 4_000


def test_a_read_of_many_frames_is_cut_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are begun in order and answered, and nothing stays charged; frames of any size lie among them."""
    cut_counts: list[int] = []
    real = FrameSplitter._cut

    def counted(self: FrameSplitter, *args: Any) -> Any:
        frames = real(self, *args)
        cut_counts.append(len(frames))
        return frames

    monkeypatch.setattr(FrameSplitter, "_cut", counted)
    begun: list[int] = []

    def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        begun.append(request.generation_id)
        return HeartbeatResponse()

    async def run() -> None:
        drawn = Random(1)
        async with Shell({HEARTBEAT: handle}) as shell:
            client = await shell.client()
            sizes = [drawn.choice([0, 0, 0, 0, 0, 0, 0, 30_000]) if not n % 50 else 0 for n in range(COUNT)]
            for number, size in enumerate(sizes):
                client.send(HEARTBEAT, 4, HeartbeatRequest("g" * size, number, "m"))
            for _ in sizes:
                await asyncio.wait_for(client.receive(HEARTBEAT, 4), PATIENCE_S)
            await eventually(lambda: not shell.memory.used_bytes)

    asyncio.run(run())
    assert begun == list(range(COUNT))
    assert max(cut_counts) <= FRAMES_CUT_AT_ONCE + 1


def test_frames_before_one_out_of_bounds_are_answered() -> None:
    """However many: then the connection ends."""

    async def run() -> None:
        async with Shell({HEARTBEAT: lambda context, request: HeartbeatResponse()}) as shell:
            client = await shell.client()
            for number in range(3 * FRAMES_CUT_AT_ONCE):
                client.send(HEARTBEAT, 4, HeartbeatRequest("g", number, "m"))
            client.writer.write((-5).to_bytes(4, "big", signed=True))
            for _ in range(3 * FRAMES_CUT_AT_ONCE):
                await asyncio.wait_for(client.receive(HEARTBEAT, 4), PATIENCE_S)
            assert await asyncio.wait_for(client.is_ended(), PATIENCE_S)

    asyncio.run(run())
