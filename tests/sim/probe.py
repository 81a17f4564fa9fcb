"""What a live probe may see of a run. Those there are stand in probes.py, log_probes.py and bounds.py."""

from __future__ import annotations

from millrace.kraft.image.image import MetadataImage
from millrace.s3stream.storage import Storage
from tests.sim.history import History, Place
from tests.sim.node import SimNode


class Probe:
    """What each may override; `watch` is how it sees the node."""

    def __init__(self, node: SimNode, history: History) -> None:
        self.node = node
        self.history = history
        self.count = 0

    def find(self, kind: str, text: str) -> None:
        self.history.find(kind, text)

    def looked_at(self) -> dict[str, int]:
        """What a hunt must have met, and how often this run did."""
        return {type(self).__name__: self.count}

    def on_start(self) -> None: ...

    def on_restored(self) -> None: ...

    def on_other_wal(self) -> None: ...

    def on_wal_copied(self) -> None: ...

    def on_write(self, position: int, data: bytes) -> None: ...

    def on_durable(self, position: int, data: bytes) -> None: ...

    def on_image(self, image: MetadataImage) -> None: ...

    def on_put(self, key: str, content: bytes) -> None: ...

    def on_delete(self, key: str) -> None: ...

    def on_told(self, place: Place, offset: int, values: list[bytes]) -> None: ...

    def on_watermark(self, place: Place, high_watermark: int) -> None: ...

    def tick(self, storage: Storage) -> None: ...
