"""Each live probe says by name what it is there to see, when it passes the real edges of a node, and nothing
of a history that is right."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.tables.packing import pack_ranges
from millrace.protocol.stream_records import (
    CommitObjectRecord,
    PendingDeletionRecord,
    PrepareObjectsRecord,
    RemoveObjectsRecord,
    StreamRecord,
)
from millrace.s3stream.compaction.copying import Copying
from millrace.s3stream.compaction.work import Ids, Work
from millrace.s3stream.ids import ObjectId, ObjectKind, StreamRole
from millrace.s3stream.objects.format import Entry, encode_entry_header
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.storage import Storage
from millrace.wal.block.layout import BLOCK_BYTES, RING_START, BlockHeader, DeviceHeader, encode_block_header
from millrace.wal.object.layout import (
    FenceKind,
    Kind,
    ObjectHeader,
    Place,
    Stamp,
    claim_key,
    log_prefix,
    root_key,
    seal_bytes,
)
from millrace.wal.object.layout import object_key as slot_key
from millrace.wal.record import RECORD_HEADER_BYTES
from tests.sim.history import History, TopicStory
from tests.sim.loop import run_simulation
from tests.sim.node import SimNode
from tests.sim.probes import Probes
from tests.sim.settings import WAL_FILE, node_settings
from tests.sim.world import World

TOPIC = b"t" * 16
PLACE = (TOPIC, 0)
CLUSTER = "cluster"
CAPACITY_BYTES = 256 << 10
FIRST = 4 * BLOCK_BYTES  # where the log of a test begins


class Scene:
    """A machine whose process is played: what it would write, commit and tell passes its edges."""

    def __init__(self, world: World, *variants: str) -> None:
        self.world = world
        self.node = SimNode(world, settings=node_settings(1, "10.0.0.1", variants))
        self.node.cluster_id = CLUSTER
        self.history = History()
        self.history.topics[TOPIC] = TopicStory("topic", TOPIC, 1)
        self.probes = Probes(self.node, self.history)
        self.node.disk.add_device(WAL_FILE, CAPACITY_BYTES)
        self.image = EMPTY_IMAGE
        self._offset = 0
        self._sequence = 0
        self.fence = FenceKind.CONDITIONAL

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(line.partition(":")[0] for line in self.history.findings))

    # A log of blocks.

    def start(self) -> None:
        self.node.life_count += 1
        self.node.on_start()

    def head(self, epoch: int, trim: int = FIRST, copies: tuple[int, ...] = (0, BLOCK_BYTES)) -> None:
        """The header, written to its copies and durable."""
        for at in copies:
            self._sequence += 1
            fields = (
                epoch,
                FIRST,
                CAPACITY_BYTES,
                trim,
                trim,
                FIRST,
                BLOCK_BYTES,
                1 << 16,
                0,
                -1,
                self._sequence,
            )
            self._write(at, DeviceHeader(CLUSTER, 1, *fields).encode())

    def block(
        self, epoch: int, number: int, offset: int, value: bytes, is_durable: bool = True
    ) -> tuple[int, bytes]:
        """One record, in the block of that number: [offset, offset + 1) of stream 0."""
        entry = entry_of(offset, value)
        position = FIRST + number * BLOCK_BYTES
        length = 64 + len(entry)
        header = BlockHeader(epoch, position, position, FIRST, length, 1)
        data = (encode_block_header(header) + entry).ljust(BLOCK_BYTES, b"\0")
        self._write(RING_START + position, data, is_durable)
        return RING_START + position, data

    def _write(self, at: int, data: bytes, is_durable: bool = True) -> None:
        self.node.disk.on_write(WAL_FILE, at, data)
        if is_durable:
            self.settle(at, data)

    def settle(self, at: int, data: bytes) -> None:
        self.node.disk.files[WAL_FILE].durable[at : at + len(data)] = data
        self.node.disk.on_durable(WAL_FILE, at, data)

    # A log of objects.

    def slot(
        self,
        epoch: int,
        slot: int,
        link: Place | None,
        value: bytes = b"",
        kind: Kind = Kind.RECORDS,
        token: bytes = b"",
    ) -> str:
        entry = entry_of(slot, value) if value else b""
        key = slot_key(log_prefix(CLUSTER, 1), Place(epoch, slot))
        header = self._header(kind, epoch, Place(epoch, slot), link, token, len(entry))
        self.world.bucket.put(key, header.encode() + entry)
        return key

    def root(self, epoch: int) -> None:
        self.world.bucket.put(root_key(1), self._header(Kind.ROOT, epoch, Place(epoch, 0), None).encode())

    def seal(self, epoch: int, place: Place) -> None:
        content = seal_bytes(self._header(Kind.SEAL, epoch, place, None), is_of_closed=False)
        self.world.bucket.put(slot_key(log_prefix(CLUSTER, 1), place), content)

    def claim(self, epoch: int) -> None:
        header = self._header(Kind.CLAIM, epoch, Place(epoch, 0), None)
        self.world.bucket.put(claim_key(log_prefix(CLUSTER, 1), epoch), header.encode())

    def _header(
        self,
        kind: Kind,
        epoch: int,
        place: Place,
        link: Place | None,
        token: bytes = b"",
        body_bytes: int = 0,
    ) -> ObjectHeader:
        stamp, token = Stamp(0, 0, Place(0, 0), 0), token or b"%08d" % epoch
        count = int(body_bytes > 0)
        return ObjectHeader(
            kind, self.fence, CLUSTER, 1, epoch, token, place, 0, body_bytes, count, stamp, link
        )

    # Metadata.

    def commit(self, *records: Any) -> None:
        self._offset += 1
        self.image = apply_records(self.image, records, self._offset, 0)[1]
        self.node.on_image(self.image)

    def stream(self, end: int, *, epoch: int = 1, is_open: bool = True) -> None:
        """Stream 0, the partition's data, committed up to there."""
        self.commit(StreamRecord(0, TOPIC, 0, StreamRole.DATA, epoch, 1, int(is_open), 0, end))

    def prepare(self, object_id: int, ttl_ms: int = 1_000) -> None:
        self.commit(PrepareObjectsRecord(object_id, 1, 1, self.world.clock.wall_ms() + ttl_ms))

    def commit_object(self, object_id: int, start: int, end: int) -> None:
        packed = pack_ranges([(0, start, end)])
        self.commit(CommitObjectRecord(object_id, ObjectKind.STREAM, 3, object_id, 0, 1, ranges=packed))

    def put(self, object_id: int) -> str:
        key = object_key(CLUSTER, ObjectId(object_id))
        self.world.bucket.put(key, b"abc")
        return key


