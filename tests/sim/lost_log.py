"""The log directory is lost at one start, and restored from the bucket as `millrace restore` does; a log of
blocks may be lost with it. Or all three places are lost, and the bucket is put back from a copy.

What a restore promises (docs/bucket.md) is worked out here from the bucket's metadata as it was read, beside
the metadata that was lost: topics that were made or deleted since, streams that it does not know, and with a
lost log all above the committed ends. That binds nobody any more (`History.give_up`), has to be named, and of
a log of objects there is none of it. All else is looked for as ever. Ids and epochs are above all that were
ever given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.unknown_streams import WalStream
from millrace.broker.restore.restoring import Restored, Restoring
from millrace.kraft.image.image import MetadataImage
from millrace.runtime.clock import Clock
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import StoreAddress
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import StreamId, StreamRole
from millrace.s3stream.objects.keys import objects_prefix, parse_object_key
from millrace.wal.block.layout import Geometry
from millrace.wal.config import ObjectWalSettings
from millrace.wal.kind import WalPlace
from millrace.wal.opening import identify_wal
from tests.sim.history import History
from tests.sim.objectstore import SimObjectStore
from tests.sim.salvage import OFFSETS_TOPIC, blocks_from, entries_of_block, leader_epochs
from tests.sim.settings import WAL_FILE
from tests.sim.strange import Objects, copied, is_in_log, is_of_wal, put_back, wal_header

if TYPE_CHECKING:
    from tests.sim.node import SimNode

AWAY_S = 3.0  # that it takes to put a copy of a bucket back: more than leaders change in the time
TOPICS = ("first", "second", "ageing")  # which the actors cannot do without


class LostLog:
    """`is_due` until a restore came about; `is_begun` from there on until a start served."""

    def __init__(
        self,
        node: SimNode,
        history: History,
        rand: Rand,
        before: Callable[[], MetadataImage | None] | None = None,
        *,
        is_remedy: bool = False,
        copy: Objects | None = None,
    ) -> None:
        """`before`: the metadata that is lost, of somebody else than the node. `is_remedy`: a start asked for
        it, so that the log stays, and nothing is waited for but that nobody else is at work. `copy`: what is
        put in the place of the bucket; whatever the log was, it is lost."""
        self._copy = copy
        self._is_remedy = is_remedy
        self._before = before or (lambda: node.image)
        self._node = node
        self._history = history
        self._rand = rand
        self.is_due = True
        self.is_begun = False
        self._must_ask = False
        self._with_wal = (
            rand.below(2) == 0 and not self._is_of_objects and not is_remedy
        ) or copy is not None
        self._epochs = leader_epochs(node.image) if node.image is not None else {}

    @property
    def _is_of_objects(self) -> bool:
        return isinstance(self._node.settings.wal_settings, ObjectWalSettings)

    @property
    def _has_all(self) -> bool:
        """Whether all that was acknowledged is in the bucket."""
        return self._is_of_objects and not self._with_wal

    @property
    def is_settled(self) -> bool:
        return not self.is_due and not self.is_begun

    # The node is down, and its disk is what the next start will find.

    async def lose_and_restore(self) -> None:
        """Or neither, where the bucket knows too little yet, or another misfortune is under way."""
        node = self._node
        is_of_others = (
            node.replaced is not None
            or node.rival is not None
            or (bool(node.world.bucket.late) and not self._is_remedy)
        )
        is_strange = node.strange is not None and not node.strange.is_over
        is_damaged = node.rotten is not None or node.rotten_object is not None or node.world.bucket.is_away
        if (
            not self.is_due
            or (lost := self._before()) is None
            or is_of_others
            or is_strange
            or is_damaged
            or node.salvage is not None
        ):
            return
        before, lost_wal = (
            copied(node.disk, lambda path: is_in_log(node, path)),
            node.disk.files.get(WAL_FILE),
        )
        bucket, lost_objects = node.world.bucket, node.world.bucket.objects
        put_back(node.disk, {}, lambda path: is_in_log(node, path))
        if self._with_wal:
            node.disk.files.pop(WAL_FILE, None)
        if self._copy is not None:
            await asyncio.sleep(AWAY_S)
            bucket.objects = {key: found for key, found in self._copy.items() if not is_of_wal(key)}
        try:
            restored = await self._restore()
        except BindingRefused as refused:
            node.world.hits["restore: too early"] += "holds no metadata" in str(refused)
            restored = None
        if restored is None:
            put_back(node.disk, before, lambda path: is_in_log(node, path))
            bucket.objects = lost_objects
            if self._with_wal and lost_wal is not None:
                node.disk.files[WAL_FILE] = lost_wal
            return
        self.is_due, self.is_begun = False, True
        self._judge(lost, restored)
        if self._copy is not None:
            node.on_other_wal()

    async def _restore(self) -> Restored | None:
        """None where the actors' topics are not in the bucket yet."""
        node = self._node

        async def open_store(address: StoreAddress, clock: Clock | None = None) -> ObjectStore:
            return SimObjectStore(node.world.bucket, self._rand.split("restore's store"))

        settings = node.settings
        place = WalPlace(settings.wal, node.disk, open_store, self._rand.split("wal"), settings.wal_settings)
        restoring = Restoring(
            settings,
            await open_store(settings.data),
            str(settings.data),
            lambda: identify_wal(place, node.node_id),
            self._streams_in_wal,
            self._wal_begin,
            node.world.clock,
        )
        await restoring.check_target(node.disk)
        restored = await restoring.find(is_taking_over=True)
        known = [topic.name for topic in restored.image.topics]
        if any(name not in known for name in TOPICS):
            node.world.hits["restore: too early"] += 1
            return None
        await restoring.write(restored, node.disk, self._rand.split("ids"))
        return restored

    async def _wal_begin(self, cluster_id: str) -> int | None:
        """As the command reads it from a file's header."""
        header = None if self._is_of_objects else wal_header(self._node.disk.files.get(WAL_FILE))
        return None if header is None else max(header.head, header.trim)

    def _streams_in_wal(self) -> list[WalStream]:
        """As the command reads it from a file."""
        file = self._node.disk.files.get(WAL_FILE)
        header = wal_header(file)
        if file is None or header is None or self._is_of_objects:
            return []
        geometry = Geometry.of(header.capacity_bytes)
        found: dict[int, WalStream] = {}
        for block in blocks_from(file.durable, geometry, header.head):
            for one in entries_of_block(file.durable, geometry, block):
                before = found.get(one.stream_id)
                start = one.base if before is None else before.start
                found[one.stream_id] = WalStream(StreamId(one.stream_id), one.epoch, start, one.end)
        return list(found.values())

    def _judge(self, lost: MetadataImage, restored: Restored) -> None:
        node, hits, loaded = self._node, self._node.world.hits, restored.loaded.image
        hits[
            "restore: with a log of objects" if self._is_of_objects else "restore: with a log of blocks"
        ] += not self._with_wal
        hits["restore: without a log"] += self._with_wal
        hits["restore: from a copy of the bucket"] += self._copy is not None
        node.world.trace.note(node.name, "restored", loaded.offset, lost.offset, self._with_wal)
        self._epochs = leader_epochs(lost)
        self._must_ask = self._with_wal and restored.is_wal_lost
        new = restored.image
        for what, before, after in (
            ("offset", lost.offset, new.offset),
            *([("epoch", lost.epoch, new.epoch)] if self._copy is None else []),  # in a copy nobody names it
            ("object id", lost.objects.next_id, new.objects.next_id),
            ("stream id", lost.streams.next_id, new.streams.next_id),
            ("producer id", lost.producer_ids, new.producer_ids),
        ):
            if after < before:
                self._history.find(
                    "given-again", f"{what} {before} was given, and the restored log begins at {after}"
                )
        prefix = objects_prefix(restored.cluster_id)
        for key in [key for key in node.world.bucket.objects if key.startswith(prefix)]:
            object_id = parse_object_key(restored.cluster_id, key)
            if object_id is not None and loaded.objects.get(object_id) is None:
                node.orphans[object_id] = None
        self._give_up_topics(lost, loaded)
        self._give_up_records(lost, restored)
        node.on_restored()

    def _give_up_topics(self, lost: MetadataImage, loaded: MetadataImage) -> None:
        """Made since: gone, and nothing in them was acknowledged where the log is of objects. Deleted since:
        there again."""
        for topic_id, story in self._history.topics.items():
            is_known, was_known = (
                loaded.topics.by_id(topic_id) is not None,
                lost.topics.by_id(topic_id) is not None,
            )
            if is_known == was_known and is_known:
                continue
            if not is_known and not story.is_deletion_asked and self._has_all:
                for index in range(story.partitions):
                    if self._history.log((topic_id, index)).acknowledged:
                        self._history.find(
                            "acknowledged-unsaved", f"{story.name}-{index} is not in the bucket's metadata"
                        )
            story.is_deletion_asked, story.is_gone = True, story.is_gone and not is_known
            for index in range(story.partitions):
                self._history.give_up((topic_id, index), (0, 0))
                self._history.log((topic_id, index)).ends_of_epochs.clear()
        if not any(topic.name == OFFSETS_TOPIC for topic in loaded.topics):
            self._history.give_up_groups()

    def _give_up_records(self, lost: MetadataImage, restored: Restored) -> None:
        loaded = restored.loaded.image
        unknown = {one.stream_id: one for one in restored.unknown}
        if unknown and self._has_all:
            self._history.find(
                "acknowledged-unsaved", f"streams {sorted(unknown)} are not in the bucket's metadata"
            )
        for stream_id in unknown:
            if loaded.streams.get(stream_id) is not None:
                self._history.find("known-given-up", f"stream {stream_id}, which the bucket's metadata knows")
        named = {(missing.topic, missing.partition): missing.start for missing in restored.missing}
        for stream in lost.streams.by_id.values():
            topic, known = loaded.topics.by_id(stream.topic_id), loaded.streams.get(stream.stream_id)
            if topic is None or (not self._with_wal and stream.stream_id not in unknown):
                continue
            if topic.name == OFFSETS_TOPIC:
                self._history.give_up_groups()
                continue
            place, end = (stream.topic_id, stream.partition), 0 if known is None else known.end
            log = self._history.log(place)
            if (
                stream.role is StreamRole.DATA
                and known is not None
                and any(one >= end for one in log.acknowledged)
            ):
                is_named = named.get((topic.name, stream.partition), end + 1) <= end
                is_unknown = not known.is_open and (bool(restored.losses) or self._copy is not None)
                if not is_named and not is_unknown:
                    self._history.find("loss-not-named", f"{topic.name}-{stream.partition} from {end} on")
                self._node.world.hits["restore: records given up"] += 1
            self._history.give_up(
                place, (self._epochs.get(place, 0), end) if stream.role is StreamRole.DATA else None
            )

    def judge(self, error: BaseException | None) -> bool:
        """Whether a start on the restored directory that ended so was right to; the operator has accepted the
        loss by then."""
        if not self.is_begun or not isinstance(error, BindingRefused) or "wal.lost.accept" not in str(error):
            return False
        if self._has_all:
            self._history.find("acknowledged-unsaved", str(error))
        if self._has_all or self._node.settings.is_lost_wal_accepted:
            return False
        self._node.world.hits["restore: loss accepted"] += 1
        self._node.settings = replace(self._node.settings, is_lost_wal_accepted=True)
        return True

    def settle(self) -> None:
        """After a start that serves."""
        if not self.is_begun:
            return
        self.is_begun = False
        if self._must_ask and not self._node.settings.is_lost_wal_accepted:
            self._history.find(
                "loss-not-asked", "the log was lost, and a start went on without wal.lost.accept"
            )
        self._node.settings = replace(self._node.settings, is_lost_wal_accepted=False)
        assert self._node.image is not None
        now = leader_epochs(self._node.image)
        for place, epoch in self._epochs.items():
            if place in now and now[place] <= epoch:
                self._history.find(
                    "epoch-stays", f"{place[0].hex()[:8]}-{place[1]} is in {now[place]}, and was in {epoch}"
                )
