"""APIs of features that this broker does not have: the answers Kafka gives where the feature is turned off.

Questions are answered truly: there is nothing. Writes are refused with Kafka's own code for it, so that a tool says what is the matter instead
of waiting. One function an API; `TURNED_OFF` is the list.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from millrace.broker.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages import (
    alter_client_quotas,
    alter_user_scram_credentials,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_delegation_token,
    describe_transactions,
    describe_user_scram_credentials,
    expire_delegation_token,
    list_transactions,
    renew_delegation_token,
)

NO_AUTHORIZER = "no authorizer is configured: this broker has no access control"
NO_SCRAM = "SCRAM users are not served: this broker has no authentication"
NO_QUOTAS = "client quotas are not served by this broker"
NO_CONSUMER_PROTOCOL = "the consumer group protocol of KIP-848 is not served by this broker: set group.protocol=classic"
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


class TurnedOff:
    """The handler of one such API, by its key."""

    def __init__(self, key: int) -> None:
        self._answer = TURNED_OFF[key]

    def handle(self, context: RequestContext, request: Any) -> Any:
        return self._answer(request)


def _describe_acls(request: describe_acls.DescribeAclsRequest) -> describe_acls.DescribeAclsResponse:
    return describe_acls.DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


def _create_acls(request: create_acls.CreateAclsRequest) -> create_acls.CreateAclsResponse:
    result = create_acls.AclCreationResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return create_acls.CreateAclsResponse(results=[result for _ in request.creations])


def _delete_acls(request: delete_acls.DeleteAclsRequest) -> delete_acls.DeleteAclsResponse:
    result = delete_acls.DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return delete_acls.DeleteAclsResponse(filter_results=[result for _ in request.filters])


def _describe_quotas(
    request: describe_client_quotas.DescribeClientQuotasRequest,
) -> describe_client_quotas.DescribeClientQuotasResponse:
    return describe_client_quotas.DescribeClientQuotasResponse(error_message=None)


def _alter_quotas(
    request: alter_client_quotas.AlterClientQuotasRequest,
) -> alter_client_quotas.AlterClientQuotasResponse:
    entry = alter_client_quotas.AlterClientQuotasResponseEntryData
    refused = [entry(ErrorCode.UNSUPPORTED_VERSION, NO_QUOTAS, asked.entity) for asked in request.entries]
    return alter_client_quotas.AlterClientQuotasResponse(entries=refused)


def _describe_scram(
    request: describe_user_scram_credentials.DescribeUserScramCredentialsRequest,
) -> describe_user_scram_credentials.DescribeUserScramCredentialsResponse:
    results = []
    counts = Counter(user.name for user in request.users or ())
    for name, count in counts.items():
        code, text = ErrorCode.RESOURCE_NOT_FOUND, f"there is no SCRAM user {name}"
        if count > 1:
            code, text = ErrorCode.DUPLICATE_RESOURCE, f"SCRAM user {name} is named twice in one request"
        results.append(describe_user_scram_credentials.DescribeUserScramCredentialsResult(name, code, text))
    return describe_user_scram_credentials.DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _alter_scram(
    request: alter_user_scram_credentials.AlterUserScramCredentialsRequest,
) -> alter_user_scram_credentials.AlterUserScramCredentialsResponse:
    changed = [deletion.name for deletion in request.deletions] + [upsertion.name for upsertion in request.upsertions]
    result = alter_user_scram_credentials.AlterUserScramCredentialsResult
    refused = [result(name, ErrorCode.UNSUPPORTED_SASL_MECHANISM, NO_SCRAM) for name in dict.fromkeys(changed)]
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(results=refused)


def _join_new_group(
    request: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest,
) -> consumer_group_heartbeat.ConsumerGroupHeartbeatResponse:
    """Kafka has this API, and this code, where `group.version` is 0: a client that finds no such API at all may wait for one in silence."""
    response = consumer_group_heartbeat.ConsumerGroupHeartbeatResponse
    return response(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NO_CONSUMER_PROTOCOL)


def _list_transactions(
    request: list_transactions.ListTransactionsRequest,
) -> list_transactions.ListTransactionsResponse:
    if not _is_pattern(request.transactional_id_pattern or ""):
        return list_transactions.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    unknown = [name for name in request.state_filters if name not in TRANSACTION_STATES]
    return list_transactions.ListTransactionsResponse(unknown_state_filters=unknown)


def _is_pattern(text: str) -> bool:
    """Parsed and no more: nothing is matched, and to compile a set of letters in both cases takes 15 ms, and 1000 letters name 200 of them."""
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


def _no_tokens(response: Callable[..., Any]) -> Callable[[Any], Any]:
    """What Kafka says on a listener without authentication, whether it has tokens or not."""
    return lambda request: response(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


TURNED_OFF: dict[int, Callable[[Any], Any]] = {
    29: _describe_acls,
    30: _create_acls,
    31: _delete_acls,
    38: _no_tokens(create_delegation_token.CreateDelegationTokenResponse),
    39: _no_tokens(renew_delegation_token.RenewDelegationTokenResponse),
    40: _no_tokens(expire_delegation_token.ExpireDelegationTokenResponse),
    41: _no_tokens(describe_delegation_token.DescribeDelegationTokenResponse),
    48: _describe_quotas,
    49: _alter_quotas,
    50: _describe_scram,
    51: _alter_scram,
    65: _describe_transactions,
    66: _list_transactions,
    68: _join_new_group,
}
