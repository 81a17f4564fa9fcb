"""The contract, kept by each kind of log: a ring on a disk, objects fenced in either way, and a third kind
made for this test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import AddressError, StoreAddress, parse_address
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.rand import Rand
from millrace.wal.block.device import identify as identify_block
from millrace.wal.block.kind import BLOCK
from millrace.wal.block.log import BlockWal
from millrace.wal.errors import WalFenced
from millrace.wal.identity import NO_WAL_ID, WalIdentity
from millrace.wal.kind import WalPlace, WalWords
from millrace.wal.log import WalOwner, WriteAheadLog
from millrace.wal.object.kind import OBJECT
from millrace.wal.object.log import ObjectWal
from millrace.wal.object.log import identify as identify_objects
from millrace.wal.opening import OPENERS, identify_wal, kind_of, open_wal
from tests.sim.disk import SimDisk, drop
from tests.sim.loop import run_simulation
from tests.sim.objectstore import SimBucket, SimObjectStore, StoreFaults
from tests.wal import build
from tests.wal.contract import CHECKS, Yard
from tests.wal.object.build import QUICK, StillClock, copy_of, make_bucket, small_settings, store_on
from tests.wal.object.build import open_wal as open_object_wal
from tests.wal.shelf.log import SHELF, SHELVES, Shelf, identify_shelf, open_shelf

UNEVEN = StoreFaults(latency_ms=(1, 150))


class BlockYard:
    record_bytes_max = 40 * build.KIB

    def __init__(self, disk: SimDisk | None = None, fencing: str = "auto") -> None:
        self._disk = disk or SimDisk(hops=3)
        self._fencing = fencing

    async def open(self, owner: WalOwner) -> WriteAheadLog:
        settings, incarnation = build.small_settings(fencing=self._fencing), bytes([owner.epoch % 256]) * 16
        if self._fencing == "claim" and owner.new_wal_id == NO_WAL_ID:
            owner = replace(owner, new_wal_id=bytes(range(16)))
        return await BlockWal.open(self._disk, build.PATH, settings, owner, incarnation=incarnation)

    async def identify(self) -> WalIdentity:
        settings = build.small_settings(fencing=self._fencing)
        return found(await identify_block(self._disk, build.PATH, settings))

    def crash(self) -> None:
        self._disk = self._disk.restart(drop)

    def survivor(self) -> BlockYard:
        return BlockYard(self._disk.restart(drop), self._fencing)


class ObjectYard:
    record_bytes_max = 40 * build.KIB

    def __init__(self, fence: str, bucket: SimBucket | None = None, faults: StoreFaults = QUICK) -> None:
        self._fence = fence
        self._faults = faults
        self._bucket = bucket or make_bucket()
        self._stores: list[SimObjectStore] = []

    async def open(self, owner: WalOwner) -> WriteAheadLog:
        store = store_on(self._bucket, f"store {owner.epoch}", self._faults)
        self._stores.append(store)
        return await open_object_wal(self._bucket, owner, store, fence=self._fence)

    async def identify(self) -> WalIdentity:
        store = store_on(self._bucket, "identify", self._faults)
        return found(await identify_objects(store, build.owner().node_id, Rand(b"identify")))

    def crash(self) -> None:
        self._stores[-1].cut(takes_effect=False)

    def survivor(self) -> ObjectYard:
        return ObjectYard(self._fence, copy_of(self._bucket), self._faults)


class ShelfYard:
    """A shelf has no writes under way: what it took is there."""

    record_bytes_max = (256 * build.KIB) // 3
    numbers = itertools.count()

    def __init__(self, shelf: Shelf | None = None) -> None:
        self._name = f"yard {next(self.numbers)}"
        if shelf is not None:
            SHELVES[self._name] = shelf

    async def open(self, owner: WalOwner) -> WriteAheadLog:
        return await open_shelf(place(f"0@shelf://{self._name}?capacity=262144"), owner)

    async def identify(self) -> WalIdentity:
        return found(await identify_shelf(place(f"0@shelf://{self._name}"), build.owner().node_id))

    def crash(self) -> None:
        pass

    def survivor(self) -> ShelfYard:
        shelf = SHELVES[self._name]
        return ShelfYard(replace(shelf, records=[*shelf.records]))


def found(identity: WalIdentity | None) -> WalIdentity:
    assert identity is not None, "there is a log"
    return identity


YARDS: dict[str, Callable[[], Yard]] = {
    "block": BlockYard,
    "block, claimed": lambda: BlockYard(fencing="claim"),
    "object": lambda: ObjectYard("conditional"),
    "object, reserved": lambda: ObjectYard("reservation"),
    "object, put twice": lambda: ObjectYard("conditional", faults=UNEVEN),
    "shelf": ShelfYard,
}


def place(text: str, store: ObjectStore | None = None, disk: SimDisk | None = None) -> WalPlace:
    async def open_store(address: StoreAddress) -> ObjectStore:
        assert store is not None, "this log asks for no store"
        return store

    address = parse_address(text)
    if address.scheme == "shelf":
        settings: object = SHELF.read_settings(WalWords(address.options, "never", "refuse"))
    else:
        settings = build.small_settings() if kind_of(address) is BLOCK else small_settings()
    return WalPlace(address, disk or SimDisk(), open_store, Rand(b"place"), settings)


# Claims are refused to a log without an identity: test_claims.py.
NOT_OF_CLAIMS = "a_log_without_an_identity_names_no_metadata"


@pytest.mark.parametrize(
    ("check", "kind"),
    [
        pytest.param(check, kind, id=f"{check.__name__}-{kind}")
        for check in CHECKS
        for kind in YARDS
        if (check.__name__, kind) != (NOT_OF_CLAIMS, "block, claimed")
    ],
)
def test_the_contract_is_kept(kind: str, check: Callable[[Yard], Awaitable[None]]) -> None:
    """Each kind of log passes each check of the contract."""
    run_simulation(lambda loop: _run(check, YARDS[kind]()))


async def _run(check: Callable[[Yard], Awaitable[None]], yard: Yard) -> None:
    await check(yard)


def test_a_third_kind_is_one_folder_and_one_line() -> None:
    """A scheme added to the table is opened by its address, as every other is; without the line the address
    is refused by name."""

    async def run() -> None:
        here = place(f"0@shelf://third {next(ShelfYard.numbers)}")
        with pytest.raises(AddressError, match="shelf"):
            await open_wal(here, build.owner(1))
        OPENERS["shelf"] = lambda address: SHELF
        try:
            assert not await identify_wal(here, 1)
            wal = await open_wal(here, build.owner(1))
            assert [record async for record in wal.recover()] == []
            assert await identify_wal(here, 1)
            with pytest.raises(WalFenced):
                await open_wal(here, build.owner(1))
        finally:
            del OPENERS["shelf"]

    asyncio.run(run())


class Unclosed(MemoryObjectStore):
    """Outlives the log that had it."""

    async def close(self) -> None:
        pass


def test_an_address_says_which_kind_it_is() -> None:
    """A file is a ring; a folder, by its slash or by name, a bucket and memory hold objects and nothing else;
    any other `kind` is refused."""
    for text, kind in (
        ("0@file:///wal", BLOCK),
        ("0@file:///wal/", OBJECT),
        ("0@file:///wal?kind=object", OBJECT),
        ("0@file:///wal/?kind=block", BLOCK),
        ("0@s3://bucket", OBJECT),
        ("0@mem://", OBJECT),
    ):
        assert kind_of(parse_address(text)) is kind, text
    with pytest.raises(AddressError, match="kind=ring"):
        kind_of(parse_address("0@file:///wal?kind=ring"))
    for text in ("0@s3://bucket?kind=block", "0@mem://?kind=block"):
        with pytest.raises(AddressError, match="kind=block is not object"):
            kind_of(parse_address(text))


@pytest.mark.parametrize(
    ("text", "hedge", "is_on"),
    [
        ("0@mem://", "auto", True),
        ("0@mem://", "off", False),
        ("0@file:///data/wal/", "auto", False),
        ("0@file:///data/wal/", "on", True),
    ],
)
def test_a_directory_is_not_written_twice_unasked(text: str, hedge: str, is_on: bool) -> None:
    """A second write to the same disk would be late for the same reason; over a network both are
    independent."""

    async def run() -> None:
        here = place(text, Unclosed(StillClock()))
        wal = await open_wal(replace(here, settings=small_settings(hedge=hedge)), build.owner(1))
        assert isinstance(wal, ObjectWal)
        for _ in range(8):
            wal.hedging.on_uploaded(100.0)
        assert (wal.hedging.early_ms is not None) == is_on

    asyncio.run(run())


@pytest.mark.parametrize("text", ["0@file:///data/wal", "0@mem://"])
def test_an_address_opens_its_kind_and_knows_if_it_was_used(text: str) -> None:
    """Before the first open the place is unused, after it was closed used, whichever kind of log it holds."""

    async def run() -> None:
        here = place(text, Unclosed(StillClock()), SimDisk())
        assert not await identify_wal(here, 1)
        wal = await open_wal(here, build.owner(1))
        assert isinstance(wal, ObjectWal if "mem" in text else BlockWal)
        assert [record async for record in wal.recover()] == []
        await wal.close()
        assert await identify_wal(here, 1)

    asyncio.run(run())
