"""Images of a simulated cluster's metadata, of all its nodes: what they have to be to each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from tests.sim.cluster.given_up import GivenUp
from tests.sim.cluster.machine import Machine
from tests.sim.history import History

IMAGES_KEPT = 400
Parts = tuple[Any, ...]


def paths_in(value: Any, path: str = "") -> Iterator[str]:
    """Of all that is in it, and is made of no fields itself."""
    for one in fields(value):
        part = getattr(value, one.name)
        if is_dataclass(part):
            yield from paths_in(part, f"{path}{one.name}.")
        else:
            yield path + one.name


parts_of = attrgetter(*paths_in(EMPTY_IMAGE))
"""An image's parts: two images are equal where all of these are."""


class Images:
    """Equal offset, equal image; and what one image says of streams follows from the one before it."""

    def __init__(self, history: History, hits: Counter[str]) -> None:
        self._history = history
        self.given_up = GivenUp(history, hits)
        self._hits = hits
        self._seen: dict[int, Parts] = {}  # by offset
        self._last: dict[str, tuple[Parts, Parts]] = {}  # by machine: its image, and the equal one seen first
        self._newest: MetadataImage | None = None
        self.count = 0

    def meet(self, machine: Machine, image: MetadataImage) -> None:
        self.count += 1
        if not self._is_equal(machine.name, image):
            self._history.find("unequal-image", f"{machine.name} at offset {image.offset}")
        if self._newest is None or image.offset > self._newest.offset:
            if self._newest is not None:
                self._follow(self._newest, image)
            self._newest = image
        if len(self._seen) > IMAGES_KEPT:
            del self._seen[next(iter(self._seen))]

    def _is_equal(self, name: str, image: MetadataImage) -> bool:
        """To the one that was seen first at its offset. A part that has not changed since this machine's last
        image is what it was found equal to then: most are the very ones that were compared before."""
        own = parts_of(image)
        last, known = self._last.get(name, (own, own))
        equal = tuple(
            same if part is before else part for part, before, same in zip(own, last, known, strict=True)
        )
        first = self._seen.setdefault(image.offset, equal)
        is_equal = all(a is b or a == b for a, b in zip(equal, first, strict=True))
        self._last[name] = own, first if is_equal else equal
        return is_equal

    def _follow(self, before: MetadataImage, after: MetadataImage) -> None:
        for failover in after.failovers:
            was = before.failovers.get(failover.node_id)
            if was is None or was.by_node != failover.by_node:
                self._hits["failover: given to a broker" if failover.by_node >= 0 else "failover: waits"] += 1
        for gone in before.failovers:
            if after.failovers.get(gone.node_id) is None:
                epochs = [image.brokers.by_id[gone.node_id].epoch for image in (before, after)]
                self._hits["failover: the broker is back" if epochs[0] < epochs[1] else "failover: done"] += 1
        if before.objects is not after.objects:
            known = dict.fromkeys(before.objects.sets)
            merged = [one for one in after.objects.sets if one not in known]
            gone_count = len(known) + len(merged) - len(after.objects.sets)
            self._hits["sets of about one size were merged"] += bool(merged) and gone_count > 1
            writers = {order_id: node_id for node_id, order_id, _ in known} if merged else {}
            is_inherited = any(writers.get(order_id, node_id) != node_id for node_id, order_id, _ in merged)
            self._hits["sets of a broker that is gone were compacted"] += is_inherited
        if before.streams is after.streams:
            return
        self.given_up.follow(before, after)
        self._follow_owed(before, after)
        now = dict(after.streams.by_id.items())
        for stream_id, old in before.streams.by_id.items():
            new = now.get(stream_id, old)
            if new is not old and (new.epoch < old.epoch or new.end < old.end):
                self._history.find("stream-fell", f"{old} to {new}")

    def _follow_owed(self, before: MetadataImage, after: MetadataImage) -> None:
        """What is owed stays owed by the same log, from its start on, until an object has it; or it is
        trimmed, or its stream deleted, or an operator gave it up."""
        for owed in after.streams.owed:
            if before.streams.owed.by(owed.stream_id, owed.node_id) is None:
                self._hits["owed: by an earlier owner"] += 1
                self._hits["owed: by several"] += len(after.streams.owed.of_stream(owed.stream_id)) > 1
        for owed in before.streams.owed:
            stream, now = (
                after.streams.get(owed.stream_id),
                after.streams.owed.by(owed.stream_id, owed.node_id),
            )
            if now is not None:
                if now._replace(start=owed.start) != owed or now.start < owed.start:
                    self._history.find("owed-changed", f"{owed} to {now}")
                continue
            if stream is None or stream.start >= owed.end:
                self._hits["owed: trimmed, or deleted"] += 1
                continue
            if self.given_up.is_of(owed):
                continue
            self._hits["owed: uploaded"] += 1
            held = after.objects.candidates(stream, max(owed.start, stream.start), 1)
            if not held or held[0].object_id < 0:
                self._history.find("owed-lost", f"{owed}, of {stream}")
