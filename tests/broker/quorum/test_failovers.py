"""A broker that recovers the logs of others: how often it tries one that fails, and what ends that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from millrace.broker.controller_client import ControllerClient
from millrace.broker.quorum.failovers import AGAIN_MAX_S, AGAIN_S, DAMAGED_AGAIN_MAX_S, Failovers
from millrace.broker.quorum.log_recovery import LogDamaged, LogRecovery, LogUnreachable
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.tables.failovers import NOBODY, Failover
from millrace.protocol.stream_records import EndFailoverRecord, FailoverRecord
from millrace.runtime.disk.watched import DiskWatch
from millrace.wal.errors import WalFenced
from tests.sim.loop import SimLoop, run_simulation

OWN, GONE, EPOCH = 1, 2, 77
OTHER, OTHERS_GONE = 3, 4
CLOSE_S = 0.2  # that a recovery takes to close the log


class Quorum:
    """What metadata says of one failover, and how often the log was tried. `failure`: of each recovery, once
    the log was found; a TimeoutError takes its time. `is_away`: no controller answers."""

    def __init__(self, failure: BaseException) -> None:
        self.failure: BaseException | None = failure
        self.tries: list[float] = []
        self.is_away = False
        self.is_open = False  # the log
        self.close_failure: Exception | None = None  # what closing it ends with
        self.image: MetadataImage = EMPTY_IMAGE
        self.broker_epoch = EPOCH
        self.device = DiskWatch()
        self.failovers = Failovers(OWN, cast(ControllerClient, self), lambda node_id: cast(LogRecovery, self))

    def say(self, *records: Any) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.apply(record)
        self.image = delta.done(self.image.offset + 1, 1)
        self.failovers.on_image(delta, self.image)

    def failover(self) -> Failover:
        found = self.image.failovers.get(GONE)
        assert found is not None
        return found

    # As a client, and as a recovery.

    async def end_failover(self, node_id: int, failure: str) -> None:
        if self.is_away:
            await asyncio.sleep(1_000)
        self.say(FailoverRecord(GONE, NOBODY, [EPOCH], failure) if failure else EndFailoverRecord(GONE))

    async def find(self) -> Any:
        class Wal:
            address = "file:///wal"

        class Found:
            wal = Wal

        return Found

    def hung_reason(self) -> str:
        return ""

    async def run(self, found: Any) -> None:
        self.tries.append(asyncio.get_running_loop().time())
        self.say(FailoverRecord(GONE, OWN, [EPOCH], ""))  # it has begun
        self.is_open = True
        try:
            if isinstance(self.failure, TimeoutError):
                await asyncio.sleep(1_000)
            if self.failure is not None:
                raise self.failure
        finally:
            await asyncio.sleep(CLOSE_S)
            self.is_open = False
            if self.close_failure is not None:
                raise self.close_failure


def run(failure: BaseException, check: Callable[[Quorum], Any]) -> None:
    async def main(loop: SimLoop) -> None:
        quorum = Quorum(failure)
        quorum.failovers.start(quorum.image)
        quorum.say(FailoverRecord(GONE, OWN, [], ""))
        await check(quorum)
        await quorum.failovers.stop()

    run_simulation(main)


@pytest.mark.parametrize("failure", [ValueError("damaged"), LogUnreachable("away")])
def test_a_recovery_that_fails_is_tried_again_after_a_while(failure: BaseException) -> None:
    """Not at once, though metadata asks nobody else; and once it succeeds it is over."""

    async def check(quorum: Quorum) -> None:
        await asyncio.sleep(AGAIN_S + 3 * AGAIN_MAX_S)
        gaps = [round(after - before) for before, after in zip(quorum.tries, quorum.tries[1:], strict=False)]
        assert gaps[:3] == [AGAIN_S, 2 * AGAIN_S, AGAIN_MAX_S]
        quorum.failure = None
        await asyncio.sleep(2 * AGAIN_MAX_S)
        count = len(quorum.tries)
        assert quorum.image.failovers.get(GONE) is None
        quorum.say(FailoverRecord(GONE, OWN, [], ""))
        await asyncio.sleep(0.1)
        assert len(quorum.tries) == count + 1, "another one, at once"

    run(failure, check)


def test_a_damaged_log_is_looked_at_ever_more_rarely() -> None:
    """Each look takes a claim in the bucket, and damage goes away by somebody's hand alone."""

    async def check(quorum: Quorum) -> None:
        await asyncio.sleep(5 * DAMAGED_AGAIN_MAX_S)
        gaps = [round(after - before) for before, after in zip(quorum.tries, quorum.tries[1:], strict=False)]
        assert gaps[:3] == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]
        assert gaps[-2:] == [DAMAGED_AGAIN_MAX_S] * 2

    run(LogDamaged("damaged"), check)


