"""What `millrace fsck` prints of its findings, and what it does when the store refuses to delete."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from millrace.broker.cli import fsck
from millrace.broker.cli.fsck import (
    SHOWN_MAX,
    Deletion,
    Outcome,
    abort_uploads,
    as_json,
    as_text,
    delete_orphans,
    earlier_time,
    finding_lines,
    newer_log,
    newer_owner,
)
from millrace.broker.inspection.bucket_check import Checked, Finding, Kind
from millrace.broker.inspection.opening import Inspected
from millrace.kraft.bucket.layout import PieceName, encode_newest, newest_key, piece_key, snapshot_key
from millrace.kraft.log.log_store import SnapshotId
from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import (
    Keys,
    ObjectEntry,
    ObjectStore,
    StoreDate,
    StoreDenied,
    StoreUnavailable,
)
from millrace.runtime.objectstore.address import StoreAddress, parse_address
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.keys import object_key
from millrace.wal.config import ObjectWalSettings
from millrace.wal.kind import WalPlace
from tests.broker.inspection.test_bucket_check import Lake
from tests.kraft.build import HandClock
from tests.kraft.test_replay import CLUSTER
from tests.patience import PATIENCE_S
from tests.sim.disk import SimDisk


def outcome(made: Lake, found: Checked) -> Outcome:
    return Outcome(
        Inspected(CLUSTER, 1, made.machine.image, "", None), found, {"orphans": "", "uploads": ""}, None
    )


def log_in(make: Callable[[], ObjectStore]) -> WalPlace:
    """A log of objects, where there is one; `make` a store for each who asks, who closes it."""

    async def opened(address: StoreAddress) -> ObjectStore:
        return make()

    return WalPlace(parse_address("0@mem://log"), SimDisk(), opened, Rand(b"place"), ObjectWalSettings())


def damaged() -> Outcome:
    """Four uploads: a block of the first is damaged, the second is longer than it was written, the fourth a
    copy of the third."""
    made = Lake()
    for start in range(0, 8, 2):
        made.upload((0, start, start + 2))
    made.bytes[0] = made.bytes[0][:60] + b"x" + made.bytes[0][61:]
    made.bytes[1] += b"x"
    made.bytes[3] = made.bytes[2]
    return outcome(made, made.check())


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell]


def test_the_table_names_stream_partition_and_offsets() -> None:
    """Of a damaged block, a gap and an overlap: the stream, whose it is, and the offsets; of a gap the
    reason, which is a sentence."""
    lines = [cells(line) for line in as_text(damaged()).splitlines()]
    stored = [line for line in lines if line and line[0] in ("damaged", "gap", "overlap")]
    assert [line[:5] for line in stored if line[0] == "damaged"] == [
        ["damaged", "0", "0", "t-0 data", "[0, 2)"]
    ]
    assert [line for line in stored if line[0] == "gap"] == [
        ["gap", "0", "t-0 data", "[2, 4)", "object 1 is not of the size that was written"],
        ["gap", "0", "t-0 data", "[6, 8)", "not in object 3, which metadata names for it"],
    ]
    [overlap] = [line for line in stored if line[0] == "overlap"]
    assert overlap[:6] == ["overlap", "3", "0", "t-0 data", "[4, 6)", "object 2 has them too"]
    assert lines[-1] == ["NOT sound: 5 findings"]


def test_json_names_the_partition_too() -> None:
    """Beside the stream's number."""
    found = json.loads(as_json(damaged()))
    assert {one["stream"] for one in found["list"] if one["stream_id"] >= 0} == {"t-0 data"}
    assert not found["sound"]


def test_a_stream_that_is_gone_is_said_to_be() -> None:
    """A block of a deleted topic's stream, in an object that others share."""
    found = [Finding(Kind.DAMAGED, "block", 1, "k", 99, 0, 2)]
    [_, line] = finding_lines(found, {})
    assert cells(line) == ["damaged", "1", "99", "no more in metadata", "[0, 2)", "block", "k"]


def test_harm_is_shown_where_not_all_is() -> None:
    """More orphans than are shown do not hide what is missing behind them."""
    orphans = [Finding(Kind.ORPHAN, "1 bytes", number, "k") for number in range(SHOWN_MAX)]
    lines = finding_lines([*orphans, Finding(Kind.MISSING, "gone", 999, "k")], {})
    assert lines[1].startswith("missing")
    assert lines[-1] == "... and 1 more: --json lists all"


