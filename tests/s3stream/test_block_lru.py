"""The least recently used block goes first, by bytes."""

from __future__ import annotations

from millrace.s3stream.block_lru import BlockLru


def test_what_goes_and_what_stays() -> None:
    """A use saves a block, a look does not; what is evicted is given back."""
    lru: BlockLru[str, str] = BlockLru(100)
    assert lru.put("a", "A", 40) == []
    assert lru.put("b", "B", 40) == []
    assert lru.get("a") == "A"
    assert "b" in lru
    assert lru.put("c", "C", 40) == ["B"]
    assert repr(lru) == "lru 80B of 100B: a:40B c:40B"
    assert (lru.get("b"), lru.evicted_count) == (None, 1)


def test_what_has_served_its_purpose_goes_first() -> None:
    """A demoted value goes before older ones, unless it is used again."""
    lru: BlockLru[str, str] = BlockLru(100)
    for key in "abcd":
        lru.put(key, key, 25)
    for key in "dcx":
        lru.demote(key)
    assert lru.get("c") == "c"
    assert lru.put("e", "e", 50) == ["d", "a"]


def test_a_value_larger_than_the_bound_is_kept_alone() -> None:
    """The block a reader waits for is kept however large; it goes with the next one."""
    lru: BlockLru[str, str] = BlockLru(100)
    lru.put("a", "A", 40)
    assert lru.put("huge", "H", 400) == ["A"]
    assert (lru.get("huge"), lru.size_bytes) == ("H", 400)
    assert lru.put("b", "B", 10) == ["H"]
    assert lru.size_bytes == 10


def test_replaced_and_dropped_values_are_not_charged() -> None:
    """Bytes are those of what is kept now."""
    lru: BlockLru[str, str] = BlockLru(100)
    lru.put("a", "A", 40)
    assert lru.put("a", "A2", 70) == []
    assert (lru.get("a"), lru.size_bytes, len(lru)) == ("A2", 70, 1)
    assert (lru.drop("a"), lru.drop("a"), lru.size_bytes) == ("A2", None, 0)
    lru.put("b", "B", 10)
    lru.drop_all()
    assert (len(lru), lru.size_bytes, lru.get("b")) == (0, 0, None)


def test_what_is_on_its_way_has_its_room() -> None:
    """Reserved bytes make others go before the value comes, and count until they are released."""
    lru: BlockLru[str, str] = BlockLru(100)
    for key in "abc":
        lru.put(key, key, 30)
    assert lru.reserve(50) == ["a", "b"]
    assert (lru.size_bytes, lru.reserved_bytes) == (30, 50)
    assert lru.put("d", "d", 30) == ["c"]
    lru.release(50)
    assert lru.put("e", "e", 70) == []
    assert lru.reserve(500) == ["d", "e"], "what comes may be larger than all"
