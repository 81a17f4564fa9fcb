"""A node that is its own whole quorum, and two that join it while it serves."""

from __future__ import annotations

from pathlib import Path

from tests.live.test_controllers import QUICK
from tests.live.voters import JOINS, LiveVoters


class Growing(LiveVoters):
    """Node 1 alone at first, in a folder that it made itself. `listeners`: what it is to have to be joined;
    until it is given them, and started anew, it cannot be."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 3, QUICK, is_formatted=False)
        self.listeners = self.brokers[1]._overrides.pop("listeners")
        for key in ("cluster.id", "controller.quorum.bootstrap.servers", "controller.listener.names"):
            del self.brokers[1]._overrides[key]

    def begin(self) -> None:
        self.brokers[1].start()

    def grow(self) -> None:
        """From one node to three, each with its share."""
        self.command("upgrade", "kraft.version=1")
        (properties,) = self.brokers[1].folder.rglob("meta.properties")
        lines = dict(line.split("=", 1) for line in properties.read_text().splitlines() if "=" in line)
        for node_id in (2, 3):
            self.brokers[node_id].override({"cluster.id": lines["cluster.id"]})
            self.format(node_id, JOINS)
            self.brokers[node_id].start()
            self.add(node_id)
        self.command("spread")

    def shrink(self) -> None:
        """From three to one."""
        for node_id in (3, 2):
            self.command("drain", str(node_id))
            self.command("remove-voter", str(node_id))
            assert self.brokers[node_id].stop() == 0
            self.command("unregister", str(node_id))
