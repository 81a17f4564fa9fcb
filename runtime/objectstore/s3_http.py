"""Requests with bodies to S3, on plain aiohttp under a signature of our own: puts, parts and ranged gets,
which are nearly all there are.

The client library spends most of its time on a request in hooks, copies of parameters and XML; seldom verbs
(lists, deletions, multipart's beginning and end) stay with it, and so does finding credentials and the
bucket's address. One call is one request. What goes out is signed without its body (UNSIGNED-PAYLOAD): over
TLS the connection guards it, over plain HTTP the CRC32C in a signed header does; a body that has neither is
hashed and signed. Not here: what an error means (s3_errors.py), retries. Cancelled, an outcome is
unknown; the connection is closed, never reused.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from yarl import URL

from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import Lend, StoreDate, StoreDenied, fill
from millrace.runtime.objectstore.s3_errors import check_put, s3_refusal
from millrace.runtime.objectstore.s3_get import GetPool
from millrace.runtime.objectstore.sigv4 import (
    EMPTY_SHA256,
    UNSIGNED_PAYLOAD,
    Keys,
    Signer,
    quoted_path,
    quoted_query,
)
from millrace.runtime.scheduling.yield_queue import YieldQueue

# A body up to this size goes out as one piece of bytes, a larger one in pieces of about this size.
CHUNK_BYTES: Final = 256 << 10
_READ_BUFFER_BYTES: Final = 512 << 10  # aiohttp pauses the socket at twice this
_REFUSAL_BYTES_MAX: Final = 64 << 10
_KEEPALIVE_S: Final = 15.0  # below what stores close idle connections after
_CODE: Final = re.compile(rb"<Code>([^<]{1,100})</Code>")
_MESSAGE: Final = re.compile(rb"<Message>([^<]{1,300})</Message>")
_SKIPPED: Final = ("Content-Type", "User-Agent", "Accept", "Accept-Encoding")

KeySource = Callable[[], Awaitable[Keys]]


class BeyondEnd(Exception):
    """A range that begins at or after the object's end (416)."""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def code(self) -> str:
        """The store's word for a refusal; the status where it has none."""
        found = _CODE.search(self.content)
        return found[1].decode(errors="replace") if found else str(self.status)

    @property
    def message(self) -> str:
        found = _MESSAGE.search(self.content)
        return found[1].decode(errors="replace") if found else ""


