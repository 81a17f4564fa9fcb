"""The golden buckets, one for each version of a header: they are read for ever, and today's writer still
makes the same bytes.

`tests/golden/object_wal_v*.txt` hold their objects, one a line: key and bytes. To make one anew, when the
format changes on purpose: `python -m tests.wal.object.test_golden 2 > tests/golden/object_wal_v2.txt`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.protocol.crc32c import crc32c
from millrace.runtime.rand import Rand
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark
from millrace.wal.object.log import identify
from tests.sim.loop import run_simulation
from tests.sim.objectstore import SimBucket, StoreFaults
from tests.wal.build import owner, payload
from tests.wal.object.build import copy_of, make_bucket, recover_wal, start_wal, store_on

GOLDEN = Path(__file__).parents[3] / "tests" / "golden"
WAL_IDS = {
    1: NO_WAL_ID,
    2: bytes(range(16)),
}  # by version of the header: what an owner brings for a log without one
STEADY = StoreFaults(latency_ms=(5, 5))


def lines_of(version: int) -> list[str]:
    return (GOLDEN / f"object_wal_v{version}.txt").read_text().splitlines()


async def make_bucket_of_owners(version: int) -> tuple[SimBucket, list[bytes]]:
    """A crash, a trim, an owner by reservation after a close; deletes are refused, so that nothing that was
    written is missing. In version 2 each owner knows metadata as it opens, and later metadata before each
    record."""
    bucket, sent = make_bucket(), []
    for epoch, fence in ((3, "conditional"), (4, "conditional"), (7, "reservation")):
        store = store_on(bucket, f"golden {epoch}", STEADY)
        store.delete = keep  # type: ignore[method-assign]
        known = MetadataMark(1000 * epoch, epoch) if version == 2 else NO_MARK
        who = replace(owner(epoch), new_wal_id=WAL_IDS[version], mark=known)
        wal, _, journal = await start_wal(bucket, who, store, fence=fence)
        for number in range(3):
            wal.see_metadata(MetadataMark(1000 * epoch + 10 * number + 10, epoch))
            data = payload(number, 40)
            record = wal.append(data[:20], data[20:], tail_crc=crc32c(data[20:]))
            await journal.reach(record.end)
            sent.append(data)
            if epoch == 4 and number == 0:
                await wal.trim(record.end)
                sent.clear()
        if epoch == 3:
            store.cut(takes_effect=False)
        else:
            await wal.close()
    return bucket, sent


async def keep(keys: object) -> list[str]:
    return []


def to_lines(bucket: SimBucket) -> list[str]:
    return [f"{key} {content.hex()}" for key, (content, _) in sorted(bucket.objects.items())]


def from_lines(lines: list[str]) -> SimBucket:
    bucket = make_bucket()
    for line in lines:
        key, data = line.split()
        bucket.put(key, bytes.fromhex(data))
    return bucket


@pytest.mark.parametrize("version", WAL_IDS)
def test_the_writer_makes_the_golden_bucket(version: int) -> None:
    """The same owners give the same objects as when the version was fixed; without an id, whatever they see,
    those of version 1."""
    bucket, _ = run_simulation(lambda loop: make_bucket_of_owners(version))
    assert to_lines(bucket) == lines_of(version)


@pytest.mark.parametrize("version", WAL_IDS)
def test_the_golden_bucket_is_read(version: int) -> None:
    """Its records come back, in order and whole, by either fence, and it names the metadata that was seen
    last."""

    async def run() -> None:
        _, expected = await make_bucket_of_owners(version)
        bucket = from_lines(lines_of(version))
        found = await identify(store_on(bucket), 1, Rand(b"golden"))
        assert found is not None
        assert (found.owner_epoch, found.mark) == (7, MetadataMark(7030, 7) if version == 2 else NO_MARK)
        for fence in ("conditional", "reservation"):
            _, records = await recover_wal(copy_of(bucket), 9, fence=fence)
            assert [bytes(record.payload) for record in records] == expected

    run_simulation(lambda loop: run())


if __name__ == "__main__":
    print("\n".join(to_lines(run_simulation(lambda loop: make_bucket_of_owners(int(sys.argv[1])))[0])))