def entry_of(offset: int, value: bytes) -> bytes:
    """A record of the log that holds [offset, offset + 1) of stream 0."""
    return bytes(RECORD_HEADER_BYTES) + encode_entry_header(0, 1, offset, 1, [value]) + value


def play(act: Callable[[Scene], None], *variants: str) -> Scene:
    scenes = []

    async def main(loop: Any) -> None:
        scene = Scene(World(loop, "probes"), *variants)
        scenes.append(scene)
        scene.start()
        act(scene)

    run_simulation(main)
    return scenes[0]


def tell(scene: Scene, offset: int, value: bytes) -> None:
    scene.history.on_acknowledged(PLACE, offset, [value])


def take_blocks(scene: Scene) -> None:
    """What a life of epoch 1 does that is right: two records, acknowledged, committed and trimmed; then a
    life of epoch 2."""
    scene.head(1)
    scene.stream(0)
    first = scene.block(1, 0, 0, b"first", is_durable=False)
    second = scene.block(1, 1, 1, b"second", is_durable=False)
    scene.settle(*second)
    scene.settle(*first)
    tell(scene, 0, b"first")
    tell(scene, 1, b"second")
    scene.history.on_watermarks(PLACE, 0, 2, (0, 0))
    scene.stream(2)
    scene.head(1, FIRST + 2 * BLOCK_BYTES)
    scene.start()
    scene.stream(2, epoch=2)
    scene.head(2, FIRST + 2 * BLOCK_BYTES)
    scene.block(2, 2, 2, b"third")
    tell(scene, 2, b"third")


