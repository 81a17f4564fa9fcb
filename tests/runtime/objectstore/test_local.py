"""The directory store keeps the contract, and what it says of durability: order of syncs, failures, sweeping
after a crash."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millrace.kraft.config import ControllerSettings
from millrace.runtime.clock import SystemClock
from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Closed
from millrace.runtime.objectstore import (
    BytesChanged,
    FolderDenied,
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    StoreFull,
    StoreUnavailable,
    data_store_of,
)
from millrace.runtime.objectstore.address import open_store, parse_address
from millrace.runtime.objectstore.folder import (
    KEPT_FREE_BYTES,
    KEPT_FROM_SMALL_BYTES,
    SMALL_BYTES_MAX,
    ObjectFolder,
)
from millrace.runtime.objectstore.folder_write import STAGE_BYTES
from millrace.runtime.objectstore.local import LocalObjectStore
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import DurableWrites
from tests.runtime.objectstore.contract import ObjectStoreContract, keys_of


class TestLocalObjectStore(ObjectStoreContract):
    has_upload_list = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.root = tmp_path / "objects"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ObjectStore]:
        store = await LocalObjectStore.open(str(self.root))
        yield store
        await store.close()


@pytest.mark.parametrize("size_bytes", [1000, 3 << 20])
@pytest.mark.parametrize("verb", ["put", "put_if_absent", "part"])
def test_a_buffer_that_changes_between_two_attempts_is_not_written(
    tmp_path: Path, verb: str, size_bytes: int
) -> None:
    """The disk fails once and the buffer changes: the repeat is refused by key, small or large, and no object
    is there."""
    buffer = bytearray(size_bytes)

    async def main() -> None:
        calls = WatchedCalls(tmp_path)
        local = await LocalObjectStore.open(str(tmp_path), calls)
        store = RetryingObjectStore(
            local, Rand(b"local"), RetryPolicy(3, 1, 1), lambda *told: buffer.__setitem__(size_bytes - 1, 1)
        )
        upload = await store.start_multipart("k") if verb == "part" else None
        calls.fail("pwritev", errno.EIO)
        call = upload.put_part([buffer]) if upload is not None else getattr(store, verb)("k", [buffer])
        with pytest.raises(BytesChanged, match="k: "):
            await call
        assert calls.failures["pwritev"] == []
        assert await keys_of(local) == []
        if upload is not None:
            await upload.abort()
        await store.close()

    asyncio.run(main())


class WatchedCalls:
    """The system's calls, noted by name and file, and failing where a test says so."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: list[str] = []
        self.failures: dict[str, list[int]] = {}  # call -> errno of the next ones; 0 lets one pass
        self.piece_bytes = 1000
        self.free_bytes: int | None = None  # of the file system; None: as it is

    def fail(self, call: str, *errnos: int) -> None:
        self.failures[call] = list(errnos)

    def open(self, path: str, flags: int, /) -> int:
        self._note("open", path)
        return os.open(path, flags)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int, /) -> int:
        self._note("pwritev", fd)
        return os.pwritev(
            fd, [buffers[0][: self.piece_bytes]], offset
        )  # a short write, as the system may give

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int, /) -> int:
        """As a system that gives less than it was asked for."""
        self._note("preadv", fd)
        return os.preadv(fd, [buffers[0][:1000]], offset)

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        self._note("pread", fd)
        return os.pread(fd, min(length, 1000), offset)

    def fsync(self, fd: int, /) -> None:
        self._note("fsync", fd)
        os.fsync(fd)

    def rename(self, source: str, target: str, /) -> None:
        self._note("rename", target)
        os.rename(source, target)

    def link(self, source: str, target: str, /) -> None:
        self._note("link", target)
        os.link(source, target)

    def fstatvfs(self, fd: int, /) -> os.statvfs_result:
        found = list(os.fstatvfs(fd))
        if self.free_bytes is not None:
            found[1], found[4] = 1, self.free_bytes  # f_frsize, f_bavail
        return os.statvfs_result(found)

    def _note(self, call: str, file: int | str) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file)
        name = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else "above"
        self.seen.append(f"{call} {'new file' if name.startswith('.new/') else name}")
        code = self.failures.get(call, [0]).pop(0) if self.failures.get(call) else 0
        if code:
            raise OSError(code, os.strerror(code))


