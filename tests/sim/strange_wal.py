"""Another WAL in the place of the node's own, found at one start: a new one, another node's, or one that this
node had before.

    own WAL --a start with open streams finds another--> refused --> the own one is back
                                                            `--wal.lost.accept--> the other one is the node's
                                                            own

The other WAL may be of the other kind: blocks where the node has objects, or objects where it has blocks. One
that the node had before is made by `WalMove`: the node is stopped in order, and goes on with a new WAL. A
start that is refused has changed nothing. One that accepts the loss tells by topic, partition and offset what
it gives up; that is cut from the history, and no more than that: whatever else was acknowledged is looked for
as ever, and leader epochs have to rise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.broker.config import BrokerSettings
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import StreamRole
from millrace.wal.block.layout import BLOCK_BYTES, Geometry
from tests.sim.history import History, Place, shown
from tests.sim.salvage import OFFSETS_TOPIC, blocks_from, entries_of_block, leader_epochs
from tests.sim.settings import WAL_FILE, node_settings
from tests.sim.strange import (
    Files,
    Objects,
    StrangePlace,
    copied,
    is_bucket_quiet,
    is_of_objects,
    put_back,
    put_wal_objects,
    wal_header,
    wal_objects,
)

if TYPE_CHECKING:
    from tests.sim.node import SimNode

NEW, ANOTHER_NODES, FORMER = "new WAL", "another node's WAL", "former WAL"
OTHER_KIND = "of the other kind"
OBJECTS = ("object wal", "quick object wal", "reserved object wal")
MOVES_MAX = 4


def with_the_other_kind(node: SimNode, rand: Rand) -> BrokerSettings:
    """The node's settings with a log of blocks for one of objects, or the other way round."""
    variants = [] if is_of_objects(node) else [OBJECTS[rand.below(len(OBJECTS))]]
    other = node_settings(node.node_id, node.host, variants)
    return replace(node.settings, wal=other.wal, wal_settings=other.wal_settings)


class WalMove:
    """The node is stopped in order and goes on with a new WAL, of the other kind where `settings` are given.
    What it had is `files` and `objects`: as a copy of it had them while the node ran, or as the stop left
    them."""

    def __init__(self, node: SimNode, settings: BrokerSettings | None, *, is_copied_early: bool) -> None:
        self._node = node
        self._settings = settings
        self._is_copied_early = is_copied_early
        self._is_asked = False
        self.is_done = False
        self.files: Files = {}
        self.objects: Objects = {}

    async def go(self) -> None:
        node, before = self._node, self._node.on_start

        def move() -> None:
            before()
            if self._is_asked:
                self._is_asked = False
                self._move()

        node.on_start = move
        for _ in range(MOVES_MAX):
            await node.ready()
            self._copy()
            self._is_asked = True
            await node.stop()
            await node.ready()
            if self.is_done:
                break
        node.on_start = before

    def _copy(self) -> None:
        self.files = copied(self._node.disk, is_wal_file)
        self.objects = wal_objects(self._node)
        self._node.on_wal_copied()

    def _move(self) -> None:
        """The node is down."""
        node = self._node
        assert node.image is not None
        if (
            not node.is_stopped_in_order
            or any(node.image.streams.open_on(node.node_id))
            or not is_bucket_quiet(node)
        ):
            return
        if not self._is_copied_early:
            self._copy()
        self.is_done = True
        node.world.hits["moved to another WAL"] += 1
        node.world.trace.note(node.name, "moved to another WAL")
        if self._settings is not None:
            node.settings = self._settings
            return
        put_back(node.disk, {}, is_wal_file)
        put_wal_objects(node, {})
        node.on_other_wal()


def is_wal_file(path: str) -> bool:
    return path == WAL_FILE


