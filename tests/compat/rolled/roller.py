"""Restarts nodes of a cluster without end, one after the other, while something else is tried.

with Roller(nodes) as roller: ...
roller.count        how many restarts there were
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from tests.compat.rolled.nodes import COUNT, Nodes
from tests.patience import PATIENCE_S

PAUSE_S = 1.0


class Roller(threading.Thread):
    """On leaving, the restart under way is ended, and what went wrong is raised. `is_endless`: else each node
    is restarted once. `pause_s` between two restarts may be changed meanwhile."""

    def __init__(self, nodes: Nodes, is_endless: bool = True) -> None:
        super().__init__(name="roller", daemon=True)
        self.pause_s = PAUSE_S
        self._nodes = nodes
        self._is_endless = is_endless
        self._is_over = threading.Event()
        self._problem: BaseException | None = None
        self.count = 0

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                for node_id in range(1, COUNT + 1):
                    self._nodes.roll(node_id)
                    self.count += 1
                    if self._is_over.wait(self.pause_s):
                        return
                if not self._is_endless:
                    return
        except BaseException as problem:
            self._problem = problem

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_endless:
            self._is_over.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "a node does not end, or does not start"
        if self._problem is not None:
            raise self._problem
