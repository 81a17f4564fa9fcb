"""A bucket to break: moto's server in a process of its own, and a door before it that can be shut.

moto keeps its objects in memory, so that killing it would lose them: a store that is away is a door that is
shut (connections are refused), or a process that is stopped (connections are made, and nothing is answered).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from types import TracebackType

from tests.live import free_port
from tests.patience import PATIENCE_S

ANY_KEYS, CHECKED_KEYS = b"inf", b"0"


class Bucket:
    """`with Bucket() as bucket: ... bucket.address`. `name` exists from the start."""

    def __init__(self, name: str = "lake") -> None:
        self.name = name
        self._port = free_port()
        self.door = Door(self._port)
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, name: str = "", port: int = 0) -> str:
        """A storage address, for `s3.data.buckets`."""
        endpoint = f"http://127.0.0.1:{port or self.door.port}"
        keys = "accessKey=test&secretKey=secret"
        return f"0@s3://{name or self.name}?endpoint={endpoint}&region=us-east-1&pathStyle=true&{keys}"

    def __enter__(self) -> Bucket:
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 0.5).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "moto did not start"
                time.sleep(0.05)
        self.make(self.name)
        self.door.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.door.shut()
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/octet-stream"}
        url = f"http://127.0.0.1:{self._port}{path}"
        with urllib.request.urlopen(
            urllib.request.Request(url, data, headers, method=method), timeout=PATIENCE_S
        ) as answer:
            return bytes(answer.read())

    def make(self, name: str) -> None:
        self._ask("PUT", f"/{name}")

    def put(self, name: str, key: str, content: bytes) -> None:
        self._ask("PUT", f"/{name}/{key}", content)

    def keys(self) -> list[str]:
        """Every key but the one that binds the bucket to its cluster, the claims of its owners, and the
        metadata."""
        listed = ElementTree.fromstring(self._ask("GET", f"/{self.name}?list-type=2"))
        found = [element.text or "" for element in listed.iter() if element.tag.endswith("}Key")]
        return [
            key for key in found if key != "millrace-cluster" and not re.search("/(owners|metadata)/", key)
        ]

    def check_keys(self, is_checked: bool) -> None:
        """Whether credentials that nobody was given are refused from now on."""
        self._ask("POST", "/moto-api/reset-auth", CHECKED_KEYS if is_checked else ANY_KEYS)

    def stop(self) -> None:
        """Answers nothing until `go_on`."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


class Door:
    """Passes connections on to a port, while it is open. Shut, it cuts those there are and refuses others."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self._target_port = target_port
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def open(self) -> None:
        if self._listener is not None:
            return
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def shut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            sides, self._open = self._open, set()
        for side in sides:
            _cut(side)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target_port))
            with self._lock:
                self._open |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 18):
                target.sendall(data)
        except OSError:
            pass
        with self._lock:
            self._open -= {source, target}
        _cut(source)
        _cut(target)


def _cut(side: socket.socket) -> None:
    try:
        side.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end was faster
