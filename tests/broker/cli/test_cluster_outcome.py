"""What `millrace cluster` says of a change that was not answered with success."""

from __future__ import annotations

import pytest

from millrace.broker.cli.cluster import outcome_of
from millrace.broker.requests.forwarding import TIMED_OUT
from millrace.kraft.commands.voters import IS_UNKNOWN
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


@pytest.mark.parametrize(
    "text",
    [
        TIMED_OUT,
        f"who led leads no more: {IS_UNKNOWN}",
        f"not done in time: the change is written, and not committed yet: {IS_UNKNOWN}",
    ],
)
@pytest.mark.parametrize("command", ["add-voter", "remove-voter"])
def test_nor_is_one_of_voters_that_may_be_committed_yet(text: str, command: str) -> None:
    """Its record was written, or who was to decide it went with it."""
    assert outcome_of(KafkaError(ErrorCode.REQUEST_TIMED_OUT, text), command).startswith("not known to be")
