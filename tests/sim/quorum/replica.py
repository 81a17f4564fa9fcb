"""One machine of the quorum: a disk and a clock that stay, and a ControllerNode on them that is started,
stopped, killed or cut off the power.

Each start is a `Life`: when it is over nothing of it runs again. Strikes come at their event, which is
counted over all lives. Not here: when and why (run.py, weather.py), what must hold (watch.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context
from dataclasses import replace
from typing import Any, Protocol

from millrace.kraft.config import ControllerSettings
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.node import ControllerNode
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.messages import Fetch, Message
from millrace.runtime.rand import Rand
from tests.sim.clock import SimClock
from tests.sim.disk import Fail, Fate, SimDisk
from tests.sim.loop import Life, SimLoop, own_context
from tests.sim.quorum.plan import Strike
from tests.sim.trace import Note

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
CLOSE_MAX_S = 20.0
DISK_LATENCY_S = 0.002
ROOMY_BYTES = 1 << 40


class Surroundings(Protocol):
    """What a replica has beside its machine."""

    def send(self, message: Message) -> None: ...

    def fetch_snapshot(self, node_id: int, leader: int, snapshot: SnapshotId) -> AsyncIterator[bytes]: ...

    def on_image(self, replica: Replica, image: MetadataImage) -> None: ...

    def on_cut(self, replica: Replica, end_bytes: int, path: str) -> None:
        """Its log is about to be cut."""
        ...

    def look(self, replica: Replica) -> None:
        """Something has happened there."""
        ...

    def count(self, kind: str) -> Strike | None:
        """An event that a strike can be planned at, whoever's: what comes there."""
        ...


class StartFailed(Exception):
    """The process ended before it was up; its reason is the cause."""