class AcceptableWal(StrangePlace):
    """A WAL that is not the node's own. `name`: as counts of what was met begin; `is_accepted`: the operator
    says wal.lost.accept once the start was refused, and it is the node's own from there on."""

    def __init__(
        self, node: SimNode, what: str, words: tuple[str, ...], name: str, *, is_accepted: bool
    ) -> None:
        super().__init__(node, what, words)
        self._name = name
        self._is_to_accept = is_accepted
        self._epochs: dict[Place, int] = {}
        self._told: dict[Place, int] = {}  # leader epochs that the start said
        self.is_accepting = False

    def undo(self, error: BaseException | None) -> str:
        wrong = super().undo(error)
        if self.is_over and self._is_to_accept and not wrong:
            self._accept()
        return wrong

    def _accept(self) -> None:
        """The operator has no other WAL than this one."""
        node = self._node
        assert node.image is not None
        node.given_up.update(dict.fromkeys(self._entries()))
        self._epochs = leader_epochs(node.image)
        self.put()
        self._on_put()
        node.settings = replace(node.settings, is_lost_wal_accepted=True)
        self.is_accepting = True
        node.world.trace.note(node.name, "accepts the loss of its WAL for the", self.what)

    def _entries(self) -> Iterable[tuple[int, int]]:
        """Stream and end of each entry in the node's own WAL, which is given up."""
        return entries_in(self._node)

    def _on_put(self) -> None:
        self._node.on_other_wal()

    @property
    def is_settled(self) -> bool:
        return self.is_over and not self.is_accepting

    def on_given_up(self, history: History, topic_name: str, partition: int, offset: int, epoch: int) -> None:
        """A start says so. Nobody has been told anything by it yet."""
        image = self._node.image
        topic = None if image is None else next((one for one in image.topics if one.name == topic_name), None)
        if not self.is_accepting or image is None or topic is None:
            return
        place = topic.topic_id, partition
        self._told[place] = epoch
        streams = [one for one in image.streams.of_partition(*place) if one.role is StreamRole.DATA]
        if any(offset != one.end for one in streams):
            history.find(
                "given-up-wrongly", f"{shown(place)} from {offset} on, committed to {streams[0].end}"
            )
        if topic_name == OFFSETS_TOPIC:
            history.give_up_groups()
            return
        lost = sum(one >= offset for one in history.log(place).acknowledged)
        self._node.world.hits[f"{self._name}: records given up"] += lost > 0
        history.give_up(place, (epoch - 1, offset))

    def settle(self, history: History) -> None:
        node = self._node
        if not self.is_accepting:
            return
        self.is_accepting = False
        node.settings = replace(node.settings, is_lost_wal_accepted=False)
        node.world.hits[f"{self._name}: loss accepted"] += 1
        assert node.image is not None
        now = leader_epochs(node.image)
        for place, epoch in self._told.items():
            if place in now and not self._epochs.get(place, -1) < epoch <= now[place]:
                history.find(
                    "epoch-stays", f"{shown(place)} lost records, was told {epoch}, and is in {now[place]}"
                )


class OtherWal(AcceptableWal):
    """`settings`: of the other kind, None for the node's own. `files`, `objects`: what the other WAL is; of
    the other kind it lies where it lies."""

    def __init__(
        self,
        node: SimNode,
        what: str,
        settings: BrokerSettings | None,
        files: Files,
        objects: Objects,
        *,
        is_accepted: bool,
    ) -> None:
        what_it_is, words = (
            what if settings is None else f"{what} {OTHER_KIND}",
            ("is new", "is not the one", "belongs to node"),
        )
        super().__init__(node, what_it_is, words, "another WAL", is_accepted=is_accepted)
        self._settings = settings
        self._files = files
        self._objects = objects
        self._own = node.settings
        self._own_files: Files = {}
        self._own_objects: Objects = {}
        self._is_new = what == NEW

    async def is_told(self) -> bool:
        """A stream is open, which the other WAL may lack acknowledged records of."""
        node = self._node
        if not is_bucket_quiet(node):
            return False
        image = await node.image_on_disk(node.world.rand.split("a look at the metadata log"))
        return any(image.streams.open_on(node.node_id))

    def put(self) -> None:
        node = self._node
        self._own = node.settings
        if self._settings is not None:
            node.settings = self._settings
            return
        self._own_files, self._own_objects = copied(node.disk, is_wal_file), wal_objects(node)
        files = self._files if self._is_new or self._files else another_nodes(self._own_files, node)
        put_back(node.disk, files, is_wal_file)
        put_wal_objects(node, self._objects)

    def put_back(self) -> None:
        node = self._node
        node.settings = self._own
        if self._settings is None:
            put_back(node.disk, self._own_files, is_wal_file)
            put_wal_objects(node, self._own_objects)

    def _on_put(self) -> None:
        if self._settings is None:
            super()._on_put()


def another_nodes(own: Files, node: SimNode) -> Files:
    """A log of blocks like this one, of a node of the same cluster with another id."""
    header = None if WAL_FILE not in own else wal_header(own[WAL_FILE])
    if header is None:
        return {}
    made = replace(
        header, node_id=node.node_id + 1, wal_id=node.world.rand.split("another node's WAL").uuid()
    ).encode()
    durable = bytearray(own[WAL_FILE].durable)
    durable[: 2 * BLOCK_BYTES] = made + made
    return {WAL_FILE: replace(own[WAL_FILE], durable=durable, visible=bytearray(durable))}


def entries_in(node: SimNode) -> list[tuple[int, int]]:
    """Stream and end of each entry that lies in the node's log of blocks."""
    file = node.disk.files.get(WAL_FILE)
    header = wal_header(file)
    if file is None or header is None:
        return []
    geometry = Geometry.of(header.capacity_bytes)
    blocks = blocks_from(file.durable, geometry, header.head)
    return [
        (one.stream_id, one.end)
        for block in blocks
        for one in entries_of_block(file.durable, geometry, block)
    ]


def drawn_place(node: SimNode, rand: Rand, settings: BrokerSettings | None, move: WalMove | None) -> OtherWal:
    """What stands in for the node's WAL: what it had before its move; or a new one, or (of its own kind)
    another node's."""
    is_accepted = rand.below(2) == 0
    if move is not None and move.is_done:
        return OtherWal(node, FORMER, settings, move.files, move.objects, is_accepted=is_accepted)
    what = NEW if settings is not None or is_of_objects(node) or rand.below(2) else ANOTHER_NODES
    # Another node's is refused whatever the operator says.
    return OtherWal(node, what, settings, {}, {}, is_accepted=is_accepted and what == NEW)
