"""Owners by chance, on a store with every fault, against a model that knows who sent what and what was
acknowledged.

Each owner appends and trims for a while. Then it crashes, closes, or lives on as one that does not know that
it was replaced; the next one opens at any instant. `MILLRACE_WAL_RUNS` makes more of them, `MILLRACE_SEED`
others.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field

import pytest

from millrace.runtime.errors import Closed, Fenced
from millrace.runtime.rand import Rand
from millrace.wal.errors import WalFull
from millrace.wal.object.log import ObjectWal
from tests.sim.loop import run_simulation
from tests.sim.objectstore import SimBucket, SimObjectStore, StoreFaults
from tests.wal.build import Journal, owner, payload
from tests.wal.object.build import make_bucket, open_wal, store_on

RUNS = int(os.environ.get("MILLRACE_WAL_RUNS", "8"))
SEED = int(os.environ.get("MILLRACE_SEED", "1"))
STORMY = StoreFaults(
    refused=60,
    throttled=30,
    lost_request=40,
    lost_answer=60,
    late=60,
    latency_ms=(1, 120),
    timeout_ms=400,
    late_ms=(0, 5000),
)
FINE = StoreFaults(late=2, latency_ms=(1, 120), timeout_ms=400, late_ms=(0, 5000))  # late puts are sent twice
MEETINGS: Counter[str] = Counter()


@dataclass
class Model:
    sent: dict[int, list[tuple[int, bytes]]] = field(
        default_factory=dict
    )  # position -> what was ever appended there
    acknowledged: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    trim_asked: int = 0
    trim_done: int = 0
    number: int = 0

    def on_acknowledged(self, position: int, end: int, data: bytes) -> None:
        assert self.acknowledged.setdefault(position, (end, data)) == (end, data), (
            "two acknowledgements for one position"
        )

    def check(
        self, found: list[tuple[int, int, bytes]], before: dict[int, tuple[int, bytes]], trim_done: int
    ) -> None:
        """`before` and `trim_done` as they were when the owner who found this began to open."""
        places = {position: (end, data) for position, end, data in found}
        assert [position for position, _, _ in found] == sorted(places)
        for position, end, data in found:
            assert (end, data) in self.sent[position], (position, data)
            assert end > trim_done, "what was trimmed came back"
        for position, (end, data) in before.items():
            if end > self.trim_asked:
                assert places.get(position) == (end, data), (
                    f"lost {position} {data[:8]!r} of {sorted(places)}"
                )


class Owner:
    def __init__(self, model: Model, bucket: SimBucket, epoch: int, rand: Rand, fence: str) -> None:
        faults = FINE if rand.below(3) == 0 else STORMY
        self.store: SimObjectStore = store_on(bucket, f"store {rand.below(1 << 30)}", faults)
        self.journal = Journal()
        self.wal: ObjectWal | None = None
        self._model = model
        self._bucket = bucket
        self._epoch = epoch
        self._rand = rand
        self._fence = fence
        self._waiting: list[tuple[int, int, bytes]] = []
        self._ended: list[int] = []

    async def live(self, seconds: float) -> None:
        """Opens, recovers, and works for so long, or until it is fenced or cut off."""
        model = self._model
        try:
            before, trim_done = dict(model.acknowledged), model.trim_done
            wal = await open_wal(self._bucket, owner(self._epoch), self.store, fence=self._fence)
            found = [(record.position, record.end, bytes(record.payload)) async for record in wal.recover()]
            model.check(found, before, trim_done)
            wal.start(self._on_confirmed, self.journal.on_failed)
            self.wal = wal
            await self._work(asyncio.get_running_loop().time() + seconds)
        except (Fenced, Closed) as error:
            MEETINGS[type(error).__name__] += 1
        finally:
            if self.wal is not None:
                MEETINGS["put twice"] += self.wal.hedging.begun
                MEETINGS["second was first"] += self.wal.hedging.won

    def _on_confirmed(self, end: int) -> None:
        self.journal.on_confirmed(end)
        while self._waiting and self._waiting[0][1] <= end:
            self._model.on_acknowledged(*self._waiting[0])
            self._ended.append(self._waiting.pop(0)[1])

    async def _work(self, until: float) -> None:
        model, rand, wal = self._model, self._rand, self.wal
        assert wal is not None
        while asyncio.get_running_loop().time() < until:
            for _ in range(rand.below(5)):
                data = payload(model.number, 8 + rand.below(3000 if rand.below(4) else 30_000))
                model.number += 1
                try:
                    record = wal.append(data)
                except WalFull:
                    MEETINGS["full"] += 1
                    break
                self._waiting.append((record.position, record.end, data))
                model.sent.setdefault(record.position, []).append((record.end, data))
            if self._ended and rand.below(4) == 0:
                await self._trim(wal, self._ended[rand.below(len(self._ended))])
            await asyncio.sleep(rand.below(100) / 1000)

    async def _trim(self, wal: ObjectWal, end: int) -> None:
        self._model.trim_asked = max(self._model.trim_asked, end)
        await wal.trim(end)
        self._model.trim_done = max(self._model.trim_done, end)
        MEETINGS["trim"] += 1


async def history(seed: int, fence: str) -> None:
    rand = Rand(b"history %d %d" % (SEED, seed))
    bucket, model = make_bucket(), Model()
    lives: list[asyncio.Task[None]] = []
    epoch = 0
    for _ in range(2 + rand.below(6)):
        epoch += 1 + rand.below(3)
        one = Owner(model, bucket, epoch, rand.split(f"owner {epoch}"), fence)
        lives.append(asyncio.create_task(one.live(rand.below(60))))
        fate = ("crash", "close", "live on")[rand.below(3)]
        MEETINGS[fate] += 1
        await asyncio.sleep(rand.below(40))
        if fate == "crash":
            one.store.cut()
        elif fate == "close" and one.wal is not None:
            await asyncio.wait({asyncio.create_task(one.wal.close())}, timeout=100)
    await asyncio.sleep(100)
    for life in lives:
        if life.done():
            life.result()
    last = Owner(model, bucket, 99, rand.split("last"), fence)
    last.store.faults = StoreFaults()
    await last.live(0)
    assert last.wal is not None, "the last owner is let in"
    MEETINGS.update(bucket.hits)


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_nothing_acknowledged_is_lost_whoever_owns_the_log(fence: str) -> None:
    """In every history each owner finds all that was acknowledged before it and is not trimmed, nothing that
    was trimmed, nothing that nobody sent there; no position is acknowledged twice. Every fault and every fate
    was met."""
    MEETINGS.clear()
    for seed in range(RUNS):
        run_simulation(lambda loop, seed=seed: history(seed, fence))  # type: ignore[misc]
    for what in (
        "crash",
        "close",
        "live on",
        "WalFenced",
        "WalClosed",
        "trim",
        "full",
        "LATE",
        "LOST_ANSWER",
        "REFUSED",
        "put twice",
        "second was first",
    ):
        assert MEETINGS[what], (what, MEETINGS)
