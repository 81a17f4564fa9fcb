"""APIs of transactions where there are none: nobody has a transactional id, so each is refused as one that
Kafka's coordinator does not know.

AddPartitionsToTxn 24, AddOffsetsToTxn 25, EndTxn 26, WriteTxnMarkers 27, TxnOffsetCommit 28,
DescribeTransactions 65, ListTransactions 66, in all versions. A producer that asks for a transactional id is
refused before (InitProducerId).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)

PATTERN_CHARS_MAX = 1000
TRANSACTION_STATES = frozenset(
    (
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "PrepareEpochFence",
        "Dead",
    )
)


def _unknown(name: str) -> ErrorCode:
    return ErrorCode.INVALID_PRODUCER_ID_MAPPING if name else ErrorCode.INVALID_REQUEST


def _add_partitions(
    request: add_partitions_to_txn.AddPartitionsToTxnRequest,
) -> add_partitions_to_txn.AddPartitionsToTxnResponse:
    transaction = add_partitions_to_txn.AddPartitionsToTxnResult
    return add_partitions_to_txn.AddPartitionsToTxnResponse(
        results_by_transaction=[
            transaction(asked.transactional_id, _refuse_topics(asked.transactional_id, asked.topics))
            for asked in request.transactions
        ],
        results_by_topic_v3_and_below=_refuse_topics(
            request.v3_and_below_transactional_id, request.v3_and_below_topics
        ),
    )


def _refuse_topics(
    name: str, topics: Sequence[add_partitions_to_txn.AddPartitionsToTxnTopic]
) -> list[add_partitions_to_txn.AddPartitionsToTxnTopicResult]:
    result = add_partitions_to_txn.AddPartitionsToTxnPartitionResult
    code = _unknown(name)
    return [
        add_partitions_to_txn.AddPartitionsToTxnTopicResult(
            topic.name, [result(partition, code) for partition in topic.partitions]
        )
        for topic in topics
    ]


def _add_offsets(
    request: add_offsets_to_txn.AddOffsetsToTxnRequest,
) -> add_offsets_to_txn.AddOffsetsToTxnResponse:
    return add_offsets_to_txn.AddOffsetsToTxnResponse(error_code=_unknown(request.transactional_id))


def _end(request: end_txn.EndTxnRequest) -> end_txn.EndTxnResponse:
    return end_txn.EndTxnResponse(error_code=_unknown(request.transactional_id))


def _write_markers(
    request: write_txn_markers.WriteTxnMarkersRequest,
) -> write_txn_markers.WriteTxnMarkersResponse:
    """As Kafka says of a log that cannot hold a marker."""
    return write_txn_markers.WriteTxnMarkersResponse(
        markers=[
            write_txn_markers.WritableTxnMarkerResult(
                marker.producer_id, [_refuse_marker(each) for each in marker.topics]
            )
            for marker in request.markers
        ]
    )


def _refuse_marker(
    topic: write_txn_markers.WritableTxnMarkerTopic,
) -> write_txn_markers.WritableTxnMarkerTopicResult:
    result = write_txn_markers.WritableTxnMarkerPartitionResult
    refused = [
        result(partition, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT) for partition in topic.partition_indexes
    ]
    return write_txn_markers.WritableTxnMarkerTopicResult(topic.name, refused)


def _commit_offsets(
    request: txn_offset_commit.TxnOffsetCommitRequest,
) -> txn_offset_commit.TxnOffsetCommitResponse:
    code = _unknown(request.transactional_id)
    result = txn_offset_commit.TxnOffsetCommitResponsePartition
    return txn_offset_commit.TxnOffsetCommitResponse(
        topics=[
            txn_offset_commit.TxnOffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                [result(partition.partition_index, code) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _list_transactions(
    request: list_transactions.ListTransactionsRequest,
) -> list_transactions.ListTransactionsResponse:
    if not _is_pattern(request.transactional_id_pattern or ""):
        return list_transactions.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    unknown = [name for name in request.state_filters if name not in TRANSACTION_STATES]
    return list_transactions.ListTransactionsResponse(unknown_state_filters=unknown)


def _is_pattern(text: str) -> bool:
    """Parsed and no more: nothing is matched, and to compile a set of letters in both cases takes 15 ms, and
    1000 letters name 200 of them."""
    if len(text) > PATTERN_CHARS_MAX:
        return False
    try:
        with warnings.catch_warnings(action="ignore"):
            _parser.parse(text)
    except (re.error, ValueError, OverflowError, RecursionError):
        return False
    return True


def _describe_transactions(
    request: describe_transactions.DescribeTransactionsRequest,
) -> describe_transactions.DescribeTransactionsResponse:
    state = describe_transactions.TransactionState
    missing = [state(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name) for name in request.transactional_ids]
    return describe_transactions.DescribeTransactionsResponse(transaction_states=missing)


ANSWERS: dict[int, Callable[[Any], Any]] = {
    24: _add_partitions,
    25: _add_offsets,
    26: _end,
    27: _write_markers,
    28: _commit_offsets,
    65: _describe_transactions,
    66: _list_transactions,
}
