"""What a refused first start takes back of the folders that it made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.config import BrokerSettings, load
from millrace.broker.first_start import FirstStart
from millrace.runtime.disk import DiskFailed


class StubbornDisk:
    """Removes nothing, as one that is mounted read-only: not even what is not there. `made`: folders that are there by now."""

    def __init__(self, *made: str) -> None:
        self.made: tuple[str, ...] = ()
        self._made = made

    async def missing_folders(self, path: str) -> list[str]:
        parts = path.strip("/").split("/")
        folders = ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        return [folder for folder in folders if folder not in self.made]

    async def remove_folder(self, path: str) -> None:
        raise DiskFailed(path, "Read-only file system")


def refused_start(disk: Any) -> None:
    settings: BrokerSettings = load({}, data_dir="/d", machine_bytes=1 << 30).settings

    async def main() -> None:
        first = FirstStart(disk)
        await first.note(settings)
        disk.made = disk._made
        await first.take_back()

    asyncio.run(main())


def test_what_was_never_made_is_not_removed(caplog: pytest.LogCaptureFixture) -> None:
    """A start on a disk that is mounted read-only is refused in a sentence, and nothing follows that."""
    refused_start(StubbornDisk())
    assert caplog.messages == []


def test_what_cannot_be_removed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Without a trace, with the folder."""
    refused_start(StubbornDisk("/d"))
    (line,) = caplog.messages
    assert line.startswith("first start: a folder that this start made is left: /d: Read-only file system")
