"""Who still owns the node: looks at the claim that would follow, in virtual time, beside a store that answers
late, or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from millrace.broker.identity.claim_format import NOBODY, ClaimKind, OwnerClaim, encode_claim
from millrace.broker.identity.ownership import (
    ATTEMPT_MS,
    EVERY_S,
    JITTER_S,
    TRUSTED_S,
    Owner,
    Replaced,
    left_in_wal,
)
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.runtime.objectstore import ObjectEntry, StoreUnavailable
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import StreamId, StreamRange
from tests.kraft.build import HandClock
from tests.kraft.commands.test_leaders import Cluster
from tests.kraft.tables.build import create, open_streams, topic
from tests.kraft.test_replay import Machine
from tests.s3stream.build import run as run_in_virtual_time

OWN = bytes(range(16))
THEIRS = bytes(range(1, 17))


def claim(series: int, number: int, incarnation: bytes) -> OwnerClaim:
    return OwnerClaim(
        ClaimKind.CLAIMED, "AAAAAAAAAAAAAAAAAAAAAQ", series, number, incarnation, NOBODY, 0, 0, 0
    )


class Store(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__(HandClock())
        self.heads: list[float] = []  # when each was asked for
        self.is_away = False
        self.late_s = 0.0

    async def head(self, key: str) -> ObjectEntry | None:
        self.heads.append(asyncio.get_running_loop().time())
        await asyncio.sleep(3600 if self.is_away else self.late_s)
        return await super().head(key)


class LoopClock(HandClock):
    """`away_ms`: for how long the process stood still so far, on top of the loop's time."""

    away_ms = 0

    def elapsed_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self.away_ms


class Fixture:
    def __init__(self, seed: bytes = b"looks") -> None:
        self.store = Store()
        self.ends: list[tuple[float, Replaced]] = []
        self.claims = [claim(METADATA_SERIES, 4, OWN), claim(7, 9, OWN)]
        looks = RetryingObjectStore(
            self.store, Rand(seed), RetryPolicy(attempts_max=1, attempt_timeout_ms=ATTEMPT_MS)
        )
        self.clock = LoopClock()
        self.owner = Owner(
            looks, self.claims, 7, Rand(seed), self._on_replaced, self.clock, is_conditional=True
        )
        self.watch = asyncio.create_task(self.owner.run())

    def _on_replaced(self, error: Replaced) -> None:
        self.ends.append((asyncio.get_running_loop().time(), error))

    async def take_over(self, series: int = 7) -> float:
        newer = claim(series, 10 if series == 7 else 5, THEIRS)
        await self.store.put(newer.key, [encode_claim(newer)])
        return asyncio.get_running_loop().time()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100_000):
            await scenario()

    run_in_virtual_time(bounded())


@pytest.mark.parametrize("series", [METADATA_SERIES, 7])
def test_a_newer_claim_is_seen_within_ten_seconds(series: int) -> None:
    """Whenever it comes between two looks, with a store that is as late as one attempt may be; told once,
    with who it is."""

    async def scenario() -> None:
        slowest_s = 0.0
        for number in range(40):
            fixture = Fixture(b"%d" % number)
            fixture.store.late_s = ATTEMPT_MS / 1000 - 0.01
            await asyncio.sleep(20 + number * 0.37)
            began_s = await fixture.take_over(series)
            await fixture.watch
            [(ended_s, error)] = fixture.ends
            slowest_s = max(slowest_s, ended_s - began_s)
            assert "AQIDBAUGBwgJCgsMDQ4PEA" in str(error), "the other's incarnation"
            with pytest.raises(Replaced):
                await fixture.owner.verify(0.0)
            assert len(fixture.ends) == 1
        print(f"seen after at most {slowest_s:.2f} s")
        assert slowest_s < 9.0

    run(scenario)


def test_a_store_that_is_away_ends_nothing() -> None:
    """The node goes on and the age says since when nothing is known; what is to be made final is not; when
    the store is back all goes on."""

    async def scenario() -> None:
        fixture = Fixture()
        loop = asyncio.get_running_loop()
        await asyncio.sleep(10)
        assert fixture.owner.age_s < EVERY_S + JITTER_S + 0.1
        fixture.store.is_away = True
        await asyncio.sleep(600)
        assert not fixture.watch.done()
        assert fixture.owner.age_s > 595
        assert fixture.owner.unanswered_count > 100
        with pytest.raises(StoreUnavailable):
            await fixture.owner.verify(loop.time())
        fixture.store.is_away = False
        await fixture.owner.verify(loop.time())
        assert fixture.owner.age_s < 1
        assert fixture.ends == []
        fixture.watch.cancel()

    run(scenario)


