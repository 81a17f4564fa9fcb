"""The object store over S3 and what speaks like it, by aiobotocore. Imported only when an address names it: it costs half a second.

One call is one request: botocore's own retries are off, since the retry wrapper above knows which outcomes may be
repeated. (aiohttp may still resend a small request on a connection that the server had closed; `put_if_absent` bears
that like any repeat, by comparing what it finds.) Bodies are sent as views, unsigned but with our own CRC32C, which
the store checks before it acknowledges. Not here: waiting, counting, what an error means (objectstore_s3_errors.py).
Cancelled, an outcome is unknown.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from crc32c import crc32c

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Closed, Unavailable
from millrace.runtime.objectstore import (
    Keys,
    ObjectEntry,
    ObjectMissing,
    PreconditionFailed,
    StoreDenied,
)
from millrace.runtime.objectstore_s3_errors import S3_ERRORS, s3_error, s3_status

BULK_DELETE_KEYS = 1000
# A body up to this size goes out as one piece of bytes, a larger one in pieces of about this size.
CHUNK_BYTES = 256 << 10
# Above this the checksum is computed in a thread (it releases the interpreter) instead of holding up the loop.
_CRC_ON_LOOP_BYTES = 4 << 20
_SINGLE_DELETES = 16
_NO_BULK_DELETE = ("NotImplemented", "MethodNotAllowed", "MalformedXML", "MissingContentMD5", "InvalidRequest")


@dataclass(frozen=True, slots=True)
class S3Settings:
    """`path_style` None lets the client choose by the endpoint. Without keys the usual chain is asked: environment, profile,
    container, instance. `has_checksums` False is for stores that refuse the header."""

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
    def __init__(self, client: Any, settings: S3Settings, stack: AsyncExitStack) -> None:
        self._client = client
        self._bucket = settings.bucket
        self._has_checksums = settings.has_checksums
        self._stack = stack
        self._has_bulk_delete = True
        self._is_closed = False

    @staticmethod
    async def open(settings: S3Settings, session: AioSession | None = None) -> S3ObjectStore:
        """Makes the client; sends nothing. `session`: shared, it saves the next client a tenth of a second of loading."""
        stack = AsyncExitStack()
        context = (session or AioSession()).create_client(
            "s3",
            region_name=settings.region or ("us-east-1" if settings.endpoint else None),
            endpoint_url=settings.endpoint,
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=settings.secret_key,
            aws_session_token=settings.session_token,
            config=_client_config(settings),
        )
        with _mapped(""):
            client = await stack.enter_async_context(context)
        client.meta.events.register_last("before-call.s3", _drop_expect)
        return S3ObjectStore(client, settings, stack)

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        with self._call(key):
            await self._client.put_object(**await self._body(parts), **self._at(key))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        """When it loses it reads what won: these very bytes are an earlier attempt's, whose answer was lost."""
        try:
            with self._call(key):
                await self._client.put_object(**await self._body(parts), **self._at(key), IfNoneMatch="*")
        except PreconditionFailed:
            if not await self._is_content(key, b"".join(parts)):
                raise

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        assert 0 <= start < end, (start, end)
        try:
            with self._call(key):
                return await self._read(key, Range=f"bytes={start}-{end - 1}")
        except _BeyondEnd:
            return b""

    async def get(self, key: str) -> bytes:
        with self._call(key):
            return await self._read(key)

    async def head(self, key: str) -> ObjectEntry | None:
        try:
            with self._call(key):
                found = await self._client.head_object(**self._at(key))
        except ObjectMissing:
            return None
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
            bulk = await self._delete_bulk(some) if self._has_bulk_delete else None
            failed += await self._delete_singly(some) if bulk is None else bulk
        return failed

    async def start_multipart(self, key: str) -> S3Multipart:
        options = {"ChecksumAlgorithm": "CRC32C"} if self._has_checksums else {}
        with self._call(key):
            made = await self._client.create_multipart_upload(**self._at(key), **options)
        return S3Multipart(self, key, made["UploadId"])

    async def close(self) -> None:
        self._is_closed = True
        await self._stack.aclose()

    # For S3Multipart, in this file.

    async def send_part(self, key: str, upload_id: str, number: int, parts: Sequence[Buffer]) -> dict[str, Any]:
        """What `complete` must say of the part."""
        body = await self._body(parts)
        with self._call(key):
            sent = await self._client.upload_part(**self._at(key), UploadId=upload_id, PartNumber=number + 1, **body)
        crc = {"ChecksumCRC32C": body["ChecksumCRC32C"]} if self._has_checksums else {}
        return {"PartNumber": number + 1, "ETag": sent["ETag"], **crc}

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[dict[str, Any]]) -> None:
        with self._call(key):
            await self._client.complete_multipart_upload(
                **self._at(key), UploadId=upload_id, MultipartUpload={"Parts": list(parts)}
            )

    async def abort_upload(self, key: str, upload_id: str) -> None:
        with self._call(key):
            await self._client.abort_multipart_upload(**self._at(key), UploadId=upload_id)

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": key}

    @contextmanager
    def _call(self, key: str) -> Iterator[None]:
        if self._is_closed:
            raise Closed("object store")
        with _mapped(key):
            yield

    async def _body(self, parts: Sequence[Buffer]) -> dict[str, Any]:
        size_bytes = sum(map(len, parts))
        body = b"".join(parts) if size_bytes <= CHUNK_BYTES else _Body(parts, size_bytes)
        if not self._has_checksums:
            return {"Body": body}
        if size_bytes <= _CRC_ON_LOOP_BYTES:
            checksum = _checksum(parts)
        else:
            checksum = await asyncio.to_thread(_checksum, parts)
        return {"Body": body, "ChecksumCRC32C": checksum}

    async def _read(self, key: str, **options: str) -> bytes:
        found = await self._client.get_object(**self._at(key), **options)
        async with found["Body"] as stream:
            return bytes(await stream.read())

    async def _is_content(self, key: str, content: bytes) -> bool:
        try:
            return await self.get_range(key, 0, len(content) + 1) == content
        except ObjectMissing:
            return False

    async def _delete_bulk(self, keys: Sequence[str]) -> Keys | None:
        """The keys that could not be deleted, or None when the store does not know the call."""
        request = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            with self._call(keys[0]):
                answer = await self._client.delete_objects(Bucket=self._bucket, Delete=request)
        except StoreDenied as error:
            if len(error.args) < 2 or error.args[1] not in _NO_BULK_DELETE:
                raise
            self._has_bulk_delete = False
            return None
        return [refused["Key"] for refused in answer.get("Errors", ()) if refused.get("Code") != "NoSuchKey"]

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
    """Left without `complete` or `abort` (a crash), its parts stay in the store until a rule of the bucket expires them."""

    def __init__(self, store: S3ObjectStore, key: str, upload_id: str) -> None:
        self._store = store
        self._key = key
        self._upload_id = upload_id
        self._sizes: dict[int, int] = {}
        self._sent: dict[int, dict[str, Any]] = {}

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        number = len(self._sizes) if number is None else number
        self._sizes[number] = sum(map(len, parts))
        return self._send(number, parts)

    async def complete(self) -> None:
        """An upload that is gone was completed by an attempt whose answer was lost, if the object is there in its size."""
        assert len(self._sent) == len(self._sizes), "complete before every part was written"
        parts = [self._sent[number] for number in sorted(self._sent)]
        try:
            await self._store.complete_upload(self._key, self._upload_id, parts)
        except ObjectMissing:
            found = await self._store.head(self._key)
            if found is None or found.size_bytes != sum(self._sizes.values()):
                raise

    async def abort(self) -> None:
        try:
            await self._store.abort_upload(self._key, self._upload_id)
        except ObjectMissing:
            pass

    async def _send(self, number: int, parts: Sequence[Buffer]) -> None:
        self._sent[number] = await self._store.send_part(self._key, self._upload_id, number, parts)


