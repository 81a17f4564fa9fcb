"""The broker's process: started in test mode on a free port, found by its ready line, ended with whoever
started it.

Its folder is a temporary one; its log is a file in it. The address stays the same over restarts. Not here:
what is asked of the broker (operations.py). Kept true: on return of `close`, and after the end of this
process, there is neither a broker nor a folder (guard.py).
"""

from __future__ import annotations

import contextlib
import os
import secrets
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
TAKEN = "Address already in use"


class BrokerProcess:
    """`settings`: broker settings by name, over those of test mode. `port`: 0 for a free one. ValueError for
    `listeners`, which follow from it."""

    def __init__(self, settings: Mapping[str, str], port: int = 0) -> None:
        if "listeners" in settings:
            raise ValueError(
                f"listeners cannot be set: a broker for tests listens on {HOST}, on a port of its own"
            )
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
        """Raises BrokerNotStarted before `start` and after `close`."""
        if not self._port:
            raise BrokerNotStarted("the broker was not started: use it as a context manager, or call start()")
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """Raises BrokerNotStarted while the broker does not run."""
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
    def log_path(self) -> str:
        return f"{self._folder}/broker.log"

    @property
    def log_text(self) -> str:
        """What the broker's log holds, of all its processes."""
        try:
            return Path(self.log_path).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def settings_without_effect(self) -> list[str]:
        """What the broker said of given settings that it does not know, each a sentence."""
        said = [line.partition(": ")[2] for line in self.log_text.splitlines() if "(--override)" in line]
        return list(dict.fromkeys(said))

    @property
    def control_port(self) -> int:
        """Where faults are asked for. Raises BrokerNotStarted while the broker does not run."""
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
        was_started = self._port != 0
        is_chosen = was_started or self._given_port != 0
        try:
            self._make_folder()
            for tried in range(1, PORTS_TRIED_MAX + 1):
                if not was_started:
                    self._port = self._given_port or free_port()
                logged = len(self.log_text)
                self._begin()
                if self._wait_ready():
                    return
                refusal = self.log_text[logged:]
                if is_chosen or tried == PORTS_TRIED_MAX or TAKEN not in refusal:
                    raise BrokerNotStarted(self._reason(refusal))
        except BaseException:
            if not was_started:
                self.close()
            raise

    def _reason(self, refusal: str) -> str:
        if TAKEN in refusal:
            advice = "; port 0 takes a free one" if self._given_port else ""
            return f"something else listens on {HOST}:{self._port} already{advice}"
        return f"the broker did not get ready\n{refusal[-LOG_SHOWN_CHARS:]}"

    def _make_folder(self) -> None:
        """Behind its guard, so that no end of ours can come between the two and leave it."""
        if self._guard is None:
            self._folder = f"{tempfile.gettempdir()}/millrace-test-{secrets.token_hex(8)}"
            self._guard = Guard(self._folder)
            os.mkdir(self._folder, 0o700)

    def _begin(self) -> None:
        settings = {**self._settings, "listeners": f"PLAINTEXT://{HOST}:{self._port}"}
        words = [
            sys.executable,
            "-P",
            "-m",
            "millrace.broker",
            "serve",
            "--test-mode",
            "--data-dir",
            f"{self._folder}/data",
        ]
        for name, value in settings.items():
            words += ["--override", f"{name}={value}"]
        env = {name: text for name, text in os.environ.items() if not is_of_the_tests(name)}
        with Path(self.log_path).open("ab") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        self._watch(self._process.pid)

    def _watch(self, pid: int, mark: str = "") -> None:
        if self._guard is not None:
            self._guard.watch(pid, mark)

    def end_with_owner(self, mark: str) -> None:
        """While this broker runs, processes with `mark` (NAME=TEXT) in their environment end where the
        process that started it does. Linux."""
        self._watch(self.pid, mark)

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


def is_of_the_tests(variable: str) -> bool:
    """Variables that a broker would take for its own: KAFKA_ ones for settings. And it does not run without
    assertions."""
    return variable.startswith("KAFKA_") or variable in ("CLUSTER_ID", "PYTHONOPTIMIZE")
