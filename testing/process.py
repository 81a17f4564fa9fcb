"""The broker's process: started in test mode on a free port, found by its ready line, ended with whoever started it.

Its folder is a temporary one; its log is a file in it. The address stays the same over restarts. Not here: what is asked of the broker
(operations.py). Kept true: on return of `close`, and after the end of this process, there is neither a broker nor a folder (guard.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from millrace.testing.errors import BrokerNotStarted
from millrace.testing.guard import Guard
from millrace.testing.ports import free_port

HOST = "127.0.0.1"
READY = b"millrace ready"
READY_S = 60.0
STOP_S = 30.0
PORTS_TRIED_MAX = 5
LOG_SHOWN_CHARS = 4_000


class BrokerProcess:
    """`settings`: broker settings by name, over those of test mode. `port`: 0 for a free one."""

    def __init__(self, settings: Mapping[str, str], port: int = 0) -> None:
        self._settings = dict(settings)
        self._given_port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._folder = ""
        self._port = 0
        self._is_paused = False
        self.ready_line = ""

    @property
    def bootstrap_servers(self) -> str:
        if not self._port:
            raise BrokerNotStarted("the broker was not started: use it as a context manager, or call start()")
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerNotStarted("the broker is not running: call start() or restart()")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def log_text(self) -> str:
        """What the broker's log holds, of all its processes."""
        try:
            return (Path(self._folder) / "broker.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def control_port(self) -> int:
        """Where faults are asked for."""
        if not self.is_running:
            raise BrokerNotStarted("the broker is not running: call start() or restart()")
        return int(self.ready_line.rpartition(":")[2])

    @property
    def control_url(self) -> str:
        """For tests in other languages: POST URL/fail?api=Produce&code=..."""
        return f"http://{HOST}:{self.control_port}"

    def start(self) -> None:
        """Returns when clients are served. Raises BrokerNotStarted. Nothing to do for one that runs."""
        if self.is_running:
            return
        self._forget()
        if self._guard is None:
            self._folder = tempfile.mkdtemp(prefix="millrace-test-")
            self._guard = Guard(self._folder)
        was_started = self._port != 0
        is_chosen = was_started or self._given_port != 0
        try:
            for tried in range(1, PORTS_TRIED_MAX + 1):
                if not was_started:
                    self._port = self._given_port or free_port()
                self._begin()
                if self._wait_ready():
                    return
                if is_chosen or tried == PORTS_TRIED_MAX or "in use" not in self.log_text:
                    raise BrokerNotStarted(f"the broker did not get ready\n{self.log_text[-LOG_SHOWN_CHARS:]}")
        except BaseException:
            if not was_started:
                self.close()
            raise

    def _begin(self) -> None:
        settings = {**self._settings, "listeners": f"PLAINTEXT://{HOST}:{self._port}"}
        words = [sys.executable, "-m", "millrace.broker", "serve", "--test-mode", "--data-dir", f"{self._folder}/data"]
        for name, value in settings.items():
            words += ["--override", f"{name}={value}"]
        # KAFKA_ variables of the environment are the tests' own: a broker would take them for settings.
        env = {
            name: text for name, text in os.environ.items() if not name.startswith("KAFKA_") and name != "CLUSTER_ID"
        }
        with (Path(self._folder) / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=env, start_new_session=True
            )
        self._watch(self._process.pid)

    def _watch(self, pid: int) -> None:
        if self._guard is not None:
            self._guard.watch(pid)

    def _wait_ready(self) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline, seen, descriptor = time.monotonic() + READY_S, b"", self._process.stdout.fileno()
        while not (READY in seen and seen.endswith(b"\n")):
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(descriptor, 65_536) if readable else b""
            if not chunk:
                self.kill()
                return False
            seen += chunk
        self.ready_line = seen.decode(errors="replace").strip()
        return True

    def wait(self) -> int:
        """Until the process ends by itself; its exit code."""
        assert self._process is not None
        return self._process.wait()

    def kill(self) -> None:
        """kill -9, and wait for the end. What was acknowledged is there after the next `start`."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def stop(self) -> None:
        """An orderly end, as at a deployment."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._forget()

    def _forget(self) -> None:
        if self._process is None:
            return
        self._process.wait()
        self._watch(0)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        self._is_paused = False

    def pause(self) -> None:
        """The process stands still, its connections stay open: what a client sees of a machine that hangs."""
        os.kill(self.pid, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        if self._is_paused:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self._is_paused = False

    def memory_bytes(self) -> int:
        """Resident memory. Linux."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Ends it without ceremony: nothing is kept. Idempotent."""
        self.kill()
        if self._guard is not None:
            self._guard.end()
            self._guard = None
        self._port = 0