def test_one_finding_is_not_findings() -> None:
    """Numbers and their nouns agree."""
    made = Lake()
    made.upload((0, 0, 2))
    found = made.check()
    found.findings.append(Finding(Kind.DAMAGED, "block", 0, "k"))
    text = as_text(outcome(made, found))
    assert text.endswith("\nNOT sound: 1 finding")
    assert "\n1 object, 1 block, " in text


def test_a_refused_deletion_is_told_with_the_findings() -> None:
    """The role may read and not delete: what was found is not lost to an error."""

    class Refusing(MemoryObjectStore):
        async def delete(self, keys: Sequence[str]) -> Keys:
            raise StoreDenied(keys[0], "AccessDenied")

    orphan = ObjectEntry("k", 10, 0)
    made, found = Lake(), Checked(orphans=[orphan])
    store, inspected = Refusing(SystemClock()), outcome(made, found).inspected

    async def newest() -> str:
        return ""

    told = asyncio.run(delete_orphans(Deletion(store, inspected, found, True, 0, 1, newest)))
    assert told == "1 orphan, 10 B; they could not be deleted, or not all: k: AccessDenied"


@pytest.mark.parametrize("sign", ["none", "object", "piece", "snapshot", "pointer", "epoch"])
def test_an_older_log_directory_deletes_and_aborts_nothing(sign: str) -> None:
    """What newer metadata names looks like an orphan to it, and like nobody's upload. Each sign of newer
    metadata in the bucket is enough; with none, or one of an epoch that was over before, both go."""

    async def scenario() -> None:
        made = Lake()
        made.upload((0, 0, 2))
        inspected = Inspected(CLUSTER, 1, made.machine.image, "", None)
        end, epoch = inspected.image.offset, inspected.image.epoch
        store = MemoryObjectStore(HandClock(0))
        orphan = object_key(CLUSTER, ObjectId(0))
        await store.put(orphan, [b"named by newer metadata"])
        await store.start_multipart(orphan)
        await store.put(piece_key(CLUSTER, PieceName(end, epoch, 0)), [b""])
        await store.put(piece_key(CLUSTER, PieceName(end + 9, epoch - 1, 0)), [b""])  # a replaced writer's
        signs = {
            "piece": (piece_key(CLUSTER, PieceName(end + 1, epoch, end)), b""),
            "snapshot": (snapshot_key(CLUSTER, SnapshotId(end + 1, epoch)), b""),
            "pointer": (newest_key(CLUSTER), encode_newest(SnapshotId(end + 1, epoch))),
            "epoch": (piece_key(CLUSTER, PieceName(end, epoch + 1, 0)), b""),
        }
        if sign in signs:
            await store.put(signs[sign][0], [signs[sign][1]])
        found = Checked(orphans=[ObjectEntry(orphan, 23, 0)])
        if sign == "object":
            found.findings.append(Finding(Kind.NEWER, "10 bytes", 7, "k"))
        newer = partial(newer_owner, store, inspected, found, log_in(lambda: MemoryObjectStore(HandClock(0))))
        deletion = Deletion(store, inspected, found, True, 0, 1, newer)
        told = [await act(deletion) for act in (delete_orphans, abort_uploads)]
        is_there = await store.head(orphan) is not None
        if sign == "none":
            assert "1 were deleted" in told[0]
            assert "1 were aborted" in told[1]
            assert not is_there
            assert not store.uploads
        else:
            assert all("older copy" in text for text in told), told
            assert is_there
            assert len(store.uploads) == 1

    asyncio.run(scenario())


def test_a_log_whose_store_is_away_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start waits for it; who asks for a deletion is told after a while, and nothing is deleted."""

    class Away(MemoryObjectStore):
        async def get_range(self, key: str, start: int, end: int) -> bytes:
            raise StoreUnavailable(key, "no route")

    monkeypatch.setattr(fsck, "LOG_ANSWERS_WITHIN_S", 0.05)
    told = asyncio.run(
        asyncio.wait_for(
            newer_log(log_in(lambda: Away(SystemClock())), outcome(Lake(), Checked()).inspected), PATIENCE_S
        )
    )
    assert "does not say within 0.05 s" in told


def test_orphans_age_by_the_stores_clock_where_this_machines_is_ahead() -> None:
    """A clock that is behind the store's is taken as it is, and so is one beside a store that tells no
    time."""

    class Dated(MemoryObjectStore):
        last_date: StoreDate | None = None

    async def scenario() -> None:
        store = Dated(SystemClock())
        assert earlier_time(store, 9_000) == 9_000
        store.last_date = StoreDate(5_000, asyncio.get_running_loop().time())
        assert 5_000 <= earlier_time(store, 900_000) < 65_000
        assert earlier_time(store, 4_000) == 4_000

    asyncio.run(scenario())
