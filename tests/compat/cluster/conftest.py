"""Three nodes, restarted one after the other for as long as the tests of this folder run. `broker.address`
names all three."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.compat.rolled.nodes import MillraceNodes
from tests.compat.rolled.roller import Roller


@dataclass(frozen=True)
class RolledCluster:
    nodes: MillraceNodes
    roller: Roller

    @property
    def address(self) -> str:
        return ",".join(self.nodes.addresses)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolledCluster]:
    with MillraceNodes(tmp_path_factory.mktemp("nodes")) as nodes, Roller(nodes) as roller:
        yield RolledCluster(nodes, roller)
        print(f"\n{roller.count} restarts of a node")
