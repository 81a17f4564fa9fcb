"""Who is first where the node loses a race: a later owner of its log of objects, which seals the slot (or
takes the log from its beginning) and dies before it writes anything.

What it puts is what such an owner would have put: its seal names the first slot that it found empty, and how
much of the log counts. So the node has to end there, and its next life takes the log from an owner that never
wrote.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.runtime.rand import Rand
from millrace.wal.errors import WalCorrupt
from millrace.wal.object.layout import (
    Kind,
    ObjectHeader,
    Place,
    Stamp,
    decode_header,
    log_prefix,
    object_key,
    seal_bytes,
)
from tests.sim.objectstore import SimBucket


class Rival:
    """`epochs` are those in which it came, each with its token: it may be first in several slots."""

    def __init__(self, bucket: SimBucket, rand: Rand) -> None:
        self.epochs: dict[int, bytes] = {}
        self._bucket = bucket
        self._rand = rand

    def put_before(self, key: str, own: bytes) -> bytes | None:
        """What it has put under the key of our put; None: it has no business there."""
        try:
            header = decode_header(own, 0)
        except WalCorrupt:
            return None
        self._bucket.hits["a rival was first"] += 1
        epoch = header.epoch + 1
        if epoch not in self.epochs:
            self.epochs[epoch] = self._rand.uuid()[:8]
        rival = replace(header, epoch=epoch, token=self.epochs[epoch], body_bytes=0, record_count=0)
        if header.kind is Kind.ROOT:
            return replace(rival, place=Place(rival.epoch, 0)).encode()
        if header.kind is Kind.SEAL:  # of the same slot, for the same reason
            return rival.encode() + own[len(header.encode()) :]
        return seal_bytes(self._seal(rival), is_of_closed=False)

    def _seal(self, rival: ObjectHeader) -> ObjectHeader:
        """It has listed the log a moment ago. Slots before ours may be empty still: then it seals from the
        farthest on, and came no further."""
        place = rival.place
        prefix = log_prefix(rival.cluster_id, rival.node_id)
        slots = range(rival.stamp.confirmed_slot, place.slot)
        empty = (
            slot for slot in slots if object_key(prefix, Place(place.epoch, slot)) not in self._bucket.objects
        )
        tip = Place(place.epoch, next(empty, place.slot))
        link = tip if tip.slot else rival.link
        return replace(rival, kind=Kind.SEAL, position=0, stamp=Stamp(tip.slot, 0, Place(0, 0), 0), link=link)
