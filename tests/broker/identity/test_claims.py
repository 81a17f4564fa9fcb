"""Claims of ownership: a real controller on a simulated disk beside a bucket, a start that is killed between
any two of its steps, others who claim meanwhile, and stores that keep no condition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from millrace.broker.controller_client import ControllerClient
from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.claim_format import (
    NOBODY,
    ClaimCorrupt,
    ClaimKind,
    OwnerClaim,
    claim_key,
    decode_claim,
    encode_claim,
)
from millrace.broker.identity.claims import Claimant, are_conditions_kept, check_claims, read_newest_claim
from millrace.broker.metadata_cache import MetadataCache
from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.node import ControllerNode
from millrace.kraft.tables.claims import METADATA_SERIES, Claim
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.stream_records import NodeClaimRecord
from millrace.runtime.clock import SystemClock
from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import ObjectStore, PreconditionFailed, StoreContradicts, StoreFull
from millrace.runtime.objectstore.address import open_store, parse_address
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.objectstore.rounds import ROUNDS_MAX
from tests.contradicting import Contradicting
from tests.kraft.build import HandClock, open_node, sim_disk
from tests.live.bad_s3 import BadS3
from tests.patience import PATIENCE_S
from tests.sim.disk import SimDisk
from tests.sim.loop import run_simulation

CLUSTER = "hGTiLit3SO-4Px19ZkbPNA"
SERIES = (METADATA_SERIES, 1)
GOLDEN = Path(__file__).parents[2] / "golden" / "owner_claim_v1.hex"


def incarnation(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(range(8))


class Killed(Exception):
    """The process is gone from here on."""


class Store(MemoryObjectStore):
    """A put of a claim is met by `on_put`, which may kill, before it or after."""

    def __init__(self) -> None:
        super().__init__(HandClock())
        self.on_put: Callable[[str, bytes], Awaitable[None]] | None = None
        self.puts: list[str] = []

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        self.puts.append(key)
        if self.on_put is not None:
            await self.on_put(key, b"".join(parts))
        await super().put_if_absent(key, parts)

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        if self.on_put is not None:
            await self.on_put(key, b"".join(parts))
        await super().put(key, parts)


class Fixture:
    """One log directory and one bucket; each start draws the next incarnation."""

    def __init__(self) -> None:
        self.disk: SimDisk = sim_disk()
        self.store = Store()
        self.starts = 0
        self.after_record: Callable[[int], None] = lambda series: None
        self.before_record: Callable[[int], None] = lambda series: None
        self.claims: list[OwnerClaim] = []
        self.waits: list[tuple[str, int, StoreFull]] = []
        self.claimant: Claimant | None = None

    async def start(self, store: ObjectStore | None = None, *, has_conditions: bool = True) -> None:
        """Checks, claims both series, and ends as if killed."""
        node = await open_node(self.disk)
        try:
            await self._claim(node, store or self.store, has_conditions)
        finally:
            await node.close()

    async def _claim(self, node: ControllerNode, store: ObjectStore, has_conditions: bool) -> None:
        self.starts += 1
        mine = incarnation(self.starts)
        await check_claims(store, "the bucket", node.cluster_id, node.publisher.image, 1)
        client = ControllerClient(node.channel, MetadataCache(node.publisher, node.cluster_id, 1), 1)

        async def record(series: int, number: int, found: OwnerClaim | None) -> None:
            self.before_record(series)
            of_found = (0, NOBODY) if found is None else (found.number, found.incarnation)
            await client.claim_node(series, number, mine, *of_found)
            self.after_record(series)

        image = node.publisher
        self.claimant = Claimant(
            store,
            "the bucket",
            node.cluster_id,
            mine,
            has_conditions,
            HandClock(),
            lambda: image.image,
            record,
            lambda *said: self.waits.append(said),
        )
        self.claims = [await self.claimant.claim(series) for series in SERIES]

    async def newest(self, series: int) -> OwnerClaim | None:
        cluster = self.claims[0].cluster_id if self.claims else await self.cluster_id()
        return await read_newest_claim(self.store, cluster, series)

    async def cluster_id(self) -> str:
        node = await open_node(self.disk)
        await node.close()
        return node.cluster_id


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(main())


async def numbers(fixture: Fixture) -> list[int]:
    return [0 if (claim := await fixture.newest(series)) is None else claim.number for series in SERIES]


def test_each_start_claims_the_next_number() -> None:
    """A start that was killed is followed at once by the next one; one that ended in order leaves a release
    behind."""

    async def scenario() -> None:
        fixture = Fixture()
        for number in (1, 2, 3):
            await fixture.start()
            assert await numbers(fixture) == [number, number]
            newest = await fixture.newest(1)
            assert newest is not None
            before = incarnation(number - 1) if number > 1 else NOBODY
            assert (newest.incarnation, newest.before, newest.is_standing) == (
                incarnation(number),
                before,
                True,
            )
        assert fixture.claimant is not None
        await fixture.claimant.release_all()
        newest = await fixture.newest(METADATA_SERIES)
        assert newest is not None
        assert (newest.number, newest.is_standing, newest.incarnation) == (4, False, incarnation(3))
        await fixture.start()
        assert await numbers(fixture) == [5, 5]

    run(scenario)


@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("was_released", [False, True])
@pytest.mark.parametrize(
    "step", ["before the record", "after the record", "before the claim", "after the claim", "late"]
)
def test_a_start_may_be_killed_between_any_two_steps(step: str, was_released: bool, series: int) -> None:
    """The next one goes on: what the killed one recorded is known when its claim is met, also when that lands
    after the next start has looked; several in a row do no harm."""

    async def scenario() -> None:
        fixture = Fixture()
        await fixture.start()
        if was_released:
            assert fixture.claimant is not None
            await fixture.claimant.release_all()
        late: list[tuple[str, bytes]] = []

        def kill(met: int) -> None:
            if met == series:
                raise Killed

        async def on_put(key: str, content: bytes) -> None:
            if decode_claim(content, key).series == series:
                if step == "after the claim":
                    await MemoryObjectStore.put_if_absent(fixture.store, key, [content])
                late.append((key, content))
                raise Killed

        for _ in range(3):
            if step.endswith("record"):
                setattr(fixture, step.replace(" the ", "_"), kill)
            else:
                fixture.store.on_put = on_put
            with pytest.raises(Killed):
                await fixture.start()
            fixture.before_record = fixture.after_record = lambda met: None
            fixture.store.on_put = None

        async def lands_first(key: str, content: bytes) -> None:
            while late:
                await MemoryObjectStore.put(fixture.store, late[0][0], [late[0][1]])
                late.clear()

        if step == "late":
            fixture.store.on_put = lands_first
        await fixture.start()
        newest = await fixture.newest(series)
        assert newest is not None
        assert newest.incarnation == incarnation(5)
        fixture.store.on_put = None
        await fixture.start()
        newest = await fixture.newest(series)
        assert newest is not None
        assert newest.incarnation == incarnation(6)

    run(scenario)


@pytest.mark.parametrize(
    ("landing", "has_conditions"),
    [("never", True), ("at once", True), ("behind the release", True), ("never", False), ("at once", False)],
)
def test_a_claim_that_was_cancelled_under_way_is_released(landing: str, has_conditions: bool) -> None:
    """Whoever ends in order while it claims leaves no claim standing, wherever the put was."""

    async def scenario() -> None:
        fixture = Fixture()
        await fixture.start()
        under_way: asyncio.Future[tuple[str, bytes]] = asyncio.get_running_loop().create_future()

        async def on_put(key: str, content: bytes) -> None:
            if landing == "at once":
                await MemoryObjectStore.put(fixture.store, key, [content])
            under_way.set_result((key, content))
            await asyncio.Event().wait()

        fixture.store.on_put = on_put
        starting = asyncio.ensure_future(fixture.start(has_conditions=has_conditions))
        key, content = await under_way
        starting.cancel()
        await asyncio.wait([starting])
        fixture.store.on_put = None
        assert fixture.claimant is not None
        await fixture.claimant.release_all()
        if landing == "behind the release":
            with pytest.raises(PreconditionFailed):
                await fixture.store.put_if_absent(key, [content])
        newest = await fixture.newest(METADATA_SERIES)
        assert newest is not None
        expected = (3 if landing == "at once" else 2, False, incarnation(2))
        assert (newest.number, newest.is_standing, newest.incarnation) == expected
        await fixture.start()
        newest = await fixture.newest(METADATA_SERIES)
        assert newest is not None
        assert (newest.number, newest.is_standing) == (expected[0] + 1, True)

    run(scenario)


def test_a_release_gives_way_to_who_claimed_under_the_number_meanwhile() -> None:
    """The put that was cancelled had lost already: nothing is put behind the other's claim."""

    async def scenario() -> None:
        fixture = Fixture()
        await fixture.start()
        cluster = fixture.claims[0].cluster_id
        other = OwnerClaim(
            ClaimKind.CLAIMED, cluster, METADATA_SERIES, 2, incarnation(99), incarnation(1), 3, 1, 1
        )
        is_reached = asyncio.Event()

        async def on_put(key: str, content: bytes) -> None:
            await MemoryObjectStore.put(fixture.store, key, [encode_claim(other)])
            is_reached.set()
            await asyncio.Event().wait()

        fixture.store.on_put = on_put
        starting = asyncio.ensure_future(fixture.start())
        await is_reached.wait()
        starting.cancel()
        await asyncio.wait([starting])
        fixture.store.on_put = None
        assert fixture.claimant is not None
        await fixture.claimant.release_all()
        assert await fixture.newest(METADATA_SERIES) == other

    run(scenario)


