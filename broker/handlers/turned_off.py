"""APIs of features that this broker does not have: the answers Kafka gives where the feature is turned off.

SaslHandshake 17, SaslAuthenticate 36, ACLs 29 to 31, delegation tokens 38 to 41, quotas 48 and 49, SCRAM
users 50 and 51, UnregisterController 94, in all versions. Of a request is looked at what
its refusals name.

Questions are answered truly: there is nothing. Writes are refused with Kafka's own code for it, so that a
tool says what is the matter instead of waiting. They are shown because clients guess a broker's release by
the APIs that it shows. One function an API; `TURNED_OFF` is the list; transactions and the newer groups have
modules of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from millrace.broker.handlers import turned_off_groups, turned_off_transactions
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_delegation_token,
    describe_user_scram_credentials,
    expire_delegation_token,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    unregister_controller,
)

NO_AUTHORIZER = "no authorizer is configured: this broker has no access control"
NO_SCRAM = "SCRAM users are not served: this broker has no authentication"
NO_QUOTAS = "client quotas are not served by this broker"
NO_SASL = "this listener has no authentication"
NO_CONTROLLER_REMOVAL = "controllers cannot be unregistered at this metadata.version"


class TurnedOff:
    """The handler of one such API, by its key."""

    def __init__(self, key: int) -> None:
        self._answer = TURNED_OFF[key]

    def handle(self, context: RequestContext, request: Any) -> Any:
        return self._answer(request)


def _describe_acls(request: describe_acls.DescribeAclsRequest) -> describe_acls.DescribeAclsResponse:
    return describe_acls.DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
    )


def _create_acls(request: create_acls.CreateAclsRequest) -> create_acls.CreateAclsResponse:
    result = create_acls.AclCreationResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return create_acls.CreateAclsResponse(results=[result for _ in request.creations])


def _delete_acls(request: delete_acls.DeleteAclsRequest) -> delete_acls.DeleteAclsResponse:
    result = delete_acls.DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return delete_acls.DeleteAclsResponse(filter_results=[result for _ in request.filters])


def _describe_quotas(
    request: describe_client_quotas.DescribeClientQuotasRequest,
) -> describe_client_quotas.DescribeClientQuotasResponse:
    return describe_client_quotas.DescribeClientQuotasResponse()


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
    return describe_user_scram_credentials.DescribeUserScramCredentialsResponse(results=results)


def _alter_scram(
    request: alter_user_scram_credentials.AlterUserScramCredentialsRequest,
) -> alter_user_scram_credentials.AlterUserScramCredentialsResponse:
    changed = [deletion.name for deletion in request.deletions] + [
        upsertion.name for upsertion in request.upsertions
    ]
    result = alter_user_scram_credentials.AlterUserScramCredentialsResult
    refused = [
        result(name, ErrorCode.UNSUPPORTED_SASL_MECHANISM, NO_SCRAM) for name in dict.fromkeys(changed)
    ]
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(results=refused)


def _no_tokens(response: Callable[..., Any]) -> Callable[[Any], Any]:
    """What Kafka says on a listener without authentication, whether it has tokens or not."""
    return lambda request: response(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def _refuse_sasl(request: sasl_handshake.SaslHandshakeRequest) -> sasl_handshake.SaslHandshakeResponse:
    return sasl_handshake.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def _refused(response: Callable[..., Any], code: ErrorCode, text: str) -> Callable[[Any], Any]:
    return lambda request: response(error_code=code, error_message=text)


TURNED_OFF: dict[int, Callable[[Any], Any]] = {
    17: _refuse_sasl,
    29: _describe_acls,
    30: _create_acls,
    31: _delete_acls,
    36: _refused(sasl_authenticate.SaslAuthenticateResponse, ErrorCode.ILLEGAL_SASL_STATE, NO_SASL),
    38: _no_tokens(create_delegation_token.CreateDelegationTokenResponse),
    39: _no_tokens(renew_delegation_token.RenewDelegationTokenResponse),
    40: _no_tokens(expire_delegation_token.ExpireDelegationTokenResponse),
    41: _no_tokens(describe_delegation_token.DescribeDelegationTokenResponse),
    48: _describe_quotas,
    49: _alter_quotas,
    50: _describe_scram,
    51: _alter_scram,
    94: _refused(
        unregister_controller.UnregisterControllerResponse,
        ErrorCode.UNSUPPORTED_VERSION,
        NO_CONTROLLER_REMOVAL,
    ),
    **turned_off_transactions.ANSWERS,
    **turned_off_groups.ANSWERS,
}
