"""Block files on a real file system, by both drivers, and what happens where direct I/O or room is not to be
had."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millrace.runtime.disk import DiskFailed, DiskFull, DiskLocked
from millrace.runtime.disk import opening as disk_open
from millrace.runtime.disk.aligned import Arena
from millrace.runtime.disk.opening import DirectRefused, open_block_descriptor
from millrace.runtime.disk.posix import PosixDisk
from millrace.runtime.disk.uring import Uring
from millrace.runtime.errors import Closed, Unavailable
from millrace.runtime.scheduling.yield_queue import DurableWrites
from tests.patience import PATIENCE_S, eventually, next_line

KIB = 1024
MIB = 1024 * KIB


def uring_works() -> bool:
    from millrace.runtime.disk.uring import Uring, UringRefused

    try:
        Uring(4).close()
    except UringRefused:
        return False
    return True


DRIVERS = [
    "thread",
    pytest.param("uring", marks=pytest.mark.skipif(not uring_works(), reason="io_uring is not allowed here")),
]
drivers = pytest.mark.parametrize("driver", DRIVERS)


@drivers
@pytest.mark.parametrize("direct", ["prefer", "never"])
def test_what_is_written_is_read(driver: str, direct: str, tmp_path: Path) -> None:
    """A hundred writes of several sizes under way at once all land where they belong."""

    async def run() -> None:
        path = str(tmp_path / "block")
        file = await PosixDisk(driver=driver).open_block(path, 4 * MIB, direct=direct)
        assert file.size_bytes == 4 * MIB
        assert await file.read_at(4 * MIB - 4096, 4096) == bytes(4096)
        view = Arena(MIB).view
        for number in range(100):
            view[number * 8192 : number * 8192 + 8192] = b"%08d" % number * 1024
        writes = [
            file.write_at(number * 8192, view[number * 8192 : number * 8192 + 8192]) for number in range(100)
        ]
        await asyncio.gather(*writes)
        for number in range(100):
            assert await file.read_at(number * 8192, 8192) == b"%08d" % number * 1024
        await file.close()
        await file.close()
        with pytest.raises(Closed):
            file.write_at(0, view[:4096])
        data = (tmp_path / "block").read_bytes()
        assert len(data) == 4 * MIB
        assert data[: 100 * 8192] == b"".join(b"%08d" % number * 1024 for number in range(100))

    asyncio.run(run())


@drivers
def test_a_close_that_is_cancelled_goes_on(driver: str, tmp_path: Path) -> None:
    """What was asked for ends as ever, nothing escapes into the loop, and the file is free then."""

    async def run() -> None:
        escaped: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: escaped.append(context))
        path = str(tmp_path / "block")
        file = await PosixDisk(driver=driver).open_block(path, 4 * MIB)
        write = file.write_at(0, Arena(MIB).view[:MIB])
        closing = asyncio.ensure_future(file.close())
        await asyncio.sleep(0)  # the write is under way, unless the system gave this process no turn
        closing.cancel()
        await asyncio.wait([closing])
        await write
        await file.close()
        assert not escaped
        await (await PosixDisk(driver=driver).open_block(path, 4 * MIB)).close()

    asyncio.run(run())


@drivers
def test_a_close_that_ends_with_all_tasks_lets_writes_end(driver: str, tmp_path: Path) -> None:
    """As where a loop ends, which cancels them, and turns a few times more: nothing escapes into it."""

    async def run() -> None:
        loop, escaped = asyncio.get_running_loop(), list[object]()
        loop.set_exception_handler(lambda loop, context: escaped.append(context))
        file = await PosixDisk(driver=driver).open_block(str(tmp_path / "block"), 4 * MIB)
        view = Arena(4 * MIB).view
        writes = [file.write_at(0, view[: 4 * MIB]) for _ in range(16)]
        closing = asyncio.ensure_future(file.close())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait([closing])
        await asyncio.gather(*writes)
        await asyncio.sleep(0)
        assert not escaped

    asyncio.run(run())


@drivers
def test_a_file_is_closed_while_the_system_gives_no_thread(
    driver: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What needs one says so, nothing is left locked, and all goes on once there are threads again."""
    path, start = str(tmp_path / "block"), threading.Thread.start
    refused = ["block-call", "block-writer"]

    def start_some(thread: threading.Thread) -> None:
        if thread.name in refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def run() -> None:
        disk = PosixDisk(driver=driver)
        file = await disk.open_block(path, 4 * MIB)
        write = file.write_at(0, Arena(MIB).view[:MIB])
        monkeypatch.setattr(threading.Thread, "start", start_some)
        for call in (file.read_at(0, 4096), disk.open_block(path, 4 * MIB), disk.list_folder(path)):
            with pytest.raises(Unavailable, match="no thread"):
                await call
        await file.close()
        await write
        refused.remove("block-call")
        if driver == "thread":
            with pytest.raises(Unavailable, match="no thread"):
                await disk.open_block(path, 4 * MIB)
        refused.clear()
        await (await disk.open_block(path, 4 * MIB)).close()

    asyncio.run(run())


