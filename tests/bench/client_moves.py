"""For how long applications of real clients get no acknowledgement from a partition that moves. Used by
cluster.py, for our nodes and Apache Kafka's.

Java's client, librdkafka, kafka-python and aiokafka as processes (tests/compat/rolled), as they come: nothing
is set but the addresses and idempotence, so their own back-offs and searches for a leader are in the figures,
which those of write_gaps.py are without. Each writes to every partition of a topic of its own twenty times a
second, so a gap is 50 ms at the least. One partition moves at a time, and the next once it is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.report import Row
from tests.bench.write_gaps import QUIET_S, quantile_ms
from tests.compat.rolled.events import Heard, gap_s
from tests.compat.rolled.nodes import COUNT, Nodes
from tests.compat.rolled.story import CLIENTS, PARTITIONS, Applications, topic_of
from tests.patience import until

MOVED = 0  # the partition
Lead = Callable[[str, int], None]  # topic, node: on return the node leads MOVED


def moved(nodes: Nodes, lead: Lead, folder: Path, moves: int) -> dict[str, list[float]]:
    """Seconds, by client: a gap for each move."""
    for client in CLIENTS:
        nodes.create(topic_of(client), PARTITIONS)
    found: dict[str, list[float]] = {client: [] for client in CLIENTS}
    with Applications(nodes.addresses, folder) as applications:
        applications.wait_busy()
        for number in range(moves):
            for client, gaps_s in found.items():
                time.sleep(QUIET_S)
                began_s = time.monotonic()
                lead(topic_of(client), number % COUNT + 1)
                gaps_s.append(_gap_s(applications.heard[client], began_s))
                applications.check_running()
        applications.finish()
    return found


def _gap_s(heard: Heard, began_s: float) -> float:
    """Around a move that has just been done. What was acknowledged right before it counts from there."""
    led_s = time.monotonic()
    until(lambda: any(at > led_s for at in acknowledged_at(heard)), "nothing is acknowledged behind a move")
    times = acknowledged_at(heard)
    start_s = max((at for at in times if at <= began_s), default=began_s)
    return gap_s(times, start_s, min(at for at in times if at > led_s))


def acknowledged_at(heard: Heard) -> list[float]:
    return sorted(at for partition, at in list(heard.acknowledged) if partition == MOVED)


def rows(name: str, found: dict[str, list[float]], load: str) -> list[Row]:
    return [_row(f"{name}: moved, to {client}", gaps_s, load) for client, gaps_s in found.items()]


def _row(what: str, gaps_s: Sequence[float], load: str) -> Row:
    beside = f"median; {1000 * max(gaps_s):.0f} ms at the most, {len(gaps_s)} moves, {load}"
    return Row(what, f"{quantile_ms(gaps_s, 0.5):.0f} ms", beside)
