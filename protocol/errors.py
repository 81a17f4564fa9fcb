"""The protocol's errors.

WireError          the peer's bytes are malformed: close the connection
TooManyElements    they hold more elements than their reader takes: one that takes as many in steps may be
                   asked instead
KafkaError         a refusal with a Kafka error code: it goes into the response
"""

from __future__ import annotations

from millrace.protocol.error_codes import ErrorCode

MESSAGE_CHARS_MAX = 2_000  # a name or value that a client sent may fill a string of the protocol by itself


def shortened(text: str, chars_max: int) -> str:
    """The text, or both its ends where it is longer than that."""
    end = chars_max // 2
    return text if len(text) <= chars_max else f"{text[:end]} ... {text[-end:]}"


class WireError(Exception):
    """Malformed bytes: truncated, over-long, out of bounds, or of an unknown shape."""


class TooManyElements(WireError):
    """More elements than were to be read: in one go, or at all."""


class KafkaError(Exception):
    """A refusal. `code` is an error code of `protocol.error_codes`; `message` is for people, may be empty; of
    a long one its ends are kept, so that it can be sent whatever it repeats."""

    def __init__(self, code: int, message: str = "") -> None:
        message = shortened(message, MESSAGE_CHARS_MAX)
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        try:
            name = ErrorCode(self.code).name
        except ValueError:
            name = f"code {self.code}"
        return f"{name}: {self.message}" if self.message else name
