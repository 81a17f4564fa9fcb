"""To whom partitions of a broker that is gone go: by what they move where that is reported, or by number."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.kraft.broker_watch import SETTLE, BrokerWatch, Seen
from millrace.kraft.commands.leaders import decide_settle
from millrace.kraft.commands.spreading import (
    FRESH_S,
    NOT_KNOWN,
    REST,
    TAKEN_PER_CHUNK,
    Key,
    KnownLoads,
    plan_spread,
)
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.last_loads import LastLoads
from millrace.protocol.messages.report_load import LoadedPartition, LoadedTopic, ReportLoadRequest
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yielding import run_to_end
from tests.kraft.commands.test_leaders import Cluster
from tests.kraft.tables.build import topic_id
from tests.sim.loop import SimLoop, run_simulation


def keys(count: int) -> list[Key]:
    return [(bytes([number % 7]), number) for number in range(count)]


def spread(asked: list[Key], led: dict[int, int], loads: KnownLoads = NOT_KNOWN) -> dict[Key, int]:
    found = run_to_end(plan_spread(asked, led, loads))
    assert list(found) == asked
    assert set(found.values()) <= set(led)
    return found


def numbers(found: dict[Key, int], led: dict[int, int]) -> dict[int, int]:
    return {broker_id: count + list(found.values()).count(broker_id) for broker_id, count in led.items()}


def test_without_reports_all_go_by_number() -> None:
    led = {1: 4, 2: 0, 5: 1}
    found = spread(keys(10), led)
    assert numbers(found, led) == {1: 5, 2: 5, 5: 5}
    assert [found[key] for key in keys(3)] == [2, 2, 5]


def test_where_one_has_not_reported_nothing_goes_by_bytes() -> None:
    """It may be the busiest of all."""
    led, asked = {1: 0, 2: 0}, keys(4)
    known = KnownLoads({asked[0]: 1_000, asked[1]: 1_000}, {1: 5_000})
    assert spread(asked, led, known) == spread(asked, led)


def test_the_living_end_up_even_by_bytes_and_then_by_number() -> None:
    """One is busy already and takes nothing that moves; what moves nothing goes to who has fewest."""
    led, asked = {1: 10, 2: 10, 3: 10}, keys(24)
    moved = dict(zip(asked, [80, 70, 60, 50, 40, 30], strict=False))
    found = spread(asked, led, KnownLoads(moved, {1: 0, 2: 0, 3: 400}))
    rates = {one: sum(rate for key, rate in moved.items() if found[key] == one) for one in led}
    assert rates == {1: 160, 2: 170, 3: 0} or rates == {1: 170, 2: 160, 3: 0}
    assert numbers(found, led) == {1: 18, 2: 18, 3: 18}


def test_ties_go_by_number_and_then_by_id() -> None:
    asked = keys(3)
    known = KnownLoads(dict.fromkeys(asked, 7), {1: 0, 2: 0, 3: 0})
    assert sorted(spread(asked, {1: 5, 2: 3, 3: 3}, known).values()) == [1, 2, 3]
    assert spread(asked[:1], {1: 5, 2: 3, 3: 3}, known)[asked[0]] == 2


@pytest.mark.parametrize("seed", range(20))
def test_no_one_moves_much_more_than_it_must(seed: int) -> None:
    """As for any list scheduling, the busiest taker of anything would be below the others without the last
    that it took. And who decides it again decides the same."""
    rand = Rand(b"spread %d" % seed)
    led = {broker_id: rand.below(50) for broker_id in range(1, 2 + rand.below(6))}
    before = {broker_id: rand.below(10_000) for broker_id in led}
    asked = keys(1 + rand.below(3_000))
    moved = {key: rand.below(2_000) for key in asked if rand.below(3)}
    known = KnownLoads(moved, before)
    found = spread(asked, led, known)
    assert found == spread(asked, led, known)
    after = dict(before)
    for key, broker_id in found.items():
        after[broker_id] += moved.get(key, 0)
    for broker_id in led:
        took = [moved[key] for key in asked if found[key] == broker_id and moved.get(key, 0)]
        if took:
            assert after[broker_id] - min(took) <= min(after.values())


def test_a_hundred_thousand_are_planned_in_pieces() -> None:
    """Each of which is a bounded number of steps."""
    asked = [(bytes([number % 251]), number) for number in range(100_000)]
    known = KnownLoads({key: number % 977 for number, key in enumerate(asked)}, {1: 0, 2: 0, 3: 0})
    steps = plan_spread(asked, {1: 0, 2: 0, 3: 0}, known)
    assert sum(1 for _ in steps) > 150


@pytest.mark.parametrize("is_known", [True, False])
def test_what_moves_nothing_is_looked_at_in_pieces_too(is_known: bool) -> None:
    """Reports name a thousand of a broker: all others are looked through before the first is given away."""

    class Counted(list[Key]):
        looked_count = 0

        def __iter__(self) -> Iterator[Key]:
            for key in super().__iter__():
                self.looked_count += 1
                yield key

    asked = Counted(keys(10_000))
    rates = dict.fromkeys(keys(100), 5)
    most, before = 0, 0
    for _ in plan_spread(asked, {1: 0, 2: 0}, KnownLoads(rates, {1: 0, 2: 0} if is_known else {1: 0})):
        most, before = max(most, asked.looked_count - before), asked.looked_count
    assert asked.looked_count - before <= most == TAKEN_PER_CHUNK


def report(cluster: Cluster, broker_id: int, rates: dict[int, int], rest: int = 0) -> ReportLoadRequest:
    loaded = [LoadedPartition(index, rate // 2, rate - rate // 2) for index, rate in rates.items()]
    topics = [LoadedTopic(topic_id(cluster, "t"), loaded)]
    if rest:
        topics.append(LoadedTopic(REST[0], [LoadedPartition(REST[1], rest, 0)]))
    return ReportLoadRequest(broker_id, cluster.epochs[broker_id], topics)


class Reported(Cluster):
    """Four brokers with two partitions each, none of them open; broker 4 is busy."""

    def __init__(self) -> None:
        super().__init__(4)
        self.close(4)
        self.loads = LastLoads()
        self.first, self.second = self.led()[4]

    def take(self, broker_id: int, rates: dict[int, int], at_s: float = 0.0, rest: int = 0) -> None:
        self.loads.take(report(self, broker_id, rates, rest), self.image, at_s)

    def after(self, now_s: float = 1.0) -> list[int]:
        """Who leads the two of broker 4 once that is gone."""
        self.fence(4)
        decision = decide_settle(self.image, self.alive, loads=self.loads.known(self.image, now_s))
        self.commit(decision.records)
        return [self.leader(self.first), self.leader(self.second)]


def test_partitions_of_a_broker_that_is_gone_go_by_what_it_reported_last() -> None:
    """Both to the one that moves nothing: by number they would go to two."""
    cluster = Reported()
    cluster.take(4, {cluster.first: 500, cluster.second: 400})
    cluster.take(1, {}, rest=5_000)
    cluster.take(2, {}, rest=5_000)
    cluster.take(3, {cluster.led()[3][0]: 100})
    assert cluster.after() == [3, 3]


def test_who_has_said_nothing_for_long_leaves_it_to_numbers() -> None:
    cluster = Reported()
    for broker_id, rest in ((1, 5_000), (2, 5_000), (3, 0)):
        cluster.take(broker_id, {}, rest=rest)
    cluster.take(4, {cluster.first: 500, cluster.second: 400})
    assert cluster.after(FRESH_S + 1) == [1, 2]


def test_a_partition_counts_where_it_is_led_now() -> None:
    """Of what one reported that has moved on since; who leads it and has reported later tells itself. Of who
    is not registered in that epoch nothing is taken."""
    cluster = Reported()
    (index, _) = cluster.led()[1]
    cluster.take(1, {index: 300}, at_s=5.0)
    cluster.take(2, {}, at_s=1.0)
    cluster.close(1)
    cluster.fence(1)
    cluster.settle()
    cluster.epochs[3] += 100
    cluster.take(3, {0: 9_999})
    leader = cluster.leader(index)
    known = cluster.loads.known(cluster.image, 6.0)
    assert 3 not in known.by_broker
    assert known.by_partition == {(topic_id(cluster, "t"), index): 300}
    if leader == 2:
        assert known.by_broker == {2: 300}
        cluster.take(2, {}, at_s=6.0)
        assert cluster.loads.known(cluster.image, 6.0) == KnownLoads({}, {2: 0})
    assert leader == 2


def test_a_controller_that_leads_settles_by_what_brokers_tell_it() -> None:
    """And forgets that when it begins to lead again: another was told meanwhile."""

    class Controller:
        def __init__(self, cluster: Cluster) -> None:
            self.cluster, self.seen, self.is_active = cluster, list[Seen](), True

        @property
        def head(self) -> MetadataImage:
            return self.cluster.image

        def take(self, command: Any, request: Any) -> asyncio.Future[Any]:
            if command is SETTLE:
                self.seen.append(request())
            return asyncio.get_running_loop().create_future()

    async def main(loop: SimLoop) -> None:
        cluster = Reported()
        controller = Controller(cluster)
        watch = BrokerWatch(controller, 3_000)
        watch.on_leading()
        await asyncio.sleep(0)
        watch.take_load(report(cluster, 4, {cluster.first: 500}))
        assert controller.seen[-1].loads == NOT_KNOWN
        assert watch._seen_now().loads.by_partition == {(topic_id(cluster, "t"), cluster.first): 500}
        watch.on_leading()
        assert watch._seen_now().loads == NOT_KNOWN

    run_simulation(main)
