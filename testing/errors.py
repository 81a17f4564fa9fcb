"""What a test is told when its broker cannot do what it asked for.

Refused             the broker answered with an error code
BrokerNotStarted    the process did not get ready, or is not running
NotEnoughRecords    they did not come in time: an AssertionError, since that is what the test asserts
"""

from __future__ import annotations


class Refused(Exception):
    """Attributes: what (the request, in words), code, code_name, message (the broker's own, if any)."""

    def __init__(self, what: str, code: int, code_name: str, message: str | None = None) -> None:
        super().__init__(f"{what}: {code_name} ({code})" + (f": {message}" if message else ""))
        self.what = what
        self.code = code
        self.code_name = code_name
        self.message = message

    def at(self, place: str) -> Refused:
        """The same, of what stood there."""
        return Refused(f"{place}: {self.what}", self.code, self.code_name, self.message)


class BrokerNotStarted(Exception):
    """Its text holds the end of the broker's log."""


class NotEnoughRecords(AssertionError):
    """Its text says how many there are, and which."""
