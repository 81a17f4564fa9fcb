"""LocalNode: one node of a cluster that runs on this machine, as a process of its own.

    node = LocalNode(plan)
    await node.begin()            the process runs; its log goes to FOLDER/log
    await node.wait_end()
    node.stop(); node.kill()

The process has a session of its own: an interrupt from the terminal reaches who started it, who stops the
nodes in order. Not here: when one is started again (cli/cluster_start.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from enum import Enum
from pathlib import Path
from typing import Final

from millrace.broker.cluster.plan import NodePlan
from millrace.runtime.errors import in_words

READY: Final = b"millrace ready"
LOG_END_BYTES: Final = 4_096


class State(Enum):
    ENDED = "ended"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class LocalNode:
    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.state = State.ENDED
        self.was_ready = False  # since it was begun last
        self.code: int | None = None  # its exit code; below 0: the signal that ended it
        self.failure = ""  # why no process could be begun
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    @property
    def is_restarting(self) -> bool:
        return self._restarting is not None

    @property
    def is_stopping(self) -> bool:
        return self.state is State.STOPPING

    @property
    def ended_early(self) -> bool:
        """By a SIGTERM that came before it had begun to listen for one: nothing was open."""
        return self.code == -signal.SIGTERM and not self.was_ready

    @property
    def pid(self) -> int:
        """0 of one that ended."""
        return 0 if self._process is None or self.state is State.ENDED else self._process.pid

    @property
    def log_path(self) -> str:
        return f"{self.plan.folder}/log"

    async def begin(self) -> None:
        """Where it cannot, `failure` says why."""
        self._process, self.state, self.code, self.was_ready = None, State.STARTING, None, False
        try:
            self._process = await self._spawn()
        except OSError as error:
            self.state, self.failure = State.ENDED, in_words(error)
            return
        self._watching = asyncio.create_task(self._watch(self._process), name=f"node {self.plan.node_id}")
        if self.is_stopping:  # since it was asked for
            self.stop()

    async def _spawn(self) -> Process:
        """Raises OSError."""
        Path(self.plan.folder).mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-P", "-m", "millrace.broker", "serve", "--data-dir", self.plan.folder]
        for key, value in self.plan.settings.items():
            words += ["--override", f"{key}={value}"]
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            return await asyncio.create_subprocess_exec(
                *words, stdin=DEVNULL, stdout=PIPE, stderr=log, start_new_session=True
            )
        finally:
            os.close(log)

    async def _watch(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(READY) and self.state is State.STARTING:
                self.state, self.was_ready = State.READY, True
        self.code = await process.wait()
        self.state = State.ENDED

    async def wait_end(self) -> None:
        if self._restarting is not None:
            await asyncio.wait([self._restarting])
        if self._watching is not None:
            await self._watching

    def restart_in(self, wait_s: float) -> None:
        """Of one that ended; a stop before then takes it back."""
        self._restarting = asyncio.create_task(self._restart(wait_s), name=f"restart {self.plan.node_id}")

    async def _restart(self, wait_s: float) -> None:
        try:
            await asyncio.sleep(wait_s)
            await self.begin()
        finally:
            self._restarting = None

    def stop(self) -> None:
        """SIGTERM: it ends in order."""
        if self._restarting is not None and self.state is State.ENDED:
            self._restarting.cancel()
            self._restarting = None
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.state is State.ENDED:
            return
        self.state = State.STOPPING
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def last_words(self) -> str:
        """The last line of its log."""
        try:
            with Path(self.log_path).open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_END_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
