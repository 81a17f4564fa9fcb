"""SortedMap against a dict, and that versions do not touch one another."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kraft.tables.sorted_map import CHUNK_MAX, SortedMap

KEYS = st.integers(0, 400)
CHANGES = st.lists(st.tuples(st.sampled_from(["set", "set", "set", "pop", "done"]), KEYS), max_size=400)


@settings(max_examples=60, deadline=None)
@given(CHANGES)
def test_a_map_is_a_dict_in_key_order(changes: list[tuple[str, int]]) -> None:
    """Any run of changes leaves what a dict would have, sorted, and every version that was frozen stays as it
    was."""
    model: dict[int, int] = {}
    edit = SortedMap[int, int]().edit()
    versions: list[tuple[SortedMap[int, int], dict[int, int]]] = []
    for number, (what, key) in enumerate(changes):
        if what == "set":
            edit[key] = model[key] = number
        elif what == "pop":
            assert edit.pop(key, None) == model.pop(key, None)
        else:
            versions.append((edit.done(), dict(model)))
        assert edit.get(key) == model.get(key)
        assert (key in edit) == (key in model)
    versions.append((edit.done(), model))
    for version, expected in versions:
        assert list(version.items()) == sorted(expected.items())
        assert len(version) == len(expected)
        assert list(version.items(200)) == [pair for pair in sorted(expected.items()) if pair[0] >= 200]
        assert version == SortedMap.of(expected)


@settings(max_examples=60, deadline=None)
@given(CHANGES)
def test_versions_are_equal_where_their_entries_are(changes: list[tuple[str, int]]) -> None:
    """However they came about: by many small changes or at once, whatever chunks they share."""
    model: dict[int, int] = {}
    edit = SortedMap[int, int]().edit()
    versions: list[tuple[SortedMap[int, int], dict[int, int]]] = []
    for what, key in changes:
        if what == "set":
            edit[key] = model[key] = key % 3
        elif what == "pop":
            edit.pop(key, None)
            model.pop(key, None)
        else:
            versions.append((edit.done(), dict(model)))
    versions += [(edit.done(), model), (SortedMap.of(model), model)]
    for one, entries in versions:
        assert [one == other for other, _ in versions] == [entries == others for _, others in versions]


def test_growing_keys_fill_chunks() -> None:
    """Ids that only grow make full chunks, and any part can be found."""
    whole = SortedMap.of({key: -key for key in range(10 * CHUNK_MAX)})
    assert len(whole._chunks) == 10
    assert whole[777] == -777
    assert whole.get(10 * CHUNK_MAX) is None
    assert list(whole.items(10 * CHUNK_MAX - 2)) == [(1278, -1278), (1279, -1279)]


def test_an_edit_that_changes_nothing_is_its_origin() -> None:
    """Nothing is copied for nothing."""
    origin = SortedMap.of({1: "a"})
    edit = origin.edit()
    assert edit.pop(2) is None
    assert edit.done() is origin


def test_a_change_copies_little() -> None:
    """One change among many entries leaves all other chunks shared."""
    origin = SortedMap.of({key: key for key in range(100 * CHUNK_MAX)})
    edit = origin.edit()
    edit[5_000] = 0
    after = edit.done()
    shared = sum(a is b for a, b in zip(origin._chunks, after._chunks, strict=True))
    assert shared == len(origin._chunks) - 1
    assert origin[5_000] == 5_000


def test_backwards_is_the_same_order_turned() -> None:
    """Within chunks and across them; an empty map has nothing."""
    assert list(reversed(SortedMap[int, int]())) == []
    many = SortedMap.of({number: number for number in range(3 * CHUNK_MAX + 1)})
    assert list(reversed(many)) == list(range(3 * CHUNK_MAX, -1, -1))