def test_a_start_waits_while_the_bucket_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt is told; with room again the claim has the number that it would have had."""
    monkeypatch.setattr("millrace.broker.identity.claims.FULL_WAIT_S", 0)

    async def scenario() -> None:
        fixture = Fixture()

        async def refuse(key: str, content: bytes) -> None:
            if len(fixture.waits) < 3:
                raise StoreFull(key, "no room")

        fixture.store.on_put = refuse
        await fixture.start()
        assert [(what, attempts) for what, attempts, _ in fixture.waits] == [
            ("a claim", 1),
            ("a claim", 2),
            ("a claim", 3),
        ]
        assert [claim.number for claim in fixture.claims] == [1, 1]
        await fixture.start()
        assert [claim.number for claim in fixture.claims] == [2, 2]

    run(scenario)


def test_a_claim_that_the_log_does_not_know_is_refused() -> None:
    """Somebody claimed with another copy of this log: nothing is changed by the look, and what was there
    stays."""

    async def scenario() -> None:
        for series in SERIES:
            fixture = Fixture()
            await fixture.start()
            claim = fixture.claims[0]
            cluster = claim.cluster_id
            other = OwnerClaim(
                ClaimKind.CLAIMED, cluster, series, 2, incarnation(99), incarnation(1), 3, 1, 1
            )
            await fixture.store.put(other.key, [encode_claim(other)])
            fixture.store.puts.clear()
            node = await open_node(fixture.disk)
            before = node.publisher.image.offset
            what = "the metadata log" if series < 0 else "node 1"
            with pytest.raises(
                BindingRefused, match=f"claimed .*{what}.*knows nothing.*nothing was changed: start with"
            ):
                await check_claims(fixture.store, "the bucket", cluster, node.publisher.image, 1)
            assert node.publisher.image.offset == before
            await node.close()
            assert fixture.store.puts == []

    run(scenario)


def test_who_is_first_at_the_same_instant_has_it() -> None:
    """Another copy's claim lands between our look and our put: ours loses, changes nothing, and the start is
    refused."""

    async def scenario() -> None:
        fixture = Fixture()
        await fixture.start()
        cluster = fixture.claims[0].cluster_id
        other = OwnerClaim(ClaimKind.CLAIMED, cluster, 1, 2, incarnation(99), incarnation(1), 3, 1, 1)

        async def on_put(key: str, content: bytes) -> None:
            if key == other.key:
                await MemoryObjectStore.put(fixture.store, key, [encode_claim(other)])

        fixture.store.on_put = on_put
        claimed = r"was claimed for node 1 by incarnation .*number 2, at 1970-01-01 00:00:00 UTC by its clock"
        with pytest.raises(BindingRefused, match=claimed):
            await fixture.start()
        assert await fixture.newest(1) == other
        with pytest.raises(BindingRefused):
            await fixture.start()

    run(scenario)


def test_a_log_that_ends_below_a_claim_is_an_older_copy() -> None:
    """A release tells where the log ended; a copy that was taken before, and knows the incarnation, is
    refused by that."""

    async def scenario() -> None:
        fixture = Fixture()
        await fixture.start()
        node = await open_node(fixture.disk)
        claim, image = fixture.claims[1], node.publisher.image
        release = OwnerClaim(
            ClaimKind.RELEASED,
            claim.cluster_id,
            1,
            2,
            claim.incarnation,
            claim.incarnation,
            image.offset + 1,
            1,
            1,
        )
        await fixture.store.put(release.key, [encode_claim(release)])
        with pytest.raises(
            BindingRefused, match=f"released .*ended at offset {image.offset + 1}.*ends at {image.offset}"
        ):
            await check_claims(fixture.store, "the bucket", claim.cluster_id, image, 1)
        await node.close()

    run(scenario)


@pytest.mark.parametrize("fault", ["", "ignores-if-none-match", "refuses-if-none-match"])
def test_a_store_without_conditions(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is found out by trying, said once, and claims are put and read back: the next start goes on, a copy
    is refused."""

    async def scenario() -> None:
        async with BadS3(*[fault] if fault else []) as bad:
            store = await open_store(parse_address(bad.address), SystemClock())
            fixture = Fixture()
            kept = await are_conditions_kept(store, "the bucket", CLUSTER, incarnation(7))
            assert kept == (not fault)
            assert bad.objects == {}
            for number in (1, 2):
                await fixture.start(store, has_conditions=kept)
                assert [claim.number for claim in fixture.claims] == [number, number]
            copy = Fixture()
            copy.starts = 50
            with pytest.raises(BindingRefused, match="knows nothing"):
                await copy.start(store, has_conditions=kept)
            assert len(bad.objects) == 4
            await store.close()

    run(scenario)
    assert caplog.text.count("found by looking every few seconds") == bool(fault)


