"""Our signatures are botocore's own, byte for byte."""

from __future__ import annotations

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from millrace.runtime.objectstore.sigv4 import (
    EMPTY_SHA256,
    UNSIGNED_PAYLOAD,
    Keys,
    Signer,
    quoted_path,
    quoted_query,
)

STATIC = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
OF_A_ROLE = STATIC._replace(token="a/long+token==")


@pytest.mark.parametrize("keys", [STATIC, OF_A_ROLE])
@pytest.mark.parametrize(
    ("method", "host", "key", "query", "headers", "payload"),
    [
        (
            "GET",
            "b.s3.eu-west-1.amazonaws.com",
            "c/objects/0f00/16",
            {},
            {"range": "bytes=0-99"},
            EMPTY_SHA256,
        ),
        (
            "PUT",
            "127.0.0.1:9000",
            "b/a key/with~odd-chars_é+&=",
            {},
            {"if-none-match": "*"},
            UNSIGNED_PAYLOAD,
        ),
        (
            "PUT",
            "s3.local",
            "b/k",
            {"uploadId": "u/1+2 3=", "partNumber": "2"},
            {"x-amz-checksum-crc32c": "AAAA=="},
            "a" * 64,
        ),
        ("GET", "s3.local", "b", {"list-type": "2", "prefix": "a/b c", "start-after": "é"}, {}, EMPTY_SHA256),
    ],
)
def test_signatures_are_those_of_the_client_library(
    keys: Keys, method: str, host: str, key: str, query: dict[str, str], headers: dict[str, str], payload: str
) -> None:
    """Methods, ranges, conditions, odd keys, queries, session tokens: the same Authorization header at the
    same moment."""
    path, asked = "/" + quoted_path(key), quoted_query(query)
    request = AWSRequest(method, f"https://{host}{path}{'?' if asked else ''}{asked}", dict(headers))
    request.context["timestamp"] = "20261122T010203Z"
    auth = S3SigV4Auth(Credentials(*keys), "s3", "eu-west-1")
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    request.headers["X-Amz-Content-SHA256"] = payload
    if keys.token:
        request.headers["X-Amz-Security-Token"] = keys.token
    text = auth.string_to_sign(request, auth.canonical_request(request))
    auth._inject_signature_to_request(request, auth.signature(text, request))
    signer = Signer("eu-west-1")
    for _ in range(2):  # the second time with the derived key kept
        ours = signer.sign(method, host, path, asked, headers, payload, keys, "20261122T010203Z")
        assert ours["authorization"] == request.headers["Authorization"]


def test_another_day_and_another_secret_derive_another_key() -> None:
    """A kept key is never used for a later day, nor for renewed credentials."""
    signer = Signer("us-east-1")

    def signature(keys: Keys, stamp: str, by: Signer) -> str:
        return by.sign("GET", "h", "/", "", {}, EMPTY_SHA256, keys, stamp)["authorization"]

    for keys, stamp in (
        (STATIC, "20261122T235959Z"),
        (STATIC, "20261123T000000Z"),
        (STATIC._replace(secret_key="x"), "20261123T000000Z"),
    ):
        assert signature(keys, stamp, signer) == signature(keys, stamp, Signer("us-east-1"))
