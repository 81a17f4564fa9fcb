"""Replies that many clients are given alike, as bytes: made once, and given to all who ask the same while
what they tell of stays the same. Pure.

Not here: what makes two questions the same (the handler's `key`), encoding. Keeps true: a reply is given only
with the very objects that it was made from (`source`, immutable ones); at most REPLIES_MAX are kept, of
BYTES_MAX together, the newest.
"""

from __future__ import annotations

from collections.abc import Hashable

from millrace.broker.requests.request import Encoded
from millrace.protocol.primitives import Buffer

REPLIES_MAX = 4
BYTES_MAX = 8 << 20
HEAD_BYTES = 8  # the frame's length and the correlation id, which is each client's own
Source = tuple[object, ...]


class SharedReplies:
    def __init__(self) -> None:
        # the one that was made last at the end
        self._kept: dict[Hashable, tuple[Source, int, list[Buffer]]] = {}

    def find(self, key: Hashable, source: Source, correlation_id: int) -> Encoded | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        made_from, length, body = kept
        if not all(one is other for one, other in zip(made_from, source, strict=True)):
            del self._kept[key]
            return None
        return Encoded([_head(length, correlation_id), *body])

    def keep(self, key: Hashable, source: Source, reply: list[Buffer]) -> None:
        """`reply` is a whole frame."""
        frame = b"".join(reply)
        self._kept.pop(key, None)
        if len(frame) > BYTES_MAX:
            return
        self._kept[key] = source, len(frame) - 4, [memoryview(frame)[HEAD_BYTES:]]
        while (
            len(self._kept) > REPLIES_MAX or sum(length for _, length, _ in self._kept.values()) > BYTES_MAX
        ):
            del self._kept[next(iter(self._kept))]


def _head(length: int, correlation_id: int) -> bytes:
    return length.to_bytes(4, "big") + correlation_id.to_bytes(4, "big", signed=True)
