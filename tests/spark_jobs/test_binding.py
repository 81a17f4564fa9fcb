"""The two files that bind a checkpoint to its table, its cluster and its topics:
docs/formats/pipeline_binding.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.spark_jobs.binding import (
    Binding,
    BoundTopic,
    Change,
    ParkedTopic,
    TableMark,
    decode_binding,
    decode_mark,
    encode_binding,
    encode_mark,
)
from millrace.spark_jobs.refusal import Refused

GOLDEN = Path(__file__).parent.parent / "golden"
BINDING = Binding(
    "5e1f",
    "lD0Tm_KnSi2jA5KgPIQ0tQ",
    "file:/lake/c",
    "file:/lake/t",
    {"orders": BoundTopic("vfNoa4JKR8aLQWkrnQ9QWw", 3)},
    {"shop.a": ParkedTopic("AAAAAAAAQACAAAAAAAAAAA", 0, {0: 7, 10: 1 << 40})},
    Change(8, {"orders": {0: 5}}),
)
MARK = TableMark("5e1f", "file:/lake/c")


@pytest.mark.parametrize("binding", [BINDING, Binding("5e1f", "", "c", "t")])
def test_what_is_written_is_read(binding: Binding) -> None:
    """All of it, and the numbers as numbers."""
    assert decode_binding(encode_binding(binding), "f") == binding
    assert decode_mark(encode_mark(MARK), "f") == MARK


def test_version_1_stays_as_it_is() -> None:
    """Byte for byte."""
    assert (GOLDEN / "pipeline_binding_v1.txt").read_text() == encode_binding(BINDING)
    assert (GOLDEN / "pipeline_mark_v1.txt").read_text() == encode_mark(MARK)


def test_half_a_file_is_refused() -> None:
    """Cut at any byte, or with any byte changed; never a traceback, and never taken for less than it was."""
    text = encode_binding(BINDING)
    for end in range(len(text)):
        for damaged in (text[:end], text[:end] + "~" + text[end + 1 :]):
            with pytest.raises(Refused, match=r"f is (damaged|of version)"):
                decode_binding(damaged, "f")


def test_half_a_mark_is_refused() -> None:
    """But for what is less than the format's name: that is a path that nobody's checkpoint has."""
    text = encode_mark(MARK)
    for end in range(len("millrace-pipeline"), len(text)):
        with pytest.raises(Refused, match="f is damaged"):
            decode_mark(text[:end], "f")
    assert decode_mark("mill", "f") == TableMark("", "mill")


def test_a_mark_that_was_written_by_hand() -> None:
    """Is a path, with the end of line that editors write; an empty file is none."""
    assert decode_mark("file:/lake/c\n", "f") == TableMark("", "file:/lake/c")
    assert decode_mark("\n", "f") is None


def test_a_later_version_is_named() -> None:
    """It is not damage."""
    with pytest.raises(Refused, match="f is of version 2, written by a later millrace"):
        decode_binding("millrace-pipeline 2 00000000\n{}", "f")
