"""Who passes when: buckets by the clock, tiers by priority, and nobody for ever behind anybody."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.s3stream.limiter import CHUNK_BYTES, DEBT_MS, HANDICAP_US, Ticket, Tier, TierQueue, TokenBucket

MIB = 1 << 20
SECOND = 1_000_000
WAITING = (Tier.TAIL, Tier.COMPACTION, Tier.CATCH_UP)


def passing(line: TierQueue, until_us: int, now_us: int = 0) -> list[tuple[int, Ticket]]:
    """Runs the line as its timer would, to that time: when each passed."""
    passed: list[tuple[int, Ticket]] = []
    while (wait_us := line.wakes_in_us()) is not None and now_us + wait_us <= until_us:
        now_us += max(1, wait_us)
        passed += [(now_us, ticket) for ticket in line.pass_due(now_us)]
    return passed


def test_a_bucket_refills_by_the_clock() -> None:
    """A burst is there at once, then exactly the rate: looked at often or seldom makes no difference."""
    for steps in (1, 7, 1000):
        bucket = TokenBucket(8 * MIB, 0)
        bucket.take(3 * MIB)  # the burst is 1 MiB: 2 MiB of debt
        assert not bucket.is_open
        assert bucket.opens_in_us == 250_001
        for step in range(1, steps + 1):
            bucket.refill(250_000 * step // steps)
        assert not bucket.is_open
        bucket.refill(250_001)
        assert bucket.is_open
        bucket.refill(60 * SECOND)
        bucket.take(MIB)
        assert not bucket.is_open, "what was not used is not saved up"


def test_debt_is_forgotten_beyond_a_bound() -> None:
    """However much passed without waiting, those who wait are not paid back for longer than the bound."""
    bucket = TokenBucket(MIB, 0)
    bucket.take(1000 * MIB)
    assert bucket.opens_in_us == DEBT_MS * 1000 + 1


def test_priority_among_those_who_ask_together() -> None:
    """Asked at one time: tail reads, then compaction, then catch-up reads, whatever their order of asking."""
    line = TierQueue(MIB)
    line.charge(Tier.UPLOAD, 3 * MIB, 0)
    line.ask(Tier.TAIL, MIB, 0)  # takes the reserve
    for tier in (Tier.CATCH_UP, Tier.COMPACTION, Tier.TAIL, Tier.CATCH_UP, Tier.TAIL):
        line.ask(tier, MIB // 2, 0)
    order = [ticket.tier for _, ticket in passing(line, 60 * SECOND)]
    assert order == [Tier.TAIL, Tier.TAIL, Tier.COMPACTION, Tier.CATCH_UP, Tier.CATCH_UP]


@pytest.mark.parametrize("tier", [Tier.COMPACTION, Tier.CATCH_UP])
def test_a_lower_tier_ages_past_a_higher_one(tier: Tier) -> None:
    """Under tail reads without end, twice of what the rate allows, a lower tier's request passes soon after
    its handicap."""
    line = TierQueue(MIB)
    for turn in range(400):
        now_us = turn * SECOND // 8
        if turn == 80:
            late, _ = line.ask(tier, MIB // 4, now_us)
            asked_us = now_us
        line.ask(Tier.TAIL, MIB // 4, now_us)
        if turn >= 80 and late.has_passed:
            break
    # The line before it is what was asked within ten seconds and the handicap, less what passed meanwhile: no
    # more than as much again.
    assert late.has_passed
    assert now_us - asked_us <= 2 * (10 * SECOND + HANDICAP_US[tier])


def test_what_never_waits_does_not_starve_the_others() -> None:
    """Uploads at twice the rate for minutes: those who wait still get a tenth of it."""
    line = TierQueue(10 * MIB)
    readers = [line.ask(Tier.CATCH_UP, MIB, 0)[0] for _ in range(200)]
    for second in range(60):
        line.charge(Tier.UPLOAD, 20 * MIB, second * SECOND)
        passing(line, (second + 1) * SECOND, second * SECOND)
    assert 55 <= sum(reader.has_passed for reader in readers) <= 65


def test_a_large_request_does_not_hold_up_small_ones() -> None:
    """It passes in slices and takes a new place after each: a small one that came later, of its own tier,
    goes between them."""
    line = TierQueue(MIB)
    line.charge(Tier.UPLOAD, MIB, 0)
    large, _ = line.ask(Tier.TAIL, 30 * MIB, 0)
    small, _ = line.ask(Tier.TAIL, 1000, 10)
    times = {ticket: at_us for at_us, ticket in passing(line, 60 * SECOND)}
    assert times[small] < 3 * SECOND < 20 * SECOND < times[large]


def test_a_large_request_passes_in_the_end() -> None:
    """Any size passes, in the time that the rate gives it, though it exceeds the bucket."""
    line = TierQueue(4 * MIB)
    ticket, _ = line.ask(Tier.CATCH_UP, 400 * MIB, 0)
    [(at_us, passed)] = passing(line, 200 * SECOND)
    assert passed is ticket
    assert 85 * SECOND <= at_us <= 101 * SECOND
    assert line.counts[Tier.CATCH_UP].bytes == 400 * MIB


def test_a_full_line_refuses_the_last() -> None:
    """One more than fits: whoever stands last goes, a newcomer of a low tier itself, else one that a better
    newcomer displaces."""
    line = TierQueue(MIB, waiting_max=3)
    line.charge(Tier.UPLOAD, 4 * MIB, 0)
    line.ask(Tier.TAIL, MIB, 0)  # takes the reserve
    first, _ = line.ask(Tier.CATCH_UP, MIB, 0)
    second, _ = line.ask(Tier.CATCH_UP, MIB, 0)
    line.ask(Tier.TAIL, MIB, 0)
    newcomer, settled = line.ask(Tier.CATCH_UP, MIB, 0)
    assert newcomer.is_refused
    assert settled == [newcomer]
    tail, settled = line.ask(Tier.TAIL, MIB, 0)
    assert not tail.is_refused
    assert settled == [second]
    assert second.is_refused
    assert not first.is_refused
    assert line.counts[Tier.CATCH_UP].refused == 2
    assert len(line) == 3


def test_without_a_limit_everything_passes_and_is_counted() -> None:
    """No bucket, no wait; when a limit is lifted those who waited pass."""
    line = TierQueue(None)
    ticket, settled = line.ask(Tier.CATCH_UP, 500 * MIB, 0)
    assert settled == [ticket]
    line.set_rate(MIB, 0)
    line.charge(Tier.WAL, 4 * MIB, 0)
    waiting, _ = line.ask(Tier.TAIL, 5 * MIB, 0)
    assert not waiting.has_passed
    line.set_rate(None, 10)
    assert line.wakes_in_us() == 0
    assert line.pass_due(10) == [waiting]
    assert line.counts[Tier.CATCH_UP].bytes == 500 * MIB
    assert line.counts[Tier.TAIL].waits == 1


steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "charge", "leave", "time", "rate"]),
        st.sampled_from(list(Tier)),
        st.integers(1, 6 * MIB),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(MIB // 4, 8 * MIB))
def test_every_request_is_settled_once_and_bytes_keep_to_the_rate(
    plan: list[tuple[str, Tier, int]], rate: int
) -> None:
    """Whatever is asked, charged and given up: nobody passes twice or is lost, counts agree with the line,
    what passed keeps to the rate."""
    line = TierQueue(rate, waiting_max=8)
    now_us = 0
    open_tickets: dict[Ticket, int] = {}
    passed_bytes = asked_bytes = 0
    rate_max = rate

    def settle(tickets: list[Ticket]) -> None:
        nonlocal passed_bytes
        for ticket in tickets:
            size = open_tickets.pop(ticket)
            assert ticket.has_passed != ticket.is_refused
            passed_bytes += size * ticket.has_passed

    for verb, tier, amount in plan:
        if verb == "ask" and tier in WAITING:
            ticket, settled = line.ask(tier, amount, now_us)
            open_tickets[ticket] = amount
            asked_bytes += amount
            settle(settled)
        elif verb == "charge":
            line.charge(tier, amount, now_us)
        elif verb == "leave" and open_tickets:
            ticket = list(open_tickets)[amount % len(open_tickets)]
            line.leave(ticket, now_us)
            del open_tickets[ticket]
        elif verb == "rate":
            line.set_rate(max(MIB // 4, amount), now_us)
            rate_max = max(rate_max, amount, MIB // 4)
        elif verb == "time":
            now_us += amount
            settle(line.pass_due(now_us))
        assert len(line) == len(open_tickets) == sum(count.waiting for count in line.counts.values())
        # A burst and a slice of debt from each of the two buckets, and what both refill.
        assert passed_bytes <= 4 * CHUNK_BYTES + 1.2 * rate_max * now_us / SECOND + rate_max * 0.2
    settle([ticket for _, ticket in passing(line, now_us + 10_000 * SECOND, now_us)])
    assert not open_tickets, "all pass in the end"
    assert line.wakes_in_us() is None