@drivers
@pytest.mark.parametrize(("content", "is_new"), [(None, True), (b"", True), (bytes(8192), False)])
def test_who_made_a_file_knows_that_it_is_empty(
    driver: str, content: bytes | None, is_new: bool, tmp_path: Path
) -> None:
    """It need not look; who finds one looks at it, and so at the second opening."""

    async def run() -> None:
        path = tmp_path / "block"
        if content is not None:
            path.write_bytes(content)
        for expected in (is_new, False):
            file = await PosixDisk(driver=driver).open_block(str(path), 8192)
            assert (file.is_new, await file.read_at(0, 8192)) == (expected, bytes(8192))
            await file.close()

    asyncio.run(run())


@drivers
def test_a_driver_keeps_no_view_of_a_finished_write(driver: str, tmp_path: Path) -> None:
    """Once a write has completed its memory can be seen free."""

    async def run() -> None:
        file = await PosixDisk(driver=driver).open_block(str(tmp_path / "block"), MIB)
        arena = Arena(64 * KIB)
        for _ in range(3):
            await file.write_at(0, arena.view[:4096])
        await eventually(lambda: not arena.is_viewed())
        await file.close()

    asyncio.run(run())


@drivers
def test_closing_waits_for_writes(driver: str, tmp_path: Path) -> None:
    """Writes that were asked for before a close are done when it returns."""

    async def run() -> None:
        file = await PosixDisk(driver=driver).open_block(str(tmp_path / "block"), 4 * MIB)
        view = Arena(MIB).view
        writes = [file.write_at(number * MIB, view) for number in range(4)]
        await file.close()
        assert all(write.done() and write.exception() is None for write in writes)

    asyncio.run(run())