def run(root: Path, test: Callable[[LocalObjectStore, WatchedCalls], Awaitable[None]]) -> None:
    async def main() -> None:
        calls = WatchedCalls(root)
        store = await LocalObjectStore.open(str(root), calls)
        calls.seen.clear()
        try:
            await test(store, calls)
        finally:
            await store.close()

    asyncio.run(main())


def test_objects_leave_room_for_metadata(tmp_path: Path) -> None:
    """A put of data that would take the last of the disk is refused before it writes, alone or beside others;
    a smaller one passes, and so does the same one once there is room."""

    async def test(plain: LocalObjectStore, calls: WatchedCalls) -> None:
        store = data_store_of(plain)
        calls.piece_bytes = 1 << 20
        calls.free_bytes = KEPT_FREE_BYTES + 2500
        with pytest.raises(
            StoreFull, match=r"\(\d+ bytes wanted, \d+ free, of which 33554432 are kept for metadata\)"
        ):
            await store.put("a", [bytes(2000), bytes(501)])
        assert not [call for call in calls.seen if call.startswith("pwritev")]
        await store.put("a", [bytes(2000), bytes(500)])
        results = await asyncio.gather(
            *(store.put(f"b{n}", [bytes(1000)]) for n in range(4)), return_exceptions=True
        )
        assert all(result is None or isinstance(result, StoreFull) for result in results)
        assert results.count(None) >= 1
        upload = await store.start_multipart("c")
        with pytest.raises(StoreFull):
            await upload.put_part([bytes(2501)])
        calls.free_bytes += 1
        await upload.put_part([bytes(2501)], 0)
        await upload.complete()
        assert unfinished(tmp_path) == []

    run(tmp_path, test)


def test_small_objects_that_are_no_data_take_of_what_is_kept(tmp_path: Path) -> None:
    """Whole and up to a size they leave three quarters of it, whichever way they are put; one that is larger,
    comes in parts or is data leaves all. What is left is more than the metadata log needs for its reserve."""
    full, part = f"of which {KEPT_FREE_BYTES} are kept", f"of which {KEPT_FROM_SMALL_BYTES} are kept"
    assert 2 * ControllerSettings("log", 1).reserve_bytes < KEPT_FROM_SMALL_BYTES < KEPT_FREE_BYTES

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        small = [bytes(1), bytes(SMALL_BYTES_MAX - 1)]
        calls.piece_bytes = 1 << 20
        calls.free_bytes = KEPT_FREE_BYTES
        upload = await store.start_multipart("parts")
        with pytest.raises(StoreFull, match=full):
            await upload.put_part([b"x"])
        await upload.abort()
        with pytest.raises(StoreFull, match=full):
            await store.put("large", [bytes(SMALL_BYTES_MAX + 1)])
        with pytest.raises(StoreFull, match=full):
            await data_store_of(store).put_if_absent("data", [b"x"])
        calls.free_bytes = KEPT_FROM_SMALL_BYTES + SMALL_BYTES_MAX
        await store.put("small", small)
        await store.put_if_absent("other", small)
        await store.replace("small", [bytes(2)], b"".join(small))
        calls.free_bytes -= 1
        with pytest.raises(StoreFull, match=part):
            await store.put("small", small)
        with pytest.raises(StoreFull, match=part):
            await store.put_if_absent("third", small)
        with pytest.raises(StoreFull, match=part):
            await store.replace("small", small, bytes(2))
        assert await store.get("small") == bytes(2)

    run(tmp_path, test)


def test_a_store_for_data_is_the_same_store(tmp_path: Path) -> None:
    """It sees the same objects, and ends with it."""

    async def main() -> None:
        store = await LocalObjectStore.open(str(tmp_path))
        data = data_store_of(store)
        await data.put("a", [b"x"])
        assert await store.get("a") == b"x"
        await store.close()
        with pytest.raises(Closed):
            await data.get("a")

    asyncio.run(main())


def unfinished(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".new").iterdir())


