"""A switch in user space: it carries packets between network namespaces, over links as bad as one asks.

    python -m tests.live.switch 3

makes a TUN device for everybody outside (mrN, which stays where it is) and one for each of three nodes
(mrNn1 to mrNn3, to be moved into namespaces), says `ready N`, and carries packets among 198.18.N.0/24 until
its standard input ends. A line there is a table, `[[source, target, {...}], ...]` with the last numbers of
addresses and what a Link is made of: all links that are not as good as they can be. It is answered by `ok`.

Each direction is a link of its own. Packets stay in order; those that are lost are for TCP to send again.
A process of its own, since the one that tests has other threads to run.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
NAMES = 256  # of networks, on one machine
PACKET_BYTES_MAX = 1 << 16
PACKETS_AT_ONCE = 64
QUEUE_S = 1.0  # what a slow link keeps; more is lost
SUBNET = (198, 18)  # for measurements between networks (RFC 2544)
NICE = -10


@dataclass(frozen=True)
class Link:
    """One direction between two addresses; as it is made here, as good as can be."""

    is_cut: bool = False
    delay_ms: float = 0.0
    jitter_ms: float = 0.0  # up to so much more
    loss: float = 0.0  # of packets, by chance
    stall: float = 0.0  # of packets, those behind which the link stands still
    stall_ms: float = 0.0
    kb_s: float = 0.0  # 0: no bound


@dataclass
class Way:
    """What a link has under way."""

    free_s: float = 0.0  # when what was sent will have passed the bound of its rate
    due_s: float = 0.0  # when the last packet comes


class Switch:
    def __init__(self, outside: int, nodes: list[int], rand: random.Random) -> None:
        """Files of the devices; nodes from 1 on."""
        self._outside = outside
        self._nodes = dict(enumerate(nodes, 1))
        self._rand = rand
        self._links: dict[tuple[int, int], Link] = {}
        self._ways: dict[tuple[int, int], Way] = {}
        self._waiting: list[tuple[float, int, int, bytes]] = []  # due, number, target, packet
        self._count = 0

    def set(self, table: list[tuple[int, int, dict[str, float]]]) -> None:
        self._links = {(source, target): Link(**told) for source, target, told in table}  # type: ignore[arg-type]

    def take(self, packet: bytes, now_s: float) -> None:
        if packet[0] >> 4 != 4 or tuple(packet[16:18]) != SUBNET:
            return  # IPv6 looks for routers, and there are none
        source, target = packet[15], packet[19]
        way = self._ways.setdefault((source, target), Way())
        due_s = self.due_s(self._links.get((source, target)), way, now_s, len(packet))
        if due_s is None:
            return
        if due_s <= now_s:
            self._put(target, packet)
            return
        self._count += 1
        heapq.heappush(self._waiting, (due_s, self._count, target, packet))

    def due_s(self, link: Link | None, way: Way, now_s: float, size_bytes: int) -> float | None:
        """When a packet comes out of its link; None: never."""
        if link is None:
            return max(now_s, way.due_s)
        if link.is_cut or self._rand.random() < link.loss:
            return None
        ready_s = now_s
        if link.kb_s:
            began_s = max(now_s, way.free_s)
            if began_s - now_s > QUEUE_S:
                return None
            ready_s = way.free_s = began_s + size_bytes / (link.kb_s * 1000)
        ready_s += (link.delay_ms + link.jitter_ms * self._rand.random()) / 1000
        if self._rand.random() < link.stall:
            ready_s += link.stall_ms / 1000
        way.due_s = max(ready_s, way.due_s)
        return way.due_s

    def put_due(self, now_s: float) -> float | None:
        """Delivers what is due; when the next one is, if any waits."""
        while self._waiting and self._waiting[0][0] <= now_s:
            _, _, target, packet = heapq.heappop(self._waiting)
            self._put(target, packet)
        return self._waiting[0][0] if self._waiting else None

    def _put(self, target: int, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # its device is down: lost
            os.write(self._nodes.get(target, self._outside), packet)


def device(name: str) -> int:
    """Its file; the device is gone when that is closed. Raises OSError where another process has it."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(file)
        raise
    return file


def devices(nodes: int) -> tuple[int, list[int]]:
    """The number of the network, and files: that of everybody outside comes first. Raises OSError where none
    can be made."""
    failure: OSError | None = None
    for number in range(NAMES):
        try:
            outside = device(f"mr{number}")
            return number, [outside, *(device(f"mr{number}n{node}") for node in range(1, nodes + 1))]
        except OSError as error:
            failure = error  # another run has the name, or nobody may
    assert failure is not None
    raise failure


def packets(file: int) -> Iterator[bytes]:
    for _ in range(PACKETS_AT_ONCE):
        try:
            packet = os.read(file, PACKET_BYTES_MAX)
        except OSError:
            return  # no more, or its device is down
        yield packet


def run(files: list[int], commands: int) -> None:
    """Until the commands end."""
    switch = Switch(files[0], files[1:], random.Random(1))
    poll, line = select.poll(), b""
    for file in (*files, commands):
        poll.register(file, select.POLLIN)
    while True:
        due_s = switch.put_due(time.monotonic())
        wait_ms = None if due_s is None else max(0.0, (due_s - time.monotonic()) * 1000)
        for file, _ in poll.poll(wait_ms):
            if file != commands:
                for packet in packets(file):
                    switch.take(packet, time.monotonic())
                continue
            content = os.read(commands, PACKET_BYTES_MAX)
            if not content:
                return
            line += content
            while b"\n" in line:
                table, _, line = line.partition(b"\n")
                switch.set(json.loads(table))
                print("ok", flush=True)


def main() -> None:
    number, files = devices(int(sys.argv[1]))
    with contextlib.suppress(OSError):
        os.nice(NICE)  # a network has processors of its own
    print(f"ready {number}", flush=True)
    run(files, sys.stdin.fileno())


if __name__ == "__main__":
    main()
