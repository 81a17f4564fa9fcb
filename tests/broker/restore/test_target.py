"""What a restore that comes to nothing leaves of its log directory: what was there before."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from millrace.broker.__main__ import main
from millrace.broker.restore.target import RestoreTarget
from millrace.kraft.log.log_store import FOLDER
from millrace.kraft.log.restored_log import UNFINISHED
from millrace.kraft.node import LOCK_FILE
from millrace.runtime.disk import DiskLocked
from millrace.runtime.disk.posix import PosixDisk, PosixLock


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def test_a_refused_restore_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No marker in the bucket: refused in a sentence, without the folders and the lock's file that it needed
    for that."""
    (tmp_path / "objects").mkdir()
    words = ["restore", "--from", f"file://{tmp_path}/objects", "--data-dir", f"{tmp_path}/no/such"]
    assert main(words) == 2
    assert "not restored" in capsys.readouterr().err
    assert tree(tmp_path) == ["objects"]
    os.makedirs(tmp_path / "no" / "such" / "metadata")
    assert main(words) == 2
    assert tree(tmp_path) == ["no", "no/such", "no/such/metadata", "objects"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), ()),
        (("mine", LOCK_FILE), ()),
        ((f"{FOLDER}/0.log",), ()),
        ((UNFINISHED, f"{FOLDER}/0.log"), (f"{FOLDER}/1.log",)),
    ],
)
def test_what_was_there_stays(tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Whatever was written meanwhile goes, but into what an earlier restore began: that says itself that it
    is unfinished."""
    folder = tmp_path / "log"
    make(folder, *before)
    was = tree(folder)

    async def main() -> None:
        target = RestoreTarget(PosixDisk(), str(folder))
        await target.take()
        with pytest.raises(DiskLocked):
            await RestoreTarget(PosixDisk(), str(folder)).take()
        make(folder, "known", *after)
        await target.close()

    asyncio.run(main())
    assert tree(folder) == sorted([*was, *after])


class SlowLocks(PosixDisk):
    """Whose lock is asked for when another process has come and gone."""

    def lock(self, path: str) -> PosixLock:
        make(Path(path).parent, "meta.properties", f"{FOLDER}/0.log")
        return super().lock(path)


def test_what_another_process_left_meanwhile_stays(tmp_path: Path) -> None:
    """Another restore of the same directory ends between our first look and our lock: what it made is not
    taken back as ours."""

    async def main() -> None:
        target = RestoreTarget(SlowLocks(), str(tmp_path))
        await target.take()
        await target.close()

    asyncio.run(main())
    assert tree(tmp_path) == sorted([FOLDER, f"{FOLDER}/0.log", "meta.properties"])


def test_an_interrupt_behind_the_last_step(tmp_path: Path) -> None:
    """A restore of what an earlier one began, interrupted when the log is whole and says so: it stays
    whole."""
    make(tmp_path, UNFINISHED, f"{FOLDER}/0.log", LOCK_FILE)

    async def main() -> None:
        target = RestoreTarget(PosixDisk(), str(tmp_path))
        await target.take()
        make(tmp_path, "meta.properties")
        (tmp_path / UNFINISHED).unlink()
        await target.close()

    asyncio.run(main())
    assert "meta.properties" in tree(tmp_path)


def test_a_begun_log_goes(tmp_path: Path) -> None:
    """The disk filled up under it: its segments go too, and the folder that was empty stays."""
    folder = tmp_path / "log"
    (folder / FOLDER).mkdir(parents=True)

    async def main() -> None:
        target = RestoreTarget(PosixDisk(), str(folder))
        await target.take()
        make(folder, UNFINISHED, f"{FOLDER}/0.log", "known")
        await target.close()

    asyncio.run(main())
    assert tree(folder) == [FOLDER]


def test_a_restored_log_stays(tmp_path: Path) -> None:
    """With its folders."""

    async def main() -> None:
        target = RestoreTarget(PosixDisk(), f"{tmp_path}/a/log")
        await target.take()
        make(tmp_path / "a" / "log", "meta.properties")
        target.keep()
        await target.close()

    asyncio.run(main())
    assert "a/log/meta.properties" in tree(tmp_path)
