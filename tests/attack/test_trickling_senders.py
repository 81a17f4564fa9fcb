"""Senders that begin a request and go on as slowly as they can, beside a producer that wants its answers."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator

import pytest

from millrace.broker.network.arrival import AT_ONCE_FACTOR
from millrace.broker.network.connection import KNOWN_BYTES
from millrace.protocol.apis import NAMED
from millrace.protocol.header import request_header
from tests.attack import IS_FULL, SLACK
from tests.attack.bystander import Bystander
from tests.attack.crowd import Attacker, Crowd
from tests.live import LiveBroker
from tests.live.client import MIB, Client

SETTINGS = {"queued.max.request.bytes": str(16 * MIB), "memory.max.bytes": "128MiB"}
KIB = 1 << 10
SECONDS = 60.0 if IS_FULL else 1.5
CROWD = 1000 if IS_FULL else 400
SLOWEST_S = 1.5 * SLACK


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("trickle"), SETTINGS, wal="256MiB") as started:
        with Client(started.address) as client:
            client.create("steady")
        yield started


class Tricklers(Crowd):
    """Clients that announce `frame_bytes`, send `first_bytes` of them at once, and then `rate_bytes_s`."""

    def __init__(
        self,
        broker: LiveBroker,
        count: int,
        frame_bytes: int,
        first_bytes: int,
        rate_bytes_s: float,
        addresses: int = 1,
    ) -> None:
        super().__init__(broker, count, addresses)
        head = request_header(NAMED["Produce"], 12, 1, "trickle")
        self._frame_bytes = frame_bytes
        self._first = struct.pack(">i", frame_bytes) + head + bytes(first_bytes - len(head))
        self._rate_bytes_s = rate_bytes_s

    def _begin(self, one: Attacker) -> None:
        one.sent_bytes = one.socket.send(self._first)

    def _go_on(self, one: Attacker, elapsed_s: float) -> None:
        with contextlib.suppress(BlockingIOError):
            if not one.socket.recv(1000):
                raise ConnectionResetError
        due = len(self._first) + int(self._rate_bytes_s * (time.monotonic() - one.began_s))
        due = min(due, self._frame_bytes - 1) - one.sent_bytes
        if due > 0:
            one.sent_bytes += one.socket.send(bytes(due))


@pytest.mark.parametrize(
    ("count", "frame_bytes", "first_bytes", "rate_bytes_s"),
    [
        pytest.param(1, 100 * MIB, 70_000, 1, id="one of 100 MiB"),
        pytest.param(200, 100 * MIB, 70_000, 1, id="many of 100 MiB"),
        pytest.param(400, 60_000, 50_000, 1, id="many of ordinary size"),
    ],
)
def test_tricklers_do_not_stop_producers(
    broker: LiveBroker, count: int, frame_bytes: int, first_bytes: int, rate_bytes_s: float
) -> None:
    """Producers of small, of usual and of large batches are answered while others trickle."""
    slowest: dict[int, float] = {}
    with contextlib.ExitStack() as stack:
        tricklers = stack.enter_context(Tricklers(broker, count, frame_bytes, first_bytes, rate_bytes_s))
        found = {
            size: stack.enter_context(
                Bystander(broker, lambda client, size=size: client.produce("steady", [b"x" * size]))  # type: ignore[misc]
            )
            for size in (100, 60_000, 900_000)
        }
        time.sleep(SECONDS)
        for one in found.values():
            one.sees_answers()
        slowest = {size: one.slowest_s for size, one in found.items()}
        answers = {size: len(one.latencies_s) for size, one in found.items()}
        peak = max(one.peak_memory_bytes for one in found.values())
    print(
        f"\nslowest answer, s: {slowest}, answers {answers}, cut {tricklers.cut_count}, peak "
        f"{peak / MIB:.0f} MiB"
    )
    assert max(slowest.values()) < SLOWEST_S


def test_a_crowd_of_addresses_at_the_least_pace_holds_its_part_of_memory(broker: LiveBroker) -> None:
    """Each of them goes on as it must, from an address of its own; together they hold no more than what is
    there for parts of frames, a few times over, and those who produced before are answered."""
    limit_bytes = 2 * MIB
    held_bytes: list[float] = []

    def step(client: Client) -> None:
        client.produce("steady", [b"x" * 100])
        held_bytes.append(broker.metrics()['millrace_request_memory_part_bytes{part="large_arrivals"}'])

    with contextlib.ExitStack() as stack:
        found = stack.enter_context(Bystander(broker, step))
        usual = stack.enter_context(
            Bystander(broker, lambda client: client.produce("steady", [b"x" * 60_000]))
        )
        large = stack.enter_context(
            Bystander(broker, lambda client: client.produce("steady", [b"x" * 900_000]))
        )
        for one in (found, usual, large):
            one.sees_answers(1 + KNOWN_BYTES // 900_000)  # the large one is no newcomer by then
        senders = stack.enter_context(Tricklers(broker, CROWD, 800_000, 250_000, 80_000, CROWD))
        time.sleep(SECONDS)
        for one in (found, usual, large):
            one.sees_answers()
        slowest = [one.slowest_s for one in (found, usual, large)]
        answers = [len(one.latencies_s) for one in (found, usual, large)]
    print(
        f"\nat most {max(held_bytes) / MIB:.1f} MiB of {limit_bytes / MIB:.0f} held, slowest {slowest}, "
        f"answers {answers}, cut {senders.cut_count}"
    )
    assert max(held_bytes) <= AT_ONCE_FACTOR * limit_bytes + MIB
    assert max(slowest) < SLOWEST_S
