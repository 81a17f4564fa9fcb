"""Which kernel keeps the lock of a file, as the system tells it, and of whom a lock that is free tells."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.runtime.disk.lock_keeper import NO_MACHINE, UNTOLD, LockKeeper
from millrace.runtime.disk.machine_ids import read_keeper

HERE = LockKeeper(b"m" * 16, b"b" * 16, b"f" * 16)
BOOT = "4c97bc56-b762-45dd-9062-9d5a202c6931"
BOARD = "6f1c2b4e-7d3a-4a55-9b0e-1f2d3c4b5a69"
MACHINE = "3d1219c7c4c5404aaa1f6d2a48adfda4"
MOUNTED = "27 1 254:0 / / rw,relatime - {} /dev/vda rw\n22 27 0:21 / /proc rw - overlay proc rw\n"


class Root:
    """A machine's root folder: what it tells of itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tell("proc/sys/kernel/random/boot_id", BOOT + "\n")
        self.tell("proc/self/mountinfo", MOUNTED.format("ext4"))
        self.tell("etc/machine-id", MACHINE + "\n")

    def tell(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def keeper(self, file: str = "log") -> LockKeeper | None:
        fd = os.open(self.path / file, os.O_RDWR | os.O_CREAT)
        try:
            return read_keeper(fd, self.path)
        finally:
            os.close(fd)

    @property
    def machine(self) -> bytes:
        found = self.keeper()
        assert found is not None
        return found.machine


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


@pytest.mark.parametrize(
    ("holder", "is_told"),
    [
        (HERE, True),
        (replace(HERE, file=b"other mount".ljust(16)), False),
        (replace(HERE, boot=b"before".ljust(16)), True),
        (replace(HERE, boot=b"before".ljust(16), file=b"numbered anew".ljust(16)), True),
        (LockKeeper(b"other".ljust(16), b"its".ljust(16), HERE.file), False),
        (UNTOLD, False),
    ],
    ids=[
        "here",
        "another mount",
        "a boot before",
        "a boot before, other numbers",
        "another machine",
        "untold",
    ],
)
def test_of_whom_a_lock_tells(holder: LockKeeper, is_told: bool) -> None:
    assert HERE.tells_of(holder) is is_told


def test_machines_that_cannot_be_told_are_not_one() -> None:
    nameless = replace(HERE, machine=NO_MACHINE)
    assert not nameless.tells_of(replace(nameless, boot=b"before".ljust(16)))
    assert nameless.tells_of(nameless)


def test_a_file_is_one_by_whatever_name_and_another_is_another(root: Root) -> None:
    found = root.keeper()
    os.link(root.path / "log", root.path / "linked")
    assert found is not None
    assert root.keeper("linked") == found
    other = root.keeper("other")
    assert other is not None
    assert (other.machine, other.boot, other.file == found.file) == (found.machine, found.boot, False)


def test_a_new_boot_is_one_of_the_same_machine(root: Root) -> None:
    before = root.keeper()
    root.tell("proc/sys/kernel/random/boot_id", BOOT.replace("4", "5"))
    after = root.keeper()
    assert before is not None
    assert after is not None
    assert before.boot != after.boot
    assert after.tells_of(before)


def test_no_id_of_the_machine_is_told(root: Root) -> None:
    assert root.machine not in (NO_MACHINE, bytes.fromhex(MACHINE))


@pytest.mark.parametrize(
    "mark",
    [
        ".dockerenv",
        "run/.containerenv",
        "run/systemd/container",
        "run/host/container-manager",
        "var/run/secrets/kubernetes.io",
        "overlay",
    ],
)
def test_what_an_image_brings_names_no_machine(root: Root, mark: str) -> None:
    """Containers of one image on two hosts have one /etc/machine-id; their boards tell them apart, where they
    may be read."""
    if mark == "overlay":
        root.tell("proc/self/mountinfo", MOUNTED.format("overlay"))
    else:
        root.tell(mark, "")
    assert root.machine == NO_MACHINE
    root.tell("sys/class/dmi/id/product_uuid", BOARD)
    first = root.machine
    root.tell("sys/class/dmi/id/product_uuid", BOARD.replace("6", "7"))
    assert len({NO_MACHINE, first, root.machine}) == 3


@pytest.mark.parametrize("board", ["0" * 32, "f" * 32, "03000200-0400-0500-0006-000700080009", "not set"])
def test_a_board_that_was_given_no_id_tells_nothing(root: Root, board: str) -> None:
    named = root.machine
    root.tell("sys/class/dmi/id/product_uuid", board)
    assert root.machine == named
    (root.path / "etc/machine-id").write_text("uninitialized\n")
    assert root.machine == NO_MACHINE


def test_a_system_that_tells_no_boot_names_nobody(root: Root) -> None:
    (root.path / "proc/sys/kernel/random/boot_id").unlink()
    assert root.keeper() is None
