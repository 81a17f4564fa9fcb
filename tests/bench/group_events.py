"""CPU of an event of a classic group, by the number of its members: `python -m tests.bench.group_events`.

What a heartbeat, a join, a sync, a leave or an expiry takes to decide, refused ones too; with their records,
without the log and the wire. Then the longest that one timer of a group takes when all of its members have
been heard from since it was set, and the sum of what these ticks take. Run it with an older tree before
PYTHONPATH to compare; CPU a unit varies little between runs, so each figure is the least of some.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence

from tests.broker.coordinators.groups.events import EVENTS, EVENTS_SHARE, Event, ManyMembers

EVENTS_MAX = 1000  # of one group, in one measurement
SIZES = (10, 1000, 4000, 25_000)


def cpu_us(event: Event, members_count: int, repeats: int) -> float:
    """Of one event, the mean over a group's; the least of some groups."""
    least = float("inf")
    for _ in range(repeats):
        many = ManyMembers(members_count)
        event.prepare(many)
        count = min(EVENTS_MAX, int(members_count * EVENTS_SHARE))
        began = time.thread_time_ns()
        for number in range(count):
            many.now_ms += 1
            event.act(many, number)
        least = min(least, (time.thread_time_ns() - began) / count / 1000)
    return least


def ticks_ms(members_count: int) -> tuple[float, float]:
    """The longest of the timers that come before the first deadline, and all of them together."""
    many = ManyMembers(members_count)
    old_ms = many.group.next_deadline_ms()
    many.now_ms += 1000
    for member_id in many.ids:
        many.beat(member_id)
    spent = []
    for _ in range(2 + members_count // 100):
        many.now_ms = max(many.now_ms, old_ms)
        began = time.thread_time_ns()
        many.expire()
        spent.append((time.thread_time_ns() - began) / 1e6)
        if many.group.next_deadline_ms() > old_ms:
            break
    return max(spent), sum(spent)


def main(sizes: Sequence[int], repeats: int) -> None:
    gc.freeze()
    print(f"{'us of CPU':<36}" + "".join(f"{size:>10}" for size in sizes) + "  members")
    for name, event in EVENTS.items():
        print(f"{name:<36}" + "".join(f"{cpu_us(event, size, repeats):>10.1f}" for size in sizes), flush=True)
    for index, name in enumerate(("longest tick after heartbeats, ms", "such ticks together, ms")):
        print(f"{name:<36}" + "".join(f"{ticks_ms(size)[index]:>10.2f}" for size in sizes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="members of a group")
    parser.add_argument("--repeats", type=int, default=3, help="groups, of which the quickest counts")
    given = parser.parse_args()
    main(given.sizes, given.repeats)
