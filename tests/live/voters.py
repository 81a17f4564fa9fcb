"""Processes of a quorum whose voters stand in its log: formatted, started, added and removed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.live.cluster import LiveCombined
from tests.patience import PATIENCE_S

FIRST = "--standalone"
JOINS = "--no-initial-controllers"


class LiveVoters(LiveCombined):
    """Nodes `first` and up, each broker and controller in one: node 1 is formatted alone, the others follow.
    `is_formatted`: by `millrace format`; else whoever makes it does that."""

    def __init__(
        self,
        folder: Path,
        count: int,
        overrides: dict[str, str] | None = None,
        *,
        is_formatted: bool = True,
        first: int = 1,
    ) -> None:
        super().__init__(folder, count, overrides, first=first)
        self.controllers: dict[int, str] = {}
        for node_id, node in self.brokers.items():
            del node._overrides["controller.quorum.voters"]
            listener = node._overrides["listeners"].rpartition("CONTROLLER://")[2]
            self.controllers[node_id] = listener
        for node in self.brokers.values():
            servers = ",".join([*self.controllers.values()][:2])
            node._overrides["controller.quorum.bootstrap.servers"] = servers
            node._overrides["controller.listener.names"] = "CONTROLLER"
        if is_formatted:
            for node_id in self.brokers:
                self.format(node_id, FIRST if node_id == 1 else JOINS)

    def metadata_dir(self, node_id: int) -> Path:
        return self.brokers[node_id].folder / "data" / "metadata"

    def format(self, node_id: int, *way: str) -> None:
        words = self.brokers[node_id].command()
        words[words.index("serve")] = "format"
        subprocess.run([*words, *way], check=True, timeout=PATIENCE_S, capture_output=True)

    def command(self, *words: str, code: int = 0) -> str:
        """Of `millrace cluster`, asked of a node that runs; what it says."""
        running = [node.address for node in self.brokers.values() if node.is_running()]
        asked = [sys.executable, "-m", "millrace.broker", "cluster", *words, "--bootstrap-server", running[0]]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def add(self, node_id: int, *words: str) -> str:
        return self.command("add-voter", str(node_id), "--at", self.controllers[node_id], *words)

    def directory_id(self, node_id: int) -> str:
        lines = (self.metadata_dir(node_id) / "meta.properties").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)["directory.id"]
