"""What the log is said to cost is what it asks of a store."""

from __future__ import annotations

from functools import partial

import pytest

from millrace.runtime.rand import Rand
from millrace.wal.config import ObjectWalSettings
from millrace.wal.log import WalOwner
from millrace.wal.object.cost import Cost, Stream, monthly_costs, puts_a_second
from millrace.wal.object.log import ObjectWal
from tests.bench.object_wal import DelayedStore, Run
from tests.sim.loop import SimLoop, run_simulation

RECORD_BYTES = 1000
SECONDS = 30


@pytest.mark.parametrize("interval_ms", [0, 100, 250])
@pytest.mark.parametrize("hedge", ["on", "off"])
@pytest.mark.parametrize("records_a_second", [3, 120, 500])
def test_an_estimate_is_what_is_asked(interval_ms: int, hedge: str, records_a_second: int) -> None:
    """Steady sends for half a minute to a store of 60 ms, 250 ms at 99 of 100: the requests that were counted
    lie within a fifth of the estimate."""
    settings = ObjectWalSettings(batch_interval_ms=interval_ms, hedge=hedge)
    stream = Stream("steady", records_a_second, records_a_second * RECORD_BYTES)
    counted = run_simulation(partial(count_requests, settings, records_a_second))
    estimate = puts_a_second(settings, 60.0, stream)
    print(
        f"interval {interval_ms}, hedge {hedge}, {records_a_second} records/s: {counted:.1f} of "
        f"{estimate:.1f}"
    )
    assert abs(counted - estimate) <= 0.2 * estimate + 0.1


async def count_requests(settings: ObjectWalSettings, rate: int, loop: SimLoop) -> float:
    store = DelayedStore(Rand(b"cost"))
    wal = await ObjectWal.open(store, settings, WalOwner("cost", 1, 1), Rand(b"wal"))
    async for _ in wal.recover():
        pass
    run = Run(wal, RECORD_BYTES)
    wal.start(run.on_confirmed, lambda error: pytest.fail(repr(error)))
    await run.send_steadily(rate, loop.time() + 5)
    store.requests = 0
    await run.send_steadily(rate, loop.time() + SECONDS)
    requests = store.requests / SECONDS
    await wal.close()
    return requests


def test_what_full_batches_make() -> None:
    """Beyond a batch an interval bytes decide, late ones are put twice up to the bound, and an idle log asks
    nothing."""
    settings = ObjectWalSettings(batch_interval_ms=100, batch_bytes_max=8 << 20)
    idle, trickle, busy, very_busy = monthly_costs(settings, 60.0)
    assert idle == Cost("idle", 0.0)
    assert (round(trickle.dollars_a_month), round(busy.dollars_a_month)) == (146, 146)
    assert round(very_busy.puts_a_second, 1) == 13.5
    large = ObjectWalSettings(batch_interval_ms=1000, batch_bytes_max=64 << 20)
    assert round(monthly_costs(large, 60.0)[-1].puts_a_second, 1) == 1.5
