"""Machine: a disk and a clock that stay, and a controller or a broker on them that is started, stopped,
killed, or cut off the power.

The process is the real ControllerProcess, FollowingBroker or VotingBroker. What it says of its end, and each
image that it publishes, is told to whoever watches. Not here: what is done to machines (trouble.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from millrace.broker.config import BrokerSettings
from millrace.broker.identity.binding import BindingRefused
from millrace.broker.quorum.follower import FollowingBroker
from millrace.broker.quorum.process import ControllerProcess
from millrace.broker.quorum.voting import VotingBroker
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.node import ControllerNode
from millrace.runtime.bundle import Runtime
from millrace.runtime.clock import Clock
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import StoreAddress
from tests.sim.clock import SimClock
from tests.sim.cluster.shared_disk import MountedDisk, SharedDisk
from tests.sim.disk import SimDisk, SimFile
from tests.sim.loop import Life, own_context
from tests.sim.node import DISK_LATENCY_S, QUIET, fate_of
from tests.sim.objectstore import SimObjectStore
from tests.sim.settings import WAL_FILE
from tests.sim.world import World

Process = ControllerProcess | FollowingBroker
KINDS: dict[tuple[bool, bool], type[Process]] = {
    (True, True): VotingBroker,
    (True, False): FollowingBroker,
    (False, True): ControllerProcess,
}  # by whether it is a broker, and a controller
AGAIN_S = 0.3  # before a process that has ended by itself is started again


class Machine:
    """`keep_up` has a process there whenever `is_wanted`, unless it `is_struck`, whoever wants it. `ends`:
    why processes ended by themselves. `shared`: what is mounted beside its own disk."""

    def __init__(
        self, world: World, settings: BrokerSettings, host: str, shared: SharedDisk | None = None
    ) -> None:
        self.world = world
        self.settings = settings
        self.node_id = settings.node_id
        self.host = host
        self.name = f"node{self.node_id}"
        self.is_wanted = True
        self.is_struck = False
        self.life: Life | None = None
        self.life_count = 0
        self.process: Process | None = None
        self.ends: list[BaseException] = []
        self.refusals = 0  # starts that were refused, of those that had to be
        self.is_log_lost = False  # which a start has to refuse
        self.is_loss_accepted = False
        self.faults = QUIET
        self.is_slow = False
        self.stores: list[SimObjectStore] = []
        self.on_image: Callable[[Machine, MetadataImage], None] = lambda machine, image: None
        self._rand = world.rand.split(self.name)
        self._fate = ""  # of what was not durable; "": the machine stays up
        self._changed = asyncio.Event()
        self._is_ready = False
        self._starting: asyncio.Task[None] | None = None  # of this life
        self._shared = shared
        self._mounted: MountedDisk | None = None  # of this life
        self.clock = SimClock(lambda: world.loop.now_us)
        self._has_lost_disk = False
        self.disk = self._new_disk("disk")

    def _new_disk(self, name: str) -> SimDisk:
        disk = SimDisk(self._rand.split(name), latency_s=DISK_LATENCY_S)
        disk.on_event = self.world.trace.of(f"{self.name} disk")
        return disk

    @property
    def is_ready(self) -> bool:
        return self.life is not None and self._is_ready

    @property
    def controller(self) -> ControllerNode | None:
        process = self.process
        return (
            process.node
            if isinstance(process, ControllerProcess)
            else process.controller
            if process
            else None
        )

    async def keep_up(self) -> None:
        """Until cancelled."""
        while True:
            self._changed.clear()
            if self.is_wanted and not self.is_struck and self.life is None:
                self._start()
            await self._changed.wait()
            if self.life is None:
                await asyncio.sleep(AGAIN_S)
                self._changed.set()

    def _start(self) -> None:
        if self.life_count:
            fate = fate_of(self._fate or "keep", self._rand.split(f"fate {self.life_count}"))
            was = self.disk
            self.disk = was.restart(fate, power_was_cut=bool(self._fate))
            self.disk.on_event = was.on_event
        if self._has_lost_disk:
            self._has_lost_disk = False
            self.disk = self._replaced(self.disk)
        self.life_count += 1
        self._is_ready = False
        life = self.life = Life(f"{self.name} life {self.life_count}")
        self.world.trace.note(self.name, "start", self.life_count)
        self.world.loop.create_task(self._run(life), context=own_context(life))

    def _replaced(self, lost: SimDisk) -> SimDisk:
        """An empty one, and the write-ahead log, which lies on a volume of its own."""
        disk = self._new_disk(f"disk {self.life_count}")
        if WAL_FILE in lost.files:
            disk.files[WAL_FILE] = lost.files[WAL_FILE]
        return disk

    async def _run(self, life: Life) -> None:
        roles = self.settings.is_broker, self.settings.is_controller
        kind = KINDS[roles]
        settings = replace(self.settings, is_lost_wal_accepted=self.is_loss_accepted)
        process = self.process = kind(settings, self._runtime(life))
        process.failed.add_done_callback(lambda failed: self._on_end(life, failed.exception()))
        self._starting = self.world.loop.create_task(process.start(), context=own_context(life))
        try:
            await self._starting
        except asyncio.CancelledError:
            return  # it is asked to stop
        except Exception as error:
            self._on_end(life, error)
            return
        self._is_ready = True
        self.world.trace.note(self.name, "ready", self.life_count)
        controller = self.controller
        assert controller is not None
        self.on_image(self, controller.publisher.image)
        controller.publisher.subscribe(lambda delta, image: self.on_image(self, image))

    def _runtime(self, life: Life) -> Runtime:
        rand = self._rand.split(life.name)
        self.stores = []

        async def open_store(address: StoreAddress, clock: Clock) -> ObjectStore:
            """All of them on the one bucket: keys do not meet."""
            own_rand = rand.split(f"store {len(self.stores)}")
            store = SimObjectStore(self.world.bucket, own_rand, self.faults, lambda key, own: None)
            store.on_event = self.world.trace.of(f"{self.name} store")
            self.stores.append(store)
            return store

        self._mounted = None if self._shared is None else self._shared.mounted(self.disk)
        if self._mounted is not None:
            self._mounted.is_slow = self.is_slow
        disk: Any = self._mounted or self.disk
        return Runtime(self.clock, rand, disk, self.world.net.host(self.host, life), open_store)

    def _on_end(self, life: Life, error: BaseException | None) -> None:
        """The process says that it cannot go on, or has ended."""
        if life.is_over or life is not self.life:
            return
        if self.is_log_lost and isinstance(error, BindingRefused):
            self.refusals += 1
        elif error is not None:
            self.ends.append(error)
        self._end(type(error).__name__ if error else "in order", "")

    def kill(self, fate: str = "") -> None:
        """As kill -9, or, with a fate of what was not durable, a power cut."""
        if self.life is None:
            return
        self.world.hits["power cut" if fate else "kill"] += 1
        if fate:
            self.disk.cut()
        self._end("killed", fate)

    def lose_disk(self) -> None:
        """Of a machine that is down: its next life finds no log directory."""
        assert self.life is None
        self._has_lost_disk = True

    # Its write-ahead log, one of blocks; the machine is down.

    @property
    def _log_disk(self) -> SimDisk:
        return self.disk if self._shared is None else self._shared.below

    @property
    def is_log_shared(self) -> bool:
        return self._shared is not None

    @property
    def _log_path(self) -> str:
        return self.settings.wal.target

    def has_log(self) -> bool:
        return self._log_path in self._log_disk.files

    def take_log(self) -> SimFile:
        """It is not there any more. What was under way to it has come to its end."""
        assert self.life is None
        file = self._log_disk.files.pop(self._log_path)
        fate = fate_of(self._fate or "keep", self._rand.split(f"fate of the log {self.life_count}"))
        for pending in list(file.pending) if self._shared is None else ():
            file.pending.remove(pending)
            for position, data in fate(pending):
                file.put(position, data)
        return file

    def put_log(self, file: SimFile) -> None:
        """In the place of what is there now."""
        assert self.life is None
        self._log_disk.files[self._log_path] = file

    async def stop(self) -> None:
        """In order; returns when it is gone."""
        life, process = self.life, self.process
        if life is None or process is None:
            return
        self.world.hits["orderly stop"] += 1
        self.world.trace.note(self.name, "stop", self.life_count)

        async def end() -> None:
            """As `millrace serve` does at a signal."""
            if self._starting is not None and not self._starting.done():
                self._starting.cancel()
                await asyncio.wait([self._starting])
            await process.stop()
            self._on_end(life, None)

        self.world.loop.create_task(end(), context=own_context(life))
        while not life.is_over:  # noqa: ASYNC110  (each life has an end of its own)
            await asyncio.sleep(0.01)

    def _end(self, why: str, fate: str) -> None:
        assert self.life is not None
        life, self.life, self.process = self.life, None, None
        self._fate = fate
        self.world.trace.note(self.name, "down", self.life_count, why)
        self.world.loop.end_life(life)
        for store in self.stores:
            store.cut({"drop": False, "keep": True}.get(fate), is_death=True)
        if self._mounted is not None:
            self._mounted.end(fate_of(fate or "keep", self._rand.split(f"shared fate {self.life_count}")))
        self.world.net.reset(life)
        self._changed.set()

    def wake(self) -> None:
        """What is wanted has changed."""
        self._changed.set()

    def set_slow(self, *, is_slow: bool) -> None:
        """What it writes to the shared disk may land late."""
        self.is_slow = is_slow
        if self._mounted is not None:
            self._mounted.is_slow = is_slow

    def set_faults(self, faults: object) -> None:
        self.faults = faults  # type: ignore[assignment]
        for store in self.stores:
            store.faults = faults  # type: ignore[assignment]
