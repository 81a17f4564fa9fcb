"""Damaged data as the operator is told of it: log lines that name the partition, its offsets and the remedy,
and two metrics.

What is damaged fails the reads that need it and nothing else, so this is all there is to see on the broker's
side. It covers what reads have met since the start, of records, time indexes and partitions' states; a repair
is told once a read gives what was damaged. Not here: the answer that a client gets (the handlers), damage
that nobody reads (millrace fsck, and compaction's own count).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millrace.kraft.image.image import MetadataImage
from millrace.runtime.metrics import Registry
from millrace.s3stream.damaged_reads import Damage, DamagedReads
from millrace.s3stream.ids import StreamRole

log = logging.getLogger(__name__)

WHAT = {
    StreamRole.META: "the stored state of {}, entries",
    StreamRole.DATA: "{} offsets",
    StreamRole.TIME: "the time index of {}, entries",
    StreamRole.TRANSACTION: "transactions of {}, entries",
}


class DamageLog:
    """`image`: the newest metadata. `on_image` is to be called for every image after it."""

    def __init__(self, damaged: DamagedReads, image: Callable[[], MetadataImage]) -> None:
        self._damaged = damaged
        self._image = image
        # of damaged streams, by id: what they were called when they were there
        self._names: dict[int, str] = {}
        damaged.on_damage = self._on_damage
        damaged.on_repaired = self._on_repaired

    def on_image(self, image: MetadataImage) -> None:
        """Damage of a deleted topic, or below a log start, is none any more."""
        for damage in self._damaged:
            stream = image.streams.get(damage.stream_id)
            if stream is None or stream.start >= (damage.start + 1 if damage.end is None else damage.end):
                log.info("damaged data was deleted: %s", self._text(damage))
                self._damaged.forget(damage)

    @property
    def failed_count(self) -> int:
        """Reads that failed for damage since the start."""
        return self._damaged.failed_count

    @property
    def partition_count(self) -> int:
        """Partitions of which something cannot be read, as far as reads have met it."""
        streams = [self._image().streams.get(damage.stream_id) for damage in self._damaged]
        return len({(stream.topic_id, stream.partition) for stream in streams if stream is not None})

    def _on_damage(self, damage: Damage, now_s: float) -> None:
        """Says so, but of a stream that was deleted while it was read: metadata names no object for it."""
        if self._image().streams.get(damage.stream_id) is None:
            self._damaged.forget(damage)
            return
        log.error(
            "damaged data: %s cannot be read: %s; %s", self._text(damage), damage.cause, self._remedy(damage)
        )

    def _on_repaired(self, damage: Damage, now_s: float) -> None:
        log.info(
            "damaged data was repaired: %s can be read again, after %.0f s",
            self._text(damage),
            now_s - damage.found_s,
        )

    def _text(self, damage: Damage) -> str:
        what = self._name(damage.stream_id)
        return f"{what} {damage.start} {'and up' if damage.end is None else f'to {damage.end - 1}'}"

    def _name(self, stream_id: int) -> str:
        image = self._image()
        stream = image.streams.get(stream_id)
        topic = None if stream is None else image.topics.by_id(stream.topic_id)
        if stream is None or topic is None:  # deleted: the line names what the one before named
            return self._names.get(stream_id, f"stream {stream_id} offsets")
        damaged_ids = {damage.stream_id for damage in self._damaged}
        self._names = {known: name for known, name in self._names.items() if known in damaged_ids}
        self._names[stream_id] = WHAT[stream.role].format(f"{topic.name}-{stream.partition}")
        return self._names[stream_id]

    def _remedy(self, damage: Damage) -> str:
        stream = self._image().streams.get(damage.stream_id)
        restore = (
            "restore the object from a copy or an earlier version of it (millrace fsck lists all damage)"
        )
        if stream is None or stream.role is not StreamRole.DATA or damage.end is None:
            return restore
        return f"{restore}, or let consumers go on at offset {damage.end}, which gives these records up"


def show_damage(registry: Registry, damage: DamageLog) -> None:
    registry.gauge(
        "millrace_broker_unreadable_partitions",
        "Partitions of which stored data was found damaged or missing by a read since the start, and was not "
        "read since; the log names the offsets",
        lambda: damage.partition_count,
    )
    registry.counter(
        "millrace_broker_damaged_reads_total",
        "Reads that failed since stored data is damaged or missing",
        lambda: damage.failed_count,
    )
