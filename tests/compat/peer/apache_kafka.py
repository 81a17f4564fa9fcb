"""One node of Apache Kafka from the jars of `make jars`: formatted, started on ports of its own, ended by its
own pid."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.compat.jvm import java_command
from tests.live import free_port
from tests.live.wire import Wire
from tests.patience import PATIENCE_S


class ApacheKafka:
    """`with ApacheKafka(folder) as kafka: ... kafka.address`. Broker and controller in one process, its data
    and log under `folder`."""

    def __init__(self, folder: Path, overrides: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self._controller = f"127.0.0.1:{free_port()}"
        self._overrides = overrides or {}
        self._process: subprocess.Popen[bytes] | None = None

    def _settings(self) -> dict[str, str]:
        listeners = f"PLAINTEXT://{self.address},CONTROLLER://{self._controller}"
        ones = ("offsets.topic", "share.coordinator.state.topic", "transaction.state.log")
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": self._controller,
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.folder / "logs"),
            **{f"{one}.replication.factor": "1" for one in ones},
            "share.coordinator.state.topic.min.isr": "1",
            "transaction.state.log.min.isr": "1",
            **self._overrides,
        }

    def __enter__(self) -> ApacheKafka:
        settings = self.folder / "server.properties"
        settings.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        tool = java_command("kafka.tools.StorageTool")
        cluster = subprocess.run(
            [*tool, "random-uuid"], capture_output=True, text=True, check=True
        ).stdout.strip()
        words = ["format", "-t", cluster, "-c", str(settings), "--standalone"]
        subprocess.run([*tool, *words], capture_output=True, check=True)
        with (self.folder / "kafka.log").open("wb") as log:
            self._process = subprocess.Popen(
                java_command("kafka.Kafka", str(settings)), stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, f"Kafka ended: {self.folder / 'kafka.log'}"
            assert time.monotonic() < deadline, f"Kafka is not ready after {PATIENCE_S:.0f} s"
            time.sleep(0.5)
        return self

    def memory_mib(self) -> float:
        """Resident memory of its process."""
        assert self._process is not None
        return (
            int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            / (1 << 20)
        )

    def _answers(self) -> bool:
        try:
            with Wire(self.address) as wire:
                return bool(wire.ask(3, 9).brokers)
        except (OSError, EOFError):
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
