"""A real S3 server for tests: versitygw over a directory, built by `make s3-server` from tests/s3server, a
process of its own.

Unlike moto it checks signatures and checksums and keeps objects over a restart. Where it was not built, tests
fail and say so.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from millrace.runtime.objectstore.s3 import S3ObjectStore, S3Settings
from tests.live import free_port
from tests.patience import PATIENCE_S

BINARY = Path(__file__).resolve().parents[1] / "s3server" / ".build" / "s3server"


class S3Server:
    """`with S3Server(folder) as server: server.make("lake"); server.address("lake")`.

    `is_xattr`: as docker-compose.yml has it. The folder's file system has to know extended attributes.
    """

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", *, is_xattr: bool = False, made: str = ""
    ) -> None:
        self.folder = folder
        self.host = host
        self._more_words = [*["-xattr"] * is_xattr, "-make", made]
        self.port = free_port()
        self.endpoint = f"http://{host}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, bucket: str) -> str:
        """A storage address, for `s3.data.buckets`."""
        return f"0@s3://{bucket}?endpoint={self.endpoint}&region=us-east-1&pathStyle=true&accessKey=test&secretKey=secret"

    def settings(self, bucket: str) -> S3Settings:
        return S3Settings(bucket, self.endpoint, "us-east-1", True, "test", "secret")

    def make(self, bucket: str) -> None:
        asyncio.run(self._make(bucket))

    async def _make(self, bucket: str) -> None:
        store = await S3ObjectStore.open(self.settings(bucket))
        answer = await store.http.ask("PUT", "")
        await store.close()
        assert answer.status == 200, answer

    def file(self, bucket: str, key: str) -> Path:
        """Where an object lies, for who damages it."""
        return self.folder / "buckets" / bucket / key

    def __enter__(self) -> S3Server:
        assert BINARY.exists(), "the tests' S3 server was not built: make s3-server (needs Go 1.25 or newer)"
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [
            str(BINARY),
            "-dir",
            str(self.folder),
            "-listen",
            f"{self.host}:{self.port}",
            *self._more_words,
        ]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection((self.host, self.port), 1).close()
                return self
            except OSError:
                assert self._process.poll() is None, (self.folder / "server.log").read_text()
                assert time.monotonic() < deadline, "the S3 server did not start"
                time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