class Replica:
    def __init__(
        self,
        loop: SimLoop,
        settings: ControllerSettings,
        rand: Rand,
        note: Note,
        around: Surroundings,
        fate: Callable[[Rand], Fate],
    ) -> None:
        self.node_id = settings.node_id
        self.settings = replace(settings, cluster_id=CLUSTER)
        self.rand = rand
        self.clock = SimClock(lambda: loop.now_us)
        self.hits: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()  # of events a strike can be planned at
        self.strikes: dict[tuple[str, int], Strike] = {}
        self.life_count = 0
        self.life: Life | None = None
        self.node: ControllerNode | None = None  # of the life that is, once it is open
        self.failures: list[BaseException] = []  # why processes ended by themselves
        self.has_failed_write = False  # in this life
        self.installing = ""  # the path of a snapshot that is being fetched, or takes the log's place
        self._is_fetching = False
        self.is_frozen = False
        self.gone: asyncio.Future[None] = loop.create_future()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._context: Context = own_context(None)
        self._loop = loop
        self._note = note
        self._around = around
        self._fate = fate
        self._was_cut = False
        self.disk_count = 1
        self.disk = SimDisk(rand.split("disk"), latency_s=DISK_LATENCY_S)
        self._adopt(self.disk)

    def __repr__(self) -> str:
        return f"replica{self.node_id}"

    @property
    def is_up(self) -> bool:
        """Its start is over, and its process lives."""
        return self.node is not None and self._opened.done()

    @property
    def raft(self) -> Raft | None:
        """Of the process that is up."""
        return self.node.driver.raft if self.node is not None else None

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        """Soon, in its life, unless that is over by then."""
        self._loop.call_soon(callback, *args, context=self._context)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work, context=self._context)

    # A process.

    async def start(self) -> None:
        """Raises StartFailed."""
        self.life_count += 1
        self.life = Life(f"replica{self.node_id}.{self.life_count}")
        self._context = own_context(self.life)
        self.gone, self._opened = self._loop.create_future(), self._loop.create_future()
        self.has_failed_write, self.installing, self._is_fetching = False, "", False
        self._note("start", self.life_count)
        self._task(self._serve())
        await asyncio.wait([self.gone, self._opened], return_when=asyncio.FIRST_COMPLETED)
        if self._opened.done() and (error := self._opened.exception()) is not None:
            raise StartFailed from error

    async def _serve(self) -> None:
        life = self.life
        try:
            node = await ControllerNode.open(
                self.disk,
                self.clock,
                self.rand.split(f"life {self.life_count}"),
                self.settings,
                on_failed=self._on_failed,
                send=self._send,
                snapshots=self,
            )
            node.publisher.subscribe(lambda delta, image: self._around.on_image(self, image))
            self.node = node
            self._around.on_image(self, node.publisher.image)
            await node.start()
            self._opened.set_result(None)
        except Exception as error:
            self._note("start-failed", type(error).__name__)
            if life is self.life and not self._opened.done():
                self._opened.set_exception(error)
                self._end()

    def _send(self, message: Message) -> None:
        if self.life is None or self.life.is_over:
            return
        if isinstance(message, Fetch) and not self._is_fetching:
            self.installing = ""
        self._around.look(self)
        self._around.send(message)

    def fetch(self, leader: int, snapshot: SnapshotId) -> AsyncIterator[bytes]:
        """SnapshotSource."""
        self.installing = f"{self.settings.log_dir}/__cluster_metadata-0/{snapshot.name}"
        self._note("installs", leader, snapshot.end, snapshot.epoch)
        return self._fetched(self._around.fetch_snapshot(self.node_id, leader, snapshot))

    async def _fetched(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._is_fetching = True
        try:
            async for piece in pieces:
                yield piece
        finally:
            self._is_fetching = False

    def _on_failed(self, error: BaseException) -> None:
        self._note("failed", type(error).__name__)
        self.failures.append(error)
        self._end()

    def _end(self) -> None:
        """The process is gone, the machine stays up."""
        if self._was_cut:
            return
        self._over()
        self._adopt(self.disk.restart(power_was_cut=False))

    def _over(self) -> None:
        life, self.life, self.node, self.is_frozen = self.life, None, None, False
        if life is not None:
            self._loop.end_life(life)
        if not self.gone.done():
            self.gone.set_result(None)

    def kill(self) -> None:
        if self.life is not None:
            self._note("kill")
            self.hits["kill"] += 1
            self._end()

    def power_off(self) -> None:
        """Also when no process runs."""
        self.disk.cut()

    def _on_power_cut(self) -> None:
        self._was_cut = True
        self._over()

    def lose_disk(self) -> None:
        """The machine goes on with an empty one."""
        self.kill()
        self.disk_count += 1
        self._adopt(SimDisk(self.rand.split(f"disk {self.disk_count}"), latency_s=DISK_LATENCY_S))

    def boot(self) -> None:
        """The machine has power again."""
        if self._was_cut:
            self._was_cut = False
            self._adopt(self.disk.restart(self._fate(self.rand)))

    async def stop(self) -> bool | None:
        """In order; whether it came to its end. None: there was nothing, or it was killed on the way."""
        node, life = self.node, self.life
        if node is None or life is None:
            return None
        closing = self._task(node.close())
        await asyncio.wait([closing, self.gone], timeout=CLOSE_MAX_S, return_when=asyncio.FIRST_COMPLETED)
        if self.life is not life:
            return None
        self._note("stopped", closing.done())
        is_done = closing.done()
        self._end()
        return is_done

    def freeze(self) -> None:
        assert self.life is not None
        self.is_frozen = True
        self._loop.freeze(self.life)

    def thaw(self) -> None:
        if self.is_frozen:
            self.is_frozen = False
            self._loop.thaw()

    # Its disk.

    def _adopt(self, disk: SimDisk) -> None:
        disk.latency_s, disk.capacity_bytes = self.disk.latency_s, self.disk.capacity_bytes
        self.disk = disk
        disk.on_event, disk.on_cut = self._on_disk_event, self._on_power_cut

    def _on_disk_event(self, *words: object) -> None:
        self._note("disk", *words)
        if words[0] == "cut" or self.life is None:
            return
        number, what, path = int(str(words[0])), str(words[1]), str(words[2])
        if what == "truncate" and path.endswith(".log") and self.node is not None:
            self._around.on_cut(self, int(str(words[3])), path)
        for kind in ("write", *self._kinds(what, path)):
            self.counts[kind] += 1
            for strike in (self.strikes.pop((kind, self.counts[kind]), None), self._around.count(kind)):
                if strike is not None:
                    self.strike(strike, number)

    def _kinds(self, what: str, path: str) -> list[str]:
        if path.endswith("quorum-state"):
            return ["state"]
        if ".checkpoint" in path:
            is_installing = bool(self.installing) and path.startswith(self.installing)
            return ["install" if is_installing else "snapshot"] if what != "remove" else []
        if not path.endswith(".log"):
            return []
        if what in ("append", "sync", "truncate"):
            return [what]
        return ["restart" if self.installing else "trim"] if what == "remove" or self.installing else []

    def strike(self, strike: Strike, write: int = 0) -> None:
        if self.life is None:
            return
        self._note("strike", strike)
        self.hits[f"strike at: {strike.kind}"] += 1
        self.hits[f"{strike.action} at: {strike.kind}"] += 1
        if strike.action == "cut":
            self.power_off()
        elif strike.action == "kill":
            self.kill()
        else:
            self.has_failed_write = True
            self.disk.at_write(write, Fail())
