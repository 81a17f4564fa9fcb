"""A connection to a peer that the network does not reach any more ends, in either direction: TCP alone would
keep it for a quarter of an hour, and find out that all is well again as long after a cut as the cut was."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from millrace.runtime.net import LoopNet
from tests.live.network import CLIENTS, Link, Network, lacks
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
PORT = 9000
CUT = Link(is_cut=True)


class Kept(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


async def open_to(network: Network, node: int) -> tuple[asyncio.Transport, Kept]:
    transport, protocol = await LoopNet().connect(Kept, network.address(node), PORT)
    assert isinstance(protocol, Kept)
    return transport, protocol


def test_a_connection_to_who_is_silent_ends() -> None:
    """One on which something is sent to nobody, and one on which nothing comes; a third is idle, and
    stays."""
    with Network(3) as network:
        listening = [network.open_socket(node, socket.SOCK_STREAM, PORT) for node in network.nodes]
        for one in listening:
            one.listen()

        async def run() -> None:
            opened = [await open_to(network, node) for node in network.nodes]
            network.set({(CLIENTS, 1): CUT, (2, CLIENTS): CUT})
            opened[0][0].write(b"lost")
            began = time.monotonic()
            async with asyncio.timeout(PATIENCE_S):
                errors = await asyncio.gather(opened[0][1].lost, opened[1][1].lost)
            print(f"ended after {time.monotonic() - began:.1f} s: {errors}")
            assert all(isinstance(error, TimeoutError) for error in errors), errors
            assert not opened[2][1].lost.done()
            opened[2][0].close()

        asyncio.run(run())
        for one in listening:
            one.close()
