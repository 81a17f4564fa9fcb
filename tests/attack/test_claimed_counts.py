"""Batches that claim more records than they can hold, or that really span thousands of millions of offsets:
what others pay for them."""

from __future__ import annotations

from pathlib import Path

from millrace.protocol.batches import RECORD_BYTES_MIN, Codec
from millrace.protocol.error_codes import ErrorCode
from tests.attack import IS_FULL, SLACK
from tests.attack.bystander import Bystander, produce_one
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.odd_batches import batch_of, send_batch

INT32_MAX = (1 << 31) - 1
BATCH_COUNT = 3000 if IS_FULL else 300
WIDE_COUNT = 60 if IS_FULL else 12
SLOWEST_S = 2.0 * SLACK
CLAIM_S = 0.2  # of the processor for one of them: the attack is as short as they are few
ZSTD_BLOCK_BYTES = 128 << 10


def run_of_zeros(count: int) -> bytes:
    """A zstd frame of run-length blocks that comes to as much as `count` of the smallest records have."""
    blocks = -(-count * RECORD_BYTES_MIN // ZSTD_BLOCK_BYTES)
    block = (1 << 1 | ZSTD_BLOCK_BYTES << 3).to_bytes(3, "little") + b"\0"
    last = (1 | 1 << 1 | ZSTD_BLOCK_BYTES << 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x38" + block * (blocks - 1) + last


def object_count(broker: LiveBroker) -> int:
    """How many objects there are, or were begun."""
    metrics = broker.metrics()
    return int(
        sum(
            metrics[f'millrace_metadata_objects{{state="{state}"}}']
            for state in ("prepared", "committed", "pending_deletion")
        )
    )


def test_batches_that_claim_too_much_are_refused(tmp_path: Path) -> None:
    """Batches of 121 bytes that claim 2^31 - 1 records, by each codec: INVALID_RECORD for each, no object is
    made, and another client's produce goes on."""
    with LiveBroker(tmp_path, wal="256MiB", is_warm=True) as broker, Client(broker.address) as client:
        client.create("odd")
        client.create("other")
        before = object_count(broker)
        busy_s = broker.cpu_seconds()
        with Bystander(broker, produce_one("other")) as bystander:
            codes = {
                send_batch(client, "odd", batch_of(b"\x1f" * 60, INT32_MAX, n % 5)).error_code
                for n in range(BATCH_COUNT)
            }
        busy_s = broker.cpu_seconds() - busy_s
        made = object_count(broker) - before
        print(
            f"\n{BATCH_COUNT} claims: {busy_s:.2f} s of the processor, codes {codes}, {made} objects, "
            f"bystander {bystander.slowest_s * 1e3:.0f} ms"
        )
        assert codes == {ErrorCode.INVALID_RECORD}
        assert made <= 1
        assert bystander.slowest_s < SLOWEST_S
        assert busy_s / BATCH_COUNT < CLAIM_S


def test_an_odd_range_costs_others_no_object(tmp_path: Path) -> None:
    """Batches of half a megabyte that may really hold 2^31 - 1 records each are taken where only headers are
    judged; each fills an index row of its own, and no upload begins before its time."""
    batch = batch_of(run_of_zeros(INT32_MAX), INT32_MAX, Codec.ZSTD)
    with LiveBroker(tmp_path, wal="256MiB", is_warm=True) as broker, Client(broker.address) as client:
        client.create("wide", record_validation="header")
        client.create("other")
        before = object_count(broker)
        busy_s = broker.cpu_seconds()
        with Bystander(broker, produce_one("other")) as bystander:
            answers = [send_batch(client, "wide", batch) for _ in range(WIDE_COUNT)]
        busy_s = broker.cpu_seconds() - busy_s
        made = object_count(broker) - before
        print(
            f"\n{WIDE_COUNT} wide: {busy_s:.2f} s of the processor, {made} objects, bystander "
            f"{bystander.slowest_s * 1e3:.0f} ms"
        )
        assert [answer.error_code for answer in answers] == [0] * WIDE_COUNT
        assert made <= 1
        assert bystander.slowest_s < SLOWEST_S
        assert busy_s / WIDE_COUNT < CLAIM_S
        values = client.read("other")
        with broker.cold_reads(), Client(broker.address) as again:
            end = again.offset("wide", -1)
            assert end == WIDE_COUNT * INT32_MAX
            for number in range(WIDE_COUNT):
                place = ("wide", 0, number * INT32_MAX + 5)
                records = again.fetch([place])["wide", 0].records
                assert records is not None
                assert int.from_bytes(bytes(records[:8]), "big") == number * INT32_MAX
            assert again.read("other") == values
