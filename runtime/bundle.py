"""The outside world, behind interfaces. `Runtime` is the bundle of it: built once at the process's edge (or
by the simulator), then taken apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from millrace.runtime.clock import Clock
from millrace.runtime.disk import Disk
from millrace.runtime.net import Net
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import StoreAddress, open_store
from millrace.runtime.offload import InlineOffload, Offload, ThreadOffload
from millrace.runtime.rand import Rand
from millrace.runtime.steps import StepLine, line_of

StoreOpener = Callable[[StoreAddress, Clock], Awaitable[ObjectStore]]


@dataclass(frozen=True, slots=True)
class Runtime:
    clock: Clock
    rand: Rand
    disk: Disk
    net: Net
    open_store: StoreOpener  # bare: retries and meters are put around it by who opens
    # in which a node's steps stand: a new one, where its loop is not its own
    line: Callable[[], StepLine] = StepLine
    offload: Callable[[], Offload] = InlineOffload  # for what would hold the loop


def real_runtime() -> Runtime:
    """This machine's own."""
    from millrace.runtime.clock import SystemClock
    from millrace.runtime.disk.posix import PosixDisk
    from millrace.runtime.net import LoopNet

    return Runtime(
        SystemClock(),
        Rand.from_system(),
        PosixDisk(),
        LoopNet(),
        open_store,
        lambda: line_of(asyncio.get_running_loop()),
        ThreadOffload,
    )