@drivers
def test_closing_waits_for_what_nobody_waits_for_any_more(
    driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A growth that is cancelled goes on in its thread: until it has ended the descriptor is not given to
    another file, which it would cut."""

    def reserve_slowly(fd: int, start: int, length: int) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)
        raise OSError(errno.ENOSPC, "No space left on device")

    begun, go_on = threading.Event(), threading.Event()

    async def run() -> None:
        file = await PosixDisk(driver=driver).open_block(str(tmp_path / "log"), MIB)
        monkeypatch.setattr(os, "posix_fallocate", reserve_slowly)
        growing = asyncio.ensure_future(file.resize(8 * MIB))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        growing.cancel()
        closing = asyncio.ensure_future(file.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        other = tmp_path / "other"
        other.write_bytes(bytes(3 * MIB))
        with other.open("rb+"):
            go_on.set()
            await closing
        assert other.stat().st_size == 3 * MIB
        assert (tmp_path / "log").stat().st_size == MIB

    asyncio.run(run())


@drivers
def test_nothing_is_begun_behind_a_close(driver: str, tmp_path: Path) -> None:
    """A read that was asked for, and had not begun: another file has the descriptor's number by then."""

    async def run() -> None:
        file = await PosixDisk(driver=driver).open_block(str(tmp_path / "block"), MIB)
        reading = asyncio.ensure_future(file.read_at(0, 4096))
        await file.close()
        with pytest.raises(Closed):
            await reading
        with (tmp_path / "other").open("wb+") as other:
            other.write(bytes(2 * MIB))
            with pytest.raises(Closed):
                await file.read_at(0, 4096)
            with pytest.raises(Closed):
                await file.resize(4096)
            other.flush()
            assert os.fstat(other.fileno()).st_size == 2 * MIB

    asyncio.run(run())


@drivers
def test_more_writes_than_the_queue_holds(driver: str, tmp_path: Path) -> None:
    """Three hundred writes at once are all done, in whatever order."""

    async def run() -> None:
        file = await PosixDisk(driver=driver).open_block(str(tmp_path / "block"), 2 * MIB)
        view = Arena(4096).view
        view[:] = b"y" * 4096
        await asyncio.gather(*(file.write_at(number * 4096, view) for number in range(300)))
        assert await file.read_at(0, 300 * 4096) == b"y" * (300 * 4096)
        await file.close()

    asyncio.run(run())


@drivers
def test_a_read_that_follows_a_write_sees_it(driver: str, tmp_path: Path) -> None:
    """Three hundred pairs at once, more than the queue holds: each read begins when its own write has
    ended."""

    async def run() -> None:
        file = await PosixDisk(driver=driver).open_block(str(tmp_path / "block"), 2 * MIB)
        views, into = Arena(300 * 4096).view, Arena(300 * 4096).view
        for number in range(300):
            views[number * 4096 : number * 4096 + 4096] = b"%04d" % number * 1024

        def pair(number: int) -> asyncio.Future[DiskFailed | None]:
            place = slice(number * 4096, number * 4096 + 4096)
            return file.write_then_read(number * 4096, views[place], number * 4096, into[place])

        assert await asyncio.gather(*(pair(number) for number in range(300))) == [None] * 300
        assert into == views
        await file.close()

    asyncio.run(run())


@drivers
def test_a_write_and_its_read_fail_apart(driver: str, tmp_path: Path) -> None:
    """A write that fails is the pair's failure, and nothing is read; a read that fails leaves the write
    done."""

    async def run() -> None:
        file = await PosixDisk(driver=driver).open_block(str(tmp_path / "block"), MIB)
        view, into = Arena(8192).view, Arena(4096).view
        view[:4096] = b"z" * 4096
        with pytest.raises(DiskFailed):
            await file.write_then_read(512 * 1024, view[100:4196], 0, into)  # not aligned
        unread = await file.write_then_read(4096, view[:4096], MIB, into)  # beyond the end
        assert isinstance(unread, DiskFailed)
        assert await file.read_at(4096, 4096) == b"z" * 4096
        assert bytes(into) == bytes(4096)
        await file.close()

    asyncio.run(run())


@pytest.mark.skipif(not uring_works(), reason="io_uring is not allowed here")
def test_a_kernel_that_takes_the_write_alone_is_asked_for_the_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be short of memory between the two; a read that is not linked must wait for the write."""
    from millrace.runtime.disk.uring import Uring

    def alone(
        ring: Uring, fd: int, write: tuple[int, int, int, int], read: tuple[int, int, int, int]
    ) -> bool:
        ring.write(fd, *write)
        return False

    monkeypatch.setattr(Uring, "write_then_read", alone)

    async def run() -> None:
        file = await PosixDisk(driver="uring").open_block(str(tmp_path / "block"), MIB)
        view, into = Arena(4096).view, Arena(4096).view
        for number in range(50):
            view[:] = b"%04d" % number * 1024
            assert await file.write_then_read(8192, view, 8192, into) is None
            assert into == view
        await file.close()

    asyncio.run(run())


def test_a_file_that_may_be_shared_is_opened_beside_its_owner(tmp_path: Path) -> None:
    """And it is told that somebody else has it. Who does not say so is refused as before."""

    async def run() -> None:
        path = str(tmp_path / "block")
        first = await PosixDisk().open_block(path, MIB, is_shared=True)
        second = await PosixDisk().open_block(path, MIB, is_shared=True)
        assert (first.is_exclusive, second.is_exclusive) == (True, False)
        with pytest.raises(DiskLocked):
            await PosixDisk().open_block(path, MIB)
        await second.close()
        await first.close()
        third = await PosixDisk().open_block(path, MIB)
        assert third.is_exclusive
        await third.close()

    asyncio.run(run())


@drivers
def test_it_is_known_what_is_being_written(driver: str, tmp_path: Path) -> None:
    """Writes are counted from their submission to their end, failed ones too."""

    async def run() -> None:
        counted, view = DurableWrites(), Arena(8192).view
        file = await PosixDisk(driver=driver, writes=counted).open_block(str(tmp_path / "block"), MIB)
        writes = [file.write_at(0, view), file.write_at(8192, view), file.write_at(0, view[:1000])]
        assert counted.in_flight_count == 3
        await asyncio.gather(*writes, return_exceptions=True)
        assert counted.in_flight_count == 0
        last = file.write_at(0, view)
        await file.close()
        assert last.done()
        assert counted.in_flight_count == 0

    asyncio.run(run())


@pytest.mark.skipif(not uring_works(), reason="io_uring is not allowed here")
def test_a_write_that_nobody_waits_for_may_be_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stands in line for the queue is cancelled, then the kernel takes no more: nothing escapes into
    the loop."""
    escaped: list[object] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: escaped.append(context))
        counted, view = DurableWrites(), Arena(4096).view
        file = await PosixDisk(driver="uring", writes=counted).open_block(str(tmp_path / "block"), MIB)
        writes = [file.write_at(0, view) for _ in range(300)]
        writes[-1].cancel()

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOMEM, "no memory")

        monkeypatch.setattr(Uring, "write", refuse)
        found = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(result) for result in found} == {type(None), DiskFailed, asyncio.CancelledError}
        assert counted.in_flight_count == 0
        await file.close()

    asyncio.run(run())
    assert not escaped


