"""Deleting many objects in one request, as far as a store can: under a CRC32, as stores of today like it;
else under Content-MD5, which older ones insist on; else not at all.

    CRC32 --refused--> Content-MD5 --refused--> none: who deletes goes one by one

A 200 that is no DeleteResult (a proxy's page, say), or one whose errors name no keys that were asked for,
says nothing of any key: these go one by one, this time. What a store refuses is found by asking it, and kept
for the life of the process. S3 demands one of the two, also of who wants no checksums: so a store that is
sent none elsewhere is sent Content-MD5. Not here: deleting one by one, waiting.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from enum import Enum
from hashlib import md5
from typing import Any

from millrace.runtime.objectstore import Keys, StoreDenied
from millrace.runtime.objectstore.s3_errors import S3_ERRORS, StrangeAnswer, s3_error

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

    def leave_out_checksums(self) -> None:
        if self.way is Way.CRC32:
            self.way = Way.MD5

    async def delete(self, keys: Sequence[str]) -> Keys | None:
        """The keys that could not be deleted, or None where the store does not delete many at once, or did
        not say what it did."""
        while (way := self.way) is not Way.NONE:
            try:
                return await self._ask(keys)
            except StrangeAnswer as error:
                log.warning(
                    "the store's answer to a bulk deletion is not understood: %s. Its keys are deleted one "
                    "by one",
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
        try:
            answer = await self._client.delete_objects(Bucket=self._bucket, Delete=request)
        except StrangeAnswer:
            raise
        except S3_ERRORS as error:
            raise s3_error(error, keys[0]) from error
        refused = [error for error in answer.get("Errors", ()) if error.get("Code") != "NoSuchKey"]
        asked = dict.fromkeys(keys)
        stranger = next((error for error in refused if error.get("Key") not in asked), None)
        if stranger is not None:
            raise StrangeAnswer(f"an error about no key that was asked for: {stranger}")
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
