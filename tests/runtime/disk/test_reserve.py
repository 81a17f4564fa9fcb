"""Reservations of a device by the kernel's ioctls: who holds it, who takes it over, and what is left
alone."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from millrace.runtime.disk import DiskLocked, DiskTaken
from millrace.runtime.disk import reserve as pr
from millrace.runtime.disk.opening import (
    close_descriptor,
    disk_error,
    open_block_descriptor,
    reserve_descriptor,
)
from millrace.runtime.disk.reserve import DeviceReservation
from tests.runtime.disk.scsi import SharedDevice

FD = 3


def on(device: SharedDevice, machine: str) -> DeviceReservation:
    return DeviceReservation(FD, "/dev/shared", device.nexus(machine))


def test_the_requests_are_those_of_the_header() -> None:
    """The numbers of linux/pr.h, as a C compiler makes them."""
    assert [pr.PR_REGISTER, pr.PR_RESERVE, pr.PR_RELEASE, pr.PR_PREEMPT_ABORT, pr.PR_CLEAR] == [
        0x401870C8,
        0x401070C9,
        0x401070CA,
        0x401870CC,
        0x401070CD,
    ]


def test_a_free_device_is_reserved_and_let_go() -> None:
    """Registered, then reserved: others cannot write. At the end neither is left."""
    device = SharedDevice()
    mine = on(device, "a")
    assert mine.take(0xA, 0)
    assert (device.may_write("a"), device.may_write("b")) == (True, False)
    mine.release()
    mine.release()
    assert (device.keys, device.holder) == ({}, "")
    assert device.calls == ["a register 0 a", "a reserve a", "a release a", "a register a 0"]


def test_the_machine_that_holds_it_takes_it_again() -> None:
    """After a crash the same machine comes with a new key: the old one is replaced, nobody is preempted."""
    device = SharedDevice()
    assert on(device, "a").take(0xA, 0)
    assert on(device, "a").take(0xB, 0xA)
    assert (device.keys, device.holder, device.aborted) == ({"a": 0xB}, "a", [])


def test_another_machine_takes_it_over() -> None:
    """The last owner's key is preempted and its commands aborted: it cannot write any more, nor let go of
    what is not its own."""
    device = SharedDevice()
    old = on(device, "a")
    old.take(0xA, 0)
    assert on(device, "b").take(0xB, 0xA)
    assert (device.keys, device.holder, device.aborted) == ({"b": 0xB}, "b", ["a"])
    assert not device.may_write("a")
    old.release()
    assert (device.keys, device.holder) == ({"b": 0xB}, "b")


def test_one_who_died_before_it_wrote_its_name_is_in_nobodys_way() -> None:
    """The holder is not the owner that the log knows of: the device is cleared, since such a holder never
    wrote."""
    device = SharedDevice()
    on(device, "a").take(0xA, 0)
    on(device, "b").take(0xB, 0xA)
    assert on(device, "c").take(0xC, 0xA)
    assert (device.keys, device.holder) == ({"c": 0xC}, "c")


def test_a_device_that_somebody_else_uses_is_left_to_them() -> None:
    """Without a last owner of our log there is nobody to preempt: refused, and our registration is taken
    back."""
    device = SharedDevice()
    on(device, "cluster file system").take(0xF, 0)
    with pytest.raises(DiskLocked, match="another machine"):
        on(device, "a").take(0xA, 0)
    assert (device.keys, device.holder) == ({"cluster file system": 0xF}, "cluster file system")


def test_who_was_preempted_and_comes_back_reserves_the_device() -> None:
    """A device tells a machine once that it was preempted, in place of an answer. That was taken for a device
    without reservations, which was then used without."""
    device = SharedDevice()
    on(device, "a").take(0xA, 0)
    on(device, "b").take(0xB, 0xA)
    assert device.attentions == {"a": 1}
    assert on(device, "a").take(0xC, 0xB)
    assert (device.keys, device.holder) == ({"a": 0xC}, "a")
    assert not device.may_write("b")


@pytest.mark.parametrize("status", [0xE0000, 0xF0000, 0x10000])
def test_a_path_that_fails_is_no_device_without_reservations(status: int) -> None:
    """It is tried again; one that stays away is an error, and not a reason to go without."""
    device = SharedDevice()
    device.faults["a"] = [status] * 2
    assert on(device, "a").take(0xA, 0)
    device.faults["b"] = [status] * 9
    with pytest.raises(OSError, match="no path to the device"):
        on(device, "b").take(0xB, 0xA)
    assert device.may_write("a")


def test_a_device_that_fails_half_way_is_not_taken_for_another_machines() -> None:
    """It took the registration, so it has reservations: what goes wrong behind that is an error."""
    device = SharedDevice()
    on(device, "a").take(0xA, 0)
    device.faults["b"] = [0, pr.IO_ERROR, pr.IO_ERROR, pr.IO_ERROR, pr.IO_ERROR]
    with pytest.raises(OSError, match="failed a reservation"):
        on(device, "b").take(0xB, 0xA)
    assert (device.holder, device.may_write("a")) == ("a", True)


def test_a_disk_that_does_not_know_the_command_has_none() -> None:
    """SCSI disks without reservations answer each time with an error."""
    device = SharedDevice()
    device.faults["a"] = [pr.IO_ERROR] * 9
    assert not on(device, "a").take(0xA, 0)


def test_nvme_says_conflict_by_a_number_of_its_own() -> None:
    """Before Linux 6.4: with and without its bit for "do not retry"."""
    for status in (0x83, 0x4083):
        device = SharedDevice()
        on(device, "a").take(0xA, 0)
        device.faults["b"] = [0, status]
        device.keys["b"] = 0xB  # the answer stands for the device's
        assert on(device, "b").take(0xB, 0xA)
        assert device.aborted == ["a"]


def test_a_write_that_meets_a_conflict_says_who_has_the_device(tmp_path: Path) -> None:
    """EBADE is what Linux makes of it: the writer was fenced, the device is not broken."""
    error = SharedDevice()
    error.holder = "b"
    refused = error.write_error("a")
    assert refused is not None
    assert type(disk_error(refused, "/dev/shared")) is DiskTaken


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EPERM])
def test_a_device_without_reservations_says_so(number: int) -> None:
    """No such ioctl, a partition, or no right to it: False, and nothing to let go."""

    def absent(fd: int, request: int, argument: bytearray) -> int:
        raise OSError(number, os.strerror(number))

    mine = DeviceReservation(FD, "/dev/plain", absent)
    assert not mine.take(0xA, 0)
    mine.release()


def test_a_broken_device_is_no_device_without_reservations() -> None:
    """Other errors come out."""

    def broken(fd: int, request: int, argument: bytearray) -> int:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        DeviceReservation(FD, "/dev/broken", broken).take(0xA, 0)


def test_a_file_has_its_lock_alone(tmp_path: Path) -> None:
    """Nothing is asked of a file's descriptor."""
    descriptor = open_block_descriptor(str(tmp_path / "wal"), 1 << 20, "prefer")
    assert not reserve_descriptor(descriptor, 1, 0)
    close_descriptor(descriptor)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("losetup") is None, reason="needs root and losetup")
def test_a_loop_device_has_none(tmp_path: Path) -> None:
    """The real ioctl, on a real block device that has no reservations: the kernel says so, and it is used
    without."""
    backing = tmp_path / "backing"
    backing.write_bytes(bytes(1 << 20))
    made = subprocess.run(
        ["losetup", "--find", "--show", str(backing)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(made.stderr)
    try:
        descriptor = open_block_descriptor(made.stdout.strip(), 1 << 20, "prefer")
        assert (descriptor.is_device, descriptor.size_bytes) == (True, 1 << 20)
        assert not reserve_descriptor(descriptor, 1, 0)
        close_descriptor(descriptor)
    finally:
        subprocess.run(["losetup", "--detach", made.stdout.strip()], check=False)
