"""Broken batches, and records to blame, to Apache Kafka and to the broker where it judges records: the same
codes and record errors, but for differences that are named here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from millrace.protocol.error_codes import ErrorCode
from tests.compat.peer.apache_kafka import ApacheKafka
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.odd_batches import READABLE, odd_batches, readable_batches, record_error_batches, send_batch

DAY_MS = 86_400_000
WRONG_DELTAS = ("deltas twice", "deltas in the wrong order", "deltas with a gap", "negative delta")
WRONG_SIZES = ("negative size of a record", "size of a record too small")

# Kafka's code beside ours, and of which batches, by how their names begin and whether they are compressed
# (None: either).
KNOWN = (
    # A codec that fails, and numbers that are too long, are exceptions that nobody expected there.
    (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ("junk", "no bytes", "gzip", "snappy", "lz4", "zstd", "number of six"),
        None,
    ),
    # It takes the deltas for a reason to write the batch anew, and cannot; and does not look at them without
    # a codec.
    (ErrorCode.UNKNOWN_SERVER_ERROR, WRONG_DELTAS, True),
    (ErrorCode.NONE, WRONG_DELTAS, False),
    # It steps over keys and values of what it need not write anew, and does not see where they end.
    (ErrorCode.NONE, WRONG_SIZES, True),
)


def is_known(name: str, kafkas: int) -> bool:
    is_compressed = name.endswith(("gzip", "snappy", "lz4", "zstd"))
    return any(
        kafkas == code and name.startswith(names) and compressed in (None, is_compressed)
        for code, names, compressed in KNOWN
    )


Told = dict[str, tuple[int, tuple[int, ...]]]


def told_by(client: Client, topic: str, batches: Iterable[tuple[str, bytes]]) -> Told:
    """Of each batch the code, and the indexes of the records to blame."""
    told: Told = {}
    for name, batch in batches:
        answer = send_batch(client, topic, batch)
        told[name] = (answer.error_code, tuple(error.batch_index for error in answer.record_errors))
    return told


def told_of_all(address: str) -> tuple[Told, Told]:
    with Client(address) as client:
        client.create("odd")
        client.create("compacted", cleanup_policy="compact", message_timestamp_before_max_ms=DAY_MS)
        odd = told_by(client, "odd", [*odd_batches(), *readable_batches()])
        return odd, told_by(client, "compacted", record_error_batches())


def test_codes_are_kafkas_or_differ_for_a_reason_that_is_known(tmp_path: Path) -> None:
    """INVALID_RECORD wherever Kafka says so, and where it fails or takes what its own consumers cannot read;
    the same records to blame."""
    (tmp_path / "kafka").mkdir()
    settings = {"record.validation": "records"}
    with (
        LiveBroker(tmp_path / "millrace", settings, wal="64MiB") as broker,
        ApacheKafka(tmp_path / "kafka") as kafka,
    ):
        ours, our_errors = told_of_all(broker.address)
        theirs, their_errors = told_of_all(kafka.address)
    assert our_errors == their_errors
    assert {ours[name] for name in READABLE} == {(0, ())}
    differences = {name: code for name, (code, _) in theirs.items() if ours[name][0] != code}
    print(
        f"\n{len(ours) - len(differences)} of {len(ours)} batches have Kafka's code, {len(differences)} "
        "differ"
    )
    assert [name for name, code in differences.items() if not is_known(name, code)] == []
    assert {ours[name][0] for name in differences} == {ErrorCode.INVALID_RECORD}