def test_without_conditions_what_is_there_stays(caplog: pytest.LogCaptureFixture) -> None:
    """The look before the put finds another's claim."""

    async def scenario() -> None:
        fixture = Fixture()
        await fixture.start()
        cluster = fixture.claims[0].cluster_id
        other = OwnerClaim(ClaimKind.CLAIMED, cluster, 1, 2, incarnation(99), incarnation(1), 3, 1, 1)
        await fixture.store.put(other.key, [encode_claim(other)])
        assert fixture.claimant is not None
        fixture.claimant.has_conditions = False
        await fixture.claimant.release_all()
        assert await fixture.newest(1) == other

    caplog.set_level(logging.INFO)
    run(scenario)
    assert "another has claimed since" in caplog.text
    assert "were not released" not in caplog.text


def test_what_the_controller_records() -> None:
    """The claim that stands is kept beside the one that follows it; numbers that do not follow, claims that
    are not known and millrace.version 0 are refused."""

    async def scenario() -> None:
        fixture = Fixture()
        await fixture.start()
        node = await open_node(fixture.disk)
        client = ControllerClient(node.channel, MetadataCache(node.publisher, node.cluster_id, 1), 1)
        one, two = incarnation(1), incarnation(2)
        for number, found, code in (
            (1, (1, one), ErrorCode.INVALID_REQUEST),
            (2, (-1, one), ErrorCode.INVALID_REQUEST),
            (2, (1, two), ErrorCode.FENCED_MEMBER_EPOCH),
        ):
            with pytest.raises(KafkaError) as refused:
                await client.claim_node(1, number, two, *found)
            assert refused.value.code == code
        await client.claim_node(1, 3, two, 2, one)  # a release has number 2
        assert node.publisher.image.claims.of(1) == (Claim(2, one), Claim(3, two))
        before = node.publisher.image.offset
        await client.claim_node(1, 3, two, 2, one)
        assert node.publisher.image.offset == before, "asked again, nothing is written"
        await node.close()

    run(scenario)


