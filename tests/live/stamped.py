"""Batches whose header says of their timestamps what a test wants, whatever their records say."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.protocol.batches import FROM_CRC, Codec, seal_batch
from millrace.protocol.compression import compress
from millrace.protocol.records import encode_record


def stamped(
    base: int, largest: int, times: Sequence[int], codec: Codec = Codec.NONE, value: bytes | None = b"v"
) -> bytes:
    """One batch of a record a time. `base`, `largest`: what its header tells."""
    payload = b"".join(encode_record(delta, time - base, None, value) for delta, time in enumerate(times))
    if codec is not Codec.NONE:
        payload = compress(codec, payload)
    body = FROM_CRC.pack(codec, len(times) - 1, base, largest, -1, -1, -1, len(times))
    return seal_batch(0, -1, body, payload)


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
