"""Voters that were told different lists at kraft.version 0: a plain refusal, and no half-believed log."""

from __future__ import annotations

import asyncio

import pytest

from millrace.kraft.errors import VotersDiffer
from tests.kraft.build import Broker, create_topic
from tests.kraft.quorum import Quorum
from tests.sim.loop import SimLoop, run_simulation


def failure_of(quorum: Quorum, node_id: int) -> asyncio.Future[BaseException]:
    """What ends this node's process, if anything does."""
    found: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    quorum.nodes[node_id].driver._on_failed = found.set_result
    return found


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_voter_with_another_list_than_the_leaders_ends_with_a_sentence(is_restarted: bool) -> None:
    """Also one that had the same list until it was started again, with the word for a change: the leader is
    the one of before."""

    async def main(loop: SimLoop) -> None:
        quorum = Quorum((1, 2, 3))
        told = {1: (1, 2), 2: (1, 2), 3: (1, 2, 3)}
        if is_restarted:
            told = dict.fromkeys((1, 2, 3), (1, 2, 3))
        for node_id in (1, 2):
            await quorum.start(node_id, voters=told[node_id])
        leader = (await quorum.leader()).settings.node_id
        await quorum.start(3, voters=told[3])
        if is_restarted:
            await quorum.agree()
            await quorum.stop(3)
            await quorum.start(3, voters=(3, 4), is_voters_change_accepted=True)
        found = await failure_of(quorum, 3)
        assert isinstance(found, VotersDiffer)
        assert f"node {leader} leads" in str(found)
        assert str(found).endswith("the voters are 3, 4" if is_restarted else "the voters are 1, 2, 3")

    run_simulation(main)


def test_a_broker_with_an_old_list_follows() -> None:
    """It votes for nobody: the list is where it asks who leads."""

    async def main(loop: SimLoop) -> None:
        quorum = Quorum((1, 2, 3), observers=(9,))
        await quorum.start(1, 2, 3)
        await quorum.leader()
        await quorum.start(9, voters=(1, 2))
        found = failure_of(quorum, 9)
        await quorum.agree()
        assert not found.done()

    run_simulation(main)


def test_a_list_may_change_while_all_are_stopped() -> None:
    """The log has the epochs of the former list; who leads then names the new one."""

    async def main(loop: SimLoop) -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start(1, voters=(1,))
        await Broker.register(await quorum.leader())
        await quorum.stop(1)
        await quorum.start()
        found = [failure_of(quorum, node_id) for node_id in (1, 2, 3)]
        await create_topic(await quorum.leader(), "t")
        await quorum.agree()
        await quorum.stop()
        await quorum.start(1, 2, voters=(1, 2), is_voters_change_accepted=True)
        found += [failure_of(quorum, node_id) for node_id in (1, 2)]
        await create_topic(await quorum.leader(), "u")
        await quorum.agree()
        assert not any(one.done() for one in found)

    run_simulation(main)


def test_of_two_quorums_that_have_both_decided_none_gives_up_what_it_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One was told that it is alone, and went on so; then it meets the two others."""

    async def main(loop: SimLoop) -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start(1, voters=(1,))
        first = await quorum.leader()
        await Broker.register(first)
        for number in range(20):
            await create_topic(first, f"one-{number}")
        await quorum.stop(1)
        await quorum.start(2, 3, voters=(2, 3))
        second = await quorum.leader()
        await Broker.register(second)
        for number in range(5):
            await create_topic(second, f"two-{number}")
        await quorum.start(1, voters=(1, 2, 3))
        failure = failure_of(quorum, 1)
        await asyncio.sleep(30)
        assert not failure.done()
        assert "one-19" in {topic.name for topic in quorum.nodes[1].publisher.image.topics}

    run_simulation(main)
    assert "of another quorum, as where nodes of one cluster are told different lists" in caplog.text
