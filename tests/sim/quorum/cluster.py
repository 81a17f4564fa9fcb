"""All replicas of a run and what lies between them: messages, snapshots, whoever watches; and who keeps them
up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from copy import copy
from functools import partial
from typing import Any

from millrace.kraft.errors import LogFull, SnapshotCorrupt
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.formatted_log import write_formatted_log
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.log.meta_properties import MetaProperties
from millrace.kraft.raft.messages import Message
from millrace.protocol.ids import uuid_text
from millrace.runtime.disk import DiskFailed, DiskFull
from millrace.runtime.errors import Unavailable
from millrace.runtime.rand import Rand
from tests.sim.loop import SimLoop
from tests.sim.node import fate_of
from tests.sim.quorum.gate import Gate
from tests.sim.quorum.history import History
from tests.sim.quorum.plan import WHOEVER, Plan, Strike
from tests.sim.quorum.post import Post
from tests.sim.quorum.replica import CLUSTER, DISK_LATENCY_S, ROOMY_BYTES, Replica, StartFailed
from tests.sim.quorum.settings import node_settings
from tests.sim.quorum.stored import FOLDER
from tests.sim.quorum.voters import first_voters
from tests.sim.quorum.watch import Watch
from tests.sim.trace import Trace

PIECE_BYTES = 500
FETCH_PATIENCE_S = 0.6
DOWN_MS_MAX = 1_500
SKEW_MS_MAX = 100_000


class Cluster:
    def __init__(self, loop: SimLoop, plan: Plan) -> None:
        self.rand = Rand(f"quorum {plan.seed}".encode())
        self.trace = Trace(lambda: loop.now_us)
        self.history = History()
        self.history.on_find = self.trace.of("finding")
        self.hits: Counter[str] = Counter()
        self.is_stormy = True
        self.away: dict[int, None] = {}  # nodes that stay down
        self.has_full_disk: dict[int, None] = {}  # nodes that had one, ever
        self.rotten: dict[int, tuple[str, int]] = {}  # node -> where a byte of a snapshot is wrong
        self.plan = plan
        self._loop = loop
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._stopping: dict[int, None] = {}
        self._strikes: dict[tuple[str, int], Strike] = {}  # at whoever comes to it
        self.counts: Counter[str] = Counter()
        self.post = Post(loop, self.rand.split("post"), self.trace.of("post"), self._hand_over)
        self.replicas = {node_id: self._replica(node_id) for node_id in plan.node_ids}
        self.watch = Watch(loop, self.history, self.replicas, plan.voter_ids)
        gate_rand = self.rand.split("gate")
        self.gate = Gate(loop, gate_rand, self.trace.of("gate"), self.replicas, self.watch, self.history)
        for strike in plan.strikes:
            if strike.kind == "turn":
                loop.strike_at(strike.number, partial(self._strike_at_turn, strike))
            elif strike.node_id == WHOEVER:
                self._strikes[strike.kind, strike.number] = strike
            else:
                self.replicas[strike.node_id].strikes[strike.kind, strike.number] = strike

    def _strike_at_turn(self, strike: Strike) -> None:
        if self.is_stormy:
            self.replicas[strike.node_id].strike(strike)

    def _replica(self, node_id: int) -> Replica:
        plan, rand = self.plan, self.rand.split(f"replica {node_id}")
        settings = node_settings(
            node_id, plan.voter_ids, plan.variants(), rand, plan.node_ids, is_dynamic=plan.is_dynamic
        )
        note = self.trace.of(f"replica{node_id}")
        replica = Replica(self._loop, settings, rand, note, self, lambda rand: fate_of(plan.fate, rand))
        replica.clock.offset_ms = rand.below(SKEW_MS_MAX)
        replica.clock.drift_ppm = rand.below(2_000) - 1_000
        return replica

    # What replicas have around them.

    async def format(self) -> None:
        """The disks of the first voters of a dynamic quorum."""
        known = first_voters(self.plan.voter_ids)
        for voter in known.voters:
            meta = MetaProperties(CLUSTER, voter.node_id, uuid_text(voter.directory_id))
            disk = self.replicas[voter.node_id].disk
            await write_formatted_log(disk, "/data", meta, known, 0)

    def send(self, message: Message) -> None:
        self.watch.on_send(message)
        if message.target < 0:
            message = copy(message)
            message.target = self.plan.node_ids[-2 - message.target]
        if message.target != message.source:
            self.post.send(message)

    def _hand_over(self, message: Message) -> None:
        replica = self.replicas[message.target]
        replica.call(self._step, replica, message)

    def _step(self, replica: Replica, message: Message) -> None:
        """In the life of the process."""
        if replica.node is not None:
            may_not_grant = self.watch.before_step(replica, message)
            replica.node.driver.step(message)
            self.watch.after_step(replica, message, may_not_grant)
            self.watch.look(replica)

    def on_image(self, replica: Replica, image: MetadataImage) -> None:
        self.watch.on_image(replica, image)

    def on_cut(self, replica: Replica, end_bytes: int, path: str) -> None:
        self.watch.on_cut(replica, end_bytes, path)

    def look(self, replica: Replica) -> None:
        self.watch.look(replica)

    def count(self, kind: str) -> Strike | None:
        self.counts[kind] += 1
        return self._strikes.pop((kind, self.counts[kind]), None)

    async def fetch_snapshot(self, node_id: int, leader: int, snapshot: SnapshotId) -> AsyncIterator[bytes]:
        """In pieces, each asked for, of whoever leads still; any of them may stay away, and the file may be
        gone by then."""
        position = 0
        while True:
            data = await self._piece(node_id, leader, f"{FOLDER}/{snapshot.name}", position)
            if not data:
                break
            position += len(data)
            yield data
        self.hits["snapshot fetched"] += 1

    async def _piece(self, node_id: int, leader: int, path: str, position: int) -> bytes:
        source = self.replicas.get(leader)
        if source is None or source is self.replicas[node_id] or not self.post.passes(node_id, leader):
            await asyncio.sleep(FETCH_PATIENCE_S)
            raise Unavailable("no answer")
        await asyncio.sleep(self.post.draw_delay_s())
        is_leading = source.raft is not None and source.raft.is_leader
        if not is_leading or source.is_frozen or not self.post.passes(leader, node_id):
            self.hits["snapshot broken off"] += bool(position)
            await asyncio.sleep(FETCH_PATIENCE_S)
            raise Unavailable("no answer")
        file = source.disk.files.get(path)
        if file is None:
            self.hits["snapshot gone at the leader"] += 1
            raise Unavailable(path)
        data = bytes(file.visible[position : position + PIECE_BYTES])
        await asyncio.sleep(self.post.draw_delay_s())
        return data

    # Who leads, as far as anybody knows.

    def leader(self) -> Replica | None:
        found = [
            replica
            for replica in self.replicas.values()
            if replica.node is not None and replica.node.driver.leading_epoch >= 0
        ]
        return max(found, key=lambda replica: replica.node.driver.leading_epoch) if found else None  # type: ignore[union-attr]

    # Keeping up.

    def begin(self) -> None:
        for node_id, replica in self.replicas.items():
            self._keepers[node_id] = asyncio.ensure_future(self._keep(replica))

    async def _keep(self, replica: Replica) -> None:
        while True:
            try:
                await replica.start()
                await replica.gone
            except StartFailed as failed:
                self._judge_start(replica, failed.__cause__)
            self._judge_end(replica)
            if replica.node_id in self._stopping:
                return
            down_ms = replica.rand.below(DOWN_MS_MAX) if self.is_stormy else 50
            await asyncio.sleep(down_ms / 1000)
            while replica.node_id in self.away:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            replica.boot()

    def _judge_start(self, replica: Replica, error: BaseException | None) -> None:
        rotten = self.rotten.get(replica.node_id)
        if isinstance(error, SnapshotCorrupt) and rotten is not None:
            self.hits["damaged snapshot refused"] += 1
            self.mend(replica)
        elif not self._is_excused(replica, error):
            self.history.find("start-failed", f"{replica}: {error!r}")

    def mend(self, replica: Replica) -> None:
        """What was damaged is put right."""
        rotten = self.rotten.pop(replica.node_id, None)
        if rotten is not None and rotten[0] in replica.disk.files:
            replica.disk.flip(*rotten)

    def _judge_end(self, replica: Replica) -> None:
        """Why a process ended by itself."""
        for error in replica.failures:
            self.hits["ended by itself"] += 1
            if not self._is_excused(replica, error):
                self.history.find("process-ended", f"{replica}: {error!r}")
        replica.failures.clear()

    def _is_excused(self, replica: Replica, error: BaseException | None) -> bool:
        is_full = isinstance(error, DiskFull | LogFull) and replica.node_id in self.has_full_disk
        return is_full or (isinstance(error, DiskFailed) and replica.has_failed_write)

    async def stop(self, replica: Replica) -> None:
        """In order; whoever keeps it up starts it again."""
        life = replica.life
        is_ended = await replica.stop()
        if is_ended is False:
            self.history.find("close-hangs", repr(replica))
        elif is_ended:
            self.gate.check_answered(replica, life)

    async def stop_all(self) -> None:
        for node_id, replica in self.replicas.items():
            self._stopping[node_id] = None
            await self.stop(replica)
            await asyncio.wait([self._keepers[node_id]])
        self._stopping.clear()

    async def calm(self) -> None:
        """All faults end; returns when everybody is up, but for who is away."""
        self.is_stormy = False
        self._strikes.clear()
        self.post.calm()
        for replica in self.replicas.values():
            replica.strikes.clear()
            replica.thaw()
            replica.disk.latency_s, replica.disk.capacity_bytes = DISK_LATENCY_S, ROOMY_BYTES
            replica.clock.drift(0)
        while any(  # noqa: ASYNC110
            not replica.is_up for node_id, replica in self.replicas.items() if node_id not in self.away
        ):
            await asyncio.sleep(0.05)

    def images(self) -> dict[int, MetadataImage]:
        return {
            node_id: node.publisher.image
            for node_id, replica in self.replicas.items()
            if (node := replica.node) is not None
        }

    def all_hits(self) -> Counter[str]:
        hits: Counter[str] = self.hits + self.post.hits + self.gate.hits + self.watch.hits
        for replica in self.replicas.values():
            hits += replica.hits + replica.disk.hits
        return hits

    def parts_left(self) -> list[str]:
        """Snapshots that were begun and that nobody will finish."""
        return [
            f"{replica}: {path}"
            for replica in self.replicas.values()
            for path in replica.disk.files
            if path.endswith(".part")
        ]

    def arguments(self) -> tuple[Any, ...]:
        """Of a client."""
        return self.gate, self.replicas, self.history, self.rand.split("clients")
