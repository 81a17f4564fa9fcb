"""Deleting many objects in one request, as far as a store can: under a CRC32, as stores of today like it; else under Content-MD5, which older ones
insist on; else not at all.

    CRC32 --refused--> Content-MD5 --refused--> none: who deletes goes one by one

A 200 that is no DeleteResult (a proxy's page, say), or one whose errors name no keys, says nothing of any key: these go one by one, this time.
What a store refuses is found by asking it, and kept for the life of the process. S3 demands one of the two, also of who wants no checksums: so a
store that is sent none elsewhere is sent Content-MD5. Not here: deleting one by one, waiting.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Sequence
from enum import Enum
from hashlib import md5
from typing import Any

from millrace.runtime.objectstore import Keys, StoreDenied
from millrace.runtime.objectstore_s3_errors import mapped

log = logging.getLogger(__name__)

BULK_DELETE_KEYS = 1000
# How stores say that they do not know the call, or not with this checksum.
_REFUSALS = (
    "NotImplemented",
    "MethodNotAllowed",
    "MalformedXML",
    "MissingContentMD5",
    "InvalidRequest",
    "InvalidArgument",
    "UnsupportedArgument",
    "400",
    "405",
    "501",
)
_ON_CALL = "before-call.s3.DeleteObjects"
_ON_ANSWER = "before-parse.s3.DeleteObjects"
_RESULT = re.compile(rb"<(\w+:)?DeleteResult[\s/>]")
_RESULT_BYTES_MAX = 1024  # it is the first element


class _NoResult(Exception):
    """Nobody can say which keys are deleted."""


class Way(Enum):
    CRC32 = "x-amz-checksum-crc32"
    MD5 = "Content-MD5"
    NONE = "one by one"


class BulkDelete:
    """`way` is how it is done now; `refusal` what the store said to the way before."""

    def __init__(self, client: Any, bucket: str) -> None:
        self.way = Way.CRC32
        self.refusal: StoreDenied | None = None
        self._client = client
        self._bucket = bucket
        client.meta.events.register_last(_ON_CALL, self._on_call)
        client.meta.events.register_last(_ON_ANSWER, _check_answer)

    def leave_out_checksums(self) -> None:
        if self.way is Way.CRC32:
            self.way = Way.MD5

    async def delete(self, keys: Sequence[str]) -> Keys | None:
        """The keys that could not be deleted, or None where the store does not delete many at once, or did not say what it did."""
        while (way := self.way) is not Way.NONE:
            try:
                return await self._ask(keys)
            except _NoResult as error:
                log.warning(
                    "the store's answer to a bulk deletion is not understood: %s. Its keys are deleted one by one",
                    error,
                )
                return None
            except StoreDenied as error:
                if len(error.args) < 2 or error.args[1] not in _REFUSALS:
                    raise
                if self.way is way:  # nobody else was told meanwhile
                    self._step_back(error)
        return None

    async def _ask(self, keys: Sequence[str]) -> Keys:
        request = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        with mapped(keys[0]):
            answer = await self._client.delete_objects(Bucket=self._bucket, Delete=request)
        refused = [error for error in answer.get("Errors", ()) if error.get("Code") != "NoSuchKey"]
        nameless = next((error for error in refused if "Key" not in error), None)
        if nameless is not None:
            raise _NoResult(f"an error without a key: {nameless}")
        return [error["Key"] for error in refused]

    def _step_back(self, error: StoreDenied) -> None:
        self.refusal = error
        if self.way is Way.CRC32:
            self.way = Way.MD5
            return
        self.way = Way.NONE
        log.warning("the store refuses bulk deletion (%s): objects are deleted one by one from now on", error)

    def _on_call(self, params: dict[str, Any], **_: Any) -> None:
        """The client adds its CRC32 after this, unless it is told that there is nothing to add."""
        if self.way is Way.MD5:
            params["context"].pop("checksum", None)
            digest = md5(params["body"], usedforsecurity=False).digest()
            params["headers"][Way.MD5.value] = base64.b64encode(digest).decode()


def _check_answer(response_dict: dict[str, Any], **_: Any) -> None:
    body = response_dict["body"]
    if response_dict["status_code"] == 200 and not _RESULT.search(body, 0, _RESULT_BYTES_MAX):
        raise _NoResult(f"{body[:100]!r}")