def test_a_series_is_listed_from_what_is_known() -> None:
    """Thousands of starts leave thousands of claims: a start lists the last few."""

    async def scenario() -> None:
        store = Store()
        for number in range(1, 40):
            claim = OwnerClaim(ClaimKind.CLAIMED, CLUSTER, 1, number, incarnation(number), NOBODY, 0, 0, 0)
            await store.put(claim.key, [encode_claim(claim)])
        listed: list[str] = []

        class Watched(MemoryObjectStore):
            async def list(self, prefix: str, after: str = "") -> object:  # type: ignore[override]
                async for entry in store.list(prefix, after):
                    listed.append(entry.key)
                    yield entry

        watched = Watched(HandClock())
        watched._objects = store._objects
        _, image = apply_records(EMPTY_IMAGE, [NodeClaimRecord(1, 39, incarnation(39))], 1, 1)
        newest = await read_newest_claim(watched, CLUSTER, 1, image.claims.highest(1))
        assert newest is not None
        assert (newest.number, len(listed)) == (39, 2)
        assert await read_newest_claim(watched, CLUSTER, 2) is None

    run(scenario)


# The bytes of a claim.

CLAIM = OwnerClaim(
    ClaimKind.RELEASED, CLUSTER, 7, 2**40, incarnation(5), incarnation(4), 2**33, 9, 1_700_000_000_000
)


