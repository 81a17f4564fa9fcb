"""Which remedy an S3 answer calls for. The table stands apart from the client, so that it can be read and
tested whole.

status or code                                         raised as
NoSuchKey, NoSuchUpload, a 404 without a code          ObjectMissing
412                                                    PreconditionFailed
507, XMinioStorageFull                                 StoreFull
409                                                    StoreConflict, a StoreUnavailable
408, 429, 5xx, and the codes of _AGAIN            StoreUnavailable: the outcome is unknown, or will change, as
                                                  a clock that is
                                                       set and a token that is renewed do: a broker outlives
                                                       both
no answer: connection, timeout, answer cut off         StoreUnavailable
200 from somebody else, such as a proxy's own page     StoreUnavailable: nothing is known of what was asked
NoSuchBucket                                           BucketMissing, a StoreDenied
everything else (401, 403, 501, ...)                   StoreDenied: asking again would not help; so is a 404
                                                       with a code of its own, as for keys that nobody has:
                                                       taken for a missing object it would look like an empty
                                                       store
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ResponseStreamingError,
)
from botocore.exceptions import ConnectionError as EndpointError

from millrace.runtime.objectstore import (
    BucketMissing,
    ObjectMissing,
    PreconditionFailed,
    StoreConflict,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
)


class StrangeAnswer(Exception):
    """A success that no S3 store would have told in this way."""


# What a client may raise that has a remedy. Others (a wrong parameter) are programmer errors and pass.
S3_ERRORS: tuple[type[BaseException], ...] = (
    ClientError,
    BotoCoreError,
    aiohttp.ClientError,
    StrangeAnswer,
    TimeoutError,
    OSError,
)

_AGAIN = frozenset(
    (
        "BadDigest",
        "ExpiredToken",  # chained credentials are renewed before the next attempt
        "IncompleteBody",
        "RequestTimeout",
        "RequestTimeTooSkewed",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "XAmzContentChecksumMismatch",
    )
)
# What somebody has to do before it is answered otherwise: told with every attempt.
_TO_DO = {
    "RequestTimeTooSkewed": "this machine's clock and the store's are too far apart: set the clock",
    "ExpiredToken": "the session token has expired: keys that are renewed by themselves will be, others take "
    "a start with new ones",
}
_AGAIN_STATUS = (408, 409, 429)
# What a 404 has to say to be about the object or the upload. The last three: it has no body, or an empty one.
_MISSING = ("NoSuchKey", "NoSuchUpload", "404", "NotFound", "")
_NO_ANSWER = (
    EndpointError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
    CredentialRetrievalError,
    MetadataRetrievalError,
    aiohttp.ClientError,
    StrangeAnswer,
    TimeoutError,
    OSError,
)
# What the body of a success begins with; None: it is empty.
_RESULTS = {
    "AbortMultipartUpload": None,
    "CompleteMultipartUpload": "CompleteMultipartUploadResult",
    "CreateMultipartUpload": "InitiateMultipartUploadResult",
    "DeleteObject": None,
    "DeleteObjects": "DeleteResult",
    "ListMultipartUploads": "ListMultipartUploadsResult",
    "ListObjectsV2": "ListBucketResult",
}
_ROOTS = {name: re.compile(rf"<(\w+:)?{root}[\s/>]".encode()) for name, root in _RESULTS.items() if root}
_ROOT_WITHIN_BYTES = 64 << 10  # stores send blanks before it while they work
_SHOWN_BYTES = 100
_DENIED = (NoCredentialsError, PartialCredentialsError, NoRegionError)


def s3_status(error: BaseException) -> tuple[int, str]:
    """Status and code of an answer; (0, "") when there was none."""
    if not isinstance(error, ClientError):
        return 0, ""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status), str(error.response.get("Error", {}).get("Code", ""))


def s3_error(error: BaseException, key: str) -> BaseException:
    """What to raise in place of `error`."""
    if isinstance(error, ClientError):
        return s3_refusal(*s3_status(error), key, str(error.response.get("Error", {}).get("Message", "")))
    if isinstance(error, _DENIED):
        return StoreDenied(key, str(error))
    if isinstance(error, _NO_ANSWER):
        return StoreUnavailable(key, _connection_words(error))
    return error


def _connection_words(error: BaseException) -> str:
    """Without the clients' own form, in which an address is followed by what TLS would be asked for, wanted
    or not."""
    inner = error.kwargs.get("error") if isinstance(error, BotoCoreError) else error
    if not isinstance(inner, aiohttp.ClientConnectorError):
        return f"{type(error).__name__}: {error}"
    if isinstance(inner, aiohttp.ClientConnectorCertificateError):
        reason = str(inner.certificate_error)
    elif isinstance(inner, aiohttp.ClientSSLError):
        reason = str(inner.os_error)
    else:  # the number is negative where a name was not found
        number = inner.os_error.errno or 0
        reason = os.strerror(number) if number > 0 else inner.os_error.strerror or str(inner.os_error)
    return f"cannot connect to {inner.host}:{inner.port}: {reason}"


def s3_refusal(status: int, code: str, key: str, message: str = "") -> Exception:
    """`message` is the store's own word, told to the operator where he must act."""
    if status == 507 or code == "XMinioStorageFull":
        return StoreFull(key, code)
    if status >= 500 and status != 501:
        return StoreUnavailable(key, code, status)
    if status == 409 and code not in _AGAIN:
        return StoreConflict(key, code, status)
    if status in _AGAIN_STATUS or code in _AGAIN:
        return StoreUnavailable(key, code, status, *([_TO_DO[code]] if code in _TO_DO else []))
    if status == 412:
        return PreconditionFailed(key)
    if status == 404 and code in _MISSING:
        return ObjectMissing(key)
    kind = BucketMissing if code == "NoSuchBucket" else StoreDenied
    return kind(key, code, status, message) if message else kind(key, code, status)


@contextmanager
def mapped(key: str) -> Iterator[None]:
    try:
        yield
    except S3_ERRORS as error:
        raise s3_error(error, key) from error


def check_answer(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """For the client library's `before-parse`, which takes whatever comes for an answer without content.
    Raises StrangeAnswer for a success whose content is not the operation's."""
    name, body = operation_model.name, response_dict["body"]
    if name not in _RESULTS or response_dict["status_code"] >= 300:
        return
    root = _ROOTS.get(name)
    if bool(body) if root is None else not root.search(body, 0, _ROOT_WITHIN_BYTES):
        raise StrangeAnswer(f"no S3 store's answer to {name}: {bytes(body[:_SHOWN_BYTES])!r}")


def check_put(etag: str, content: bytes) -> None:
    """A put is answered with the object's ETag, and without content. Else raises StrangeAnswer."""
    if not etag or content:
        raise StrangeAnswer(f"no S3 store's answer to a PUT: ETag {etag!r}, {content[:_SHOWN_BYTES]!r}")
