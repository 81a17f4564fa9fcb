"""Bytes of a reply that many clients are given alike: each with its own number, and only while what they tell
of stays the same."""

from __future__ import annotations

from millrace.broker.requests.shared_replies import BYTES_MAX, REPLIES_MAX, SharedReplies

FRAME = [b"\x00\x00\x00\x09\x00\x00\x00\x01", b"body."]


def test_each_client_has_its_own_number() -> None:
    """The same body behind a head of its own."""
    shared, source = SharedReplies(), (object(),)
    assert shared.find("key", source, 7) is None
    shared.keep("key", source, list(FRAME))
    for number in (7, -1):
        found = shared.find("key", source, number)
        assert found is not None
        assert b"".join(found) == b"\x00\x00\x00\x09" + number.to_bytes(4, "big", signed=True) + b"body."
    assert shared.find("other", source, 7) is None


def test_what_has_changed_is_not_given() -> None:
    """Equal is not the same: an image that was replaced is asked anew."""
    shared = SharedReplies()
    shared.keep("key", ([], 1), list(FRAME))
    assert shared.find("key", ([], 1), 7) is None


def test_few_are_kept() -> None:
    """The newest of them, of so many bytes together; one that is larger alone is not."""
    shared, source = SharedReplies(), (object(),)
    for number in range(REPLIES_MAX + 1):
        shared.keep(number, source, list(FRAME))
    kept = [number for number in range(REPLIES_MAX + 1) if shared.find(number, source, 1) is not None]
    assert kept == list(range(1, REPLIES_MAX + 1))
    shared.keep("half", source, [bytes(BYTES_MAX // 2 + 10)])
    shared.keep("other half", source, [bytes(BYTES_MAX // 2 + 10)])
    assert shared.find("half", source, 1) is None
    assert shared.find("other half", source, 1) is not None
    shared.keep("large", source, [bytes(BYTES_MAX + 1)])
    assert shared.find("large", source, 1) is None
