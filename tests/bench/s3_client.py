"""What a request to S3 costs this process: aiobotocore's client beside the store's own, in one run, against a
server that only counts bytes.

    python -m tests.bench.s3_client [--seconds 2]

CPU is the client's alone (the server is a process of its own). `aiobotocore` calls get_object and put_object
as they come; `store` is S3ObjectStore, its checksums and error mapping included; `aiohttp` sends the same
unsigned: what is left is HTTP itself.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import cast

import aiohttp
import uvloop
from aiobotocore.session import AioSession

from millrace.runtime.objectstore.s3 import S3ObjectStore, S3Settings, drop_expect, new_client

CASES = (("get", 4 << 10, 16), ("get", 1 << 20, 8), ("get", 8 << 20, 4)) + (
    ("put", 4 << 10, 16),
    ("put", 1 << 20, 8),
    ("put", 8 << 20, 4),
)
Call = Callable[[], Awaitable[object]]


class Sink(asyncio.Protocol):
    """Takes any PUT, and answers a GET with as many bytes as its path's last part says."""

    content = memoryview(bytes(16 << 20))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.head = b""
        self.awaited = 0

    def data_received(self, data: bytes) -> None:
        if self.awaited:
            self.awaited -= len(data)
            if not self.awaited:
                self.transport.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n')
            return
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        if end < 0:
            return
        lines = self.head[:end].split(b"\r\n")
        body, self.head = self.head[end + 4 :], b""
        if lines[0].startswith(b"GET"):
            size = int(lines[0].split(b" ")[1].rsplit(b"/", 1)[1])
            head = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Type: x/y\r\nContent-Length: %d\r\n\r\n' % size
            self.transport.writelines([head, self.content[:size]])
            return
        named = dict(line.lower().split(b": ", 1) for line in lines[1:])
        self.awaited = int(named[b"content-length"])
        self.data_received(body) if body else None


def serve(pipe: Connection) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def measure(call: Call, width: int, seconds: float) -> tuple[float, float]:
    """Requests a second and CPU microseconds each, with `width` in flight."""
    await asyncio.gather(*(call() for _ in range(width)))
    done = 0
    began, cpu = time.perf_counter(), time.process_time()

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await call()
            done += 1

    await asyncio.gather(*(worker() for _ in range(width)))
    return done / (time.perf_counter() - began), (time.process_time() - cpu) / done * 1e6


async def run(port: int, seconds: float) -> None:
    endpoint = f"http://127.0.0.1:{port}"
    settings = S3Settings("b", endpoint, "us-east-1", True, "key", "secret")
    session = AioSession()
    store = await S3ObjectStore.open(settings, session)
    print(f"{'':<12} {'client':<12} {'requests/s':>10} {'CPU us each':>12} {'MB/s':>8}")
    async with new_client(session, settings) as client, aiohttp.ClientSession() as plain:
        client.meta.events.register_last("before-call.s3", drop_expect)
        for verb, size, width in CASES:
            content = bytes(size)
            key = f"c/objects/{size}"

            async def library_get(key: str = key) -> None:
                found = await client.get_object(Bucket="b", Key=key)
                await found["Body"].read()

            async def library_put(key: str = key, content: bytes = content) -> None:
                await client.put_object(Bucket="b", Key=key, Body=content)

            async def plain_get(key: str = key) -> None:
                async with plain.get(f"{endpoint}/b/{key}") as answer:
                    await answer.read()

            async def plain_put(key: str = key, content: bytes = content) -> None:
                async with plain.put(f"{endpoint}/b/{key}", data=content) as answer:
                    await answer.read()

            async def store_put(key: str = key, content: bytes = content) -> None:
                await store.put(key, [content])

            ways: dict[str, Call] = {
                "aiobotocore": library_get if verb == "get" else library_put,
                "store": partial(store.get_range, key, 0, size) if verb == "get" else store_put,
                "aiohttp": plain_get if verb == "get" else plain_put,
            }
            for name, call in ways.items():
                rate, cpu = await measure(call, width, seconds)
                print(
                    f"{verb} {size >> 10:>5} KiB {name:<12} {rate:>10.0f} {cpu:>12.0f} "
                    f"{rate * size / 1e6:>8.0f}",
                    flush=True,
                )
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=2.0)
    seconds = parser.parse_args().seconds
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(ours.recv(), seconds))
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
