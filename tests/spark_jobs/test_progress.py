"""What the names and the content of Spark's files say."""

from __future__ import annotations

import pytest

from millrace.spark_jobs.progress import Progress, moved_entry, positions_in, progress_of
from millrace.spark_jobs.refusal import Refused

ENTRY = 'v1\n{"batchWatermarkMs":0}\n{"a":{"0":5,"10":7},"b":{"0":1}}'


@pytest.mark.parametrize(
    ("offsets", "commits", "progress", "next_batch", "base"),
    [
        ([], [], Progress(None, False), 0, "sources/0/0"),
        (["0"], [], Progress(0, False), 0, "sources/0/0"),
        (["0"], ["0"], Progress(0, True), 1, "offsets/0"),
        (["9", "10", ".10.crc", "11.new"], ["9", "10"], Progress(10, True), 11, "offsets/10"),
        (["9", "10", "11"], ["9", "10", "11.tmp"], Progress(11, False), 11, "offsets/10"),
    ],
)
def test_how_far_spark_is(
    offsets: list[str], commits: list[str], progress: Progress, next_batch: int, base: str
) -> None:
    """Numbers are compared as numbers, and what is not whole is not counted."""
    found = progress_of(offsets, commits, "c")
    assert (found, found.next_batch, found.base) == (progress, next_batch, base)


@pytest.mark.parametrize(
    ("progress", "changing", "due"),
    [
        (Progress(None, False), None, (-1, -1)),
        (Progress(0, False), None, (-1, 0)),
        (Progress(4, True), None, (4, 4)),
        (Progress(5, False), None, (4, 5)),
        (Progress(4, True), 5, (4, 5)),  # the change was written down
        (Progress(5, True), 5, (4, 5)),  # and made, but for the word that it is
    ],
)
def test_what_the_table_should_have(progress: Progress, changing: int | None, due: tuple[int, int]) -> None:
    """The batch that is done, or the one that was begun."""
    assert progress.due(changing) == due


@pytest.mark.parametrize(
    ("offsets", "commits"), [(["1"], []), (["0"], ["1"]), ([], ["0"]), (["0", "5"], ["3"])]
)
def test_files_that_are_missing(offsets: list[str], commits: list[str]) -> None:
    """Are told; nothing is guessed."""
    with pytest.raises(Refused, match="the checkpoint c has lost files"):
        progress_of(offsets, commits, "c")


def test_positions() -> None:
    """Of both kinds of files, and written anew with the rest as it was."""
    assert positions_in(ENTRY, "f") == {"a": {0: 5, 10: 7}, "b": {0: 1}}
    assert positions_in('\0v1\n{"a":{"0":5}}', "f") == {"a": {0: 5}}
    assert moved_entry('\0v1\n{"a":{"0":5}}', {"a": {0: 6}}) == '\0v1\n{"a":{"0":6}}'
    moved = moved_entry(ENTRY, {"a": {0: 6}})
    assert moved.splitlines()[:2] == ENTRY.splitlines()[:2]
    assert positions_in(moved, "f") == {"a": {0: 6}}


@pytest.mark.parametrize("text", ["", "v1\n{}\n-", "v1\n{}\n[1]", 'v1\n{}\n{"a":1}', ENTRY[:-1]])
def test_positions_that_cannot_be_read(text: str) -> None:
    """Are told with the file's name."""
    with pytest.raises(Refused, match=r"f is not what Spark 4\.0 writes"):
        positions_in(text, "f")
