"""The protocol's refusals."""

from __future__ import annotations

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_response
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)


def test_a_refusal_of_the_longest_value_can_be_sent() -> None:
    """It repeats what a client sent, which may fill a string of the protocol: its beginning, and the reason
    at its end, stay."""
    value = "\u20ac" * 32_767
    error = KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid value {value} for configuration k: it is none")
    assert error.message.startswith("Invalid value \u20ac")
    assert error.message.endswith("for configuration k: it is none")
    result = AlterConfigsResourceResponse(error.code, error.message, 4, "1")
    assert encode_response(
        NAMED["IncrementalAlterConfigs"], 1, 7, IncrementalAlterConfigsResponse(0, [result])
    )
