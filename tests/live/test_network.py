"""The network of tests itself: links are as bad as one asks, in the direction that one asks, and good again
afterwards."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator

import pytest

from tests.live.network import BUCKET, CLIENTS, Link, Network, both, lacks, one_way
from tests.live.switch import QUEUE_S, Switch, Way
from tests.patience import PATIENCE_S, until

in_namespaces = pytest.mark.skipif(bool(lacks()), reason=lacks())
NODES = 2
PORT = 9000
CUT = Link(is_cut=True)


class Places:
    """A socket for datagrams at each node, and one outside."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.at = {
            place: network.open_socket(place, socket.SOCK_DGRAM, PORT) for place in (*network.nodes, CLIENTS)
        }
        for one in self.at.values():
            one.settimeout(PATIENCE_S)

    def send(self, source: int, target: int, data: bytes = b"x") -> None:
        self.at[source].sendto(data, (self.network.address(target), PORT))

    def take(self, target: int) -> bytes:
        return self.at[target].recv(100)

    def reach_s(self, source: int, target: int) -> float:
        began = time.monotonic()
        self.send(source, target)
        assert self.take(target) == b"x"
        return time.monotonic() - began

    def reaches(self, source: int, target: int) -> bool:
        """Of a network that is healed by it: what comes first behind what was sent."""
        self.send(source, target, b"sent")
        self.network.heal()
        self.send(source, target, b"behind")
        is_there = self.take(target) == b"sent"
        if is_there:
            assert self.take(target) == b"behind"
        return is_there


@pytest.fixture
def places() -> Iterator[Places]:
    with Network(NODES) as network:
        made = Places(network)
        yield made
        for one in made.at.values():
            one.close()


@in_namespaces
def test_a_link_is_cut_in_one_direction_alone(places: Places) -> None:
    network = places.network
    network.set(one_way([1], [2], CUT))
    assert not places.reaches(1, 2)
    for source, target in ((2, 1), (1, CLIENTS), (CLIENTS, 2)):
        network.set(one_way([1], [2], CUT))
        assert places.reaches(source, target), (source, target)
    network.set(both([1], [2], CUT))
    assert not places.reaches(2, 1)


@in_namespaces
def test_a_link_is_slow_and_the_others_are_not(places: Places) -> None:
    places.network.set({(1, 2): Link(delay_ms=300)})
    assert places.reach_s(1, 2) >= 0.3
    assert min(places.reach_s(2, 1) for _ in range(20)) < 0.3


@in_namespaces
def test_the_bucket_has_an_address_of_its_own(places: Places) -> None:
    network = places.network
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bucket:
        bucket.bind((network.bucket, PORT))
        bucket.settimeout(PATIENCE_S)
        network.set(both([1], [BUCKET], CUT))
        places.send(1, BUCKET, b"lost")
        places.send(2, BUCKET, b"comes")
        assert bucket.recv(100) == b"comes"
        assert places.reach_s(1, CLIENTS) < PATIENCE_S


@in_namespaces
def test_an_unplugged_node_comes_back(places: Places) -> None:
    network = places.network
    network.plug(1, False)
    with pytest.raises(OSError):
        places.send(1, 2)
    network.plug(1, True)
    until(lambda: places.reach_s(1, 2), "it does not come back")


@in_namespaces
def test_networks_do_not_meet(places: Places) -> None:
    """Two at a time have other addresses."""
    with Network(1) as other:
        assert other.address(1) != places.network.address(1)


def times(link: Link, sizes: list[int]) -> list[float | None]:
    """When packets that are sent at 0 come out of a link."""
    switch, way = Switch(-1, [], random.Random(3)), Way()
    return [switch.due_s(link, way, 0.0, size) for size in sizes]


def test_packets_stay_in_order_on_a_link_that_jitters() -> None:
    due = [at for at in times(Link(delay_ms=50, jitter_ms=100), [100] * 50) if at is not None]
    assert due == sorted(due)
    assert 0.05 <= due[0] < due[-1] <= 0.15


def test_a_narrow_link_keeps_a_second_and_loses_the_rest() -> None:
    due = times(Link(kb_s=100), [10_000] * 30)
    came = [at for at in due if at is not None]
    assert came == [pytest.approx(0.1 * number) for number in range(1, len(came) + 1)]
    assert QUEUE_S <= came[-1] <= QUEUE_S + 0.2
    assert due[len(came) :] == [None] * (30 - len(came))


def test_a_link_that_loses_packets_loses_so_many() -> None:
    lost = times(Link(loss=0.1), [100] * 2000).count(None)
    assert 150 < lost < 250


def test_a_link_that_stands_still_goes_on() -> None:
    """What comes behind the stall comes at its end, with what caused it."""
    due = [at or 0.0 for at in times(Link(stall=0.05, stall_ms=500), [100] * 200)]
    assert due == sorted(due)
    assert due[0] == 0.0
    assert due[-1] == 0.5
