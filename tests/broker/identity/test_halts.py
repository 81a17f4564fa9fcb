"""A process that stood still: nothing is acknowledged before a look that began later, in virtual time and by
a hand clock."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millrace.broker.identity.ownership import AGAIN_S, ATTEMPT_MS, EVERY_S, HALT_MS, NOTE_S, Replaced
from millrace.runtime.errors import Closed
from tests.broker.identity.test_ownership import Fixture, run


def test_the_gate_is_closed_from_a_halt_to_a_look() -> None:
    """A halt of HALT_MS is none; a longer one holds until the answer to a look that began at once."""

    async def scenario() -> None:
        fixture = Fixture()
        owner = fixture.owner
        await asyncio.sleep(0.5)
        assert owner.may_acknowledge()
        fixture.clock.away_ms += HALT_MS
        assert owner.may_acknowledge()
        assert (owner.halt_count, fixture.store.heads) == (0, [])
        fixture.store.late_s = 0.1
        fixture.clock.away_ms += HALT_MS + 1
        assert not owner.may_acknowledge()
        assert not owner.may_acknowledge(), "it stays closed, whenever it is asked"
        waiting = asyncio.create_task(owner.wait_to_acknowledge())
        await asyncio.sleep(0.09)
        assert not waiting.done()
        assert not owner.may_acknowledge()
        assert owner.held_s == pytest.approx(0.09)
        assert "stood still" in owner.held_reason
        await asyncio.sleep(0.02)
        assert waiting.done()
        assert owner.may_acknowledge()
        assert (owner.halt_count, len(fixture.store.heads)) == (1, 2)
        assert (owner.held_s, owner.held_reason) == (0.0, "")
        await owner.wait_to_acknowledge()

    run(scenario)


def test_what_the_store_said_is_told_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Of a broker that was unregistered while it stood still nobody has claimed anything, and its controller
    tells it to end a moment later: the log said right before that it goes on."""
    caplog.set_level(logging.INFO, logger="millrace.broker.identity.ownership")

    async def scenario() -> None:
        fixture = Fixture()
        await asyncio.sleep(0.1)
        fixture.clock.away_ms += HALT_MS + 1
        await asyncio.sleep(NOTE_S)
        assert fixture.owner.may_acknowledge()

    run(scenario)
    (said,) = (one.getMessage() for one in caplog.records if one.levelno == logging.INFO)
    assert "nobody has claimed the node in the bucket meanwhile" in said
    assert "still this process" not in said
    assert "go on" not in said


def test_a_halt_is_seen_that_nobody_asked_about() -> None:
    """The process's own timer notes it, and the look is there before anybody asks."""

    async def scenario() -> None:
        fixture = Fixture()
        await asyncio.sleep(0.1)
        fixture.clock.away_ms += HALT_MS + 1
        await asyncio.sleep(NOTE_S)
        assert (fixture.owner.halt_count, len(fixture.store.heads)) == (1, 2)
        assert fixture.owner.may_acknowledge()

    run(scenario)


