"""What a refused first start takes back of the folders that it made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millrace.broker.app import Broker
from millrace.broker.config import BrokerSettings, load
from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.first_start import FirstStart
from millrace.runtime.disk import DiskFailed, DiskLock
from tests.sim import asking
from tests.sim.disk import SimDisk
from tests.sim.loop import Life, SimLoop, run_simulation
from tests.sim.node import SimNode
from tests.sim.settings import WAL_FILE
from tests.sim.world import World


class StubbornDisk:
    """Removes nothing, as one that is mounted read-only: not even what is not there. `made`: folders that are
    there by now."""

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


def refused_behind(
    at_lock: Callable[[SimDisk, dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that is refused, of which `at_lock` changes the disk as it locks the log directory; given the
    files of a node that was killed."""
    lock = SimDisk.lock

    async def main(loop: SimLoop) -> None:
        world = World(loop, "before")
        before = SimNode(world)
        await before.start()
        await asking.create_topic(world.client("client", before.address), "kept", 1, {})
        before.kill()
        left = {path: file for path, file in before.disk.files.items() if path != WAL_FILE}
        node = SimNode(World(loop, "after"))
        node.disk.files |= left if at_lock is take_away else {}

        def late(disk: SimDisk, path: str) -> DiskLock:
            at_lock(disk, left)
            return lock(disk, path)

        monkeypatch.setattr(SimDisk, "lock", late)
        broker = Broker(node.settings, node._runtime(Life("late")))
        with pytest.raises(BindingRefused):
            await broker.start()
        await broker.stop()
        assert node.disk.files.keys() == (set() if at_lock is take_away else left.keys())

    run_simulation(main)


def bring(disk: SimDisk, left: dict[str, Any]) -> None:
    disk.files |= left


def take_away(disk: SimDisk, left: dict[str, Any]) -> None:
    for path in left:
        disk.files.pop(path, None)


def test_a_log_that_another_start_made_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our first look at the log directory and our lock on it: what this start did not make it does
    not take back."""
    refused_behind(bring, monkeypatch)


def test_no_cluster_where_another_start_took_its_log_back_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a first start is to look at was not looked at: refused, with nothing left."""
    refused_behind(take_away, monkeypatch)
