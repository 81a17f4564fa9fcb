"""A directory of another owner is told as that: whose it is, its mode, and who asks; by the store and by the
disk."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.runtime.disk import DiskFailed
from millrace.runtime.disk.denial import denial_words
from millrace.runtime.disk.posix import PosixDisk
from millrace.runtime.objectstore import FolderDenied
from millrace.runtime.objectstore.local import LocalObjectStore

NOBODY = 65534


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Path]:
    """A folder that the process may not write to, being somebody else where it can be, or without the owner's
    right."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    tmp_path.chmod(0o755)
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    yield folder
    if is_root:
        os.seteuid(0)
    folder.chmod(0o755)


def test_a_store_and_a_disk_in_anothers_folder(stranger: Path) -> None:
    """Both name an owner and this process's user, and neither speaks of credentials."""
    path = str(stranger / "data")

    async def main() -> None:
        with pytest.raises(FolderDenied) as denied:
            await LocalObjectStore.open(path)
        with pytest.raises(DiskFailed) as failed:
            await PosixDisk().make_folder(path)
        for told in (str(denied.value), str(failed.value)):
            assert "Permission denied: /" in told
            owner = stranger.stat().st_uid if os.geteuid() != NOBODY else 0
            assert re.search(
                rf" belongs to user {owner} \(mode 0\d{{3}}\), and this process runs as user {os.geteuid()}$",
                told,
            )

    asyncio.run(main())


def test_what_is_no_matter_of_rights_is_said_as_it_is() -> None:
    """A file system that is read-only, a path that nobody knows."""
    assert denial_words(OSError(errno.EROFS, "Read-only file system"), "/d") == "Read-only file system"
    assert denial_words(OSError(errno.EACCES, "Permission denied"), "") == "Permission denied"