def test_put_syncs_in_the_order_that_survives_a_power_cut(tmp_path: Path) -> None:
    """Content before name, name before return, and the names of new folders up to the root, the higher ones
    once."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        await store.put("c/objects/10/1", [b"x"])
        assert calls.seen == [
            "pwritev new file",
            "fsync new file",
            "rename c/objects/10/1",
            "fsync c/objects/10",
            "fsync c/objects",
            "fsync c",
            "fsync .",
        ]
        calls.seen.clear()
        await store.put_if_absent("c/objects/20/2", [b"x"])
        assert calls.seen[1:] == [
            "fsync new file",
            "link c/objects/20/2",
            "fsync c/objects/20",
            "fsync c/objects",
        ]
        assert unfinished(tmp_path) == []

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EIO, StoreUnavailable),
        (errno.EROFS, FolderDenied),
        (errno.EACCES, FolderDenied),
    ],
)
@pytest.mark.parametrize("call", ["pwritev", "fsync", "rename"])
def test_a_failed_put_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, call: str, code: int, remedy: type[Exception]
) -> None:
    """Each system error becomes its remedy wherever it strikes; no object, no unfinished file; the next put
    succeeds."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        calls.fail(call, code)
        with pytest.raises(remedy):
            await store.put("c/a/1", [b"x" * 3000])
        assert await keys_of(store) == []
        assert unfinished(tmp_path) == []
        await store.put("c/a/1", [b"x" * 3000])
        assert await store.get("c/a/1") == b"x" * 3000

    run(tmp_path, test)


def test_an_unsynced_name_is_not_acknowledged(tmp_path: Path) -> None:
    """When the folder's sync fails the put fails, though the object can be seen; put_if_absent, repeated,
    knows its own."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        calls.fail("fsync", 0, errno.EIO)
        with pytest.raises(StoreUnavailable):
            await store.put_if_absent("c/a/1", [b"mine"])
        assert await store.get("c/a/1") == b"mine"
        calls.seen.clear()
        await store.put_if_absent("c/a/1", [b"mine"])
        assert calls.seen[-3:] == ["fsync c/a", "fsync c", "fsync ."]

    run(tmp_path, test)


def test_a_failed_sync_is_never_repeated(tmp_path: Path) -> None:
    """After a failed sync the system may have dropped the pages, and a second one would lie: the upload is
    gone."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        upload = await store.start_multipart("c/a/1")
        await upload.put_part([b"x"])
        calls.fail("fsync", errno.EIO)
        with pytest.raises(StoreUnavailable):
            await upload.complete()
        with pytest.raises(ObjectMissing):
            await upload.complete()
        assert await keys_of(store) == []

    run(tmp_path, test)


def test_read_errors(tmp_path: Path) -> None:
    """A read that fails is Unavailable, never a short answer."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        await store.put("c/a/1", [b"x" * 3000])
        calls.fail("pread", 0, errno.EIO)
        with pytest.raises(StoreUnavailable):
            await store.get("c/a/1")
        assert await store.get("c/a/1") == b"x" * 3000

    run(tmp_path, test)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "../a",
        "a/../b",
        ".",
        "a/./b",
        ".new/1",
        "a/.hidden",
        "a\0b",
        "x" * 256,
        "y/" * 600 + "z",
    ],
)
def test_keys_cannot_leave_the_folder(tmp_path: Path, key: str) -> None:
    """A key that would climb out, hide, or not fit is refused by every verb before anything is touched."""
    (tmp_path / "outside").write_bytes(b"secret")

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        for call in (
            store.put(key, [b"x"]),
            store.get(key),
            store.head(key),
            store.delete([key]),
            store.start_multipart(key),
        ):
            with pytest.raises(ValueError, match="cannot name a file"):
                await call
        assert calls.seen == []

    run(tmp_path / "objects", test)
    assert (tmp_path / "outside").read_bytes() == b"secret"


@pytest.mark.parametrize("where", ["x" * 300, "a/objects"], ids=["too long a name", "a loop of links"])
def test_a_folder_that_can_never_be_is_a_mistake(tmp_path: Path, where: str) -> None:
    """Told at once: whoever opens a store waits for one that is away."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ValueError, match="no folder can be made at"):
        asyncio.run(LocalObjectStore.open(str(tmp_path / where)))


def test_empty_folders_go_with_their_last_object(tmp_path: Path) -> None:
    """Deleting an object removes its own folder when it is empty, not the ones above, and syncs what
    changed."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        for key in ("c/objects/10/1", "c/objects/20/2", "c/objects/20/3"):
            await store.put(key, [b"x"])
        calls.seen.clear()
        assert await store.delete(["c/objects/10/1", "c/objects/20/2"]) == []
        assert sorted(path.name for path in (tmp_path / "c/objects").iterdir()) == ["20"]
        assert calls.seen == ["fsync c/objects", "fsync c/objects/20"]

    run(tmp_path, test)


def test_puts_and_deletes_in_one_folder_race(tmp_path: Path) -> None:
    """Folders that come and go under concurrent puts and deletes lose no object."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        async def churn(number: int) -> None:
            for _ in range(30):
                await store.put(f"c/objects/00/{number}", [b"x"])
                assert await store.get(f"c/objects/00/{number}") == b"x"
                assert await store.delete([f"c/objects/00/{number}"]) == []

        await asyncio.gather(*map(churn, range(4)))
        assert await keys_of(store) == []

    run(tmp_path, test)


