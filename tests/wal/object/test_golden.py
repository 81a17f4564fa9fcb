"""The golden bucket of version 1: it is read for ever, and today's writer still makes the same bytes.

`tests/golden/object_wal_v1.txt` holds its objects, one a line: key and bytes. To make it anew, when the format changes on purpose:
`python -m tests.wal.object.test_golden > tests/golden/object_wal_v1.txt`.
"""

from __future__ import annotations

from pathlib import Path

from millrace.protocol.crc32c import crc32c
from tests.sim.loop import run_simulation
from tests.sim.objectstore import SimBucket, StoreFaults
from tests.wal.build import payload
from tests.wal.object.build import copy_of, make_bucket, recover_wal, start_wal, store_on

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "object_wal_v1.txt"
STEADY = StoreFaults(latency_ms=(5, 5))


async def make_bucket_of_owners() -> tuple[SimBucket, list[bytes]]:
    """A crash, a trim, an owner by reservation after a close; deletes are refused, so that nothing that was written is missing."""
    bucket, sent = make_bucket(), []
    for epoch, fence in ((3, "conditional"), (4, "conditional"), (7, "reservation")):
        store = store_on(bucket, f"golden {epoch}", STEADY)
        store.delete = keep  # type: ignore[method-assign]
        wal, _, journal = await start_wal(bucket, epoch, store, fence=fence)
        for number in range(3):
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


def test_the_writer_makes_the_golden_bucket() -> None:
    """The same owners give the same objects as when version 1 was fixed."""
    bucket, _ = run_simulation(lambda loop: make_bucket_of_owners())
    assert to_lines(bucket) == GOLDEN.read_text().splitlines()


def test_the_golden_bucket_is_read() -> None:
    """Its records come back, in order and whole, by either fence."""

    async def run() -> None:
        _, expected = await make_bucket_of_owners()
        bucket = from_lines(GOLDEN.read_text().splitlines())
        for fence in ("conditional", "reservation"):
            _, records = await recover_wal(copy_of(bucket), 9, fence=fence)
            assert [bytes(record.payload) for record in records] == expected

    run_simulation(lambda loop: run())


if __name__ == "__main__":
    print("\n".join(to_lines(run_simulation(lambda loop: make_bucket_of_owners())[0])))
