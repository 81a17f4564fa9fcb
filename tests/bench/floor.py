"""What the kernel and the loop alone cost for the frames that a broker is sent: the least that any broker in
Python could take here.

    python -m tests.bench.floor FOLDER PORT FILE_BYTES

Frames are received into memory that stays, copied once into aligned memory that stays, written with O_DIRECT
and O_DSYNC as the WAL does it (whatever waits is one write, a few at once), and answered with bytes that were
encoded before. Nothing is looked at: no checksum, no offsets, no cache, no upload. Says "ready" when it
listens; ends when its input does.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import cast

import uvloop

from millrace.protocol.apis import API
from millrace.protocol.codec import encode_response
from millrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from millrace.runtime.disk import BLOCK_BYTES, BlockFile
from millrace.runtime.disk.aligned import Arena
from millrace.runtime.disk.posix import PosixDisk
from tests.bench.produce_load import PRODUCE_VERSION
from tests.live import free_port

RECEIVE_BYTES = 256 << 10
FILE_BYTES = 256 << 20
ARENA_BYTES = 4 << 20
ARENAS = 8
WRITE_BYTES_MAX = 1 << 20
WRITES_IN_FLIGHT = 2


def answer() -> bytes:
    part = PartitionProduceResponse(0, 0, 0)
    response = ProduceResponse([TopicProduceResponse("floor", partition_responses=[part])])
    return b"".join(encode_response(API[0], PRODUCE_VERSION, 1, response))


class FloorServer:
    """The process, for who measures it: it lives as long as its input does."""

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        self.folder = folder
        self._file_bytes = file_bytes
        self.port = free_port()

    def start(self) -> FloorServer:
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [str(self.folder), str(self.port), str(self._file_bytes)]
        command = [sys.executable, "-m", "tests.bench.floor", *words]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Writer:
    """Frames into arenas, one after the other; an arena comes again when all others were used."""

    def __init__(self, file: BlockFile, file_bytes: int) -> None:
        self._file = file
        self._file_bytes = file_bytes
        self._arenas = deque(Arena(ARENA_BYTES) for _ in range(ARENAS))
        for arena in self._arenas:
            arena.view[:] = bytes(ARENA_BYTES)
        self._view = self._arenas[0].view
        self._begin = self._end = self._position = self._in_flight = 0
        self._waiting: list[Server] = []
        self._is_due = False

    def take(self, frame: memoryview, server: Server) -> None:
        end = self._end + len(frame)
        if end > ARENA_BYTES or end - self._begin > WRITE_BYTES_MAX:
            self._write()
            if self._end + len(frame) > ARENA_BYTES:
                self._arenas.rotate(-1)
                self._view, self._begin, self._end = self._arenas[0].view, 0, 0
            end = self._end + len(frame)
        self._view[self._end : end] = frame
        self._end = end
        self._waiting.append(server)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        if self._waiting and self._in_flight < WRITES_IN_FLIGHT:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        end = (self._end + BLOCK_BYTES - 1) & -BLOCK_BYTES
        size_bytes = end - self._begin
        if self._position + size_bytes > self._file_bytes:
            self._position = 0
        done = self._file.write_at(self._position, self._view[self._begin : end])
        served, self._waiting = self._waiting, []
        done.add_done_callback(lambda done: self._on_written(done, served))
        self._position += size_bytes
        self._begin = self._end = end
        self._in_flight += 1

    def _on_written(self, done: asyncio.Future[None], served: list[Server]) -> None:
        done.result()
        self._in_flight -= 1
        self._flush()
        counts: dict[Server, int] = {}
        for server in served:
            counts[server] = counts.get(server, 0) + 1
        for server, count in counts.items():
            server.answer(count)


class Server(asyncio.BufferedProtocol):
    def __init__(self, writer: Writer, reply: bytes) -> None:
        self._writer = writer
        self._reply = reply
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._held = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        buffer, at, end = self._buffer, 0, self._held + nbytes
        while end - at >= 4:
            stop = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if stop > end:
                break
            self._writer.take(buffer[at:stop], self)
            at = stop
        if at:
            buffer[: end - at] = bytes(buffer[at:end])
        self._held = end - at

    def answer(self, count: int) -> None:
        self._transport.write(self._reply * count)


async def main(folder: str, port: int, file_bytes: int) -> None:
    file = await PosixDisk().open_block(f"{folder}/floor", file_bytes)
    zeros = Arena(1 << 20).view
    for position in range(0, file_bytes, 1 << 20):
        await file.write_at(position, zeros)
    writer, reply = Writer(file, file_bytes), answer()
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Server(writer, reply), "127.0.0.1", port)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
