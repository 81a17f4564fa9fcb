"""How sequences of requests are compared; the brokers themselves are, by `make compare`."""

from __future__ import annotations

import pytest

from tests.compat.peer import sequences
from tests.compat.peer.sequences import KINDS, Sequence, compare


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_read(kind: str) -> None:
    """Each has a title of its own and lines that its dialogue knows; a reason is none of them."""
    found = sequences.read(kind)
    assert len({one.title for one in found}) == len(found) > 15
    verbs = {name.removeprefix("_") for name in vars(KINDS[kind]) if name.startswith("_")} | {"gone"}
    for one in found:
        for line in one.lines:
            first, *words = line.split()
            assert first in (*verbs, "wait") or words[0] in verbs, line


def test_the_first_difference_is_told_and_only_the_last_line_may_have_a_reason() -> None:
    """A difference before the last line is unexplained, and so is a reason that nothing needs."""
    lines = ("a", "b", "c")
    plain, meant = Sequence("t", lines, ""), Sequence("t", lines, "meant")
    same, last, middle = [["1"], ["2"], ["3"]], [["1"], ["2"], ["4"]], [["1"], ["5"], ["4"]]

    def told(one: Sequence, others: list[list[str]]) -> tuple[str, str] | None:
        found = compare(one, same, others)
        return None if found is None else (found.line, found.why)

    assert told(plain, same) is None
    assert told(plain, last) == ("c", "")
    assert told(plain, middle) == told(meant, middle) == ("b", "")
    assert told(meant, last) == ("c", "meant")
    assert told(meant, same) == ("c", "")
