"""A real broker process for tests: started from this checkout, found by its ready line, killed by its own
pid.

Not a fixture of its own: `with LiveBroker(folder) as broker: ... broker.address`. Ports are the system's
choice unless given, so that a restarted broker can keep its address (`restart()` does).
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from millrace.testing.ports import free_port as free_port
from tests.cpu import cpu_seconds
from tests.live.warm import WarmProcess, start
from tests.patience import PATIENCE_S

STARTS = b"millrace.broker.cli.serve: millrace "  # the first line of a broker's log


class LiveBroker:
    """One `millrace serve` on loopback, with its data under `folder`. `wal`: the WAL's capacity; a broker
    takes that much of the disk for as long as its folder is kept, so tests that write little say so.
    `is_warm`: forked from a process that has its code loaded (warm.py). `host`: its address, and `within`:
    words before its command, where it has a network of its own (network.py)."""

    def __init__(
        self,
        folder: Path,
        overrides: dict[str, str] | None = None,
        env: dict[str, str] | None = None,
        *,
        wal: str = "",
        is_warm: bool = False,
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.python = sys.executable  # of another checkout: that version is started
        self.module = "millrace.broker"
        self._is_warm = is_warm
        self._within = list(within)
        self.host = host
        self.port = free_port()
        self.admin_port = free_port()
        self.address = f"{host}:{self.port}"
        small = {"s3.wal.path": f"0@file://{folder}/data/wal?capacity={wal}"} if wal else {}
        self._overrides = {"group.initial.rebalance.delay.ms": "0", **small, **(overrides or {})}
        self._env = {**os.environ, **(env or {})}
        self._env.pop("PYTHONDONTWRITEBYTECODE", None)  # a real start finds its modules compiled
        self._process: subprocess.Popen[bytes] | WarmProcess | None = None
        self.log_path = folder / "broker.log"
        self._began = 0.0
        self.ready_seconds = 0.0
        self._log_start = 0  # of the process that runs

    def override(self, settings: Mapping[str, str]) -> None:
        """Further settings, of the next start."""
        self._overrides |= settings

    def command(self) -> list[str]:
        settings = {
            "listeners": f"PLAINTEXT://{self.address}",
            "admin.listener": f"{self.host}:{self.admin_port}",
            **self._overrides,
        }
        words = [self.python, "-m", self.module, "serve", "--data-dir", str(self.folder / "data")]
        words = [*self._within, *words]
        for key, value in settings.items():
            words += ["--override", f"{key}={value}"]
        return words

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> LiveBroker:
        """Returns when the broker has printed its ready line; its whole output goes to `log_path`."""
        self.begin()
        return self.wait_ready()

    def begin(self, *words: str) -> None:
        """Starts the process, and waits for nothing. `words`: further ones of its command."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            if self._is_warm:
                self._process = start([*self.command()[1:], *words], self._env, log.fileno())
            else:
                self._process = subprocess.Popen(
                    [*self.command(), *words], stdout=subprocess.PIPE, stderr=log, env=self._env
                )

    def wait_ready(self) -> LiveBroker:
        started = time.monotonic()
        log = self.log_path.open("ab")
        assert self._process is not None
        assert self._process.stdout is not None
        seen = b""
        while b"millrace ready" not in seen:
            readable, _, _ = select.select([self._process.stdout], [], [], 0.5)
            chunk = os.read(self._process.stdout.fileno(), 65536) if readable else b""
            seen += chunk
            log.write(chunk)
            log.flush()
            if (readable and not chunk) or time.monotonic() - started > PATIENCE_S:
                self.kill()
                raise AssertionError(f"no ready line: {seen!r}\n{self.log_path.read_text()[-4000:]}")
        self.ready_seconds = time.monotonic() - self._began
        log.close()
        return self

    def wait_begun(self, timeout_s: float = PATIENCE_S) -> None:
        """Waits until a process that was begun has its code loaded and has read its settings: all that it
        does to its data comes then."""
        deadline = time.monotonic() + timeout_s
        while STARTS.decode() not in self.run_log():
            assert self.is_running(), self.log_path.read_text()[-4000:]
            assert time.monotonic() < deadline, self.log_path.read_text()[-4000:]
            time.sleep(0.001)

    def run_log(self) -> str:
        """What the process that was begun last has logged so far."""
        return self.log_path.read_bytes()[self._log_start :].decode()

    def is_ready(self) -> bool:
        """Whether a process that was begun, and not waited for, has printed its ready line."""
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], 0)
        return bool(readable) and b"millrace ready" in os.read(self._process.stdout.fileno(), 65536)

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._close()

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM, a controlled shutdown; gives the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"no end within {timeout_s} s of SIGTERM:\n{self.log_path.read_text()[-4000:]}"
            ) from None
        self._close()
        return code

    def wait_end(self, timeout_s: float = PATIENCE_S) -> int:
        """Waits until the process has ended by itself; its exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._close()
        return code

    def _close(self) -> None:
        assert self._process is not None
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def restart(self) -> LiveBroker:
        if self._process is not None:
            self.stop()
        return self.start()

    def replace(self) -> None:
        """As `millrace serve --replace`: the process that runs ends in order, once the next one is loaded."""
        former = self._process
        assert former is not None
        self.begin("--replace", str(former.pid))
        assert former.wait(PATIENCE_S) == 0
        assert former.stdout is not None
        former.stdout.close()
        self.wait_ready()

    @contextmanager
    def cold_reads(self) -> Iterator[None]:
        """Within it objects are what is read: an orderly stop uploaded everything, and the next process has
        nothing in its caches."""
        assert self.stop() == 0
        self.start()
        yield
        metrics = self.metrics()
        reads = {
            source: metrics[f'millrace_storage_reads_total{{source="{source}"}}']
            for source in ("log_cache", "objects")
        }
        assert not reads["log_cache"], f"some reads were hot: {reads}"
        assert reads["objects"], f"nothing was read from objects: {reads}"

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def metrics(self) -> dict[str, float]:
        """The admin listener's /metrics as name{labels} -> value."""
        with urllib.request.urlopen(
            f"http://{self.host}:{self.admin_port}/metrics", timeout=PATIENCE_S
        ) as answer:
            text = answer.read().decode()
        rows = (re.match(r"^([^#\s][^ ]*) ([-+0-9.eEinfNa]+)$", line) for line in text.splitlines())
        return {row.group(1): float(row.group(2)) for row in rows if row}

    def cpu_seconds(self) -> float:
        """User and system time of the broker's process so far."""
        return cpu_seconds(self.pid)

    def memory_bytes(self) -> int:
        """Resident memory of the broker's process."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak_memory_bytes(self) -> int:
        """The most resident memory the broker's process has held so far."""
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def __enter__(self) -> LiveBroker:
        return self.start() if self._process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
