"""Processes forked from one that has the broker's code loaded: `python -m MODULE WORDS` without the 0.7 s of
CPU that loading takes.

For tests that start a broker many times. Each process runs `MODULE` as `__main__`, with an environment,
output, working directory and pid of its own, and ends as the interpreter does. What is not as in a process of
its own: variables that the interpreter reads as it begins (PYTHON*, MALLOC_*) are those of the test run.
Tests of starting, of environment or of memory start the real thing.

The loaded process has one thread and lives as long as the test run; between it and each process stands one
that waits for its end.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

from tests.patience import PATIENCE_S

REQUEST_BYTES_MAX = 1 << 16
PACKAGES = ("runtime", "protocol", "wal", "s3stream", "kraft", "broker")
NUMBER = struct.Struct("<i")  # a pid, then an exit code


class WarmProcess:
    """As much of `subprocess.Popen` as a test's broker needs."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], output: int, errors: int) -> None:
        """`words`: those behind the interpreter's name, "-m" first. Returns when the process is there."""
        assert words[0] == "-m", words
        self.stdout: IO[bytes] | None = None
        self.returncode: int | None = None
        request = json.dumps({"words": list(words[1:]), "env": dict(env), "folder": os.getcwd()}).encode()
        assert len(request) <= REQUEST_BYTES_MAX, len(request)
        self._report, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_loaded(), [request], [output, errors, theirs.fileno()])
        self.pid = self._number()

    def _number(self) -> int:
        content = self._report.recv(NUMBER.size, socket.MSG_WAITALL)
        assert len(content) == NUMBER.size, "the process that has the code loaded is gone"
        return int(NUMBER.unpack(content)[0])

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        self.returncode = self._number()
        self._report.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(words: Sequence[str], env: Mapping[str, str], errors: int) -> WarmProcess:
    """With its standard output in a pipe."""
    reading, writing = os.pipe()
    try:
        process = WarmProcess(words, env, writing, errors)
    finally:
        os.close(writing)
    process.stdout = os.fdopen(reading, "rb")
    return process


def run(words: Sequence[str], timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """To its end, with what it wrote."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = WarmProcess(words, os.environ, output.fileno(), errors.fileno())
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        texts = [
            os.pread(one.fileno(), os.fstat(one.fileno()).st_size, 0).decode() for one in (output, errors)
        ]
    return subprocess.CompletedProcess(list(words), code, *texts)


@functools.cache
def _loaded() -> socket.socket:
    """The way to the process that has the code loaded; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * REQUEST_BYTES_MAX)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with theirs:
        words = [sys.executable, "-c", f"from tests.live import warm; warm.serve({theirs.fileno()})"]
        subprocess.Popen(words, pass_fds=[theirs.fileno()], env=env, stdin=subprocess.DEVNULL)
    return ours


def _load() -> None:
    import uvloop

    import millrace

    assert uvloop
    for name in PACKAGES:
        package = import_module(f"{millrace.__name__}.{name}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                import_module(found.name)
    asyncio.run(_open_store())


async def _open_store() -> None:
    """The S3 client loads the most of itself when one is made; this one sends nothing."""
    from millrace.runtime.objectstore.s3 import S3ObjectStore, S3Settings

    store = await S3ObjectStore.open(
        S3Settings("none", "http://127.0.0.1:1", "us-east-1", True, "none", "none")
    )
    await store.close()


def serve(requests_fd: int) -> None:
    """What the loaded process does until the test run has ended."""
    _load()
    assert len(os.listdir("/proc/self/task")) == 1, "a fork of a process with threads has only one of them"
    requests = socket.socket(fileno=requests_fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those ended that wait for others
    while True:
        content, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not content:
            return
        if os.fork() == 0:
            requests.close()
            _keep(json.loads(content), *fds)
        for fd in fds:
            os.close(fd)


def _keep(request: dict[str, object], output: int, errors: int, report: int) -> None:
    """Forks once more and returns in the new process, whose code runs on from here; the other tells its pid
    and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        _report_exit(pid, output, errors, report)
    os.close(report)
    for fd, standard in ((output, 1), (errors, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    words, env, folder = request["words"], request["env"], request["folder"]
    assert isinstance(words, list)
    assert isinstance(env, dict)
    os.chdir(str(folder))
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [str(Path(words[0])), *words[1:]]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    sys.exit(0)


def _report_exit(pid: int, output: int, errors: int, report: int) -> NoReturn:
    os.close(output)
    os.close(errors)
    os.write(report, NUMBER.pack(pid))
    _, status = os.waitpid(pid, 0)
    with_code = NUMBER.pack(os.waitstatus_to_exitcode(status))
    try:
        os.write(report, with_code)
    finally:
        os._exit(0)