def repeat_from_a_rotten_object(scene: Scene) -> None:
    """A repeat is acknowledged whose original lies in an object that is damaged for a while."""
    scene.head(1)
    bucket, key = scene.world.bucket, scene.put(0)
    bucket.rotten[key] = bucket.objects[key][0]
    bucket.rot(key, 1)
    tell(scene, 0, b"abc")


def take_slots(scene: Scene) -> None:
    """The same of a log of objects with seals: one of epoch 1, one of epoch 2 that writes nothing, one of
    epoch 3."""
    scene.root(1)
    scene.stream(0)
    first = scene.slot(1, 0, None, b"first")
    tell(scene, 0, b"first")
    scene.history.on_watermarks(PLACE, 0, 1, (0, 0))
    scene.start()
    scene.seal(2, Place(1, 1))
    scene.start()
    scene.seal(3, Place(2, 0))
    scene.slot(1, 2, None, b"void")
    scene.stream(1, is_open=False)
    scene.slot(3, 0, Place(1, 1), b"third")
    scene.world.bucket.delete([first])


def take_a_first_slot_away(scene: Scene) -> None:
    """Another seals the first slot of an owner while the second is on its way, which is acknowledged to
    nobody."""
    scene.root(1)
    scene.slot(1, 0, None, b"first")
    scene.start()
    scene.seal(2, Place(1, 1))
    scene.seal(3, Place(2, 0))
    scene.slot(2, 1, Place(1, 1), b"void")


def take_claims(scene: Scene) -> None:
    """And of one with claims: what the dead had under way lands behind what the next one counted."""
    scene.fence = FenceKind.RESERVATION
    scene.root(1)
    scene.claim(1)
    scene.stream(0)
    scene.slot(1, 0, None, b"first")
    tell(scene, 0, b"first")
    scene.start()
    scene.claim(2)
    scene.slot(2, 0, Place(1, 1))
    scene.slot(1, 1, None, b"void")
    scene.stream(1, is_open=False)


def fill_a_hole_late(scene: Scene) -> None:
    """What was missing when the next one came lands after all; it and what lies behind it are acknowledged to
    nobody, and go."""
    scene.fence = FenceKind.RESERVATION
    scene.root(1)
    scene.claim(1)
    scene.stream(0)
    scene.slot(1, 0, None, b"first")
    third = scene.slot(1, 2, None, b"third")
    scene.start()
    scene.claim(2)
    scene.world.bucket.delete([scene.slot(1, 1, None, b"second"), third])
    scene.claim(3)
    scene.world.bucket.delete([scene.slot(2, 0, None, b"fourth")])


def keep_objects(scene: Scene) -> None:
    """Two objects: one goes from prepared to forgotten, one is committed."""
    scene.stream(0)
    scene.prepare(0)
    scene.prepare(1)
    keys = [scene.put(0), scene.put(1)]
    scene.commit_object(0, 0, 2)
    scene.commit(PendingDeletionRecord([1], scene.world.clock.wall_ms()))
    scene.world.loop.now_us += 1_000 * scene.node.settings.object_grace_ms
    scene.world.bucket.delete(keys[1:])
    scene.commit(RemoveObjectsRecord([1]))


def set_the_clock_back(scene: Scene) -> None:
    """What was asked for before is carried out after, and not as the first thing after."""
    asked_ms = scene.world.clock.wall_ms()
    scene.world.clock.step(-3_600_000)
    scene.prepare(0)
    scene.commit(PrepareObjectsRecord(1, 1, 1, asked_ms + scene.node.settings.streams.prepare_ttl_ms))