def test_a_look_serves_all_who_asked_before_it() -> None:
    """Twenty who commit at one time cost one look; one that began before the work did is not taken for it,
    nor one that is old."""

    async def scenario() -> None:
        fixture = Fixture()
        fixture.watch.cancel()
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        fixture.store.late_s = 0.1
        now_s = loop.time()
        await asyncio.gather(*(fixture.owner.verify(now_s) for _ in range(20)))
        assert len(fixture.store.heads) == 2, "one of each series"
        await fixture.owner.verify(now_s)
        assert len(fixture.store.heads) == 2
        await fixture.owner.verify(loop.time())
        assert len(fixture.store.heads) == 4
        await asyncio.sleep(TRUSTED_S + 1)
        await fixture.owner.verify(now_s)
        assert len(fixture.store.heads) == 6, "a process that was halted looks again"

    run(scenario)


def test_commits_take_the_place_of_looks() -> None:
    """An idle node looks every five to six seconds; one that commits each second does not look besides."""

    async def scenario() -> None:
        fixture = Fixture()
        await asyncio.sleep(3600)
        idle = len(fixture.store.heads)
        fixture.store.heads.clear()
        for _ in range(100):
            await asyncio.sleep(1)
            await fixture.owner.verify(asyncio.get_running_loop().time())
        busy = len(fixture.store.heads)
        print(f"HEADs of an idle node: {idle} an hour; of 100 commits in 100 s: {busy}")
        assert 2 * 3600 / (EVERY_S + JITTER_S) - 10 < idle < 2 * 3600 / EVERY_S
        assert busy <= 204
        fixture.watch.cancel()

    run(scenario)


def test_what_is_left_in_the_log_is_told_by_partition() -> None:
    """Offsets of data streams by their partitions, at most twenty in the sentence; what only serves a
    partition is not counted."""
    machine = Machine()
    create(machine, topic("t", 30))
    ids = [open_streams(machine, "t", partition, 0, 1) for partition in range(30)]
    ranges = [StreamRange(StreamId(one), 5, 8) for pair in ids for one in pair]
    told = left_in_wal(ranges, 4711, machine.image, "0@file:///wal")
    assert told.startswith(
        "; 90 records (4711 bytes) were acknowledged here and are in the WAL 0@file:///wal alone: t-0 [5, "
        "8), t-1"
    )
    assert told.endswith("t-19 [5, 8) and 10 more partitions, in the log")
    assert left_in_wal([], 0, machine.image, "w") == "; nothing was acknowledged here that is not in objects"


def test_a_member_of_a_cluster_does_not_call_lost_what_others_recover(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who recovers its log is named where metadata says so; where this process cannot know, both that can be
    are said; what the recovery has committed, as far as it is seen, is left out. Nothing of it is
    critical."""
    cluster = Cluster()
    ids = open_streams(cluster, "t", cluster.led()[1][0], 0, 1)
    ranges = [StreamRange(StreamId(one), 0, 8) for one in ids]
    told = left_in_wal(ranges, 47, cluster.image, "0@s3://wal", 1)
    assert told.startswith("; 8 records (47 bytes) were acknowledged here and are in the WAL 0@s3://wal, and")
    assert "if another broker took over it recovers that WAL, or has" in told
    cluster.fence(1)
    cluster.settle()
    began = cluster.begin(2, 1)
    told = left_in_wal(ranges, 47, cluster.image, "0@s3://wal", 1)
    assert told.endswith("; broker 2 recovers that WAL, and them with it")
    assert "alone" not in told
    first = cluster.do(PrepareObjectsRequest(1, began.node_epoch, 1, 60_000)).first_object_id
    spans = [UploadedRange(ids[1], 0, 5)]
    assert not cluster.do(CommitUploadRequest(1, began.node_epoch, first, 100, spans)).error_code
    told = left_in_wal(ranges, 47, cluster.image, "0@s3://wal", 1)
    assert told.startswith("; 3 records ")
    assert " [5, 8)" in told
    assert not [one for one in caplog.records if one.levelno >= logging.CRITICAL]
