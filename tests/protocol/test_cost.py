"""What decoding costs: memory as protocol/compile.py states it, and steps in proportion to the bytes."""

from __future__ import annotations

from functools import partial

import pytest

from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import Codec
from millrace.protocol.compile import decoder, encoder
from millrace.protocol.records import Record, iter_records
from tests.fuzz.cost import DECODED_FACTOR, count_steps, peak_bytes
from tests.protocol.crowds import MESSAGES, crowds

COUNT = 1000


def factors(part: int, parts: int) -> dict[str, float]:
    """Memory by the message's bytes, of every crowd of a part of all messages."""
    found = {}
    for kind, version in MESSAGES[part::parts]:
        decode = decoder(kind, version)
        for name, message in crowds(kind, version, COUNT):
            raw = encoder(kind, version)(message)
            decode(raw, 0)
            # The least of a few: another thread of the process may allocate meanwhile.
            peaks = (peak_bytes(partial(decode, raw, 0)) / len(raw) for _ in range(3))
            least = next(peaks)
            while least > DECODED_FACTOR and (again := next(peaks, None)) is not None:
                least = min(least, again)
            found[f"{kind.__name__} v{version} {name}"] = least
    return found


@pytest.mark.parametrize("part", range(4))
def test_no_message_takes_more_memory_than_stated(part: int) -> None:
    """Each array of each message, full of what is smallest."""
    found = factors(part, 4)
    assert len(found) > 100
    assert {name: factor for name, factor in found.items() if factor > DECODED_FACTOR} == {}


def test_the_stated_memory_is_the_real_one() -> None:
    """The bound is near to what the worst message takes."""
    (worst,) = (
        pair for pair in MESSAGES if pair[0].__name__ == "StreamsGroupHeartbeatRequest" and pair[1] == 1
    )
    message = dict(crowds(*worst, COUNT))["topology.subtopologies.copartition_groups"]
    raw = encoder(*worst)(message)
    decoder(*worst)(raw, 0)
    assert peak_bytes(lambda: decoder(*worst)(raw, 0)) > 0.95 * DECODED_FACTOR * len(raw)


def test_twice_the_elements_take_twice_the_steps() -> None:
    """Each array of each message: no decoder looks at an element for the sake of another."""
    found = {}
    for kind, version in MESSAGES:
        decode = decoder(kind, version)
        pairs = zip(crowds(kind, version, 50), crowds(kind, version, 100), strict=True)
        for (name, once), (_, twice) in pairs:
            short, long = (encoder(kind, version)(message) for message in (once, twice))
            decode(short, 0)
            first, second = count_steps(partial(decode, short, 0)), count_steps(partial(decode, long, 0))
            if second > 2 * first:
                found[f"{kind.__name__} v{version} {name}"] = first, second
    assert found == {}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_are_held_one_at_a_time(codec: Codec) -> None:
    """Walking a batch holds its payload, twice while it is unpacked, and one record, however many are in
    it."""
    batch = memoryview(build_batch([Record(None, b"") for _ in range(20_000)], codec=codec))
    payload_bytes = len(build_batch([Record(None, b"") for _ in range(20_000)])) - 61
    peak = peak_bytes(lambda: sum(1 for _ in iter_records(batch)))
    assert peak < 3 * payload_bytes + (64 << 10)


def test_a_records_headers_take_what_is_stated() -> None:
    """One of two bytes, its key empty and its value missing, is a pair here: at most 34 times the record."""
    batch = memoryview(build_batch([Record(None, None, headers=[(b"", None)] * 20_000)]))
    assert 28 * len(batch) < peak_bytes(lambda: list(iter_records(batch))) < 36 * len(batch)