@pytest.mark.parametrize(
    ("act", "variants", "looked_at"),
    [
        (
            take_blocks,
            (),
            [
                "ToldIsDurable",
                "OwnerAcknowledges",
                "ShownIsDurable",
                "TrimmedIsCommitted",
                "EpochsLead",
                "MetadataGrows",
            ],
        ),
        (
            take_slots,
            ("object wal",),
            ["ToldIsDurable", "OwnerAcknowledges", "ShownIsDurable", "TrimmedIsCommitted", "SlotsLead"],
        ),
        (take_a_first_slot_away, ("object wal",), ["SlotsLead"]),
        (take_claims, ("reserved object wal",), ["ToldIsDurable", "OwnerAcknowledges", "SlotsLead"]),
        (fill_a_hole_late, ("reserved object wal",), []),
        (keep_objects, (), ["ObjectsLive"]),
        (repeat_from_a_rotten_object, (), ["ToldIsDurable"]),
        (set_the_clock_back, (), ["ObjectsLive"]),
    ],
)
def test_what_is_right_is_passed(
    act: Callable[[Scene], None], variants: tuple[str, ...], looked_at: list[str]
) -> None:
    """No finding, and each probe counts what it looked at, under the kind of log it was."""
    scene = play(act, *variants)
    assert scene.history.findings == []
    kind = "log of objects" if variants else "log of blocks"
    counts = {name: count for probe in scene.probes.all for name, count in probe.looked_at().items()}
    for name in looked_at:
        assert counts.get(name, 0) + counts.get(f"{name}, {kind}", 0), name
    others = {name: count for name, count in counts.items() if ", log of" in name and kind not in name}
    assert others
    assert not any(others.values())


# What is wrong, one thing each.


def tells_too_early(scene: Scene) -> None:
    scene.head(1)
    scene.block(1, 0, 0, b"first", is_durable=False)
    tell(scene, 0, b"first")


def tells_out_of_order(scene: Scene) -> None:
    scene.head(1)
    scene.block(1, 0, 0, b"first", is_durable=False)
    scene.block(1, 1, 1, b"second")
    tell(scene, 1, b"second")


def tells_without_owning(scene: Scene) -> None:
    scene.head(1)
    scene.block(2, 0, 0, b"first")
    tell(scene, 0, b"first")


def tells_slots_out_of_order(scene: Scene) -> None:
    scene.root(1)
    scene.slot(1, 0, None, b"first")
    scene.slot(1, 2, None, b"third")
    tell(scene, 2, b"third")


def tells_what_is_sealed_off(scene: Scene) -> None:
    scene.root(1)
    scene.slot(1, 0, None, b"first")
    scene.seal(2, Place(1, 1))
    scene.slot(2, 0, Place(1, 1))
    scene.slot(1, 2, None, b"third")
    tell(scene, 2, b"third")


def tells_after_a_claim(scene: Scene) -> None:
    scene.fence = FenceKind.RESERVATION
    scene.claim(1)
    scene.claim(2)
    scene.slot(1, 0, None, b"first")
    tell(scene, 0, b"first")


def tells_behind_a_hole_filled_late(scene: Scene) -> None:
    scene.fence = FenceKind.RESERVATION
    scene.claim(1)
    scene.slot(1, 1, None, b"second")
    scene.claim(2)
    scene.slot(1, 0, None, b"first")
    tell(scene, 1, b"second")


def shows_too_early(scene: Scene) -> None:
    scene.head(1)
    scene.stream(0)
    scene.block(1, 0, 0, b"first")
    scene.history.on_watermarks(PLACE, 0, 2, (0, 0))


def shows_objects_too_early(scene: Scene) -> None:
    scene.root(1)
    scene.stream(0)
    scene.slot(1, 0, None, b"first")
    scene.history.on_watermarks(PLACE, 0, 2, (0, 0))


def trims_too_early(scene: Scene) -> None:
    scene.head(1)
    scene.stream(0)
    scene.block(1, 0, 0, b"first")
    scene.head(1, FIRST + BLOCK_BYTES)


def deletes_slots_too_early(scene: Scene) -> None:
    scene.root(1)
    scene.stream(0)
    scene.world.bucket.delete([scene.slot(1, 0, None, b"first")])