def test_start_sweeps_what_a_crash_left(tmp_path: Path) -> None:
    """An unfinished file without a living writer is removed at the next start, one with a writer in another
    store stays."""

    async def main() -> None:
        (tmp_path / ".new").mkdir()
        (tmp_path / ".new" / "99999-0").write_bytes(b"left behind")
        store = await LocalObjectStore.open(str(tmp_path))
        assert unfinished(tmp_path) == []
        upload = await store.start_multipart("c/a/1")
        await upload.put_part([b"x"])
        other = await LocalObjectStore.open(str(tmp_path))
        assert len(unfinished(tmp_path)) == 1
        await upload.complete()
        assert await other.get("c/a/1") == b"x"
        await store.close()
        await other.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("option", "file_mode", "folder_mode"), [("", 0o600, 0o700), ("?mode=640", 0o640, 0o750)]
)
def test_objects_are_private_unless_told(
    tmp_path: Path, option: str, file_mode: int, folder_mode: int
) -> None:
    """Files and folders alike, whatever the process keeps back by itself; a folder that is there keeps its
    mode."""
    tmp_path.chmod(0o711)
    root = tmp_path / "deep" / "objects"

    async def main() -> None:
        store = await open_store(parse_address(f"0@file://{root}{option}"), SystemClock())
        await store.put("c/a/1", [b"x"])
        upload = await store.start_multipart("c/a/2")
        await upload.put_part([b"x"])
        await upload.complete()
        await store.close()

    before = os.umask(0o077 if option else 0)
    try:
        asyncio.run(main())
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in (root / "c" / "a" / "1", root / "c" / "a" / "2")}
    assert set(modes.values()) == {file_mode}
    folders = (root.parent, root, root / "c", root / "c" / "a")
    assert {path.stat().st_mode & 0o777 for path in folders} == {folder_mode}
    assert tmp_path.stat().st_mode & 0o777 == 0o711


def _die_while_writing(root: str) -> None:
    folder = ObjectFolder(root, os)
    folder.prepare()
    folder.write_at(folder.create("c/a/1"), [b"half"], 0)
    os._exit(9)


