"""A network of a cluster's nodes, each in a network namespace of its own: cut, slow, or good.

    with Network(3) as network:
        network.within(1)                                words before a command, to run it on node 1
        network.address(1), network.bucket               198.18.N.1, and where an object store listens
        network.set({(1, 2): Link(is_cut=True)})         nothing that 1 sends reaches 2
        network.heal()

Clients and the store are outside of the namespaces, each with an address of its own on one device; a switch
in user space (switch.py) carries all packets. Namespaces last as long as their first process does, which ends
with this one: nothing is left behind by a test that is killed. Needs root, and /dev/net/tun.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.live.switch import Link as Link
from tests.patience import next_line

BUCKET, CLIENTS = 253, 254  # as sources and targets of links, beside the nodes' numbers
MTU = 9000
CLONE_NEWNET = 0x40000000
NEEDED = ("ip", "unshare", "nsenter")
Links = dict[tuple[int, int], Link]


def lacks() -> str:
    """Why there can be no namespaces here; "" where there can."""
    if os.geteuid():
        return "network namespaces: they are for root"
    if missing := [word for word in NEEDED if shutil.which(word) is None]:
        return f"network namespaces: no {missing[0]} (iproute2, util-linux)"
    if not Path("/dev/net/tun").exists():
        return "network namespaces: no /dev/net/tun"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"network namespaces: {done.stderr.strip()}" if done.returncode else ""


def both(one: Iterable[int], other: Iterable[int], link: Link) -> Links:
    """Between each of these and each of those, in both directions."""
    return {**one_way(one, other, link), **one_way(other, one, link)}


def one_way(sources: Iterable[int], targets: Iterable[int], link: Link) -> Links:
    ends = list(targets)
    return {(source, target): link for source in sources for target in ends if source != target}


class Network:
    def __init__(self, nodes: int) -> None:
        self.nodes = range(1, nodes + 1)
        self._switch: subprocess.Popen[bytes] | None = None
        self._spaces: dict[int, subprocess.Popen[bytes]] = {}
        self._number = -1

    def address(self, place: int) -> str:
        return f"198.18.{self._number}.{place}"

    @property
    def bucket(self) -> str:
        return self.address(BUCKET)

    def within(self, node: int) -> list[str]:
        return ["nsenter", f"--net={self._namespace(node)}", "--"]

    def open_socket(self, place: int, kind: socket.SocketKind, port: int) -> socket.socket:
        """Bound to the address of a node, or of somebody outside, and used from here."""
        found: list[socket.socket] = []

        def enter() -> None:
            """A thread of its own enters the namespace, and the socket stays there."""
            if place in self._spaces:
                with open(self._namespace(place), "rb") as file:
                    failed = ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET)
                assert not failed, os.strerror(ctypes.get_errno())
            found.append(socket.socket(socket.AF_INET, kind))
            found[0].bind((self.address(place), port))

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        return found[0]

    def _namespace(self, node: int) -> str:
        return f"/proc/{self._spaces[node].pid}/ns/net"

    def set(self, links: Mapping[tuple[int, int], Link]) -> None:
        """All links that are not good, from now on."""
        table = [(source, target, asdict(link)) for (source, target), link in links.items()]
        assert self._switch is not None
        assert _answer(self._switch, json.dumps(table).encode()) == b"ok\n", "the switch is gone"

    def heal(self) -> None:
        self.set({})

    def plug(self, node: int, is_in: bool) -> None:
        """Pulls the node's cable: its own system knows it, unlike with a link that is cut."""
        self._ip(node, "link", "set", self._device(node), "up" if is_in else "down")

    def _device(self, node: int) -> str:
        return f"mr{self._number}n{node}"

    def _ip(self, node: int, *words: str) -> None:
        """On a node; 0 is outside."""
        command = [*(self.within(node) if node else []), "ip", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"

    def _join(self, node: int, device: str, places: Iterable[int]) -> None:
        for place in places:
            self._ip(node, "addr", "add", f"{self.address(place)}/24", "dev", device)
        self._ip(node, "link", "set", device, "mtu", str(MTU), "up")

    def __enter__(self) -> Self:
        why = lacks()
        assert not why, why
        words = [sys.executable, "-m", "tests.live.switch", str(len(self.nodes))]
        self._switch = _begin(words)
        try:
            ready = next_line(self._switch.stdout)
            assert ready.startswith(b"ready "), "the switch did not start"
            self._number = int(ready.split()[1])
            self._join(0, f"mr{self._number}", (CLIENTS, BUCKET))
            for node in self.nodes:
                self._spaces[node] = _begin(["unshare", "--net", "cat"])
                assert _answer(self._spaces[node], b"there") == b"there\n", "no namespace"
                self._ip(0, "link", "set", self._device(node), "netns", str(self._spaces[node].pid))
                self._ip(node, "link", "set", "lo", "up")
                self._join(node, self._device(node), (node,))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Devices go with the switch, and namespaces with their processes."""
        for process in (self._switch, *self._spaces.values()):
            if process is not None:
                process.kill()
                process.communicate()
        self._spaces.clear()


def _begin(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _answer(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    pipe: IO[bytes] | None = process.stdin
    assert pipe is not None
    pipe.write(line + b"\n")
    pipe.flush()
    return next_line(process.stdout)
