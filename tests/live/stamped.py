"""Batches whose header says what a test wants of their timestamps and of what clients leave unset, whatever
their records say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.protocol.batches import FROM_CRC, Codec, seal_batch
from millrace.protocol.compression import compress
from millrace.protocol.records import encode_record


@dataclass(frozen=True, slots=True)
class Unset:
    """The fields of a header that a client without idempotence has nothing to say in."""

    base_offset: int = 0
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1


def stamped(
    base: int,
    largest: int,
    times: Sequence[int],
    codec: Codec = Codec.NONE,
    value: bytes | None = b"v",
    unset: Unset = Unset(),
) -> bytes:
    """One batch of a record a time. `base`, `largest`: what its header tells."""
    payload = b"".join(encode_record(delta, time - base, None, value) for delta, time in enumerate(times))
    if codec is not Codec.NONE:
        payload = compress(codec, payload)
    who = unset.producer_id, unset.producer_epoch, unset.sequence
    body = FROM_CRC.pack(codec, len(times) - 1, base, largest, *who, len(times))
    return seal_batch(unset.base_offset, unset.leader_epoch, body, payload)


# What clients write where they have nothing to say, and what else somebody might.
UNSET_BY_CLIENTS = {
    "Java, kafka-go: all -1": Unset(),
    "franz-go, aiokafka: sequence 0": Unset(sequence=0),
    "kafka-python: leader epoch 0": Unset(leader_epoch=0),
    "Sarama: both": Unset(leader_epoch=0, sequence=0),
    "an offset of its own": Unset(base_offset=7),
    "an offset below 0": Unset(base_offset=-1),
    "an epoch without a producer": Unset(producer_epoch=0, sequence=0),
    "a sequence without a producer": Unset(sequence=5),
    "a leader epoch that is to come": Unset(leader_epoch=1000),
    "producer 0 of epoch 0": Unset(producer_id=0, producer_epoch=0, sequence=0),
    "a producer without an epoch": Unset(producer_id=5, producer_epoch=-1, sequence=0),
    "a producer without a sequence": Unset(producer_id=5, producer_epoch=0, sequence=-1),
    "another producer below 0": Unset(producer_id=-2),
}


# What headers say, by (base, largest, times), in milliseconds around `now`: each has to be stored and found
# as Apache Kafka does.
def headers_of_clients(now: int) -> dict[str, tuple[int, int, list[int]]]:
    return {
        "librdkafka, no timestamps: largest 0": (-1, 0, [-1, -1, -1]),
        "no timestamps, and none told": (-1, -1, [-1, -1, -1]),
        "librdkafka, the first without one": (-1, now - 5, [-1, now - 5]),
        "the first without one, largest left out": (-1, 0, [-1, now - 5, now - 7]),
        "Sarama to 1.45.0: largest left out": (now - 10, -1, [now - 10, now - 5]),
        "largest before the first": (now - 10, now - 20, [now - 10, now - 5]),
        "kafka-go, before 1970: largest 0": (-5000, 0, [-5000, -4000]),
        "kafka-python, before 1970": (-5000, -4000, [-5000, -4000]),
        "times that fall, largest left out": (now, -1, [now - 5, now - 9]),
        "the epoch itself": (0, 0, [0, 0]),
        "the last without one": (now - 3, now - 3, [now - 3, -1]),
    }