def test_the_folder_of_unfinished_files_is_made_again(tmp_path: Path) -> None:
    """Whoever removes empty folders removes it, a refused first start of another process say; puts go on,
    small ones and in parts."""
    root = tmp_path / "objects"

    async def main() -> None:
        store = await LocalObjectStore.open(str(root))
        (root / ".new").rmdir()
        await store.put("a", [b"1"])
        (root / ".new").rmdir()
        upload = await store.start_multipart("b")
        await upload.put_part([b"2"])
        await upload.complete()
        assert [await store.get(key) for key in "ab"] == [b"1", b"2"]
        await store.close()

    asyncio.run(main())
    assert (root / ".new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_is_made_in_a_folder_that_is_not_the_stores(tmp_path: Path, is_there: bool) -> None:
    """Its volume is not mounted any more: nothing is there, or the folder that it was mounted on."""
    root = tmp_path / "objects"

    async def main() -> None:
        store = await LocalObjectStore.open(str(root))
        root.rename(tmp_path / "volume")
        if is_there:
            root.mkdir()
        with pytest.raises(ObjectMissing):
            await store.put("a", [b"1"])
        assert [path.name for path in tmp_path.glob("objects/*")] == []
        (tmp_path / "volume").rename(root)
        await store.put("a", [b"1"])
        await store.close()

    asyncio.run(main())


def test_a_killed_writer_leaves_no_object(tmp_path: Path) -> None:
    """A process that dies between write and rename leaves a file that no verb shows and the next start
    removes."""
    process = multiprocessing.get_context("fork").Process(target=_die_while_writing, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert len(unfinished(tmp_path)) == 1

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        assert unfinished(tmp_path) == []
        assert await keys_of(store) == []

    run(tmp_path, test)


def test_a_key_below_an_object_is_refused(tmp_path: Path) -> None:
    """A directory cannot hold an object and a folder of one name: the put says so, and both stores stay as
    they were."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        await store.put("c/a", [b"x"])
        with pytest.raises(ValueError, match="folder"):
            await store.put("c/a/b", [b"y"])
        with pytest.raises(ValueError, match="folder"):
            await store.put("c", [b"y"])
        with pytest.raises(PreconditionFailed):
            await store.put_if_absent("c", [b"y"])
        assert await keys_of(store) == ["c/a"]
        assert unfinished(tmp_path) == []

    run(tmp_path, test)


def is_cached(path: Path) -> bool:
    """Whether the first page of a file lies in the page cache. A read that must not wait would begin to fetch
    it, and find it there on a quick disk."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE, access=mmap.ACCESS_COPY) as memory:
        start = ctypes.c_char.from_buffer(memory)
        residency = (ctypes.c_ubyte * 1)()
        mincore = ctypes.CDLL(None, use_errno=True).mincore
        code = mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(mmap.PAGESIZE), residency)
        del start
        assert code == 0, os.strerror(ctypes.get_errno())
        return bool(residency[0] & 1)


def test_large_objects_do_not_stay_in_the_page_cache(tmp_path: Path) -> None:
    """What is put is not read back soon: a large object gives its pages back, a small one is not worth the
    sync."""

    async def main() -> None:
        store = await LocalObjectStore.open(str(tmp_path))
        await store.put("c/large", [bytes(1 << 20)] * 2)
        await store.put("c/small", [bytes(10_000)])
        upload = await store.start_multipart("c/parts")
        await upload.put_part([bytes(1 << 20)] * 5)
        await upload.put_part([bytes(10_000)])
        await upload.complete()
        assert is_cached(tmp_path / "c/small")
        assert not is_cached(tmp_path / "c/large")
        assert not is_cached(tmp_path / "c/parts")
        assert len(await store.get("c/parts")) == (5 << 20) + 10_000
        await store.close()

    asyncio.run(main())


def test_a_part_whose_sync_failed_is_not_synced_again(tmp_path: Path) -> None:
    """After a failed sync the system may have dropped the pages: the upload is gone, though a later sync
    would succeed."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        upload = await store.start_multipart("c/parts")
        calls.fail("open", errno.EINVAL)  # no direct I/O: large parts are synced as they come
        calls.fail("fsync", errno.EIO)
        calls.piece_bytes = 1 << 20
        with pytest.raises(StoreUnavailable):
            await upload.put_part([bytes(2 * STAGE_BYTES)])
        with pytest.raises(ObjectMissing):
            await upload.put_part([bytes(2 * STAGE_BYTES)], 0)
        await upload.abort()
        assert await keys_of(store) == []
        assert unfinished(tmp_path) == []

    run(tmp_path, test)


def test_reads_beside_durable_writes_ask_for_little_at_a_time(tmp_path: Path) -> None:
    """A device serves in order, and the WAL's write would wait for megabytes. Without such a write a read is
    one call."""
    data = os.urandom(1 << 20)
    asked: list[int] = []
    at_once: list[int] = []
    under_way: list[int] = []

    class NotedCalls(WatchedCalls):
        def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int, /) -> int:
            under_way.append(fd)
            asked.append(sum(map(len, buffers)))
            at_once.append(len(under_way))
            time.sleep(0.001)
            count = os.preadv(fd, buffers, offset)
            under_way.remove(fd)
            return count

    async def read(store: LocalObjectStore) -> bytes:
        memory = memoryview(bytearray(len(data)))
        views = [memory[:300_000], memory[300_000:300_001], memory[300_001:]]
        _, came = await store.get_into("a", 0, len(data), lambda: views)
        assert came == len(data)
        return bytes(memory)

    async def main() -> None:
        writes = DurableWrites()
        store = await LocalObjectStore.open(str(tmp_path), NotedCalls(tmp_path), writes=writes)
        await store.put("a", [data])
        assert await read(store) == data
        assert asked == [len(data)]
        asked.clear()
        writes.begin()
        assert await asyncio.gather(*(read(store) for _ in range(4))) == [data] * 4
        assert max(asked) == 64 << 10
        assert max(at_once) == 2
        writes.end()
        asked.clear()
        assert await read(store) == data  # right after it: the next write is not far
        assert max(asked) == 64 << 10
        await store.close()

    asyncio.run(main())
