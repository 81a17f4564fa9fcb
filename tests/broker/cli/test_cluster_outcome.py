"""What `millrace cluster` says of a change that was not answered with success."""

from __future__ import annotations

import pytest

from millrace.broker.cli.cluster import outcome_of
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError


@pytest.mark.parametrize(
    ("code", "command", "begins"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, "move", "not known to be done"),
        (ErrorCode.REQUEST_TIMED_OUT, "give-up", "not known to be done"),
        (ErrorCode.REQUEST_TIMED_OUT, "add-voter", "refused"),
        (ErrorCode.INVALID_REQUEST, "unregister", "refused"),
    ],
)
def test_a_change_whose_answer_is_lost_is_not_said_to_be_refused(
    code: ErrorCode, command: str, begins: str
) -> None:
    """It may have been done. One of voters that takes too long was not."""
    assert outcome_of(KafkaError(code, "why"), command).startswith(begins)
