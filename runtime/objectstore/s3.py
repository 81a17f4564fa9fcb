"""The object store over S3 and what speaks like it. Imported only when an address names it: it costs half a
second.

Puts, parts and gets go through s3_http.py; lists, deletions, multipart's beginning and end
through aiobotocore, which also finds credentials and the bucket's address. One call is one request:
botocore's own retries are off, since the retry wrapper above knows which outcomes may be repeated. (aiohttp
may still resend a request on a connection that the server had closed; `put_if_absent` bears that like any
repeat, by comparing what it finds.) Bodies are sent as views with our own CRC32C, which the store checks
before it acknowledges; a put that is repeated keeps the sum of its first attempt (body.py). What
a store lacks is found by asking it once: checksum headers, deleting many at once (s3_delete.py).
Not here: waiting, counting, what an error means (s3_errors.py). Cancelled, an outcome is unknown.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import NoCredentialsError
from botocore.loaders import create_loader

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Closed, Unavailable
from millrace.runtime.objectstore import (
    Keys,
    Lend,
    ObjectEntry,
    ObjectMissing,
    PreconditionFailed,
    StoreDate,
    StoreDenied,
    StoreUnavailable,
    UnfinishedUpload,
)
from millrace.runtime.objectstore.body import Body, body_of
from millrace.runtime.objectstore.s3_delete import BULK_DELETE_KEYS, BulkDelete
from millrace.runtime.objectstore.s3_errors import check_answer, mapped
from millrace.runtime.objectstore.s3_http import BeyondEnd, KeySource, S3Http
from millrace.runtime.objectstore.sigv4 import Keys as SigningKeys
from millrace.runtime.scheduling.yield_queue import YieldQueue

log = logging.getLogger(__name__)

_SINGLE_DELETES = 16
_MISSING_TRUSTED_S = 30.0
# Keeps what it read of the library's description of S3, a megabyte of JSON: a second store opens without it.
_LOADER = create_loader()
_CRC_HEADER = "x-amz-checksum-crc32c"
# How stores say that they do not know a header or a call.
_NOT_KNOWN = ("NotImplemented", "InvalidArgument", "InvalidRequest", "UnsupportedArgument", "501", "400")


@dataclass(frozen=True, slots=True)
class S3Settings:
    """`path_style` None lets the client choose by the endpoint. Without keys the usual chain is asked:
    environment, profile, container, instance, web identity. `has_checksums` False is for stores that take the
    header and do wrong with it; one that refuses it is noticed."""

    bucket: str
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    has_checksums: bool = True
    connections_max: int = 50
    connect_timeout_ms: int = 5_000
    read_timeout_ms: int = 30_000


class S3ObjectStore:
    def __init__(self, client: Any, http: S3Http, settings: S3Settings, stack: AsyncExitStack) -> None:
        self.http = http
        self.has_checksums = settings.has_checksums
        self.has_conditional_completion = True  # until it is refused
        self._client = client
        self._bucket = settings.bucket
        self._stack = stack
        self._is_checksum_known = False
        self.bulk_delete = BulkDelete(client, settings.bucket)
        if not self.has_checksums:
            self.bulk_delete.leave_out_checksums()
        self._is_closed = False
        self._missing_trusted_until_s = 0.0  # by the loop's clock

    @staticmethod
    async def open(
        settings: S3Settings, session: AioSession | None = None, yield_queue: YieldQueue | None = None
    ) -> S3ObjectStore:
        """Makes the client; sends the store nothing. Raises StoreUnavailable while a source of credentials
        does not answer, StoreDenied where they are incomplete."""
        session = session or AioSession()
        session.register_component("data_loader", _LOADER)
        stack = AsyncExitStack()
        try:
            with mapped(""):
                client = await stack.enter_async_context(new_client(session, settings))
                base_url = await bucket_url(client, settings.bucket)
        except BaseException:
            await stack.aclose()
            raise
        client.meta.events.register_last("before-call.s3", drop_expect)
        client.meta.events.register_last("before-call.s3", stay_in_region)
        client.meta.events.register_last("before-parse.s3", check_answer)
        http = S3Http(
            base_url,
            client.meta.region_name,
            key_source(session, settings),
            connections_max=settings.connections_max,
            connect_timeout_ms=settings.connect_timeout_ms,
            read_timeout_ms=settings.read_timeout_ms,
            ca_file=session.get_config_variable("ca_bundle"),
            yield_queue=yield_queue,
        )
        stack.push_async_callback(http.close)
        client.meta.events.register_first(
            "before-parse.s3", lambda response_dict, **_: http.note_date(response_dict["headers"])
        )
        return S3ObjectStore(client, http, settings, stack)

    @property
    def last_date(self) -> StoreDate | None:
        return self.http.last_date

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._put(key, parts, {})

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        """When it loses it reads what won: these very bytes are an earlier attempt's, whose answer was
        lost."""
        try:
            await self._put(key, parts, {"if-none-match": "*"})
        except PreconditionFailed:
            if not await self._is_content(key, b"".join(parts)):
                raise

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        """Its version is asked for before its content, so that a change between the two is told by the put.
        Raises PreconditionFailed where the object is neither `before` nor the new one."""
        content = b"".join(parts)
        try:
            with self._call(key):
                version = str((await self._client.head_object(**self._at(key))).get("ETag", ""))
            if await self.get(key) != before:
                raise PreconditionFailed(key)
            await self._put_in_place(key, content, version)
        except ObjectMissing:
            raise PreconditionFailed(key) from None
        except PreconditionFailed:
            if not await self._is_content(key, content):
                raise

    async def _put_in_place(self, key: str, content: bytes, version: str) -> None:
        try:
            await self._put(key, [content], {"if-match": version} if version else {})
        except StoreDenied as error:
            if len(error.args) < 2 or error.args[1] not in ("NotImplemented", "501"):
                raise
            await self._put(key, [content], {})  # it knows no If-Match

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        assert 0 <= start < end, (start, end)
        try:
            with self._call(key):
                return await self.http.get(key, f"bytes={start}-{end - 1}")
        except BeyondEnd:
            return b""

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        assert 0 <= start < end, (start, end)
        try:
            with self._call(key):
                return await self.http.get_into(key, f"bytes={start}-{end - 1}", lend)
        except BeyondEnd:
            return lend(), 0

    async def get(self, key: str) -> bytes:
        with self._call(key):
            return await self.http.get(key)

    async def head(self, key: str) -> ObjectEntry | None:
        """None where there is no object. Raises StoreUnavailable for an answer without a date, StoreDenied
        where rights are missing, BucketMissing."""
        try:
            with self._call(key):
                found = await self._client.head_object(**self._at(key))
        except ObjectMissing:
            await self._confirm_missing(key)
            return None
        except StoreDenied as refusal:
            await self._say_why(key, refusal)
            raise
        if "LastModified" not in found:
            raise StoreUnavailable(key, "no S3 store's answer to HEAD: it has no date")
        return ObjectEntry(key, found["ContentLength"], _wall_ms(found["LastModified"]))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        request = {"Bucket": self._bucket, "Prefix": prefix}
        if after:
            request["StartAfter"] = after
        while True:
            with self._call(prefix):
                page = await self._client.list_objects_v2(**request)
            for found in page.get("Contents", ()):
                yield ObjectEntry(found["Key"], found["Size"], _wall_ms(found["LastModified"]))
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    async def delete(self, keys: Sequence[str]) -> Keys:
        failed: Keys = []
        for first in range(0, len(keys), BULK_DELETE_KEYS):
            some = keys[first : first + BULK_DELETE_KEYS]
            with self._call(some[0]):
                bulk = await self.bulk_delete.delete(some)
            failed += await self._delete_singly(some) if bulk is None else bulk
        return failed

    async def start_multipart(self, key: str) -> S3Multipart:
        request = self._at(key)
        if self.has_checksums:
            try:
                made = await self._create_upload(key, {**request, "ChecksumAlgorithm": "CRC32C"})
                self._is_checksum_known = True
                return S3Multipart(self, key, made, has_checksums=True)
            except StoreDenied as error:
                if not self._may_lack_checksums(error):
                    raise
                made = await self._create_upload(key, request)
                self._leave_out_checksums(error)
                return S3Multipart(self, key, made, has_checksums=False)
        return S3Multipart(self, key, await self._create_upload(key, request), has_checksums=False)

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        """What a store lists beside the prefix, or without a date, is left out. Some list none, or only those
        of one whole key."""
        request = {"Bucket": self._bucket, "Prefix": prefix}
        while True:
            with self._call(prefix):
                page = await self._client.list_multipart_uploads(**request)
            for found in page.get("Uploads", ()):
                if found["Key"].startswith(prefix) and "Initiated" in found:
                    upload = S3Multipart(self, found["Key"], found["UploadId"], has_checksums=False)
                    yield UnfinishedUpload(found["Key"], _wall_ms(found["Initiated"]), upload.abort)
            following = {
                name: str(page[f"Next{name}"])
                for name in ("KeyMarker", "UploadIdMarker")
                if page.get(f"Next{name}")
            }
            if not page.get("IsTruncated") or not following or following.items() <= request.items():
                return
            request = {**request, **following}

    async def close(self) -> None:
        self._is_closed = True
        await self._stack.aclose()

    # For S3Multipart, in this file.

    async def send_part(
        self, key: str, upload_id: str, number: int, parts: Sequence[Buffer], has_checksums: bool
    ) -> dict[str, Any]:
        """What `complete` must say of the part."""
        checksum = await _checksum_of(body_of(parts)) if has_checksums else ""
        headers = {_CRC_HEADER: checksum} if has_checksums else {}
        query = {"partNumber": str(number + 1), "uploadId": upload_id}
        with self._call(key):
            etag = await self.http.put(key, parts, sum(map(len, parts)), headers, query)
        return {
            "PartNumber": number + 1,
            "ETag": etag,
            **({"ChecksumCRC32C": checksum} if has_checksums else {}),
        }

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[dict[str, Any]], *, if_absent: bool = False
    ) -> None:
        """Without the condition where the store refuses the first that it sees."""
        request = {**self._at(key), "UploadId": upload_id, "MultipartUpload": {"Parts": list(parts)}}
        if if_absent and self.has_conditional_completion:
            try:
                with self._call(key):
                    await self._client.complete_multipart_upload(**request, IfNoneMatch="*")
                return
            except StoreDenied as error:
                if len(error.args) < 2 or error.args[1] not in _NOT_KNOWN:
                    raise
                log.warning(
                    "the store takes no condition for the end of a multipart upload (%s): large objects are "
                    "put without",
                    error,
                )
                self.has_conditional_completion = False
        with self._call(key):
            await self._client.complete_multipart_upload(**request)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        with self._call(key):
            await self._client.abort_multipart_upload(**self._at(key), UploadId=upload_id)

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": key}

    @contextmanager
    def _call(self, key: str) -> Iterator[None]:
        if self._is_closed:
            raise Closed("object store")
        with mapped(key):
            yield

    async def _put(self, key: str, parts: Sequence[Buffer], headers: dict[str, str]) -> None:
        """Once without the checksum where the store refuses the first one it sees: then it knows none, and is
        sent no more."""
        body = body_of(parts)
        refusal: StoreDenied | None = None
        if self.has_checksums:
            try:
                await self._put_summed(key, body, {**headers, _CRC_HEADER: await _checksum_of(body)})
                self._is_checksum_known = True
                return
            except StoreDenied as error:
                if not self._may_lack_checksums(error):
                    raise
                refusal = error
                await body.check(key)
        await self._put_summed(key, body, headers)
        if refusal is not None:
            self._leave_out_checksums(refusal)

    async def _put_summed(self, key: str, body: Body, headers: dict[str, str]) -> None:
        with self._call(key):
            await self.http.put(key, body, body.size_bytes, headers)

    async def _create_upload(self, key: str, request: dict[str, str]) -> str:
        with self._call(key):
            made = await self._client.create_multipart_upload(**request)
        return str(made["UploadId"])

    def _may_lack_checksums(self, error: StoreDenied) -> bool:
        return not self._is_checksum_known and len(error.args) > 1 and error.args[1] in _NOT_KNOWN

    def _leave_out_checksums(self, error: StoreDenied) -> None:
        if self.has_checksums:
            log.warning(
                "the store refuses checksum headers (%s): it is sent none from now on; objects have their "
                "own",
                error,
            )
        self.has_checksums = False
        self.bulk_delete.leave_out_checksums()

    async def _say_why(self, key: str, refusal: StoreDenied) -> None:
        """An answer to a HEAD has no body, and so no word but its status, which does not tell a clock that is
        wrong from missing rights: a request that is answered with a body raises what it says."""
        status = refusal.args[1:3]
        if len(status) == 2 and str(status[0]) == str(status[1]):
            with suppress(ObjectMissing):
                await self.get_range(key, 0, 1)

    async def _confirm_missing(self, key: str) -> None:
        """A HEAD is told 404 of a bucket that is gone, and by some stores of keys that nobody has, as it is
        of an object: the store looks empty then. What answers with a body says which, and that it was the
        object is believed of the HEADs that follow for `_MISSING_TRUSTED_S`. An object that was put meanwhile
        was not there when the HEAD asked."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._missing_trusted_until_s:
            with suppress(ObjectMissing):
                await self.get_range(key, 0, 1)
            self._missing_trusted_until_s = now_s + _MISSING_TRUSTED_S

    async def _is_content(self, key: str, content: bytes) -> bool:
        try:
            return await self.get_range(key, 0, len(content) + 1) == content
        except ObjectMissing:
            return False

    async def _delete_singly(self, keys: Sequence[str]) -> Keys:
        failed: Keys = []
        for first in range(0, len(keys), _SINGLE_DELETES):
            some = keys[first : first + _SINGLE_DELETES]
            is_deleted = await asyncio.gather(*map(self._delete_one, some))
            failed += [key for key, done in zip(some, is_deleted, strict=True) if not done]
        return failed

    async def _delete_one(self, key: str) -> bool:
        try:
            with self._call(key):
                await self._client.delete_object(**self._at(key))
        except ObjectMissing:
            return True
        except (Unavailable, StoreDenied):
            return False
        return True


