"""Chance, handed down and split by name, so that a run can be replayed from one seed."""

from __future__ import annotations

import hashlib
import os
import random


class Rand:
    """A seeded source. `split(name)` gives an independent one whose sequence depends on seed and name
    alone."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._random = random.Random(seed)

    @staticmethod
    def from_system() -> Rand:
        return Rand(os.urandom(32))

    def split(self, name: str) -> Rand:
        return Rand(hashlib.sha256(self._seed + name.encode()).digest())

    def uuid(self) -> bytes:
        """16 bytes of a version 4 UUID, never Kafka's reserved ones (zero, one) and never beginning with a
        dash in base64."""
        raw = bytearray(self._random.randbytes(16))
        raw[6] = (raw[6] & 0x0F) | 0x40
        raw[8] = (raw[8] & 0x3F) | 0x80
        if raw[0] >> 2 == 0b111110:
            raw[0] &= 0x7F
        return bytes(raw)

    def below(self, bound: int) -> int:
        """What `randrange` draws, in a third of its time. Raises ValueError where nothing is below."""
        if bound < 1:
            raise ValueError(f"nothing is below {bound}")
        draw, bits = self._random.getrandbits, bound.bit_length()
        while (drawn := draw(bits)) >= bound:
            pass
        return drawn

    def fraction(self) -> float:
        return self._random.random()
