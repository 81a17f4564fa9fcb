"""An older copy of the WAL's volume (or of the objects of a log of objects) is found at one start and
accepted; the current one is found again later.

    current --a start finds the older copy--> refused --wal.lost.accept--> the copy goes on
            --a later start finds the current one--> refused, for it is the older one by now
                --wal.lost.accept--> it goes on, emptied
                                                             `--the one that went on is back

What the current one alone held was given up with the first word, and its offsets were given to others: with
the second nothing of it may come back, and what the start says that it gives up is what was acknowledged
since the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.sim.salvage import entries_of_object
from tests.sim.strange import OlderPlace, is_of_objects, wal_objects
from tests.sim.strange_wal import AcceptableWal, entries_in

if TYPE_CHECKING:
    from tests.sim.node import SimNode

OLDER, CURRENT = "older WAL to accept", "current WAL found again"


class OlderWal(AcceptableWal):
    """Made when the copy is taken, of the WAL as it is now. `current`: the one that the accepted copy took
    the place of, to be found again."""

    def __init__(self, node: SimNode, what: str = OLDER, *, is_accepted: bool = True) -> None:
        super().__init__(node, what, ("is an older copy",), what, is_accepted=is_accepted)
        self._place = OlderPlace(node, is_log=False)
        self.current: OlderWal | None = None
        node.on_wal_copied()

    def can_be_told(self) -> bool:
        return self._place.can_be_told()

    def put(self) -> None:
        self._place.put()

    def put_back(self) -> None:
        self._place.put_back()

    def _accept(self) -> None:
        rand = self._node.world.rand.split(f"{self.what} is accepted")
        self.current = OlderWal(self._node, CURRENT, is_accepted=rand.below(4) > 0)
        super()._accept()

    def _entries(self) -> Iterable[tuple[int, int]]:
        node = self._node
        if not is_of_objects(node):
            return entries_in(node)
        contents = [content for content, _ in wal_objects(node).values()]
        return [(one.stream_id, one.end) for content in contents for one in entries_of_object(content)]
