"""Says which broker compacts the stream-set objects that a broker has written. Pure.

    the broker                                  its sets are compacted by
    is there                                    itself
    is fenced, or unregistered                  its heir: one of those that may be given partitions
    is gone, and nobody else is there           itself, once it is back

The heir follows from the image alone, so that whoever plans a compaction and the controller that decides its
commit name the same one, and another as soon as that one goes. Each broker weighs each that is gone by a
checksum of both ids and the least weight has it (rendezvous hashing): brokers that are gone go to different
heirs, and who comes or goes takes or leaves only its own. Not here: for how long a broker has to be gone
before its heir begins (broker/background/inherited_sets.py). Kept true: of one image, each broker's sets have
one compactor.
"""

from __future__ import annotations

from millrace.kraft.image.image import MetadataImage
from millrace.protocol.crc32c import crc32c


class Compactors:
    """By the brokers of one image; each is worked out once."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._known: dict[int, int] = {}

    def of(self, node_id: int) -> int:
        """Who compacts the stream-set objects of this broker."""
        found = self._known.get(node_id)
        if found is None:
            found = self._known[node_id] = compactor_of(self._image, node_id)
        return found


def compactor_of(image: MetadataImage, node_id: int) -> int:
    broker = image.brokers.get(node_id)
    if broker is not None and not broker.is_fenced:
        return node_id
    able = (one.broker_id for one in image.brokers if one.is_usable)
    return min(able, key=lambda broker_id: (_weight(node_id, broker_id), broker_id), default=node_id)


def _weight(node_id: int, broker_id: int) -> int:
    return crc32c(b"%d of %d" % (broker_id, node_id))