class S3Multipart:
    """Left without `complete` or `abort` (a crash), its parts stay in the store until somebody aborts it, or
    a rule of the bucket does."""

    def __init__(self, store: S3ObjectStore, key: str, upload_id: str, *, has_checksums: bool) -> None:
        self._store = store
        self._key = key
        self._upload_id = upload_id
        self._has_checksums = has_checksums
        self._sizes: dict[int, int] = {}
        self._sent: dict[int, dict[str, Any]] = {}

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        number = len(self._sizes) if number is None else number
        self._sizes[number] = sum(map(len, parts))
        return self._send(number, parts)

    async def complete(self, *, if_absent: bool = False) -> None:
        """An upload that is gone was completed by an attempt whose answer was lost, if the object is there in
        its size. Under the condition that is not believed: it may be another's, and the caller looks."""
        assert len(self._sent) == len(self._sizes), "complete before every part was written"
        parts = [self._sent[number] for number in sorted(self._sent)]
        try:
            await self._store.complete_upload(self._key, self._upload_id, parts, if_absent=if_absent)
        except ObjectMissing:
            if if_absent:
                raise
            found = await self._store.head(self._key)
            if found is None or found.size_bytes != sum(self._sizes.values()):
                raise

    async def abort(self) -> None:
        try:
            await self._store.abort_upload(self._key, self._upload_id)
        except ObjectMissing:
            pass

    async def _send(self, number: int, parts: Sequence[Buffer]) -> None:
        sent = await self._store.send_part(self._key, self._upload_id, number, parts, self._has_checksums)
        self._sent[number] = sent


