"""A proxy that makes a local S3 server as slow as one in a region is: a process of its own, on uvloop.

    with SlowProxy(server.port) as proxy: address = proxy.slow(server.address("lake")); ...;
    proxy.puts("lake")

It holds each request of HTTP/1.1 back until a drawn time has passed since its head came, then forwards it: as
in S3, an object is there near the end of its PUT, and of two PUTs of one key the quicker wins. PUTs:
log-normal, 60 ms at the median and 250 ms at 99 of 100; all else: 15 ms and 60 ms. What the server itself
takes comes on top, and is in the figures. A client that goes away once its body has come does not take it
back. No TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from types import TracebackType

import uvloop

from tests.live import free_port
from tests.patience import PATIENCE_S, next_line

PUT_MS, OTHER_MS = (60.0, 250.0), (15.0, 60.0)
Z99 = 2.3263  # of the normal distribution, at 99 of 100
STATS = b"GET /-slow/puts "
CHUNK_BYTES = 1 << 18
HEAD_BYTES_MAX = 1 << 16
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


@dataclass
class PutTimes:
    """What PUTs of one bucket took, in ms, sorted, and how many bytes they carried in all."""

    times_ms: list[float]
    bytes_count: int

    def quantile_ms(self, fraction: float) -> float:
        return self.times_ms[min(len(self.times_ms) - 1, int(fraction * len(self.times_ms)))]


class SlowProxy:
    """`puts` gives what was put since it was asked last."""

    def __init__(self, server_port: int, seed: int = 1) -> None:
        self._server_port = server_port
        self._seed = seed
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def slow(self, address: str) -> str:
        """An address of the server, by way of the proxy."""
        return address.replace(f"127.0.0.1:{self._server_port}", f"127.0.0.1:{self.port}")

    def puts(self, bucket: str) -> PutTimes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-slow/puts", timeout=PATIENCE_S) as answer:
            found = [(took_ms, size) for name, took_ms, size in json.load(answer) if name == bucket]
        return PutTimes(sorted(took_ms for took_ms, _ in found), sum(size for _, size in found))

    def __enter__(self) -> SlowProxy:
        numbers = [str(number) for number in (self.port, self._server_port, self._seed)]
        words = [sys.executable, "-m", "tests.live.slow_proxy", *numbers]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert next_line(self._process.stdout) == b"ready\n", "the slow proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()


@dataclass
class Proxy:
    server_port: int
    rand: random.Random
    puts: list[tuple[str, float, int]] = field(default_factory=list)

    def delay_s(self, method: bytes) -> float:
        p50_ms, p99_ms = PUT_MS if method == b"PUT" else OTHER_MS
        return p50_ms / 1000 * math.exp(math.log(p99_ms / p50_ms) / Z99 * self.rand.gauss(0, 1))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client, with one of its own to the server."""
        server: asyncio.StreamWriter | None = None
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self.server_port, limit=1 << 20)
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(STATS):
                    self.tell_puts(writer)
                else:
                    await self.forward(head, reader, writer, answers, server)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            for end in (writer, server):
                if end is not None:
                    end.close()

    async def forward(
        self,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        method, target = head.split(b" ", 2)[:2]
        began, delay_s = loop.time(), self.delay_s(method)
        length = _LENGTH.search(head)
        size_bytes = int(length[1]) if length else 0
        body = await reader.readexactly(size_bytes)
        await asyncio.sleep(max(0.0, began + delay_s - loop.time()))
        server.write(head)
        server.write(body)
        await server.drain()
        answer_head = await answers.readuntil(b"\r\n\r\n")
        if method == b"PUT":
            bucket = target.split(b"?")[0].strip(b"/").split(b"/")[0].decode()
            self.puts.append((bucket, (loop.time() - began) * 1000, size_bytes))
        writer.write(answer_head)
        length = _LENGTH.search(answer_head)
        if method == b"HEAD" or answer_head.split(b" ", 2)[1] in (b"204", b"304"):
            return
        if _CHUNKED.search(answer_head):
            await copy_chunks(answers, writer)
        else:
            await copy(answers, writer, int(length[1]) if length else 0)

    def tell_puts(self, writer: asyncio.StreamWriter) -> None:
        content = json.dumps(self.puts).encode()
        self.puts.clear()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content) + content)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size_bytes: int) -> None:
    while size_bytes:
        piece = await reader.read(min(size_bytes, CHUNK_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(piece, size_bytes)
        size_bytes -= len(piece)
        writer.write(piece)
        await writer.drain()


async def copy_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A body in chunks, without trailers."""
    size_bytes = -1
    while size_bytes:
        line = await reader.readuntil(b"\r\n")
        size_bytes = int(line.split(b";")[0], 16)
        writer.write(line)
        await copy(reader, writer, size_bytes + 2)


async def main(port: int, server_port: int, seed: int) -> None:
    proxy = Proxy(server_port, random.Random(seed))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=HEAD_BYTES_MAX, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("port", "server_port", "seed"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    uvloop.run(main(given.port, given.server_port, given.seed))
