"""One machine: a disk that stays, and a broker process on it that is started, stopped, killed or cut off the
power.

The process is the real `Broker` on simulated edges. Each start is a `Life`; when the disk's power goes, the
life ends in that instant: none of its code runs again, its store requests arrive or not, its connections
break, and `restart` finds what the fate left. A process that ends by itself (`Broker.failed`) is killed as
its own edge would (exit), with the machine still up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

from millrace.broker.app import Broker
from millrace.broker.config import BrokerSettings
from millrace.broker.controller_client import ControllerClient
from millrace.broker.identity.ownership import Replaced as TakenOver
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.quorum.remote_backup import RemoteBackup
from millrace.broker.stores import NodeStores
from millrace.kraft.bucket.writer import MetadataBackup
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.log_store import LogStore
from millrace.kraft.node import ControllerNode
from millrace.kraft.recovery import recover
from millrace.runtime.bundle import Runtime
from millrace.runtime.clock import Clock
from millrace.runtime.disk import BLOCK_BYTES, DiskFailed
from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import StoreAddress
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import NO_OBJECT, ObjectKind
from millrace.s3stream.storage import Storage
from millrace.wal.block.layout import RING_START, Geometry, choose_device_header
from millrace.wal.errors import WalCorrupt, WalFenced
from millrace.wal.log import WriteAheadLog
from millrace.wal.object.layout import log_prefix, parse_key
from tests.sim.disk import Fail, Fate, SimDisk, any_fate, drop, holes, keep, tear
from tests.sim.loop import Life, own_context
from tests.sim.lost_log import LostLog
from tests.sim.objectstore import SimObjectStore, StoreFaults
from tests.sim.rival import Rival
from tests.sim.salvage import Salvage
from tests.sim.settings import PORT, WAL_FILE, node_settings
from tests.sim.strange import Objects, StrangePlace, copied
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.clones import Cloned

DISK_LATENCY_S = 0.002
ASTRAY = (-1, 0)  # in place of a byte that is wrong: a write of the log went elsewhere
QUIET = StoreFaults(latency_ms=(1, 12), timeout_ms=2_000)


def fate_of(name: str, rand: Rand) -> Fate:
    """What becomes of that which was not durable."""
    if name in ("drop", "keep"):
        return {"drop": drop, "keep": keep}[name]
    if name == "holes":
        return holes()
    return {"tear": tear(rand), "tear blocks": tear(rand, BLOCK_BYTES), "any": any_fate(rand)}[name]


# What a strike meets, by the words that tell of the event: the first that fits names it.
POINTS = (
    ("WAL header", ("write_at", "/wal 0 ")),
    ("WAL header", ("write_at", "/wal 4096 ")),
    ("WAL block", ("write_at",)),
    ("metadata log", ("append",)),
    ("metadata log", ("sync",)),
    ("snapshot", ("checkpoint",)),
    ("file", ()),
)
NAMING = (
    "create",
    "write_file",
    "make_folder",
    "remove",
    "rename",
    "reserve",
)  # what changes names on the disk
SELDOM = ("TrimStreams", "CloseStreams", "DeleteStreams")  # commands
MULTIPART_POINTS = ("multipart_start", "multipart_part", "multipart_complete", "multipart_abort")
STORE_POINTS = ("put", "replace", "delete", "get", "list", "head", *MULTIPART_POINTS)


def point_of(kind: str, words: tuple[object, ...]) -> str:
    """In a word or two, what was about to happen."""
    text = " ".join(map(str, words))
    if kind == "turn":
        return "any callback"
    if kind in ("command", "seldom", "promise"):
        return text
    if kind in ("store", "change", "part", "read"):
        moment = "sent" if words[1] == "sent" else "in effect"
        name = next(name for name in STORE_POINTS if str(words[2]).startswith(name))
        if "/wal/" in text:
            name = "WAL object" if name == "put" else f"WAL {name}"
        return f"{name} {moment}"
    return next(name for name, parts in POINTS if all(part in text for part in parts))


def what_was_compacted(request: Any) -> str:
    """In a word or two, what a commit of compaction did."""
    if any(made.kind == ObjectKind.COMPOSITE for made in request.stream_objects):
        return "composites"
    if request.object_id == NO_OBJECT and not request.stream_objects:
        return "dead objects"
    return (
        "streams merged"
        if request.object_id == NO_OBJECT and len(request.stream_objects) == 1
        else "sets merged or split"
    )


class LossyChannel:
    """The way to the controller: with `lost_per_mille`, a command is carried out, and whoever asked is told
    that the outcome is unknown."""

    def __init__(self, channel: Any, node: SimNode) -> None:
        assert node.life is not None
        self._channel = channel
        self._node = node
        self._life = node.life

    async def send(self, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        self._on_command(name, "sent")
        if self._life.is_over:
            await asyncio.get_running_loop().create_future()  # struck: nobody is there to go on
        response = await self._channel.send(request)
        if name == "CommitCompaction" and not response.error_code:
            self._node.world.hits[f"compaction: {what_was_compacted(request)}"] += 1
        self._on_command(name, "carried out")
        if self._life.is_over:
            await asyncio.get_running_loop().create_future()
        if self._node.rand.below(1000) < self._node.lost_per_mille:
            self._node.world.hits["lost answer of the controller"] += 1
            self._node.world.trace.note(self._node.name, "lost-answer", type(request).__name__)
            raise Unavailable("the answer was lost")
        return response

    def _on_command(self, name: str, moment: str) -> None:
        replaced = self._node.replaced
        is_cloned = replaced is not None and replaced.disk is not None and replaced.life is self._life
        tell = replaced.on_command if replaced is not None and is_cloned else self._node.on_command
        tell(name, moment)


class SimBroker(Broker):
    """Shows its parts to whoever watches them, as they come into being."""

    storage: Storage | None = None
    stores: NodeStores | None = None

    def __init__(self, node: SimNode, runtime: Runtime) -> None:
        super().__init__(node.settings, runtime)
        self._node = node

    async def _start_controller(self, stores: NodeStores) -> ControllerNode:
        self.stores = stores
        controller = await super()._start_controller(stores)
        self._node.cluster_id = controller.cluster_id
        controller.channel = LossyChannel(controller.channel, self._node)
        self._node.on_image(controller.publisher.image)
        controller.publisher.subscribe(lambda delta, image: self._on_image(image))
        return controller

    def _on_image(self, image: MetadataImage) -> None:
        if self._node.broker is self:  # else another has taken its place
            self._node.on_image(image)

    async def _start_engine(
        self,
        node: ControllerNode,
        cache: MetadataCache,
        client: ControllerClient,
        stores: NodeStores,
        wal: WriteAheadLog,
        backup: MetadataBackup | RemoteBackup,
    ) -> Storage:
        self.storage = await super()._start_engine(node, cache, client, stores, wal, backup)
        return self.storage


@dataclass(slots=True, eq=False)
class Replaced:
    """A process that lives on where another has taken its place: what it still has. One that was cloned has
    its disk, too."""

    life: Life
    stores: list[SimObjectStore]
    broker: SimBroker | None = None
    disk: SimDisk | None = None
    on_command: Callable[[str, str], None] = lambda name, moment: None
    on_end: Callable[[BaseException | None], None] = lambda error: None


class StartFailed(Exception):
    """The process ended before it was ready; its reason is the cause."""


class SimNode:
    """`life_count` counts starts; `gone` is done when the running process is. Strikes come at their point:
    the number of a disk write, of a store event (a request sets out, or takes effect), of a command to the
    controller or of a callback, counted over all lives from 1."""

    def __init__(self, world: World, node_id: int = 1, settings: BrokerSettings | None = None) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"node{node_id}"
        self.host = f"10.0.0.{node_id}"
        self.address = (self.host, PORT)
        self.settings = settings or node_settings(node_id, self.host)
        self.store_faults = QUIET
        self.life_count = 0
        self.life: Life | None = None
        self.broker: SimBroker | None = None
        # of the running process: one for data, others for a log of objects
        self.stores: list[SimObjectStore] = []
        self.failures: list[BaseException] = []  # why processes ended by themselves
        self.gone: asyncio.Future[None] = world.loop.create_future()
        self._ready: asyncio.Future[None] = world.loop.create_future()
        self._rand = world.rand.split(self.name)
        self.counts: Counter[str] = Counter()  # "write", "store"
        self.first_points: dict[tuple[str, str], int] = {}  # by kind and name: the number of the first
        self.rand = self._rand.split("faults")
        self.strikes: dict[tuple[str, int], str] = {}  # (kind, number) -> action
        self._strikes_met = 0
        self.image: MetadataImage | None = None  # the last that was committed, in any life
        self.cluster_id = ""
        self.lost_per_mille = 0  # of the controller's answers
        self.on_image: Callable[[MetadataImage], None] = lambda image: None  # told of each that is committed
        self.on_start: Callable[[], None] = lambda: (
            None
        )  # called before each start, when the disk is what it will find
        self.on_point: Callable[[str, int], None] = lambda kind, number: (
            None
        )  # told of each event, before what strikes there
        self._heads = (0, 0)  # of the log: before the last trim, and after it
        self.on_strike: Callable[[], None] = lambda: None
        self.on_restart: Callable[[], None] = lambda: None  # the same as on_start, but for the first
        # where a byte of the log was made wrong, at one start, and what it was
        self.rotten: tuple[int, int] | None = None
        # The same of an object of the log: key, position, and the object as it was left.
        self.rotten_object: tuple[str, int, tuple[bytes, int]] | None = None
        self.replaced: Replaced | None = None
        # the story of it, where the process that was replaced has a disk of its own
        self.cloned: Cloned | None = None
        self.begin_clone: Callable[[Rand], None] = lambda rand: None  # as begin_salvage
        self.strange: StrangePlace | None = None  # a place that is not its own, which a start is to find
        self.salvage: Salvage | None = None  # damage to the log, which a start is to find
        # stream and end of entries of the log that an operator gave up
        self.given_up: dict[tuple[int, int], None] = {}
        self.begin_salvage: Callable[[Rand], None] = lambda rand: None  # the run knows whose history it is
        self.lost_log: LostLog | None = None  # the log directory goes at a start, and is restored
        # As begin_salvage; with a copy of the bucket to restore from, or None.
        self.begin_loss: Callable[[Rand, Objects | None], None] = lambda rand, copy: None
        self.on_restored: Callable[[], None] = lambda: None  # metadata begins anew
        self.on_other_wal: Callable[[], None] = lambda: None  # another WAL is in place
        self.on_wal_copied: Callable[[], None] = lambda: (
            None
        )  # a copy of it was taken, which may be in place later
        self.orphans: dict[int, None] = {}  # objects in the bucket that restored metadata does not know
        self.rival: Rival | None = None  # who is first where a conditional put loses
        self.failing_until = 0  # the life in which a write was made to fail
        self.fate_name = "any"  # what is written when a strike comes
        self._fate_now = "any"
        self.is_stopped_in_order = False  # the last stop was no strike's
        self._stopping: Life | None = None
        self.disk = SimDisk(self._rand.split("disk"), latency_s=DISK_LATENCY_S)
        self._adopt(self.disk)

    def _adopt(self, disk: SimDisk) -> None:
        disk.on_write, disk.on_durable = self.disk.on_write, self.disk.on_durable
        self.disk = disk
        disk.on_event = self._on_disk_event
        disk.on_cut = self._on_power_cut

    def _on_disk_event(self, *words: object) -> None:
        self.world.trace.note(self.name, "disk", *words)
        if words[0] == "cut":
            return
        self._count("write", words)
        if words[1] in NAMING:
            self._count("name", words)
        if self._strikes_met:
            self._count("next", words)
        if (
            words[1:3] == ("write_at", WAL_FILE)
            and int(str(words[3])) >= RING_START
            and words[5] != crc32(bytes(int(str(words[4]))))
        ):
            if any(pending.path == WAL_FILE for pending in self.disk.pending()):
                self._count("crowd", words)
            if self._strikes_met:
                self._count("again", words)
            if self._is_over_what_was_freed(int(str(words[3]))):
                self._count("lap", words)

    def _is_over_what_was_freed(self, position: int) -> bool:
        """Whether a block that is written there takes what the header before this one still counted."""
        data = self.disk.files[WAL_FILE].durable
        header = choose_device_header(bytes(data[:BLOCK_BYTES]), bytes(data[BLOCK_BYTES:RING_START]))
        if header is None:
            return False
        if header.head != self._heads[1]:
            self._heads = self._heads[1], header.head
        before, now = self._heads
        geometry = Geometry.of(header.capacity_bytes)
        return before < now and (position - geometry.physical(before)) % geometry.ring_bytes < now - before

    def _on_store_event(self, *words: object) -> None:
        self.world.trace.note(self.name, "store", *words)
        self._count("store", words)
        is_change = str(words[2]).startswith(("put", "replace", "delete", "multipart"))
        self._count("change" if is_change else "read", words)
        if str(words[2]).startswith("multipart"):
            self._count("part", words)

    def on_command(self, name: str, moment: str) -> None:
        """The broker asks something of the controller, or has its answer."""
        self.world.trace.note(self.name, "command", name, moment)
        self.world.hits[f"command: {name}"] += moment != "sent"
        self._count("command", (name, moment))
        if name in SELDOM:
            self._count("seldom", (name, moment))

    def on_promise(self) -> None:
        """A client has just heard that something is done."""
        self._count("promise", ("promise",))

    def _count(self, kind: str, words: tuple[object, ...]) -> None:
        self.counts[kind] += 1
        self.first_points.setdefault((kind, point_of(kind, words)), self.counts[kind])
        self.on_point(kind, self.counts[kind])
        action = self.strikes.pop((kind, self.counts[kind]), None)
        if action is not None:
            self._strike(kind, action, words)

    def plan_strike(self, kind: str, number: int, action: str) -> None:
        if kind == "turn":
            self.world.loop.strike_at(number, lambda: self._strike(kind, action, ()))
        else:
            self.strikes[kind, number] = action

    def _strike(self, kind: str, action: str, words: tuple[object, ...]) -> None:
        if self.life is None:
            self.world.hits["strike while it is down"] += 1
            return
        hits, moment = self.world.hits, "serves" if self.is_ready else "starts"
        hits[f"strike at a{'n' if kind == 'again' else ''} {kind}"] += 1
        hits[f"strike at: {point_of(kind, words)}"] += 1
        hits[f"strike while it {moment}"] += 1
        hits["second strike"] += self._strikes_met > 0
        self._strikes_met += 1
        self.on_strike()
        self.world.trace.note(self.name, "strike", action, "at", point_of(kind, words), "while it", moment)
        if action == "cut":
            self.cut_power()
        elif action == "kill":
            self.kill()
        else:
            assert kind == "write", kind
            self.failing_until = self.life_count
            self.disk.at_write(self.disk.write_count, Fail())

    def has_a_header(self) -> bool:
        """Whether it was a copy of the log's header that was made wrong, and the other is sound."""
        position, _ = self.rotten or ASTRAY
        if not 0 <= position < RING_START:
            return False
        data = self.disk.files[WAL_FILE].durable
        other = data[BLOCK_BYTES:RING_START] if position < BLOCK_BYTES else data[:BLOCK_BYTES]
        return choose_device_header(bytes(other), b"") is not None

    def mend(self) -> bool:
        """Whether the byte that was made wrong was wrong still, or its block unreadable; it is right now."""
        if self.rotten_object is not None:
            key, position, damaged = self.rotten_object
            if self.world.bucket.objects.get(key) is not damaged:
                return False
            self.world.bucket.rot(key, position)
            return True
        position, value = self.rotten or ASTRAY
        if position < 0 and WAL_FILE in self.disk.files and self.disk.files[WAL_FILE].is_astray:
            self.world.hits["stray write refused"] += 1
            self.disk.files[WAL_FILE].set_right()
            return True
        if position >= 0 and self.disk.find_block(WAL_FILE, position):
            return True
        if position < 0 or self.disk.files[WAL_FILE].durable[position] != value ^ 1:
            return False
        self.disk.flip(WAL_FILE, position)
        return True

    def is_place_named(self, error: WalCorrupt) -> bool:
        """Whether damage to an object of the log is told with that object's name."""
        if self.rotten_object is None:
            return True
        key = self.rotten_object[0]
        place = parse_key(log_prefix(self.cluster_id, self.node_id), key)
        return key in str(error) or (
            place is not None and f"epoch {place.epoch}, slot {place.slot}" in str(error)
        )

    def is_failure_of_disk(self, error: BaseException | None) -> bool:
        """Whether a write was made to fail in this life, and that is what the process says of its end."""
        while error is not None and not isinstance(error, DiskFailed):
            error = error.__cause__ or error.__context__
        return error is not None and self.failing_until == self.life_count

    def is_outrun(self, error: BaseException | None) -> bool:
        """Whether the process ends for a rival that was first, and says so."""
        while error is not None and not isinstance(error, WalFenced):
            error = error.__cause__ or error.__context__
        if error is None or self.rival is None or error.found_epoch not in self.rival.epochs:
            return False
        self.world.hits["ended for a rival"] += 1
        return True

    def twin(self, disk: SimDisk) -> SimNode:
        """The same machine in a world of its own, with this disk and the bucket as it is now: what would
        happen if."""
        world = World(self.world.loop, f"twin {self.life_count}")
        world.bucket.objects = dict(self.world.bucket.objects)
        twin = SimNode(world, self.node_id, self.settings)
        twin._adopt(disk)
        return twin

    async def image_on_disk(self, rand: Rand) -> MetadataImage:
        """What the next start makes of the metadata log that is on the disk, where the machine stays up."""
        disk, settings = self.disk.restart(power_was_cut=False), self.settings.controller
        store = LogStore(disk, settings.log_dir, (settings.node_id,), settings.segment_bytes)
        _, recovery, _, _ = await recover(disk, rand, settings, store)
        return recovery.image()

    # Lives.

    async def start(self) -> None:
        """A new process, on what `fate_name` leaves of the disk where the power went. Returns when it serves;
        StartFailed when it ended instead, by itself or by a cut."""
        assert self.life is None, f"{self.name} runs"
        if self.life_count:
            fate = fate_of(self._fate_now, self._rand.split(f"fate {self.life_count}"))
            self._adopt(self.disk.restart(fate, power_was_cut=self.disk.was_cut.is_set()))
            self.on_restart()
        self.on_start()
        if self.lost_log is not None:
            await self.lost_log.lose_and_restore()
        if self.strange is not None:
            await self.strange.swap()
        self.life_count += 1
        self.world.trace.note(self.name, "start", self.life_count)
        life = self.life = Life(f"{self.name} life {self.life_count}")
        self.gone, self._ready = self.world.loop.create_future(), self.world.loop.create_future()
        self.world.loop.create_task(self._run(life), context=own_context(life))
        await self._ready

    async def ready(self) -> None:
        """Returns when it serves, whoever starts it, and however often it takes."""
        while not self.is_ready:  # noqa: ASYNC110  (each life has a future of its own)
            await asyncio.sleep(0.01)

    @property
    def is_ready(self) -> bool:
        return self.life is not None and self._ready.done()

    async def _run(self, life: Life) -> None:
        """Within the life: what `millrace serve` does."""
        try:
            broker = self.broker = SimBroker(self, self._runtime(life))
            broker.failed.add_done_callback(lambda failed: self._on_failed(life, failed.exception()))
            await broker.start()
        except Exception as error:
            self._end(life, error)
        else:
            self.world.trace.note(self.name, "ready", self.life_count)
            self._ready.set_result(None)

    def _runtime(self, life: Life) -> Runtime:
        rand = self._rand.split(life.name)
        self.stores = []

        async def open_store(address: StoreAddress, clock: Clock) -> ObjectStore:
            """All of them on the one bucket: keys do not meet."""
            own_rand = rand.split(f"store {len(self.stores)}")
            store = SimObjectStore(self.world.bucket, own_rand, self.store_faults, self._put_before)
            store.on_event = self._on_store_event
            self.stores.append(store)
            return store

        return Runtime(self.world.clock, rand, self.disk, self.world.net.host(self.host, life), open_store)

    def _put_before(self, key: str, own: bytes) -> bytes | None:
        return None if self.rival is None else self.rival.put_before(key, own)

    def set_store_faults(self, faults: StoreFaults) -> None:
        """From now on, for this and later lives."""
        self.store_faults = faults
        first = self.replaced.stores if self.replaced is not None and self.replaced.disk is not None else []
        for store in (*self.stores, *first):
            store.faults = faults

    @property
    def is_store_quiet(self) -> bool:
        return self.store_faults is QUIET and not self.world.bucket.is_away

    async def stop(self) -> None:
        """A controlled shutdown, as by SIGTERM; who asks again waits for the first. Returns when the process
        is gone, in order or not."""
        assert self.life is not None
        if self._stopping is not self.life:
            self._stopping = self.life
            self.is_stopped_in_order = False
            self.world.trace.note(self.name, "stop", self.life_count)
            self.world.loop.create_task(self._stop(self.life), context=own_context(self.life))
        await self.gone

    async def _stop(self, life: Life) -> None:
        if life is not self.life:
            return  # it was replaced before it heard of it
        assert self.broker is not None
        await self.broker.stop()
        self.is_stopped_in_order = not life.is_over and life is self.life
        self._end(life, None, "any")

    def kill(self) -> None:
        """As kill -9: the disk keeps what it was given."""
        if self.life is not None:
            self.world.hits["kill"] += 1
            self._end(self.life, None)

    def replace(self) -> None:
        """The machine's volume and address go to another machine, where the next process starts. The one here
        lives on, with its connections and its way to the store; but no operation of its disk ends any more,
        and so nothing that it asks of its controller."""
        assert self.life is not None
        assert self.replaced is None
        self.world.trace.note(self.name, "replaced", self.life_count)
        self.replaced = Replaced(self.life, self.stores)
        for store in self.stores:
            store.on_event = self.world.trace.of(f"{self.name} replaced")
        self.world.net.unlisten(self.life)
        self._fate_now = self.fate_name
        self.disk.on_cut = lambda: None
        self.disk.cut()
        self.life = self.broker = None
        self.gone.set_result(None)

    def clone(self, host: str) -> Replaced:
        """A copy of the volume goes to another machine, with the address, and the next process starts there.
        The one here lives on at `host`, with its own disk; its connections are broken."""
        assert self.life is not None
        assert self.replaced is None
        self.world.trace.note(self.name, "cloned", self.life_count)
        first = self.replaced = Replaced(self.life, self.stores, self.broker, self.disk)
        self.copy_disk(first)
        assert first.disk is not None
        first.disk.on_write = first.disk.on_durable = lambda path, position, data: None
        first.disk.on_event = self.world.trace.of(f"{self.name} first")
        first.disk.on_cut = lambda: None
        self.world.net.move(self.life, host)
        self.life = self.broker = None
        self.gone.set_result(None)
        return first

    def copy_disk(self, first: Replaced) -> None:
        """The machine has a copy of that one's disk as it is now."""
        assert first.disk is not None
        found = first.disk.restart(keep, power_was_cut=False)
        copy = SimDisk(self._rand.split(f"clone {self.life_count}"), latency_s=DISK_LATENCY_S)
        copy.hits, copy.capacity_bytes, copy.is_direct = found.hits, found.capacity_bytes, found.is_direct
        copy.files, copy.folders = copied(found, lambda path: True), dict(found.folders)
        self._adopt(copy)

    def end_replaced(self, error: BaseException | None = None) -> None:
        """It is gone, too: killed, or (`error`) by itself, which it may for one reason only."""
        replaced, self.replaced = self.replaced, None
        if replaced is None:
            return
        self.world.trace.note(self.name, "replaced one is gone", type(error).__name__ if error else "")
        if isinstance(error, WalFenced | TakenOver):
            self.world.hits["replaced process fenced"] += 1
            self.world.hits["replaced process saw a newer claim"] += isinstance(error, TakenOver)
        elif error is not None:
            self.failures.append(error)
        replaced.on_end(error)
        self.world.loop.end_life(replaced.life)
        for store in replaced.stores:
            store.cut()
        self.world.net.reset(replaced.life)

    def cut_power(self) -> None:
        self.disk.cut()

    def _on_power_cut(self) -> None:
        self.world.hits[f"{min(4, len(self.disk.pending()))} other writes under way at a cut"] += 1
        if self.life is not None:
            self._end(self.life, None)

    def _on_failed(self, life: Life, error: BaseException | None) -> None:
        if error is not None and self.replaced is not None and life is self.replaced.life:
            self.end_replaced(error)
        elif error is not None and not life.is_over:
            if self.is_failure_of_disk(error):
                self.world.hits["ended for a failed write"] += 1
            elif not self.is_outrun(error):
                self.failures.append(error)
            self._end(life, error)

    def _end(self, life: Life, error: BaseException | None, fate_name: str = "") -> None:
        """The process is gone: nothing of it runs, and its peers hear of it."""
        if life.is_over:
            return
        if life is not self.life:  # it was replaced as it stopped
            self.end_replaced()
            return
        self._fate_now = fate_name or self.fate_name
        self.world.trace.note(self.name, "down", self.life_count, type(error).__name__ if error else "")
        self.world.loop.end_life(life)
        for store in self.stores:
            store.on_event = self.world.trace.of(self.name)
            store.cut({"drop": False, "keep": True}.get(self._fate_now), is_death=not fate_name)
        self.world.net.reset(life)
        self.life = self.broker = None
        self.gone.set_result(None)
        if not self._ready.done():
            failed = StartFailed(self.name)
            failed.__cause__ = error
            self._ready.set_exception(failed)
