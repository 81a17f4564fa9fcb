"""A controller of Apache Kafka from the jars of `make jars`, in a quorum with ours.

Its time-outs keep it from standing for election: its own snapshots, and what it would write as a leader, know
nothing of the records of this project.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.compat.jvm import java_command
from tests.patience import PATIENCE_S, until

NEVER_MS = 3_600_000
NEVER = {
    "controller.quorum.election.timeout.ms": str(NEVER_MS),
    "controller.quorum.fetch.timeout.ms": str(NEVER_MS),
}


class KafkaController:
    """`with KafkaController(...)`: formatted and started; ended by its own pid. `quorum`: the settings by
    which it finds the others; `format_words`: how its directory is formatted."""

    def __init__(
        self,
        folder: Path,
        cluster_id: str,
        node_id: int,
        port: int,
        quorum: Mapping[str, str],
        format_words: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.node_id = node_id
        self.log_dir = folder / "logs"
        self.output = folder / "kafka.log"
        self.settings_path = folder / "server.properties"
        self._cluster_id = cluster_id
        self._format_words = format_words
        self._settings = {
            "process.roles": "controller",
            "node.id": str(node_id),
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "advertised.listeners": f"CONTROLLER://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.log_dir),
            **NEVER,
            **quorum,
        }
        folder.mkdir()
        self.override({})
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def of_list(
        cls, folder: Path, cluster_id: str, node_id: int, voters: Mapping[int, int]
    ) -> KafkaController:
        """At kraft.version 0. `voters`: ports of 127.0.0.1 by id, its own among them."""
        named = ",".join(f"{one}@127.0.0.1:{port}" for one, port in voters.items())
        return cls(folder, cluster_id, node_id, voters[node_id], {"controller.quorum.voters": named})

    def override(self, settings: Mapping[str, str]) -> None:
        """Further settings, of the next start."""
        self._settings |= settings
        lines = [f"{key}={value}\n" for key, value in self._settings.items()]
        self.settings_path.write_text("".join(lines))

    def __enter__(self) -> KafkaController:
        words = ("format", "-t", self._cluster_id, "-c", str(self.settings_path), *self._format_words)
        tool = java_command("kafka.tools.StorageTool", *words)
        done = subprocess.run(tool, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        self.start()
        return self

    def start(self) -> None:
        with self.output.open("ab") as output:
            command = java_command("kafka.Kafka", str(self.settings_path))
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wait_for_listener(self) -> None:
        """Until it takes connections, which who adds it as a voter needs: it fetches some time before."""
        host, _, port = self._settings["listeners"].partition("://")[2].partition(":")

        def is_open() -> bool:
            with contextlib.suppress(OSError):
                socket.create_connection((host, int(port)), PATIENCE_S).close()
                return True
            return False

        until(is_open, f"Kafka takes no connections: {self.output.read_text()[-2000:]}")

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def directory_id(self) -> str:
        lines = (self.log_dir / "meta.properties").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)["directory.id"]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
