"""What a line of the log says of an error: words, whatever was raised."""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.errors import Closed, Unavailable, in_words


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Unavailable("the log moved on"), "the log moved on"),
        (Unavailable("k", 503), "k, 503"),
        (Unavailable(), "Unavailable"),
        (Closed("the WAL is closed"), "the WAL is closed"),
        (TimeoutError(), "TimeoutError"),
        (asyncio.CancelledError(), "CancelledError"),
        (ValueError("of no use", 3), "ValueError: of no use, 3"),
        (KeyError("x"), "KeyError: x"),
        (FileNotFoundError(2, "No such file or directory", "/d"), "/d: No such file or directory"),
        (None, "no reason was told"),
    ],
    ids=lambda one: repr(one),
)
def test_in_words(error: BaseException | None, told: str) -> None:
    """An error of the project says itself what is wrong; another says of what kind it is, if it has no form
    of its own."""
    assert in_words(error) == told
