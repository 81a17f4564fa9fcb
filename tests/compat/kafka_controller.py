"""A controller of Apache Kafka from the jars of `make jars`, in a quorum with ours.

Its time-outs keep it from standing for election: its own snapshots, and what it would write as a leader, know
nothing of the records of this project.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

from tests.compat.jvm import java_command
from tests.patience import PATIENCE_S

NEVER_MS = 3_600_000


class KafkaController:
    """`with KafkaController(...)`: formatted and started; ended by its own pid. `voters`: ports of 127.0.0.1
    by id, its own among them."""

    def __init__(self, folder: Path, cluster_id: str, node_id: int, voters: dict[int, int]) -> None:
        self.log_dir = folder / "logs"
        self.output = folder / "kafka.log"
        self._cluster_id = cluster_id
        self._settings = folder / "server.properties"
        settings = {
            "process.roles": "controller",
            "node.id": node_id,
            "controller.quorum.voters": ",".join(f"{one}@127.0.0.1:{port}" for one, port in voters.items()),
            "listeners": f"CONTROLLER://127.0.0.1:{voters[node_id]}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
            "log.dirs": self.log_dir,
            "controller.quorum.election.timeout.ms": NEVER_MS,
            "controller.quorum.fetch.timeout.ms": NEVER_MS,
        }
        folder.mkdir()
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KafkaController:
        words = ("format", "-t", self._cluster_id, "-c", str(self._settings))
        tool = java_command("kafka.tools.StorageTool", *words)
        subprocess.run(tool, capture_output=True, check=True, timeout=PATIENCE_S)
        self.start()
        return self

    def start(self) -> None:
        with self.output.open("ab") as output:
            command = java_command("kafka.Kafka", str(self._settings))
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
