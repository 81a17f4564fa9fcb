"""Applier: the image of what is committed, for a leader, a follower and an observer alike.

    image = snapshot + log up to the high watermark

Everything that reaches the published image passes here: what a restart replays, batches of the log as they
are committed, the outcome that a leader has decided on already (the same records, folded before they were
written, so nothing is folded twice), and a snapshot of the leader's that takes the place of a log.

Not here: what is committed (kraft/raft/core.py), reading batches (log_store.py), what a record does
(delta.py). Kept true: the image's offset only grows, batch by batch or decision by decision; subscribers see
every change once, in log order.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.kraft.errors import LogCorrupt
from millrace.kraft.image.bulk import RecordFolder
from millrace.kraft.image.delta import MetadataDelta, at_offset, delta_between
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.image.records import decode_values
from millrace.protocol.batches import BatchHeader
from millrace.protocol.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch of the log as it is stored: the records [base, end) of one epoch."""

    base: int
    end: int
    epoch: int
    is_control: bool
    data: bytes

    @classmethod
    def of(cls, data: bytes) -> StoredBatch:
        """`data` is one batch that is known to be intact."""
        header = BatchHeader(data)
        return cls(header.base_offset, header.last_offset + 1, header.leader_epoch, header.is_control, data)


class Folding:
    """Batches of the committed log folded into an image, in their order."""

    def __init__(self, image: MetadataImage, folder: RecordFolder | None = None) -> None:
        self.delta = MetadataDelta(image)
        self.end = image.offset
        self.epoch = image.epoch
        self.has_records = False
        self._folder = folder or RecordFolder()

    def take(self, header: BatchHeader, view: memoryview) -> None:
        """Folds the batch in; one that lies below the image's end is in it already.

        Raises LogCorrupt for a batch that does not join the image's end, UnknownRecord for a record of a
        later build.
        """
        base, end = header.base_offset, header.last_offset + 1
        if end <= self.end:
            return
        if base != self.end:
            raise LogCorrupt(
                "the metadata log", 0, f"a batch from offset {base} follows what ends at {self.end}"
            )
        if not header.is_control:
            self._folder.fold(self.delta, decode_values(view))
            self.has_records = True
        self.end, self.epoch = end, header.leader_epoch

    def image(self) -> MetadataImage:
        return self.delta.done(self.end, self.epoch)


class Applier:
    """Publishes what is committed. The caller tells what is, in order; nothing here waits."""

    def __init__(self, publisher: MetadataPublisher) -> None:
        self._publisher = publisher
        self._folder = RecordFolder()

    @property
    def image(self) -> MetadataImage:
        return self._publisher.image

    @property
    def end(self) -> int:
        """Everything below is applied."""
        return self._publisher.image.offset

    def apply(self, batches: Iterable[StoredBatch]) -> None:
        """Folds committed batches that follow the image, and publishes them as one change."""
        folding = Folding(self.image, self._folder)
        for batch in batches:
            folding.take(BatchHeader(batch.data), memoryview(batch.data))
        if folding.has_records:
            self._publisher.publish(folding.delta, folding.image())
        else:
            self._publisher.load(at_offset(self.image, folding.end, folding.epoch))

    def adopt(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Publishes the outcome of committed records that was decided on the image as it is now."""
        assert delta.base is self.image, (delta.base.offset, self.end)
        self._publisher.publish(delta, image)

    def install(self, image: MetadataImage) -> None:
        """Publishes a snapshot of the leader's in place of the log up to its end."""
        assert image.offset >= self.end, (image.offset, self.end)
        self._publisher.publish(delta_between(self.image, image), image)
