"""Log files, small files, folders and locks: one contract for the real disk and the simulated one."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from millrace.runtime.disk import Disk, DiskFailed, DiskFull, DiskLocked
from millrace.runtime.disk import opening as disk_open
from millrace.runtime.disk.posix import PosixDisk
from millrace.runtime.errors import Closed
from tests.patience import PATIENCE_S, eventually, next_line
from tests.sim.disk import SimDisk

MakeDisk = Callable[[], Disk]
both = pytest.mark.parametrize("make", [PosixDisk, SimDisk], ids=["posix", "sim"])


@both
def test_a_log_file_is_what_was_appended(make: MakeDisk, tmp_path: Path) -> None:
    """Appends of many parts, a truncation, and another opening; reads at the end are short."""

    async def run() -> None:
        disk, path = make(), str(tmp_path / "log")
        log = await disk.open_log(path)
        assert log.size_bytes == 0
        await log.append([b"abc", bytearray(b"def"), memoryview(b"ghi"), b""])
        await log.append([bytes([number % 256]) for number in range(1500)])
        await log.sync()
        assert log.size_bytes == 1509
        assert await log.read_at(3, 3) == b"def"
        assert await log.read_at(1500, 100) == bytes([number % 256 for number in range(1491, 1500)])
        await log.truncate(5)
        await log.append([b"X"])
        await log.close()
        log = await disk.open_log(path)
        assert log.size_bytes == 6
        assert await log.read_at(0, 100) == b"abcdeX"
        await log.close()

    asyncio.run(run())


@both
def test_appends_keep_their_order_without_waiting(make: MakeDisk, tmp_path: Path) -> None:
    """Appends asked for together land in the order of the calls."""

    async def run() -> None:
        log = await make().open_log(str(tmp_path / "log"))
        parts = [b"%03d" % number for number in range(50)]
        await asyncio.gather(*(log.append([part]) for part in parts))
        assert await log.read_at(0, 1000) == b"".join(parts)
        await log.close()

    asyncio.run(run())


@both
def test_small_files_and_folders(make: MakeDisk, tmp_path: Path) -> None:
    """Writing replaces whole files; listing is sorted; removing twice and listing nothing are no errors."""

    async def run() -> None:
        disk, folder = make(), str(tmp_path / "a" / "b")
        assert await disk.list_folder(folder) == []
        await disk.make_folder(folder)
        await disk.make_folder(folder)
        assert await disk.read_file(folder + "/one") is None
        await disk.write_file(folder + "/one", b"1" * 100)
        await disk.write_file(folder + "/one", b"2")
        await disk.write_file(folder + "/three", b"3")
        await disk.rename(folder + "/three", folder + "/two")
        assert await disk.read_file(folder + "/one") == b"2"
        assert await disk.list_folder(folder) == ["one", "two"]
        await disk.remove(folder + "/one")
        await disk.remove(folder + "/one")
        assert await disk.list_folder(folder) == ["two"]
        with pytest.raises(DiskFailed):
            await disk.rename(folder + "/none", folder + "/x")

    asyncio.run(run())


@both
def test_reserved_room_is_real(make: MakeDisk, tmp_path: Path) -> None:
    """A reserved file has its size and can be given back; free room is told for paths that do not exist
    yet."""

    async def run() -> None:
        disk, path = make(), str(tmp_path / "reserve")
        missing = str(tmp_path / "not" / "yet")
        assert 1 << 20 < disk.free_bytes(missing) <= disk.total_bytes(missing)
        await disk.reserve(path, 1 << 20)
        data = await disk.read_file(path)
        assert data == bytes(1 << 20)
        await disk.remove(path)
        assert await disk.read_file(path) is None

    asyncio.run(run())


def test_reserved_blocks_are_allocated(tmp_path: Path) -> None:
    """On a real file system the reserve holds blocks, not a hole."""
    asyncio.run(PosixDisk().reserve(str(tmp_path / "reserve"), 1 << 20))
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 1 << 20


@both
def test_a_lock_is_held_by_one(make: MakeDisk, tmp_path: Path) -> None:
    """The second taker is refused with the path; after a release it may have the lock."""
    disk, path = make(), str(tmp_path / "lock")
    assert disk.lock_holder(path) == ""
    lock = disk.lock(path)
    with pytest.raises(DiskLocked) as refused:
        disk.lock(path)
    assert refused.value.path == path
    assert disk.lock_holder(path) == refused.value.holder != ""
    lock.release()
    lock.release()
    assert disk.lock_holder(path) == ""
    disk.lock(path).release()


def test_a_lock_holds_between_processes_and_dies_with_them(tmp_path: Path) -> None:
    """Another process's lock is refused with its pid, and free once it was killed."""
    path = str(tmp_path / "lock")
    script = (
        f"from millrace.runtime.disk.posix import PosixDisk; l = PosixDisk().lock({path!r}); "
        "print('held', flush=True); input()"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert next_line(holder.stdout) == b"held\n"
    with pytest.raises(DiskLocked) as refused:
        PosixDisk().lock(path)
    assert refused.value.holder == str(holder.pid)
    assert PosixDisk().lock_holder(path) == str(holder.pid)
    holder.kill()
    holder.communicate()
    assert PosixDisk().lock_holder(path) == ""
    PosixDisk().lock(path).release()


def test_a_lock_whose_file_is_removed_as_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder removes the file, as a start that takes back what it made does, between our opening it and
    the lock: the lock that we get keeps others out."""
    path, real = tmp_path / "lock", fcntl.flock
    holder = PosixDisk().lock(str(path))

    def flock(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        path.unlink()
        holder.release()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = PosixDisk().lock(str(path))
    with pytest.raises(DiskLocked):
        PosixDisk().lock(str(path))
    lock.release()


def opened_below(folder: Path) -> list[str]:
    """Paths in it that this process has open; how many descriptors it has in all changes with what is
    collected as garbage."""
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in paths if path.startswith(f"{folder}/")]


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [(("fcntl", "flock"), errno.ENOLCK, DiskFailed), (("os", "pwrite"), errno.ENOSPC, DiskFull)],
)
def test_a_lock_that_cannot_be_had(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: tuple[str, str],
    number: int,
    expected: type[Exception],
) -> None:
    """A file system without locks, a disk without room for a pid: refused with the path, and no file stays
    open."""

    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    path = str(tmp_path / "lock")
    with monkeypatch.context() as patch:
        patch.setattr(".".join(call), fail)
        with pytest.raises(expected, match=path):
            PosixDisk().lock(path)
    assert opened_below(tmp_path) == []
    PosixDisk().lock(path).release()


def test_a_pid_that_was_given_again_holds_nothing(tmp_path: Path) -> None:
    """The file names a process that lives and does not have it open; and looking takes and changes
    nothing."""
    path = tmp_path / "lock"
    assert PosixDisk().lock_holder(str(path)) == ""
    assert not path.exists()
    path.write_text(f"{os.getppid()}\n")
    assert PosixDisk().lock_holder(str(path)) == ""
    assert path.read_text() == f"{os.getppid()}\n"
    path.write_text("")
    assert PosixDisk().lock_holder(str(path)) == ""


def test_a_failed_write_is_terminal_for_a_log_file(tmp_path: Path) -> None:
    """After one failure every later write and sync is refused, for nobody knows what the kernel dropped."""

    async def run() -> None:
        log = await PosixDisk().open_log("/dev/full")
        with pytest.raises(Exception, match="No space"):
            await log.append([b"x"])
        with pytest.raises(DiskFailed):
            await log.sync()
        await log.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["block", "log"])
def test_opening_makes_the_name_durable_whoever_made_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be killed between making a file and syncing its folder: the next one, which finds the
    file, would lose it and all that it acknowledges in it with the power."""
    synced: list[str] = []
    monkeypatch.setattr(disk_open, "sync_folder", synced.append)

    async def run() -> None:
        path = str(tmp_path / kind)
        for _ in range(2):
            file = await (
                PosixDisk().open_block(path, 1 << 20) if kind == "block" else PosixDisk().open_log(path)
            )
            assert synced.pop() == str(tmp_path)
            await file.close()

    asyncio.run(run())


OPEN_AS_NOBODY = """
import asyncio, os, sys
from millrace.runtime.disk import DiskFailed
from millrace.runtime.disk.posix import PosixDisk

async def run():
    disk, folder = PosixDisk(driver="thread"), sys.argv[1]
    for opening in (disk.open_block(folder + "/block", 1 << 20), disk.open_log(folder + "/log")):
        await (await opening).close()  # as root: what is imported late can be read by nobody
    os.setresuid(65534, 65534, 65534)
    block, log, new = (f"{folder}/{name}" for name in ("block", "log", "new"))
    for opening in (disk.open_block(block, 1 << 20), disk.open_log(log), disk.open_log(new)):
        try:
            file = await opening
            print("opened", file.size_bytes)
            await file.close()
        except DiskFailed as error:
            print(error)

asyncio.run(run())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder of another user")
def test_a_file_in_a_folder_that_may_not_be_read_opens() -> None:
    """Its name is the folder's owner's business. A file that is made anew has to have a durable name."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own lie below one that others may not enter
        for name, size in (("block", 1 << 20), ("log", 3)):
            with open(f"{folder}/{name}", "wb") as file:
                file.truncate(size)
            os.chmod(f"{folder}/{name}", 0o666)
        os.chmod(folder, 0o733)
        done = subprocess.run(
            [sys.executable, "-c", OPEN_AS_NOBODY, folder],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        lines = done.stdout.splitlines()
        assert lines[:2] == ["opened 1048576", "opened 3"]
        assert "Permission denied" in lines[2]


def test_a_file_system_that_cannot_sync_folders_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EINVAL says that there is nothing to do; any other error that the name may be lost."""
    code = errno.EINVAL

    def refuse(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk_open.os, "fsync", refuse)
    disk_open.sync_folder(str(tmp_path))
    code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        disk_open.sync_folder(str(tmp_path))


@pytest.mark.parametrize("kind", ["block", "log"])
def test_an_opening_that_is_cancelled_keeps_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread goes on, and closes what it has opened: no descriptor is left, and no lock."""
    entered, go_on, real = threading.Event(), threading.Event(), disk_open.sync_folder

    def sync_late(path: str) -> None:
        entered.set()
        go_on.wait(PATIENCE_S)
        real(path)

    async def run() -> None:
        disk, path = PosixDisk(), str(tmp_path / kind)

        def opening() -> Coroutine[Any, Any, Any]:
            return disk.open_block(path, 1 << 20) if kind == "block" else disk.open_log(path)

        await (await opening()).close()
        monkeypatch.setattr(disk_open, "sync_folder", sync_late)
        task = asyncio.ensure_future(opening())
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await (await opening()).close()  # what was cancelled holds a lock until its thread is done
        # A log file has no lock, so nothing tells when the thread is done.
        await eventually(lambda: opened_below(tmp_path) == [])

    asyncio.run(run())


def test_a_log_file_is_closed_behind_what_was_asked_of_it(tmp_path: Path) -> None:
    """A thread goes on where whoever waits for it is cancelled. Were the file closed meanwhile it would write
    into whichever file has the descriptor's number next."""
    entered, never, done = threading.Event(), threading.Event(), list[str]()

    async def call(path: str, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            if work.__name__ == "_append":
                entered.set()
                never.wait(0.2)
            found = work(*args, **kwargs)
            done.append(work.__name__)
            return found

        return await asyncio.to_thread(run)

    async def main() -> None:
        path = str(tmp_path / "log")
        log = await PosixDisk(call=call).open_log(path)
        task = asyncio.ensure_future(log.append([b"record"]))
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await log.close()
        assert done == ["_open_log", "_append", "close"]
        for use in (log.read_at(0, 1), log.append([b"more"]), log.sync(), log.truncate(0)):
            with pytest.raises(Closed):
                await use
        await log.close()

    asyncio.run(main())
    assert (tmp_path / "log").read_bytes() == b"record"


def test_a_close_that_is_cancelled_is_waited_for_by_the_next(tmp_path: Path) -> None:
    """Whoever closes knows on return that nothing of the file is under way."""
    entered, done = threading.Event(), list[str]()

    async def call(path: str, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            if work.__name__ == "close":
                entered.set()
                threading.Event().wait(0.2)
            found = work(*args, **kwargs)
            done.append(work.__name__)
            return found

        return await asyncio.to_thread(run)

    async def main() -> None:
        log = await PosixDisk(call=call).open_log(str(tmp_path / "log"))
        task = asyncio.ensure_future(log.close())
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await log.close()
        assert done == ["_open_log", "close"]

    asyncio.run(main())