class S3Http:
    def __init__(
        self,
        base_url: str,
        region: str,
        keys: KeySource,
        *,
        connections_max: int,
        connect_timeout_ms: int,
        read_timeout_ms: int,
        ca_file: str | None = None,
        yield_queue: YieldQueue | None = None,
    ) -> None:
        """`base_url` addresses the bucket, in whichever style, without a slash at its end."""
        parts = urlsplit(base_url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.netloc
        self._path = parts.path
        self._is_tls = parts.scheme == "https"
        self._keys = keys
        self._region = region
        self._signer = Signer(region)
        self._stamped_s, self._stamp = -1, ""
        self._date = ("", 0.0)  # the newest answer's own word, and when the first came that said so
        self._read_date: tuple[str, StoreDate | None] | None = None
        self._proxy = get_environ_proxies(base_url).get(parts.scheme)
        # The library's own list where none is given, as for its own requests: a slim machine has none.
        context = ssl.create_default_context(cafile=ca_file or get_cert_path(True)) if self._is_tls else None
        connector = aiohttp.TCPConnector(
            limit=connections_max, keepalive_timeout=_KEEPALIVE_S, ssl=True if context is None else context
        )
        self._has_lengths = True
        self._gets = GetPool(
            parts.hostname or "",
            parts.port or (443 if self._is_tls else 80),
            context,
            connections_max=connections_max,
            connect_timeout_s=connect_timeout_ms / 1000,
            read_timeout_s=read_timeout_ms / 1000,
            keepalive_s=_KEEPALIVE_S,
            yield_queue=yield_queue,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=connect_timeout_ms / 1000, sock_read=read_timeout_ms / 1000
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_SKIPPED,
            read_bufsize=_READ_BUFFER_BYTES,
        )

    @property
    def last_date(self) -> StoreDate | None:
        text, came_s = self._date
        if self._read_date is None or self._read_date[0] != text:
            try:
                date = StoreDate(int(parsedate_to_datetime(text).timestamp() * 1000), came_s)
            except ValueError:  # also where none was said
                date = None
            self._read_date = text, date
        return self._read_date[1]

    def note_date(self, headers: Mapping[str, str]) -> None:
        """Of an answer, whatever it answers: a refusal for a clock that is wrong tells the time, too."""
        text = headers.get("Date") or headers.get("date")
        if text and text != self._date[0]:
            self._date = text, asyncio.get_running_loop().time()

    async def close(self) -> None:
        self._gets.close()
        await self._session.close()

    async def get(self, key: str, byte_range: str | None = None) -> bytes:
        """The object or `bytes=FIRST-LAST` of it. BeyondEnd when it ends before FIRST."""
        answer = await self.ask("GET", key, headers={} if byte_range is None else {"range": byte_range})
        if answer.status >= 300:
            raise self._refusal(answer, key)
        return answer.content

    async def get_into(self, key: str, byte_range: str, lend: Lend) -> tuple[Sequence[memoryview], int]:
        """A range of the object, straight into the views; BeyondEnd as `get`. Through a proxy, or of a store
        that does not say how long its answers are, it is copied there."""
        if self._proxy is not None or not self._has_lengths:
            return fill(lend(), await self.get(key, byte_range))
        path = f"{self._path}/{quoted_path(key)}"
        headers = {"range": byte_range}
        signed = self._signer.sign(
            "GET", self._host, path, "", headers, EMPTY_SHA256, await self._keys(), self._now()
        )
        lines = "".join([f"{name}: {value}\r\n" for name, value in signed.items()])
        reply = await self._gets.get(
            f"GET {path} HTTP/1.1\r\nhost: {self._host}\r\n{lines}\r\n".encode(), lend
        )
        if reply.is_found and not reply.is_plain:
            self._has_lengths = False
            return await self.get_into(key, byte_range, lend)
        self.note_date(reply.headers)
        if not reply.is_found:
            raise self._refusal(Answer(reply.status, reply.headers, bytes(reply.content)), key)
        return reply.views, reply.came_bytes

    async def put(
        self,
        key: str,
        parts: Sequence[Buffer],
        size_bytes: int,
        headers: Mapping[str, str],
        query: Mapping[str, str] | None = None,
    ) -> str:
        """Puts an object, or with a query a part of one; gives its ETag."""
        has_sum = any(name.startswith("x-amz-checksum-") for name in headers)
        if self._is_tls or has_sum:
            payload = UNSIGNED_PAYLOAD
        elif size_bytes <= CHUNK_BYTES:
            payload = _digest(parts)
        else:
            payload = await asyncio.to_thread(_digest, parts)
        body = b"".join(parts) if size_bytes <= CHUNK_BYTES else _Body(parts)
        sized = {**headers, "content-length": str(size_bytes)}
        answer = await self.ask("PUT", key, query, sized, body, payload)
        if answer.status >= 300:
            raise self._refusal(answer, key)
        etag: str = answer.headers.get("ETag", "")
        check_put(etag, answer.content)
        return etag

    async def ask(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | _Body | None = None,
        payload: str = EMPTY_SHA256,
    ) -> Answer:
        """One request, whatever the answer says. Without a key it is about the bucket. Raises what aiohttp
        does when there is none."""
        path = f"{self._path}/{quoted_path(key)}" if key else self._path or "/"
        asked = quoted_query(query or {})
        keys = await self._keys()
        signed = self._signer.sign(method, self._host, path, asked, headers or {}, payload, keys, self._now())
        signed["host"] = (
            self._host
        )  # as it was signed: aiohttp would leave out a port that is the scheme's own
        url = URL(f"{self._origin}{path}{'?' if asked else ''}{asked}", encoded=True)
        async with self._session.request(
            method, url, headers=signed, data=body, allow_redirects=False, proxy=self._proxy
        ) as answer:
            self.note_date(answer.headers)
            content = await (
                answer.read() if answer.status < 300 else answer.content.read(_REFUSAL_BYTES_MAX)
            )
            return Answer(answer.status, answer.headers, content)

    def _refusal(self, answer: Answer, key: str) -> Exception:
        code = answer.code
        if answer.status == 416 or code == "InvalidRange":
            return BeyondEnd()
        region = answer.headers.get("x-amz-bucket-region", "")
        if region and region != self._region and answer.status in (301, 307, 400):
            return StoreDenied(
                key, f"the bucket is in the region {region}, not {self._region}: say region={region}"
            )
        return s3_refusal(answer.status, code, key, answer.message)

    def _now(self) -> str:
        now_s = int(time.time())
        if now_s != self._stamped_s:
            self._stamped_s, self._stamp = now_s, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
        return self._stamp


def _digest(parts: Sequence[Buffer]) -> str:
    value = sha256()
    for part in parts:
        value.update(part)
    return value.hexdigest()


class _Body:
    """Begins anew each time it is iterated: aiohttp repeats by itself what a connection closed by the other
    side swallowed."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[Buffer]:
        for chunk in chunks(self._parts):
            yield chunk


def chunks(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """Small neighbours joined, large parts as slices: neither a call per entry nor a write that must be
    buffered whole."""
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