class _BeyondEnd(Exception):
    """A range that begins at or after the object's end (416)."""


class _Body:
    """Parts as a body that can be sent more than once. botocore asks for `read` and the length, aiohttp iterates."""

    def __init__(self, parts: Sequence[Buffer], size_bytes: int) -> None:
        self._parts = parts
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def read(self, size: int = -1) -> bytes:
        raise NotImplementedError("sent by iteration")

    def seek(self, position: int) -> None:
        assert position == 0  # a redirected request starts over, as each iteration does

    async def __aiter__(self) -> AsyncIterator[Buffer]:
        for chunk in _chunks(self._parts):
            yield chunk


def _chunks(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """Small neighbours joined, large parts as slices: neither a call per entry nor a write that must be buffered whole."""
    small: list[Buffer] = []
    small_bytes = 0
    for part in parts:
        if len(part) < CHUNK_BYTES:
            small.append(part)
            small_bytes += len(part)
        if small and (small_bytes >= CHUNK_BYTES or len(part) >= CHUNK_BYTES):
            yield b"".join(small)
            small, small_bytes = [], 0
        if len(part) >= CHUNK_BYTES:
            view = memoryview(part)
            for start in range(0, len(view), CHUNK_BYTES):
                yield view[start : start + CHUNK_BYTES]
    if small:
        yield b"".join(small)


def _checksum(parts: Sequence[Buffer]) -> str:
    value = 0
    for part in parts:
        value = crc32c(part, value)
    return base64.b64encode(value.to_bytes(4, "big")).decode()


@contextmanager
def _mapped(key: str) -> Iterator[None]:
    try:
        yield
    except S3_ERRORS as error:
        status, code = s3_status(error)
        if status == 416 or code == "InvalidRange":
            raise _BeyondEnd from None
        raise s3_error(error, key) from error


def _client_config(settings: S3Settings) -> AioConfig:
    style = {None: "auto", True: "path", False: "virtual"}[settings.path_style]
    return AioConfig(
        max_pool_connections=settings.connections_max,
        connect_timeout=settings.connect_timeout_ms / 1000,
        read_timeout=settings.read_timeout_ms / 1000,
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Sums of our own go along with what we put; the client computes one only where the call demands it (bulk
        # delete).
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": style, "payload_signing_enabled": False},
        tcp_keepalive=True,
    )


def _drop_expect(params: dict[str, Any], **_: Any) -> None:
    """Without 100-continue: a round trip saved on every put, at the price of a body sent in vain when the store refuses."""
    params["headers"].pop("Expect", None)


def _wall_ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)