def test_version_1_stays_readable_and_unchanged() -> None:
    """The claim in tests/golden is what is written today."""
    lines = GOLDEN.read_text(encoding="ascii").splitlines()
    golden = bytes.fromhex("".join(line.partition("#")[0] for line in lines))
    assert encode_claim(CLAIM) == golden
    assert decode_claim(golden, CLAIM.key) == CLAIM
    assert CLAIM.key == f"{CLUSTER}/owners/7/00000001099511627776"
    assert claim_key(CLUSTER, METADATA_SERIES, 1) == f"{CLUSTER}/owners/metadata/00000000000000000001"


def test_no_damaged_claim_passes() -> None:
    """Every byte is covered, every length; a sound claim under another key is none; the error names the
    key."""
    data = encode_claim(CLAIM)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(ClaimCorrupt, match=CLAIM.key):
            decode_claim(bytes(damaged), CLAIM.key)
        with pytest.raises(ClaimCorrupt):
            decode_claim(data[:place], CLAIM.key)
    with pytest.raises(ClaimCorrupt, match="it is the claim"):
        decode_claim(data, claim_key(CLUSTER, 7, 1))


def test_a_store_that_contradicts_itself_ends_a_claim() -> None:
    """It says that the first number is taken, and shows no claim: so many rounds, with pauses, and the key is
    named."""

    async def main() -> None:
        fixture, store = Fixture(), Contradicting(HandClock())
        store.is_refused = store.is_hidden = lambda key: "/owners/" in key
        with pytest.raises(
            StoreContradicts, match=r"/owners/.*a put is told that it exists, a read that there is no such"
        ):
            await fixture.start(store)
        times_s = [at_s for _, at_s in store.refused]
        assert len(times_s) == ROUNDS_MAX
        assert times_s[-1] - times_s[0] > 1

    run_simulation(lambda loop: main())