@pytest.mark.parametrize("failure", [LogDamaged("damaged"), LogUnreachable("away")])
def test_who_is_asked_while_it_waits_tries_at_once(failure: BaseException) -> None:
    """The broker was back, with the word for its log, and is gone again; metadata that came late said both
    at once. Nobody else is asked, and the broker may not start, while this one is named."""

    async def check(quorum: Quorum) -> None:
        await asyncio.sleep(2 * DAMAGED_AGAIN_MAX_S + 1.0)
        quorum.failure, count = None, len(quorum.tries)
        quorum.say(EndFailoverRecord(GONE), FailoverRecord(GONE, OWN, [], ""))
        await asyncio.sleep(CLOSE_S + 0.1)
        assert len(quorum.tries) == count + 1
        assert quorum.image.failovers.get(GONE) is None

    run(failure, check)


def test_a_log_that_needs_a_word_is_tried_once() -> None:
    """Until that failover is over, and another begins."""

    async def check(quorum: Quorum) -> None:
        await asyncio.sleep(10 * AGAIN_MAX_S)
        assert len(quorum.tries) == 1
        quorum.say(EndFailoverRecord(GONE))
        quorum.say(FailoverRecord(GONE, OWN, [], ""))
        await asyncio.sleep(0.1)
        assert len(quorum.tries) == 2

    run(LogUnreachable("whose is it?", needs_word=True), check)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_log_that_goes_to_another_is_closed_whatever_else_happens_meanwhile(is_stopped: bool) -> None:
    """Else nobody could open it before this broker ends."""

    async def check(quorum: Quorum) -> None:
        await asyncio.sleep(1.0)
        assert quorum.is_open
        quorum.say(FailoverRecord(GONE, OTHER, [EPOCH], "broker 1 is gone"))
        await asyncio.sleep(CLOSE_S / 2)
        quorum.say(FailoverRecord(OTHERS_GONE, OTHER, [], ""))
        if is_stopped:
            await quorum.failovers.stop()
        await asyncio.sleep(CLOSE_S)
        assert not quorum.is_open
        assert len(quorum.tries) == 1

    run(TimeoutError(), check)


@pytest.mark.parametrize("failure", [OSError("the device is gone"), WalFenced(1, 2)])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_recovery_whose_log_cannot_be_closed_ends_too(failure: Exception, is_stopped: bool) -> None:
    """What closing it raises takes the place of the word to end, which is given once. The log is not tried
    again, for it is another's, nor does a stop wait for ever."""

    async def check(quorum: Quorum) -> None:
        await asyncio.sleep(1.0)
        quorum.close_failure, quorum.is_away = failure, is_stopped
        if not is_stopped:
            quorum.say(FailoverRecord(GONE, OTHER, [EPOCH], "broker 1 is gone"))
            await asyncio.sleep(2 * AGAIN_MAX_S)
            assert quorum.failover().by_node == OTHER
        async with asyncio.timeout(AGAIN_S):
            await quorum.failovers.stop()
        assert len(quorum.tries) == 1

    run(TimeoutError(), check)


@pytest.mark.parametrize("is_away", [False, True])
def test_a_broker_that_ends_gives_back_what_it_was_asked_for(is_away: bool) -> None:
    """At once, so that another recovers the log while this one hands over; it ends too where no controller
    answers."""

    async def check(quorum: Quorum) -> None:
        await asyncio.sleep(1.0)
        assert quorum.failover().by_node == OWN
        quorum.is_away = is_away
        began_s = asyncio.get_running_loop().time()
        await quorum.failovers.stop()
        assert asyncio.get_running_loop().time() - began_s < 5.0
        assert quorum.failover() == Failover(
            GONE, OWN if is_away else NOBODY, (EPOCH,), "" if is_away else f"broker {OWN} ends"
        )

    run(TimeoutError(), check)


def test_two_logs_are_recovered_at_a_time() -> None:
    """The next one begins as soon as one is over."""
    nodes, under_way = (2, 3, 4, 5), dict[int, asyncio.Event]()  # until told to end

    class Recovery(Quorum):
        def __init__(self, node_id: int) -> None:
            super().__init__(LogUnreachable(""))
            self.node_id = node_id

        async def run(self, found: Any) -> None:
            under_way[self.node_id] = asyncio.Event()
            await under_way[self.node_id].wait()
            del under_way[self.node_id]

    class Client:
        broker_epoch = EPOCH

        async def end_failover(self, node_id: int, failure: str) -> None:
            assert not failure
            tell(EndFailoverRecord(node_id))

    images = [EMPTY_IMAGE]
    failovers = Failovers(
        OWN, cast(ControllerClient, Client()), lambda node_id: cast(LogRecovery, Recovery(node_id))
    )

    def tell(*records: Any) -> None:
        delta = MetadataDelta(images[-1])
        delta.apply_all(records)
        images.append(delta.done(images[-1].offset + 1, 1))
        failovers.on_image(delta, images[-1])

    async def main(loop: SimLoop) -> None:
        failovers.start(images[-1])
        tell(*(FailoverRecord(node_id, OWN, [], "") for node_id in nodes))
        for over in range(len(nodes)):
            await asyncio.sleep(1.0)
            assert [*under_way] == [*nodes[over : over + 2]]
            under_way[nodes[over]].set()
        await asyncio.sleep(1.0)
        assert not [*images[-1].failovers]
        await failovers.stop()

    run_simulation(main)
