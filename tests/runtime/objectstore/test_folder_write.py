"""Large writes of the directory store: the same bytes whether direct I/O is there, refused late, or not
there; failures; memory."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest

from millrace.runtime.objectstore import StoreFull, StoreUnavailable
from millrace.runtime.objectstore.folder_write import (
    LARGE_BYTES_MIN,
    STAGE_BYTES,
    STAGES_KEPT,
    Stages,
    stage_bytes,
)
from millrace.runtime.objectstore.local import LocalObjectStore
from tests.runtime.objectstore.contract import keys_of
from tests.runtime.objectstore.test_local import WatchedCalls, is_cached, run, unfinished

PIECES = (1, 40, 4095, 4096, 4097, 65_443, 65_536, 1_000_003, 3 << 20)


def some_parts(chance: random.Random, size_min: int) -> list[bytes]:
    """Random bytes, in pieces of such sizes as uploads have, `size_min` of them or more."""
    parts: list[bytes] = []
    while sum(map(len, parts)) < size_min:
        parts.append(chance.randbytes(chance.choice(PIECES)))
    return parts


@pytest.mark.parametrize(
    ("call", "errnos", "piece_bytes"),
    [
        ("open", [], 1 << 30),
        ("open", [], 65_536),
        ("open", [], 10_000),  # short writes that end within a page: the system then refuses the rest of it
        ("open", [errno.EINVAL], 10_000),
        ("pwritev", [errno.EINVAL], 1 << 30),
        ("pwritev", [0, 0, errno.EOPNOTSUPP], 1 << 30),
        ("pwritev", [0, 0, errno.EOPNOTSUPP], 65_536),
    ],
)
def test_large_writes_keep_every_byte(tmp_path: Path, call: str, errnos: list[int], piece_bytes: int) -> None:
    """Wholes and parts of odd sizes come back byte for byte, with short writes too, and wherever direct I/O
    ends."""
    chance = random.Random(f"{call} {errnos} {piece_bytes}")

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        calls.piece_bytes = piece_bytes
        calls.fail(call, *errnos)
        whole = some_parts(chance, 4 * STAGE_BYTES)
        await store.put("c/whole", whole)
        assert await store.get("c/whole") == b"".join(whole)
        parts = [some_parts(chance, size) for size in (2_500_001, 1, 1_500_000, 5000)]
        upload = await store.start_multipart("c/parts")
        await asyncio.gather(*(upload.put_part(part) for part in parts))
        await upload.complete()
        assert await store.get("c/parts") == b"".join(b"".join(part) for part in parts)

    run(tmp_path, test)


def test_large_writes_alone_go_past_the_page_cache(tmp_path: Path) -> None:
    """A large object is written by a descriptor of its own, in stages, and its sync comes once, before its
    name; a small one is not."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        calls.piece_bytes = 1 << 30
        await store.put("c/small", [bytes(LARGE_BYTES_MIN - 1)])
        assert "open new file" not in calls.seen
        calls.seen.clear()
        await store.put("c/large", [bytes(LARGE_BYTES_MIN), bytes(2 * STAGE_BYTES), b"tail"])
        writes = ["pwritev new file"] * 4  # three stages and the rest of a page
        assert calls.seen[:7] == ["open new file", *writes, "fsync new file", "rename c/large"]
        assert not is_cached(tmp_path / "c/large")

    run(tmp_path, test)


@pytest.mark.parametrize(("code", "remedy"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreUnavailable)])
@pytest.mark.parametrize("call", ["open", "pwritev", "fsync"])
def test_a_failed_large_put_leaves_nothing(
    tmp_path: Path, call: str, code: int, remedy: type[Exception]
) -> None:
    """A direct write that fails, its opening or its sync, is the put's failure: no object, no unfinished
    file; the next put succeeds."""

    async def test(store: LocalObjectStore, calls: WatchedCalls) -> None:
        calls.piece_bytes = 1 << 30
        calls.fail(call, code)
        with pytest.raises(remedy):
            await store.put("c/large", [bytes(LARGE_BYTES_MIN)] * 3)
        assert await keys_of(store) == []
        assert unfinished(tmp_path) == []
        await store.put("c/large", [bytes(LARGE_BYTES_MIN)] * 3)
        assert not is_cached(tmp_path / "c/large")

    run(tmp_path, test)


def test_stages_are_used_again_and_few_are_kept() -> None:
    """The memory that writes go through is bounded by the threads that write, and by STAGES_KEPT once they
    are done."""
    stages = Stages()
    taken = [stages.take() for _ in range(STAGES_KEPT + 2)]
    assert len({id(stage.obj) for stage in taken}) == STAGES_KEPT + 2
    for stage in taken:
        stages.give(stage)
    again = [stages.take() for _ in range(STAGES_KEPT + 2)]
    assert len({id(stage.obj) for stage in again} & {id(stage.obj) for stage in taken}) == STAGES_KEPT


@pytest.mark.parametrize(
    ("position", "left_bytes", "expected"),
    [
        (0, 1, 1),
        (0, 4096, 4096),
        (0, 4097, 4096),
        (4096, STAGE_BYTES + 1, STAGE_BYTES),
        (4096, 10 * STAGE_BYTES, STAGE_BYTES),
        (1, 10 * STAGE_BYTES, 4095),
        (4095, 10, 1),
        (1, 10, 10),
    ],
)
def test_what_a_write_takes(position: int, left_bytes: int, expected: int) -> None:
    """First up to a page's edge, then whole pages as far as a stage reaches, then the rest."""
    assert stage_bytes(position, left_bytes) == expected
