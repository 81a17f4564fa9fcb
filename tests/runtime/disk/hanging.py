"""Calls to a real disk that give no answer until a test lets them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from millrace.runtime.disk import driven, posix
from millrace.runtime.disk.posix import PosixDisk
from millrace.wal.block.layout import RING_START

OPERATIONS = ("list", "open", "read")


class Hanging:
    """Calls wait until it answers."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.begun = 0

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def hung(*args: Any, **words: Any) -> Any:
            self.begun += 1
            self.answers.wait()
            return call(*args, **words)

        return hung


def hang(hanging: Hanging, monkeypatch: pytest.MonkeyPatch, operation: str) -> PosixDisk:
    if operation == "list":
        monkeypatch.setattr(posix, "_list_folder", hanging.before(posix._list_folder))
    elif operation == "open":
        return PosixDisk(open_fd=hanging.before(os.open))
    else:
        monkeypatch.setattr(driven, "read_block", hanging.before(driven.read_block))
    return PosixDisk()


async def make_log(path: str) -> None:
    file = await PosixDisk().open_block(path, 4 * RING_START, direct="never")
    await file.close()