def writes_over_what_is_kept(scene: Scene) -> None:
    scene.head(1)
    scene.start()
    scene.block(1, CAPACITY_BYTES // BLOCK_BYTES, 0, b"first")


def raises_one_copy(scene: Scene) -> None:
    scene.head(1)
    scene.head(2, copies=(0,))
    scene.block(2, 0, 0, b"first")


def uses_an_epoch_again(scene: Scene) -> None:
    scene.head(1)
    scene.block(1, 0, 0, b"first")
    scene.start()
    scene.block(1, 1, 1, b"second")


def takes_without_a_seal(scene: Scene) -> None:
    scene.root(1)
    scene.slot(1, 0, None, b"first")
    scene.slot(2, 0, Place(1, 1), b"second")


def takes_without_a_claim(scene: Scene) -> None:
    scene.fence = FenceKind.RESERVATION
    scene.slot(1, 0, None, b"first")


def writes_over_a_seal(scene: Scene) -> None:
    scene.root(1)
    scene.slot(1, 0, None, b"first")
    scene.seal(2, Place(1, 1))
    scene.slot(1, 1, None, b"second")


def counts_what_is_not_there(scene: Scene) -> None:
    scene.root(1)
    scene.slot(1, 0, None, b"first")
    scene.seal(2, Place(1, 2))
    scene.slot(2, 0, Place(1, 2))


def changes_its_link(scene: Scene) -> None:
    take_slots(scene)
    scene.slot(3, 1, Place(1, 2))


def shares_an_epoch(scene: Scene) -> None:
    scene.root(1)
    scene.slot(1, 0, None, token=b"another.")


def seals_backwards(scene: Scene) -> None:
    scene.seal(1, Place(2, 0))


def closes_unsettled(scene: Scene) -> None:
    scene.fence = FenceKind.RESERVATION
    scene.claim(1)
    scene.slot(1, 0, None, b"first")
    scene.stream(1)
    scene.claim(2)
    scene.stream(1, is_open=False)


def loses_metadata(scene: Scene) -> None:
    scene.stream(2)
    before = scene.image
    scene.stream(3)
    scene.start()
    scene.node.on_image(before)


def finds_other_metadata(scene: Scene) -> None:
    scene.stream(2)
    scene.start()
    scene.node.on_image(replace(scene.image, producer_ids=7))


def lowers_a_stream(scene: Scene) -> None:
    scene.stream(2, epoch=2)
    scene.stream(2, epoch=1)


def commits_what_is_not_there(scene: Scene) -> None:
    scene.stream(0)
    scene.prepare(0)
    scene.commit_object(0, 0, 2)


def prepares_for_years(scene: Scene) -> None:
    scene.prepare(0, 10**12)


def brings_an_object_back(scene: Scene) -> None:
    scene.prepare(0)
    before = scene.image
    scene.commit(PendingDeletionRecord([0], scene.world.clock.wall_ms()))
    scene.node.on_image(before)


def deletes_what_is_prepared(scene: Scene) -> None:
    scene.prepare(0)
    scene.world.bucket.delete([scene.put(0)])


def deletes_at_once(scene: Scene) -> None:
    scene.prepare(0)
    key = scene.put(0)
    scene.commit(PendingDeletionRecord([0], scene.world.clock.wall_ms()))
    scene.world.bucket.delete([key])


def forgets_an_object(scene: Scene) -> None:
    scene.prepare(0)
    scene.put(0)
    scene.commit(PendingDeletionRecord([0], scene.world.clock.wall_ms()))
    scene.commit(RemoveObjectsRecord([0]))


OBJECTS, RESERVED = ("object wal",), ("reserved object wal",)


@pytest.mark.parametrize(
    ("act", "kinds", "variants"),
    [
        (tells_too_early, ["ack-before-durable"], ()),
        (tells_out_of_order, ["acknowledged-in-vain"], ()),
        (tells_without_owning, ["epoch-not-raised", "acknowledged-in-vain"], ()),
        (tells_slots_out_of_order, ["acknowledged-in-vain"], OBJECTS),
        (tells_what_is_sealed_off, ["acknowledged-in-vain"], OBJECTS),
        (tells_after_a_claim, ["acknowledged-in-vain"], RESERVED),
        (tells_behind_a_hole_filled_late, ["acknowledged-in-vain"], RESERVED),
        (shows_too_early, ["shown-before-durable"], ()),
        (shows_objects_too_early, ["shown-before-durable"], OBJECTS),
        (trims_too_early, ["trimmed-too-early"], ()),
        (deletes_slots_too_early, ["trimmed-too-early"], OBJECTS),
        (writes_over_what_is_kept, ["kept-is-overwritten"], ()),
        (raises_one_copy, ["epoch-not-raised"], ()),
        (uses_an_epoch_again, ["epoch-again"], ()),
        (takes_without_a_seal, ["epoch-not-taken"], OBJECTS),
        (takes_without_a_claim, ["epoch-not-taken"], RESERVED),
        (writes_over_a_seal, ["seal-overwritten"], OBJECTS),
        (counts_what_is_not_there, ["wrong-link"], OBJECTS),
        (changes_its_link, ["link-changed"], OBJECTS),
        (shares_an_epoch, ["epoch-again"], OBJECTS),
        (seals_backwards, ["epoch-again"], OBJECTS),
        (closes_unsettled, ["closed-unsettled"], RESERVED),
        (loses_metadata, ["metadata-lost", "stream-fell"], ()),
        (finds_other_metadata, ["metadata-differs"], ()),
        (lowers_a_stream, ["stream-fell"], ()),
        (commits_what_is_not_there, ["commit-before-put"], ()),
        (prepares_for_years, ["prepared-too-long"], ()),
        (brings_an_object_back, ["metadata-lost", "object-back"], ()),
        (deletes_what_is_prepared, ["deleted-alive"], ()),
        (deletes_at_once, ["deleted-early"], ()),
        (forgets_an_object, ["forgotten-object"], ()),
    ],
)
def test_each_fault_is_found(
    act: Callable[[Scene], None], kinds: list[str], variants: tuple[str, ...]
) -> None:
    """One thing is wrong; its probe says so by name, and no other one does."""
    assert play(act, *variants).kinds == kinds


@pytest.mark.parametrize("is_shown", [False, True])
def test_the_grace_of_what_was_not_shown_runs_from_its_commit(is_shown: bool) -> None:
    """A process dies as it marks for deletion an object, and the next one comes up late, for the store is
    away: who counts from when that one shows it finds fault with a whole grace. What the next one itself
    marks for deletion has its grace from then."""
    findings = []

    async def main(loop: Any) -> None:
        scene = Scene(World(loop, "probes"))
        scene.start()
        scene.prepare(0)
        key, marked_ms = scene.put(0), scene.world.clock.wall_ms()
        scene.start()
        await asyncio.sleep(0.3 * scene.node.settings.object_grace_ms / 1000)
        if is_shown:
            scene.node.on_image(scene.image)
        scene.commit(PendingDeletionRecord([0], marked_ms))
        await asyncio.sleep(0.7 * scene.node.settings.object_grace_ms / 1000)
        scene.world.bucket.delete([key])
        findings.extend(scene.kinds)

    run_simulation(main)
    assert findings == (["deleted-early"] if is_shown else [])


# What a serving broker holds.


async def serving(loop: Any) -> tuple[SimNode, History, Probes, Storage]:
    node = SimNode(World(loop, "probes"))
    history = History()
    probes = Probes(node, history)
    await node.start()
    assert node.broker is not None
    assert node.broker.storage is not None
    return node, history, probes, node.broker.storage


async def overfill(node: SimNode, storage: Storage) -> None:
    storage.log_cache.size_bytes += 1 << 30


async def charge_nothing(node: SimNode, storage: Storage) -> None:
    for offset in range(3):
        storage.log_cache.put(1 << 40, Entry(offset, 1, memoryview(b"x"), 1), storage._wal.confirmed_end)
    storage.log_cache.size_bytes = 0


async def turn_round(node: SimNode, storage: Storage) -> None:
    cache = storage.log_cache
    for offset in range(2):
        cache.put(1 << 40, Entry(offset, 1, memoryview(b"x"), 1), storage._wal.confirmed_end + offset + 1)
        cache.seal()
    cache._blocks[0].wal_start, cache._blocks[1].wal_start = (
        cache._blocks[1].wal_start,
        cache._blocks[0].wal_start,
    )


async def pile_up_uploads(node: SimNode, storage: Storage) -> None:
    storage.uploader.pending_count = 99


async def pile_up_readers(node: SimNode, storage: Storage) -> None:
    for stream_id in range(2_000):
        storage.block_cache._sequential._by_place[stream_id, 0] = cast(Any, None)


async def connection_of(node: SimNode) -> Any:
    await node.world.client("busy", node.address).wire()
    await asyncio.sleep(1)
    return next(end._protocol for end in node.world.net.ends.values() if end.own[0] == node.host)


async def pile_up_requests(node: SimNode, storage: Storage) -> None:
    (await connection_of(node))._exchanges.extend(SimpleNamespace(charged_bytes=0) for _ in range(65))


async def free_what_is_held(node: SimNode, storage: Storage) -> None:
    (await connection_of(node))._exchanges.append(SimpleNamespace(charged_bytes=99))


async def remember_too_much(node: SimNode, storage: Storage) -> None:
    work = work_of(node)
    work.known_rows.held_bytes = 1 << 30
    await compact_with(node, work)


async def read_too_much(node: SimNode, storage: Storage) -> None:
    source = work_of(node).source(ObjectId(0), 1)
    source.memory.take(1 << 30)
    await compact_with(node, [source])


async def put_too_much(node: SimNode, storage: Storage) -> None:
    copying = Copying(work_of(node), cast(Any, None), (), Ids(ObjectId(0), 0.0))
    await copying._memory.enter(1 << 30)
    await compact_with(node, copying)


def work_of(node: SimNode) -> Work:
    nothing = cast(Any, None)
    return Work(nothing, nothing, node.settings.compaction, CLUSTER, node.world.clock)


async def compact_with(node: SimNode, part: object) -> None:
    """A compaction that is under way, with this in its hands."""

    async def run() -> None:
        held = part
        await asyncio.sleep(60)
        del held

    assert node.broker is not None
    node.broker._makers._tasks.start("compaction", run)
    await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("corrupt", "finding"),
    [
        (overfill, "beyond-bound: log cache"),
        (charge_nothing, "wrong-charge: log cache"),
        (turn_round, "cache-order"),
        (pile_up_uploads, "beyond-bound: uploads"),
        (pile_up_readers, "beyond-bound: sequential readers"),
        (pile_up_requests, "beyond-bound: requests under way"),
        (free_what_is_held, "wrong-charge: requests"),
        (remember_too_much, "beyond-bound: compaction, rows known"),
        (read_too_much, "beyond-bound: compaction, read"),
        (put_too_much, "beyond-bound: compaction, put"),
    ],
)
def test_what_a_broker_holds_is_watched(
    corrupt: Callable[[SimNode, Storage], Awaitable[None]], finding: str
) -> None:
    """A broker that serves is within its bounds; one figure is made wrong, and its probe says so."""

    async def main(loop: Any) -> None:
        node, history, probes, storage = await serving(loop)
        probes.tick()
        assert history.findings == []
        await corrupt(node, storage)
        probes.tick()
        assert any(line.startswith(finding) for line in history.findings), history.findings

    run_simulation(main)


