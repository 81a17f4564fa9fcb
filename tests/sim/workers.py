"""Many runs at once: worker processes that take seeds, or plans, a few at a time, and hand back what they met."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tests.sim.hunt import Tally, run_all, run_seeds
from tests.sim.plan import Plan

T = TypeVar("T")
SEEDS_AT_A_TIME = 20
PLANS_AT_A_TIME = 8
SAY_EVERY_S = 10.0


def hunt_seeds(first: int, count: int, workers: int, until: Callable[[Tally], bool] = lambda tally: False) -> Tally:
    """The seeds from `first` on; ends early when `until` says so."""
    chunks = [
        (start, min(first + count, start + SEEDS_AT_A_TIME)) for start in range(first, first + count, SEEDS_AT_A_TIME)
    ]
    return _gather(run_seeds, chunks, count, workers, until)


def hunt_plans(plans: Iterable[Plan], workers: int) -> Tally:
    chosen = list(plans)
    return _gather(run_all, list(_chunks(chosen, PLANS_AT_A_TIME)), len(chosen), workers, lambda tally: False)


def _chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    left = iter(items)
    while chunk := list(itertools.islice(left, size)):
        yield chunk


def _gather(
    work: Callable[[T], Tally], chunks: list[T], count: int, workers: int, until: Callable[[Tally], bool]
) -> Tally:
    tally, began = Tally(), time.monotonic()
    said = began
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for part in pool.imap_unordered(work, chunks):
            tally.join(part)
            for outcome in part.failed:
                print(f"{outcome.plan}: {outcome.findings[0]}", flush=True)
            now = time.monotonic()
            if now - said > SAY_EVERY_S:
                said = now
                rate = tally.runs / (now - began)
                left_s = (count - tally.runs) / rate
                print(
                    f"{tally.runs} of {count} runs, {rate:.1f} a second, {left_s:.0f} s to go, {len(tally.failed)} with findings",
                    flush=True,
                )
            if until(tally):
                break
    return tally
