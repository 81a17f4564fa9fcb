"""What `millrace serve --test-mode` changes: settings for tests, and a disk that does not wait for the
device.

For brokers that live as long as a test (testing/). Nothing is kept past the machine's own life: a kill and
restart of the process keep all that was acknowledged, a loss of power keeps nothing. A given setting wins
over these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from millrace.broker.config import BrokerSettings
from millrace.broker.settings.source import Given
from millrace.kraft.log.meta_properties import read_meta_properties
from millrace.runtime.bundle import Runtime
from millrace.runtime.clock import SystemClock
from millrace.runtime.disk import Disk
from millrace.runtime.disk_unsynced import UnsyncedDisk, open_unsynced_store
from millrace.runtime.net import LoopNet
from millrace.runtime.offload import ThreadOffload
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.wal.config import BlockWalSettings

NOTICE = "test mode: nothing is kept; data may be lost with this machine, and faults can be injected"
WAL_CAPACITY = "64MiB"
MARK = "test-mode"  # a file in the data directory

TEST_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "log.retention.check.interval.ms": "1000",
    "offsets.topic.num.partitions": "1",
    "memory.max.bytes": "256MiB",
    "admin.listener": "",
}


def with_test_settings(given: Mapping[str, Given], data_dir: str) -> dict[str, Given]:
    """What was given, and the settings of test mode for what was not: a capacity that has a key of its own
    is in no path beside it."""
    capacity = "" if "s3.wal.capacity" in given else f"?capacity={WAL_CAPACITY}"
    wal = {"s3.wal.path": f"0@file://{data_dir}/wal{capacity}"}
    mode = {name: Given(text, "override", "--test-mode") for name, text in (TEST_SETTINGS | wal).items()}
    return {**mode, **given}


def without_fill(settings: BrokerSettings) -> BrokerSettings:
    """Zeros ahead of the log hasten writes that wait for a device."""
    wal = settings.wal_settings
    if not isinstance(wal, BlockWalSettings):
        return settings
    return replace(settings, wal_settings=replace(wal, fill_ahead_bytes=0))


async def take_folder(disk: Disk, data_dir: str, log_dir: str) -> bool:
    """Whether the data directory is one for tests: one that is marked so, or a new one, which is marked. What
    a start without test mode made is to be kept, and stays as it is."""
    if await disk.read_file(f"{data_dir}/{MARK}") is not None:
        return True
    if await read_meta_properties(disk, log_dir) is not None:
        return False
    await disk.make_folder(data_dir)
    await disk.write_file(f"{data_dir}/{MARK}", b"")
    return True


def unsynced_runtime() -> Runtime:
    """This machine's own, its disk without waiting for the device."""
    queue = YieldQueue()
    return Runtime(
        SystemClock(),
        Rand.from_system(),
        UnsyncedDisk(queue.writes),
        LoopNet(),
        partial(open_unsynced_store, yield_queue=queue),
        queue,
        ThreadOffload,
    )
