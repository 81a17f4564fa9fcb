"""How a line of the broker's log is written."""

from __future__ import annotations

import logging

from millrace.broker.cli.log_lines import MESSAGE_CHARS_MAX, LineFormatter


def written(message: str, *values: object) -> str:
    return LineFormatter().format(
        logging.LogRecord("millrace.broker", logging.INFO, "", 0, message, values, None)
    )


def test_what_a_client_named_stays_in_its_line() -> None:
    """A group's name with a line break and a terminal's escape forges no line and colours none; other letters
    stay as they are."""
    line = written("group %s is gone", "g\n2026-11-25 CRITICAL \x1b[31mfake\u2028\x85\ud800\u0416")
    assert line.endswith(
        r" INFO    millrace.broker: group g\n2026-11-25 CRITICAL \x1b[31mfake\u2028\x85\ud800"
        + "\u0416 is gone"
    )


def test_a_line_has_a_longest_length() -> None:
    """Of a message that repeats what a client sent the ends are kept."""
    line = written("group %s is gone", "g\n" * 5_000_000)
    assert len(line) < 3 * MESSAGE_CHARS_MAX
    assert "group g\\n" in line
    assert line.endswith("g\\n is gone")


def test_a_trace_stands_behind_its_line() -> None:
    """In lines of its own."""
    try:
        raise ValueError("why")
    except ValueError as error:
        record = logging.LogRecord(
            "m", logging.ERROR, "", 0, "failed", (), (ValueError, error, error.__traceback__)
        )
    first, *rest = LineFormatter().format(record).splitlines()
    assert first.endswith("ERROR   m: failed")
    assert rest[-1] == "ValueError: why"
