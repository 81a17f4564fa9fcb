"""ListTransactions where there are none: which patterns are refused, and that none is dear."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from millrace.broker.handlers.turned_off import TURNED_OFF
from millrace.broker.handlers.turned_off_transactions import PATTERN_CHARS_MAX
from millrace.protocol.apis import API
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from millrace.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from millrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.live.fitting import codes_in

LINES_MAX = 200_000


def ask(pattern: str | None) -> int:
    answer: ListTransactionsResponse = TURNED_OFF[66](
        ListTransactionsRequest(transactional_id_pattern=pattern)
    )
    assert answer.transaction_states == []
    return answer.error_code


@pytest.mark.parametrize(
    "pattern", [None, "", "a.*", "(a|b){2,3}", "[a-z]+-\\d", "a" * PATTERN_CHARS_MAX, "(" * 50 + ")" * 50]
)
def test_a_pattern_matches_nothing(pattern: str | None) -> None:
    """An empty answer without an error."""
    assert ask(pattern) == ErrorCode.NONE


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a{3,2}",
        "a{99999999999999999999}",
        "(" * 495 + ")" * 495,
        "(?u)(?a)",
        "a" * (PATTERN_CHARS_MAX + 1),
    ],
    ids=lambda pattern: pattern[:30],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """Whatever the library makes of it: a repetition past its numbers, brackets past its stack, flags at
    odds, or more than is looked at."""
    assert ask(pattern) == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_costs_no_more_than_its_length() -> None:
    """Sets of all letters in both cases, for which the library's compiler goes through 65,000 letters each,
    are looked at and not compiled."""
    lines = 0

    def count(*_: Any) -> Any:
        nonlocal lines
        lines += 1
        assert lines < LINES_MAX
        return count

    pattern = "(?i)" + "[a-\uffff]" * ((PATTERN_CHARS_MAX - 4) // 5)
    before = sys.gettrace()
    sys.settrace(count)
    try:
        code = ask(pattern)
    finally:
        sys.settrace(before)
    assert code == ErrorCode.NONE


@pytest.mark.parametrize("key", [24, 25, 26, 28])
def test_a_transaction_without_a_name_is_an_invalid_request(key: int) -> None:
    """As at Kafka's coordinator, before it looks for it."""
    request = API[key].request_type()
    if key == 24:
        request.transactions = [AddPartitionsToTxnTransaction(topics=[AddPartitionsToTxnTopic("t", [0])])]
    if key == 28:
        request.topics = [TxnOffsetCommitRequestTopic("t", partitions=[TxnOffsetCommitRequestPartition(0)])]
    assert set(codes_in(TURNED_OFF[key](request))) - {0} == {ErrorCode.INVALID_REQUEST}