@pytest.mark.parametrize(("leaves", "is_found"), [(0, False), (1, True), (2, True)])
def test_who_is_served_out_of_turn_is_seen(leaves: int, is_found: bool) -> None:
    """Three wait for room. The first is let through, or one of those behind it."""

    async def main(loop: Any) -> None:
        _, history, probes, storage = await serving(loop)
        futures = [storage._room.ask(1 << 40) for _ in range(3)]
        futures[1].add_done_callback(lambda done: None)
        probes.tick()
        futures[leaves].set_result(None)
        del storage._room.waiting[leaves]
        probes.tick()
        assert [line.partition(":")[0] for line in history.findings] == ["out-of-turn"] * is_found
        storage._room.waiting.rotate(1)
        probes.tick()
        assert history.findings[-1].startswith("out-of-turn: room: who came later")

    run_simulation(main)


def test_who_gives_up_leaves_from_anywhere() -> None:
    """A request whose client has gone waits no more; that is nobody's turn."""

    async def main(loop: Any) -> None:
        _, history, probes, storage = await serving(loop)
        futures = [storage._room.ask(1 << 40) for _ in range(3)]
        probes.tick()
        futures[1].cancel()
        del storage._room.waiting[1]
        probes.tick()
        assert history.findings == []

    run_simulation(main)
