"""How a line of the broker's log is written: one line, whatever a client named a group, a listener or itself.

Not here: what is logged (log_levels.py), where to (serve.py). Traces stand behind their line, in lines of
their own.
"""

from __future__ import annotations

import logging

from millrace.protocol.errors import shortened

FORM = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"
MESSAGE_CHARS_MAX = 10_000  # names of 32 KiB are allowed, and many of them in one request


class LineFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(FORM, "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """With what is not printable escaped as in a text of Python, and of a long message its ends alone."""
        text = record.message = shortened(record.message, MESSAGE_CHARS_MAX)
        if not text.isprintable():
            record.message = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
        return super().formatMessage(record)