async def _checksum_of(body: Body) -> str:
    return base64.b64encode((await body.crc()).to_bytes(4, "big")).decode()


def new_client(session: AioSession, settings: S3Settings) -> Any:
    return session.create_client(
        "s3",
        region_name=settings.region or ("us-east-1" if settings.endpoint else None),
        endpoint_url=settings.endpoint,
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=settings.secret_key,
        aws_session_token=settings.session_token,
        config=_client_config(settings),
    )


async def bucket_url(client: Any, bucket: str) -> str:
    """Where the client would send a request for the bucket's objects, by its rules for regions, styles and
    endpoints. Sends none."""
    seen: list[str] = []

    def intercept(params: dict[str, Any], **_: Any) -> tuple[SimpleNamespace, dict[str, Any]]:
        seen.append(params["url"])
        return SimpleNamespace(status_code=200), {}

    client.meta.events.register_first("before-call.s3.HeadObject", intercept)
    await client.head_object(Bucket=bucket, Key="k")
    client.meta.events.unregister("before-call.s3.HeadObject", intercept)
    return seen[0].partition("?")[0].removesuffix("/k")


def key_source(session: AioSession, settings: S3Settings) -> KeySource:
    """The settings' keys, or what the chain gives, renewed when due."""
    if settings.access_key is not None and settings.secret_key is not None:
        static = SigningKeys(settings.access_key, settings.secret_key, settings.session_token)

        async def given() -> SigningKeys:
            return static

        return given

    async def found() -> SigningKeys:
        credentials = await session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        frozen = await credentials.get_frozen_credentials()
        return SigningKeys(frozen.access_key, frozen.secret_key, frozen.token)

    return found


def _client_config(settings: S3Settings) -> AioConfig:
    style = {None: "auto", True: "path", False: "virtual"}[settings.path_style]
    return AioConfig(
        max_pool_connections=settings.connections_max,
        connect_timeout=settings.connect_timeout_ms / 1000,
        read_timeout=settings.read_timeout_ms / 1000,
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Sums of our own go along with what we put; the client computes one only where the call demands it
        # (s3_delete.py).
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": style, "payload_signing_enabled": False},
        tcp_keepalive=True,
    )


def drop_expect(params: dict[str, Any], **_: Any) -> None:
    """Without 100-continue: a round trip saved on every put, at the price of a body sent in vain when the
    store refuses."""
    params["headers"].pop("Expect", None)


def stay_in_region(params: dict[str, Any], **_: Any) -> None:
    """A bucket that is elsewhere is refused, as where its objects are put and read. The client would look for
    it, and without end where the answer does not name a region."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _wall_ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)