@drivers
def test_a_failed_write_says_so(driver: str, tmp_path: Path) -> None:
    """A write that the kernel refuses comes back as DiskFailed with the reason; a later one still works."""

    async def run() -> None:
        file = await PosixDisk(driver=driver).open_block(str(tmp_path / "block"), MIB)
        if not file.is_direct:
            pytest.skip("needs direct I/O to be refused an odd length")
        view = Arena(8192).view
        with pytest.raises(DiskFailed, match="Invalid argument"):
            await file.write_at(0, view[:1000])
        await file.write_at(0, view[:4096])
        await file.close()

    asyncio.run(run())


@drivers
def test_resize(driver: str, tmp_path: Path) -> None:
    """A file grows with zeros in real blocks, and shrinks."""

    async def run() -> None:
        path = tmp_path / "block"
        file = await PosixDisk(driver=driver).open_block(str(path), MIB)
        await file.resize(2 * MIB)
        assert file.size_bytes == path.stat().st_size == 2 * MIB
        assert path.stat().st_blocks * 512 >= 2 * MIB
        assert await file.read_at(2 * MIB - 4096, 4096) == bytes(4096)
        await file.resize(64 * KIB)
        assert path.stat().st_size == 64 * KIB
        await file.close()

    asyncio.run(run())


def test_space_is_reserved_at_open(tmp_path: Path) -> None:
    """A new file holds its blocks from the start, and an existing one keeps its size."""

    async def run() -> None:
        path = tmp_path / "block"
        disk = PosixDisk()
        await (await disk.open_block(str(path), MIB)).close()
        assert path.stat().st_blocks * 512 >= MIB
        file = await disk.open_block(str(path), 8 * MIB)
        assert file.size_bytes == MIB
        await file.close()

    asyncio.run(run())


def refuse_direct(path: str, flags: int, mode: int) -> int:
    """os.open on a file system that knows no direct I/O."""
    if flags & getattr(os, "O_DIRECT", 0):
        raise OSError(errno.EINVAL, "Invalid argument", path)
    return os.open(path, flags, mode)


@drivers
def test_without_direct_io_writes_are_synchronous(driver: str, tmp_path: Path) -> None:
    """EINVAL for the flag: `prefer` goes on through the page cache and says so, `require` refuses."""

    async def run() -> None:
        disk = PosixDisk(driver=driver, open_fd=refuse_direct)
        with pytest.raises(DirectRefused):
            await disk.open_block(str(tmp_path / "block"), MIB, direct="require")
        file = await disk.open_block(str(tmp_path / "block"), MIB)
        assert not file.is_direct
        view = Arena(4096).view
        view[:3] = b"abc"
        await file.write_at(4096, view)
        assert (await file.read_at(4096, 4096))[:3] == b"abc"
        await file.close()

    asyncio.run(run())


def test_synchronous_writes_either_way(tmp_path: Path) -> None:
    """Direct or not, the descriptor has the flag that makes a returned write durable."""
    import fcntl

    for direct in ("prefer", "never"):
        descriptor = open_block_descriptor(str(tmp_path / "block"), MIB, direct)
        assert fcntl.fcntl(descriptor.fd, fcntl.F_GETFL) & os.O_DSYNC == os.O_DSYNC
        os.close(descriptor.fd)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs tmpfs")
def test_memory_is_not_a_device() -> None:
    """tmpfs takes O_DIRECT and is memory all the same: not direct, and refused where direct is required."""

    async def run() -> None:
        path = f"/dev/shm/millrace-test-{os.getpid()}"
        try:
            file = await PosixDisk().open_block(path, MIB)
            assert not file.is_direct
            await file.close()
            with pytest.raises(DirectRefused):
                await PosixDisk().open_block(path, MIB, direct="require")
        finally:
            os.unlink(path)

    asyncio.run(run())


