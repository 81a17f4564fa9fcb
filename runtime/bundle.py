"""The outside world, behind interfaces. `Runtime` is the bundle of it: built once at the process's edge (or
by the simulator), then taken apart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from millrace.runtime.clock import Clock
from millrace.runtime.disk import Disk
from millrace.runtime.net import Net
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import StoreAddress, open_store
from millrace.runtime.offload import InlineOffload, Offload, ThreadOffload
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue

StoreOpener = Callable[[StoreAddress, Clock], Awaitable[ObjectStore]]


@dataclass(frozen=True, slots=True)
class Runtime:
    clock: Clock
    rand: Rand
    disk: Disk
    net: Net
    open_store: StoreOpener  # bare: retries and meters are put around it by who opens
    yield_queue: YieldQueue = field(default_factory=YieldQueue)  # for all that is large in a node
    offload: Callable[[], Offload] = InlineOffload  # for what would hold the loop
    step_clock: Callable[[], float] = lambda: 0.0  # seconds, going on within a step of the loop; here: never


def real_runtime() -> Runtime:
    """This machine's own."""
    from millrace.runtime.clock import SystemClock
    from millrace.runtime.disk.posix import PosixDisk
    from millrace.runtime.net import LoopNet

    queue = YieldQueue()
    return Runtime(
        SystemClock(),
        Rand.from_system(),
        PosixDisk(writes=queue.writes),
        LoopNet(),
        partial(open_store, yield_queue=queue),
        queue,
        ThreadOffload,
        perf_counter,
    )
