"""What the demo compares: of every partition, each record whole and in its order.

A *mark* is a hash of all that a producer gives a record: key, value, time and headers. A partition's chain
takes marks in, one after another, so it tells of any record that is missing, there twice, changed, or in
another place. The producer's side is in order of sending, a reader's in order of offsets: equal digests say
that partitions hold what was sent, once, as it was sent.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

MARK_BYTES = 16
Headers = Sequence[tuple[str, bytes]]
_SIZES = struct.Struct(">qqqq")
_HEADER_SIZES = struct.Struct(">qq")


def mark_of(key: bytes, value: bytes, time_ms: int, headers: Headers) -> bytes:
    found = hashlib.blake2b(_SIZES.pack(time_ms, len(key), len(value), len(headers)), digest_size=MARK_BYTES)
    found.update(key)
    found.update(value)
    for name, content in headers:
        encoded = name.encode()
        found.update(_HEADER_SIZES.pack(len(encoded), len(content)) + encoded + content)
    return found.digest()


class Digest:
    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0  # of values
        self._chains: dict[int, bytes] = {}

    def add(self, partition: int, mark: bytes, value_bytes: int) -> None:
        """The partition's next record."""
        self.count += 1
        self.bytes += value_bytes
        before = self._chains.get(partition, bytes(MARK_BYTES))
        self._chains[partition] = hashlib.blake2b(before + mark, digest_size=MARK_BYTES).digest()

    def __str__(self) -> str:
        chains = "/".join(f"{partition}={chain.hex()}" for partition, chain in sorted(self._chains.items()))
        return f"{self.count}:{self.bytes}:{chains}"