def test_a_block_file_is_for_one_process(tmp_path: Path) -> None:
    """While one process has the file open another is refused, and not once the first was killed."""
    path = str(tmp_path / "block")
    script = f"""
import asyncio
from millrace.runtime.disk.posix import PosixDisk
async def run():
    file = await PosixDisk().open_block({path!r}, 1 << 20)
    print("held", flush=True)
    await asyncio.sleep(60)
asyncio.run(run())
"""
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert next_line(holder.stdout) == b"held\n"

    async def run() -> None:
        with pytest.raises(DiskLocked):
            await PosixDisk().open_block(path, MIB)
        holder.kill()
        holder.communicate()
        await (await PosixDisk().open_block(path, MIB)).close()

    asyncio.run(run())


FULL = """
import asyncio, os, sys
from millrace.runtime.disk import DiskFull
from millrace.runtime.disk.posix import PosixDisk
async def run():
    disk = PosixDisk()
    await disk.open_block("/mnt/small", 512 * 1024)
    for attempt in (disk.open_block("/mnt/block", 8 << 20), disk.reserve("/mnt/reserve", 8 << 20),
                    disk.write_file("/mnt/file", bytes(8 << 20))):
        try:
            await attempt
        except DiskFull as full:
            print("full", full.wanted_bytes, 0 <= full.free_bytes <= 1 << 20)
    print(os.path.exists("/mnt/block"))
asyncio.run(run())
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_full_disk_is_known_at_open() -> None:
    """On a file system without room, opening, reserving and writing raise DiskFull with what was wanted
    (where one call wants it) and what is free, and no stump of a block file stays."""
    command = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none /mnt && exec "$@"', "sh"]
    done = subprocess.run([*command, sys.executable, "-c", FULL], capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(done.stderr)
    wanted = 8 << 20
    assert done.stdout.splitlines() == [
        f"full {wanted} True",
        f"full {wanted} True",
        "full 0 True",
        "False",
    ], done.stderr


def test_what_could_not_grow_gives_back_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems leave what they reserved before the disk was full, and that is then all that the disk
    had."""

    def reserve_a_part(fd: int, start: int, length: int) -> None:
        os.ftruncate(fd, start + length // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    async def run() -> None:
        path = str(tmp_path / "log")
        file = await PosixDisk().open_block(path, MIB)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", reserve_a_part)
            with pytest.raises(DiskFull):
                await file.resize(8 * MIB)
        assert (file.size_bytes, os.path.getsize(path)) == (MIB, MIB)
        await file.resize(2 * MIB)
        assert os.path.getsize(path) == 2 * MIB
        await file.close()

    asyncio.run(run())


def test_what_is_no_file_is_refused_and_stays(tmp_path: Path) -> None:
    """A pipe, and what a link to /dev/null names: a start as root that was refused used to remove it, as a
    file that it could not make."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    for path in (pipe, link):
        with pytest.raises(DiskFailed, match="neither a file nor a block device"):
            open_block_descriptor(str(path), MIB, "prefer")
        assert path.exists()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_without_room_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    path = tmp_path / "wal"
    if is_there:
        path.touch()

    def refuse(fd: int, start: int, length: int) -> None:
        os.ftruncate(fd, length)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_open.os, "posix_fallocate", refuse)
    with pytest.raises(DiskFull):
        open_block_descriptor(str(path), MIB, "never")
    assert path.exists() == is_there
    assert not is_there or path.stat().st_size == 0


def test_a_link_that_names_nothing_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that it names is made, and its own folder synced; or, where there is no room, taken back, and
    the link stays."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "wal"
    link.symlink_to(elsewhere / "log")
    synced: list[str] = []
    monkeypatch.setattr(disk_open, "sync_folder", synced.append)

    def refuse(fd: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(disk_open.os, "posix_fallocate", refuse)
        with pytest.raises(DiskFull):
            open_block_descriptor(str(link), MIB, "never")
    assert (link.is_symlink(), list(elsewhere.iterdir()), synced) == (True, [], [])
    os.close(open_block_descriptor(str(link), MIB, "never").fd)
    assert (link.is_symlink(), (elsewhere / "log").stat().st_size, synced) == (True, MIB, [str(elsewhere)])


def test_the_fallback_is_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel refuses io_uring the thread takes over without a word to the caller."""
    from millrace.runtime.disk import uring
    from millrace.runtime.disk.thread import ThreadBlockFile

    async def run() -> None:
        monkeypatch.setattr(uring, "_SETUP", 100_000)  # a system call that no kernel has
        file = await PosixDisk().open_block(str(tmp_path / "block"), MIB)
        assert isinstance(file, ThreadBlockFile)
        await file.write_at(0, Arena(4096).view)
        await file.close()
        with pytest.raises(DiskFailed):
            await PosixDisk(driver="uring").open_block(str(tmp_path / "block"), MIB)

    asyncio.run(run())
