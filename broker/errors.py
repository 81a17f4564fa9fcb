"""The broker's own errors, and the one table from errors to Kafka's codes.

    MillraceError <- SettingsInvalid   what was asked for at start cannot be; carries every mistake and
                                       warning

`code_of` is what the dispatcher answers with when an error of the project escapes a handler. A class is
looked up along its bases, so a package's error needs a row only when its answer differs from its remedy's;
those without a remedy must have one. Every code here but INVALID_CONFIG and OFFSET_OUT_OF_RANGE is one that
old clients retry: what failed is ours, not theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.broker.identity.binding import BindingRefused
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.disk import DiskFailed, DiskFull
from millrace.runtime.errors import Closed, Corrupt, Exhausted, Fenced, MillraceError, Unavailable
from millrace.runtime.escapes import CallbackFailed
from millrace.runtime.net import ListenFailed
from millrace.runtime.objectstore import StoreDenied
from millrace.s3stream.errors import (
    CompactionRefused,
    OffsetBeyondEnd,
    OffsetTrimmed,
    StreamMissing,
    UploadExpired,
)
from millrace.wal.errors import WalStoreUnfit


class CommandRefused(MillraceError):
    """A command that looks at data cannot do so, in words that say what to do. It never reaches a client."""


class SettingsInvalid(MillraceError):
    """The settings hold mistakes: all of them, each one line for people. `warnings` are what a start without
    mistakes would warn of: who mends the mistakes mends a misspelt key with them."""

    def __init__(self, mistakes: Sequence[str], warnings: Sequence[str] = ()) -> None:
        super().__init__(*mistakes)
        self.mistakes = tuple(mistakes)
        self.warnings = tuple(warnings)


# Remedies first, then the exceptions to them. A row covers the class and everything under it that has no row
# of its own.
CODES: dict[type[BaseException], ErrorCode] = {
    Unavailable: ErrorCode.REQUEST_TIMED_OUT,
    Exhausted: ErrorCode.REQUEST_TIMED_OUT,
    Fenced: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Corrupt: ErrorCode.KAFKA_STORAGE_ERROR,
    Closed: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
    DiskFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    StoreDenied: ErrorCode.KAFKA_STORAGE_ERROR,
    UploadExpired: ErrorCode.KAFKA_STORAGE_ERROR,
    CompactionRefused: ErrorCode.KAFKA_STORAGE_ERROR,
    BindingRefused: ErrorCode.KAFKA_STORAGE_ERROR,
    StreamMissing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    OffsetTrimmed: ErrorCode.OFFSET_OUT_OF_RANGE,
    OffsetBeyondEnd: ErrorCode.OFFSET_OUT_OF_RANGE,
    ListenFailed: ErrorCode.BROKER_NOT_AVAILABLE,
    CallbackFailed: ErrorCode.BROKER_NOT_AVAILABLE,
    WalStoreUnfit: ErrorCode.KAFKA_STORAGE_ERROR,
    CommandRefused: ErrorCode.INVALID_REQUEST,
    SettingsInvalid: ErrorCode.INVALID_CONFIG,
    TimeoutError: ErrorCode.REQUEST_TIMED_OUT,
}


def code_of(error: BaseException) -> ErrorCode | None:
    """The code an error is answered with; None for one that is a defect of ours (a trace is due)."""
    if isinstance(error, KafkaError):
        return ErrorCode(error.code)
    for kind in type(error).__mro__:
        code = CODES.get(kind)
        if code is not None:
            return code
    return None
