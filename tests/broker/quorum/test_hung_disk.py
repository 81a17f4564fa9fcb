"""A log on a real disk that gives no answer, as whoever looks at it for a recovery has it: in threads that
nobody can call off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millrace.broker.quorum.attempts import Attempts
from millrace.broker.quorum.log_recovery import LogUnreachable
from millrace.runtime.disk.posix import PosixDisk
from millrace.runtime.disk.watched import DiskWatch, watched
from millrace.wal.block import device
from tests.patience import eventually
from tests.runtime.disk.hanging import OPERATIONS, Hanging, hang, make_log

HUNG = 2


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_look_that_hangs_is_left_behind_and_gives_back_what_it_has(
    operation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Cancelled where it took too long, and once more as the device is found to hang: no thread more is spent
    on that log, and its lock is free once the device has answered."""
    path, hanging = str(tmp_path / "wal"), Hanging()

    async def main() -> None:
        await make_log(path)
        disk, watch, attempts = hang(hanging, monkeypatch, operation), DiskWatch(), Attempts()
        is_hung = False

        async def look() -> None:
            try:
                await device.identify(watched(disk, watch), path)
            except asyncio.CancelledError:
                raise LogUnreachable("it takes too long") from None

        looking = asyncio.ensure_future(look())
        made = asyncio.ensure_future(
            attempts.make(HUNG, _as_asked(looking), lambda: "no answer" if is_hung else "", watch)
        )
        await eventually(lambda: hanging.begun == 1)
        looking.cancel()
        await asyncio.sleep(0)  # it is cancelled, and what it has is being given back
        is_hung = True
        with pytest.raises(LogUnreachable, match=r"no answer|too long"):
            await made
        for _ in range(3):
            with pytest.raises(LogUnreachable, match="an attempt of before waits"):
                await attempts.make(HUNG, device.identify(disk, path), str, watch)
        assert hanging.begun == 1
        hanging.answers.set()
        await eventually(lambda: not watch.is_waiting)
        await asyncio.sleep(0.01)  # and who waited for that is told
        assert await attempts.make(HUNG, _opened(path), str, watch)

    asyncio.run(main())


async def _as_asked(task: asyncio.Task[None]) -> None:
    await task


async def _opened(path: str) -> bool:
    file = await PosixDisk().open_block(path, 0)
    await file.close()
    return file.is_exclusive
