"""A process that owns a write-ahead log and nothing else: `python -m tests.live.wal_owner ADDRESS EPOCH`.

It prints what it recovered, takes a record a line, and prints each that it acknowledges; it ends with 3 and
its reason where the log fails, with 4 where it is not opened. `0@fake:///FILE` is a file that stands for a
device with reservations, which other processes see as other machines do: what the device knows lies in a file
beside it. Nothing of a broker is here that could keep a replaced process from acknowledging: only the log's
own fence.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from millrace.runtime.bundle import real_runtime
from millrace.runtime.disk import BlockFile
from millrace.runtime.disk.opening import disk_error
from millrace.runtime.disk.posix import PosixDisk
from millrace.runtime.disk.reserve import DeviceReservation
from millrace.runtime.errors import MillraceError
from millrace.runtime.objectstore.address import parse_address
from millrace.wal.kind import WalPlace, WalWords
from millrace.wal.log import WalOwner
from millrace.wal.opening import kind_of, open_wal
from tests.runtime.disk.scsi import SharedDevice

WAL_ID = bytes(range(16))
FAKE = "0@fake:"


class FileDevice:
    """A SharedDevice whose state lies in a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.machine = str(os.getpid())

    @contextmanager
    def state(self) -> Iterator[SharedDevice]:
        device = SharedDevice()
        with open(self._path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = json.loads(file.read() or "{}")
            for name, value in known.items():
                setattr(device, name, value)
            yield device
            file.truncate(0)
            json.dump({name: getattr(device, name) for name in ("keys", "holder", "attentions")}, file)

    def ioctl(self, fd: int, request: int, argument: bytearray) -> int:
        with self.state() as device:
            return device.nexus(self.machine)(fd, request, argument)

    def write_error(self) -> OSError | None:
        with self.state() as device:
            return device.write_error(self.machine)


class ReservedFile:
    """The file, and what the device says of each write as it comes and as it ends."""

    def __init__(self, file: BlockFile, path: str) -> None:
        self._file = file
        self._path = path
        self._device = FileDevice(path + ".device")
        self._reservation = DeviceReservation(-1, path, self._device.ioctl)
        self.is_exclusive = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._write(position, buffer))

    async def _write(self, position: int, buffer: memoryview) -> None:
        self._check()
        await self._file.write_at(position, buffer)
        self._check()

    def _check(self) -> None:
        error = self._device.write_error()
        if error is not None:
            raise disk_error(error, self._path)

    async def reserve(self, key: int, old_key: int) -> bool:
        return self._reservation.take(key, old_key)

    async def close(self) -> None:
        self._reservation.release()
        await self._file.close()


class FakeDeviceDisk(PosixDisk):
    async def open_block(
        self, path: str, size_bytes: int, *, direct: str = "prefer", is_shared: bool = False
    ) -> BlockFile:
        file = await super().open_block(path, size_bytes, direct=direct, is_shared=True)
        return ReservedFile(file, path)


def say(word: str, value: object) -> None:
    print(json.dumps([word, value]), flush=True)


async def own(text: str, epoch: int) -> int:
    runtime = real_runtime()
    address = parse_address(text.replace(FAKE, "0@file:"))
    settings = kind_of(address).read_settings(WalWords(address.options, "prefer", "refuse"))
    disk = FakeDeviceDisk() if text.startswith(FAKE) else runtime.disk
    place = WalPlace(
        address, disk, lambda one: runtime.open_store(one, runtime.clock), runtime.rand, settings
    )  # fmt: skip
    try:
        wal = await open_wal(place, WalOwner("cluster", 1, epoch, WAL_ID))
        records = [bytes(record.payload).decode() async for record in wal.recover()]
    except MillraceError as error:
        say("refused", type(error).__name__)
        return 4
    say("recovered", records)
    sent: list[tuple[int, str]] = []
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_confirmed(end: int) -> None:
        while sent and sent[0][0] <= end:
            say("acknowledged", sent.pop(0)[1])

    def on_failed(error: BaseException) -> None:
        say("ended", f"{type(error).__name__}: {error}")
        if not ended.done():
            ended.set_result(3)

    wal.start(on_confirmed, on_failed)
    asyncio.get_running_loop().add_reader(0, partial(take, wal, sent, bytearray()))
    return await ended


def take(wal: Any, sent: list[tuple[int, str]], rest: bytearray) -> None:
    """A line is a record. The log is large enough for all that come."""
    *lines, left = (bytes(rest) + os.read(0, 65536)).split(b"\n")
    rest[:] = left
    for line in lines:
        try:
            sent.append((wal.append(line).end, line.decode()))
        except MillraceError:
            return


if __name__ == "__main__":
    sys.exit(asyncio.run(own(sys.argv[1], int(sys.argv[2]))))