@pytest.mark.parametrize("is_late", [False, True], ids=["before the halt ends", "after the look that opens"])
def test_who_was_replaced_meanwhile_never_acknowledges(is_late: bool) -> None:
    """The look after the halt finds the claim: who waits is told, and the gate stays closed. Without a halt
    the next look does it."""

    async def scenario() -> None:
        fixture = Fixture()
        await asyncio.sleep(0.1)
        if not is_late:
            await fixture.take_over()
        fixture.clock.away_ms += HALT_MS + 1
        assert fixture.owner.may_acknowledge() is False
        waiting = asyncio.create_task(fixture.owner.wait_to_acknowledge())
        if is_late:
            await waiting
            await fixture.take_over()
            await asyncio.sleep(2 * EVERY_S)
        else:
            with pytest.raises(Replaced):
                await waiting
        assert fixture.watch.done()
        assert not fixture.owner.may_acknowledge()
        assert "taken the node over" in fixture.owner.held_reason
        with pytest.raises(Replaced):
            await fixture.owner.wait_to_acknowledge()
        assert len(fixture.ends) == 1

    run(scenario)


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_halt_during_the_look_asks_again(is_taken: bool) -> None:
    """The store said that nobody was there, and the process stood still before it heard that: it counts for
    nothing."""

    async def scenario() -> None:
        fixture = Fixture()
        fixture.store.late_s = 0.5
        await asyncio.sleep(0.1)
        fixture.clock.away_ms += HALT_MS + 1
        assert not fixture.owner.may_acknowledge()
        waiting = asyncio.create_task(fixture.owner.wait_to_acknowledge())
        await asyncio.sleep(0.4)
        assert len(fixture.store.heads) == 2
        fixture.clock.away_ms += HALT_MS + 1
        await asyncio.sleep(0.15)
        assert not waiting.done()
        assert not fixture.owner.may_acknowledge()
        if is_taken:
            await fixture.take_over()
        await asyncio.sleep(0.5)
        assert waiting.done()
        assert isinstance(waiting.exception(), Replaced) is is_taken
        assert fixture.owner.may_acknowledge() is not is_taken
        assert (fixture.owner.halt_count, len(fixture.store.heads)) == (2, 4)

    run(scenario)


def test_a_store_that_is_away_holds_nothing_without_a_halt() -> None:
    """Ten minutes without an answer, asked seldom and often."""

    async def scenario() -> None:
        fixture = Fixture()
        fixture.store.is_away = True
        for pause_s in [7.0] * 80 + [0.01] * 1000:
            await asyncio.sleep(pause_s)
            assert fixture.owner.may_acknowledge()
        await fixture.owner.wait_to_acknowledge()
        assert fixture.owner.age_s > 560
        assert fixture.owner.halt_count == 0

    run(scenario)


def test_a_store_that_is_away_after_a_halt_holds_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """For as long as it is away, a second halt or not; it is asked again and again, and its first answer
    opens."""

    async def scenario() -> None:
        fixture = Fixture()
        await asyncio.sleep(0.1)
        fixture.store.is_away = True
        fixture.clock.away_ms += HALT_MS + 1
        waiting = asyncio.create_task(fixture.owner.wait_to_acknowledge())
        await asyncio.sleep(300)
        fixture.clock.away_ms += HALT_MS + 1
        await asyncio.sleep(300)
        assert not waiting.done()
        assert not fixture.owner.may_acknowledge()
        assert fixture.owner.held_s == pytest.approx(600, abs=1)
        assert "the store has not said" in fixture.owner.held_reason
        assert fixture.owner.unanswered_count > 150
        assert "acknowledgements wait" in caplog.text
        fixture.store.is_away = False
        await asyncio.sleep(ATTEMPT_MS / 1000 + AGAIN_S)
        assert waiting.done()
        assert fixture.owner.may_acknowledge()

    run(scenario)


def test_what_is_final_waits_for_a_look_after_a_halt() -> None:
    """However fresh the last look is by the loop's clock, which stands still while the machine is
    suspended."""

    async def scenario() -> None:
        fixture = Fixture()
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        await fixture.owner.verify(loop.time())
        await fixture.take_over()
        await fixture.owner.verify(loop.time() - 0.01)
        fixture.clock.away_ms += HALT_MS + 1
        with pytest.raises(Replaced):
            await fixture.owner.verify(loop.time() - 0.01)

    run(scenario)


def test_who_waits_when_the_looks_end_is_told() -> None:
    """The process is asked to end while the store is away: nobody waits for ever, and nothing is
    acknowledged."""

    async def scenario() -> None:
        fixture = Fixture()
        fixture.store.is_away = True
        await asyncio.sleep(0.1)
        fixture.clock.away_ms += HALT_MS + 1
        waiting = asyncio.create_task(fixture.owner.wait_to_acknowledge())
        await asyncio.sleep(1)
        fixture.watch.cancel()
        fixture.owner.close()
        with pytest.raises(Closed):
            await waiting
        fixture.clock.away_ms += HALT_MS + 1
        with pytest.raises(Closed):
            await fixture.owner.wait_to_acknowledge()

    run(scenario)
