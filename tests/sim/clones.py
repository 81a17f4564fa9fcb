"""A node is cloned with its disk while it runs, and the clone takes over: two processes under one id, on
copies of one disk and on one bucket.

The run's node is the clone from the copy on; it has the address. The first one lives on elsewhere, with its
own disk and its controller, or is halted meanwhile, and has one client of its own, who writes. What it
acknowledges behind the copy:

    log of objects    both have it: as any other acknowledged record it must be there, once
    log of blocks     in its WAL alone: named by topic, partition and offsets as it ends, or committed by it
                      before the clone came

Findings, by invariant 17: `replaced-lives` (it has not ended ten seconds after the claim, or after it woke,
while the store answers), `replaced-committed` and `replaced-deleted` (set out for when the claim had been
there for longer than one look takes), `replaced-acknowledged` (when it woke after a long halt),
`object-overwritten`, `left-not-named`. Scenes of their own, with more of what a halted one may do, are in
cloned.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from millrace.broker.identity.binding import BindingRefused
from millrace.kraft.image.image import MetadataImage
from millrace.runtime.errors import MillraceError
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import StreamRole
from millrace.s3stream.objects.keys import parse_object_key
from tests.sim import asking
from tests.sim.checkers import Found
from tests.sim.history import History, Place, shown
from tests.sim.lost_log import LostLog
from tests.sim.objectstore import SimObjectStore, StoreFault
from tests.sim.strange import is_of_objects, is_of_wal
from tests.sim.workload import Plain, part_of

if TYPE_CHECKING:
    from tests.sim.node import Replaced, SimNode

END_S = 10.0
LOOK_S = 3.0  # what was verified just before the claim came may be under way for so long
HALT_NOTICED_S = 6.0
STEP_S = 0.1
HALTED_MS = 12_000
COPIES_MAX = 6
FIRST_HOST = "10.0.9.1"
TOPICS = ("first", "second")
# How a clone is refused once it has claimed the node, beside a log of objects: the remedy is a restore.
FORKED = ("was still at work", "the metadata log is older than the WAL")


class Cloned:
    def __init__(self, node: SimNode, history: History, rand: Rand) -> None:
        self._node = node
        self._history = history
        self._rand = rand
        self._is_halted = rand.below(2) == 0
        self._halted_s = 0.0  # for how long, once it woke
        self._claimed_s: float | None = None
        self._copies = 1
        # the claim by which the first one says that it ends in order: it was told to stop as it was cloned
        self._released = ""
        self._is_ended = False  # in order, or by the operator, and not for the clone
        self._trimming: list[str] = []  # objects of the log that the first one is deleting
        self._acknowledged: dict[tuple[Place, int], bytes] = {}
        self._named: dict[tuple[str, int], tuple[int, int]] = {}  # by topic and partition: the offsets
        self._image: MetadataImage | None = None  # the last that the first one had
        self._is_compared = False
        self.first = self._begin()

    def _begin(self) -> Replaced:
        first = self._node.clone(FIRST_HOST)
        first.on_command, first.on_end = self._on_command, self._on_end
        for store in first.stores:
            store.on_event = self._on_store_event
            self._watch_deletions(store)
        bucket = self._node.world.bucket
        before, put, on_delete = bucket.on_put, bucket.put, bucket.on_delete

        def watched(key: str, content: bytes) -> None:
            is_claim = f"/owners/{self._node.node_id}/" in key and key != self._released
            if is_claim and self._claimed_s is None and self._lives():
                self._claimed_s = self._node.world.loop.time()
            before(key, content)

        def put_watched(key: str, content: bytes) -> None:
            known = bucket.objects.get(key)
            if "/objects/" in key and known is not None and known[0] != content and key not in bucket.rotted:
                self._history.find("object-overwritten", key)
            put(key, content)

        def deleted(key: str) -> None:
            if (
                key not in self._trimming
            ):  # by what the first one committed, which the clone's metadata may lack
                on_delete(key)

        bucket.on_put, bucket.put, bucket.on_delete = watched, put_watched, deleted  # type: ignore[method-assign]
        return first

    def _lives(self) -> bool:
        return self._node.replaced is self.first

    @property
    def _is_late(self) -> bool:
        """What the first one sets out to do now it may not."""
        return self._claimed_s is not None and self._node.world.loop.time() > self._claimed_s + LOOK_S

    def _on_command(self, name: str, moment: str) -> None:
        if moment == "sent" and name in ("CommitUpload", "CommitCompaction") and self._is_late:
            self._history.find("replaced-committed", name)

    def _on_store_event(self, *words: object) -> None:
        node = self._node
        node.world.trace.note(f"{node.name} first", *words)
        what, key = str(words[2]), str(words[2]).rpartition(" ")[2]
        self._trimming = (
            [one for one in what.split(" ") if is_of_wal(one)] if what.startswith("delete") else []
        )
        self._released = key if what.startswith("put") and "/owners/" in key else self._released
        object_id = parse_object_key(node.cluster_id, key)
        if words[1] == "effect" and object_id is not None and what.startswith(("put", "multipart_complete")):
            node.orphans[object_id] = None  # of which the clone's metadata need not know

    def _watch_deletions(self, store: SimObjectStore) -> None:
        delete = store.delete

        async def watched(keys: Any) -> Any:
            if self._is_late and any("/objects/" in key for key in keys):
                self._history.find("replaced-deleted", " ".join(keys))
            return await delete(keys)

        store.delete = watched  # type: ignore[method-assign]

    def _on_end(self, error: BaseException | None) -> None:
        broker = self.first.broker
        if broker is not None and broker.controller is not None:
            self._image = broker.controller.publisher.image
        self._is_ended = error is None
        self._node.world.hits["cloned: the first one ended"] += error is not None

    def on_named(self, topic: str, partition: int, start: int, end: int) -> None:
        """By the first one as it ends: acknowledged, and in its WAL alone."""
        self._named[topic, partition] = start, end

    async def live(self) -> None:
        """Until the first one is gone."""
        node, loop = self._node, self._node.world.loop
        began_s = loop.time()
        if self._is_halted:
            node.world.hits["cloned: the first one halted"] += 1
            loop.freeze(self.first.life)
        writing = asyncio.ensure_future(self._write())
        while self._lives() and self._claimed_s is None:  # noqa: ASYNC110  (whoever claims tells nobody)
            await asyncio.sleep(STEP_S)
        if self._is_halted and self._lives():
            await asyncio.sleep(self._rand.below(HALTED_MS) / 1000)
            self._halted_s = loop.time() - began_s
            # Its first two looks are not answered: nothing may be made final before one is.
            for store in self.first.stores:
                store.plan("head", *[StoreFault.LOST_REQUEST] * 4)
            loop.thaw()
        answered_s = 0.0
        while self._lives() and answered_s < END_S:
            await asyncio.sleep(STEP_S)
            answered_s = answered_s + STEP_S if node.is_store_quiet else 0.0
        if self._lives():
            self._history.find("replaced-lives", f"{END_S:.0f} s")
            node.end_replaced()
        writing.cancel()

    async def _write(self) -> None:
        node, history = self._node, self._history
        client = node.world.client("writer of the first", (FIRST_HOST, node.address[1]))
        writer = Plain(client, history, self._rand, node.world.true_clock)
        stories = [story for story in history.topics.values() if story.name in TOPICS]
        places = [(story.topic_id, index) for story in stories for index in range(story.partitions)]
        while places:
            place = places[self._rand.below(len(places))]
            batch = writer.batch(place)
            history.on_sent(place, client.name, batch.values)
            try:
                part = part_of(await client.ask(0, asking.produce_request(place, batch.frame)))
            except MillraceError:
                return  # it has ended
            if not part.error_code:
                self._on_acknowledged(place, part.base_offset, batch.values)
            await writer.pause(60)

    def _on_acknowledged(self, place: Place, base_offset: int, values: list[bytes]) -> None:
        self._node.world.hits["cloned: acknowledged by the first one"] += 1
        if self._halted_s > HALT_NOTICED_S:
            self._history.find(
                "replaced-acknowledged", f"{shown(place)} {base_offset}, after a halt of {self._halted_s} s"
            )
        if is_of_objects(self._node):
            self._history.on_acknowledged(place, base_offset, values)
            return
        for offset, value in enumerate(values, base_offset):
            self._acknowledged[place, offset] = value

    # The clone's starts.

    def judge(self, error: BaseException | None) -> bool:
        """Whether a start that ended so was right to: the first one went on behind the copy, and it shows.
        Then it is copied again; at last it is ended, and its own disk is taken."""
        node = self._node
        if isinstance(error, BindingRefused) and any(words in str(error) for words in FORKED):
            # What the first one committed between the clone's look and its claim is in the bucket, or in the
            # log that both share.
            node.world.hits["cloned: refused once it had claimed"] += 1
            self._begin_restore()
            return True
        if (
            self._claimed_s is not None
            or not isinstance(error, BindingRefused)
            or not (self._lives() or self._is_ended)
        ):
            return False
        node.world.hits["cloned: refused, for the first one went on"] += 1
        self._copies += 1
        if self._copies > COPIES_MAX:
            node.end_replaced()
        node.copy_disk(self.first)
        if not self._lives():
            for (place, offset), value in self._acknowledged.items():
                self._history.on_acknowledged(place, offset, [value])
            self._acknowledged.clear()
        return True

    def _begin_restore(self) -> None:
        """The remedy that the refusal names, at a start behind the end of the first one."""
        node = self._node
        if node.lost_log is None or not node.lost_log.is_due:
            node.lost_log = LostLog(
                node, self._history, self._rand.split("restore"), lambda: self._image, is_remedy=True
            )

    def compare(self, found: Found) -> None:
        """What the first one acknowledged, with what is read from the clone."""
        if self._is_compared or self._lives():
            return
        self._is_compared = True
        names = {story.topic_id: story.name for story in self._history.topics.values()}
        for (place, offset), value in self._acknowledged.items():
            log = found.logs.get(place)
            start, end = self._named.get((names[place[0]], place[1]), (0, 0))
            if log is not None and (offset, value) in log.records:
                continue
            if start <= offset < end:
                self._node.world.hits["cloned: named by the first one"] += 1
            elif not self._is_committed(place, offset):
                self._history.find(
                    "left-not-named", f"{shown(place)} {offset} {value[:24]!r}, named [{start}, {end})"
                )

    def _is_committed(self, place: Place, offset: int) -> bool:
        """By the first one, before it was replaced: what it committed behind the copy is lost with its log
        directory (docs/bucket.md)."""
        streams = [] if self._image is None else self._image.streams.of_partition(*place)
        return any(one.role is StreamRole.DATA and offset < one.end for one in streams)
