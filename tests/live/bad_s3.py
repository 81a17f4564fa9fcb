"""A small S3 in memory that lacks what it is told to lack: what other people's stores are like, one property
at a time.

    async with BadS3("ignores-if-none-match") as store: store.address

Without a fault it does everything that the doctor asks of a store. It checks no signatures.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from email.utils import formatdate
from hashlib import md5
from types import TracebackType
from xml.sax.saxutils import escape

from aiohttp import web
from crc32c import crc32c

FAULTS = (
    "no-bulk-delete",
    "ignores-if-none-match",
    "refuses-if-none-match",
    "ignores-conditional-completion",
    "refuses-conditional-completion",
    "races",
    "ignores-if-match",
    "refuses-checksums",
    "ignores-checksums",
    "no-multipart",
    "no-upload-list",
    "lists-no-uploads",
    "ignores-ranges",
    "list-unordered",
    "list-late",
    "list-pages-overlap",
    "clock-behind",
    "clock-hour-behind",
    "denies",
    "denies-puts",  # and answers all else
    "no-bucket",
    # says to conditional puts that the key exists, and shows nothing; but for the keys of trials
    "contradicts",
    "away",  # answers, and never with anything else than 503
    "skewed",
    "expired",
    "moved",
    "wants-md5",
    "deletes-one",
)
ALWAYS = {
    "denies": (403, "AccessDenied"),
    "no-bucket": (404, "NoSuchBucket"),
    "away": (503, "SlowDown"),
    "skewed": (403, "RequestTimeTooSkewed"),
    "expired": (400, "ExpiredToken"),
    "moved": (301, "PermanentRedirect"),
}
PAGE = 1000


class BadS3:
    def __init__(self, *faults: str) -> None:
        assert set(faults) <= set(FAULTS), faults
        self.faults = set(faults)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.upload_keys: dict[str, str] = {}
        self._created: list[str] = []  # keys, some of them deleted again
        self._looking: list[str] = []  # keys that a creator saw to be free
        self._has_company = asyncio.Event()
        self.requests: list[str] = []  # method, and query or the header that matters

    @property
    def address(self) -> str:
        keys = "accessKey=test&secretKey=secret"
        return f"0@s3://lake?endpoint=http://127.0.0.1:{self.port}&region=us-east-1&pathStyle=true&{keys}"

    async def __aenter__(self) -> BadS3:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/lake{slash:/?}{key:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        key = request.match_info["key"]
        self.requests.append(f"{request.method} {request.query_string}")
        refused = next((refusal for fault, refusal in ALWAYS.items() if fault in self.faults), None)
        if refused is not None:
            answer = _refusal(*refused)
        elif request.method == "POST":
            answer = self._post(request, key, body)
        elif request.method == "PUT" and "denies-puts" in self.faults:
            answer = _refusal(403, "AccessDenied")
        elif request.method == "PUT":
            answer = await self._put(request, key, body)
        elif request.method == "DELETE":
            self.uploads.pop(request.query.get("uploadId", ""), None)
            if "uploadId" not in request.query:
                self.objects.pop(key, None)
            answer = web.Response(status=204)
        elif not key:
            answer = self._list_uploads(request) if "uploads" in request.query else self._list(request)
        else:
            answer = self._get(request, key)
        behind_s = 3600 if "clock-hour-behind" in self.faults else 120 if "clock-behind" in self.faults else 0
        answer.headers["Date"] = formatdate(time.time() - behind_s, usegmt=True)
        return answer

    async def _look(self, key: str) -> None:
        """Returns when another creator looks at the same key."""
        self._looking.append(key)
        if self._looking.count(key) > 1:
            self._has_company.set()
        await self._has_company.wait()

    async def _put(self, request: web.Request, key: str, body: bytes) -> web.Response:
        checksum = request.headers.get("x-amz-checksum-crc32c")
        if checksum is not None and "refuses-checksums" in self.faults:
            return _refusal(501, "NotImplemented")
        expected = base64.b64encode(crc32c(body).to_bytes(4, "big")).decode()
        if checksum not in (None, expected) and "ignores-checksums" not in self.faults:
            return _refusal(400, "BadDigest")
        if "uploadId" in request.query:
            self.uploads[request.query["uploadId"]][int(request.query["partNumber"])] = body
            return web.Response(headers={"ETag": _etag(body)})
        if "If-None-Match" in request.headers:
            if "refuses-if-none-match" in self.faults:
                return _refusal(501, "NotImplemented")
            is_there = key in self.objects
            if "races" in self.faults and not is_there and key in self._created:
                await self._look(key)  # then leaps
            self._created.append(key)
            is_there |= self._contradicts(key)
            if is_there and "ignores-if-none-match" not in self.faults:
                return _refusal(412, "PreconditionFailed")
        match = request.headers.get("If-Match")
        if match is not None and "ignores-if-match" not in self.faults:
            if key not in self.objects:
                return _refusal(404, "NoSuchKey")
            if match != _etag(self.objects[key]):
                return _refusal(412, "PreconditionFailed")
        self.objects[key] = body
        return web.Response(headers={"ETag": _etag(body)})

    def _get(self, request: web.Request, key: str) -> web.Response:
        if key not in self.objects or self._contradicts(key):
            return _refusal(404, "NoSuchKey")
        content = self.objects[key]
        headers = {"ETag": _etag(content), "Last-Modified": formatdate(time.time(), usegmt=True)}
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(len(content))})
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if asked is None or "ignores-ranges" in self.faults:
            return web.Response(body=content, headers=headers)
        first, last = int(asked[1]), int(asked[2])
        if first >= len(content):
            return _refusal(416, "InvalidRange")
        return web.Response(status=206, body=content[first : last + 1], headers=headers)

    def _contradicts(self, key: str) -> bool:
        return "contradicts" in self.faults and not key.startswith("millrace-test-")

    def _post(self, request: web.Request, key: str, body: bytes) -> web.Response:
        if "delete" in request.query:
            if "no-bulk-delete" in self.faults:
                return _refusal(501, "NotImplemented")
            sent = request.headers.get("Content-MD5")
            if sent is None and "wants-md5" in self.faults:
                return _refusal(400, "MissingContentMD5")
            if sent not in (None, base64.b64encode(md5(body, usedforsecurity=False).digest()).decode()):
                return _refusal(400, "InvalidDigest")
            named = re.findall(rb"<Key>([^<]+)</Key>", body)
            for found in named[: 1 if "deletes-one" in self.faults else None]:
                self.objects.pop(found.decode(), None)
            return web.Response(text="<DeleteResult></DeleteResult>", content_type="application/xml")
        if "no-multipart" in self.faults:
            return _refusal(501, "NotImplemented")
        if "uploads" in request.query:
            number = f"u{len(self.requests)}"
            self.uploads[number], self.upload_keys[number] = {}, key
            result = "InitiateMultipartUploadResult"
            made = f"<{result}><UploadId>{number}</UploadId></{result}>"
            return web.Response(text=made, content_type="application/xml")
        if "If-None-Match" in request.headers:
            if "refuses-conditional-completion" in self.faults:
                return _refusal(501, "NotImplemented")
            if key in self.objects and "ignores-conditional-completion" not in self.faults:
                return _refusal(412, "PreconditionFailed")
        parts = self.uploads.pop(request.query["uploadId"])
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        done = "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>"
        return web.Response(text=done, content_type="application/xml")

    def _list_uploads(self, request: web.Request) -> web.Response:
        if "no-upload-list" in self.faults:
            return _refusal(501, "NotImplemented")
        began = "<Initiated>2026-01-02T03:04:05.000Z</Initiated>"
        found = "".join(
            f"<Upload><Key>{self.upload_keys[number]}</Key><UploadId>{number}</UploadId>{began}</Upload>"
            for number in self.uploads
            if self.upload_keys[number].startswith(request.query.get("prefix", ""))
            and "lists-no-uploads" not in self.faults
        )
        text = f"<ListMultipartUploadsResult>{found}</ListMultipartUploadsResult>"
        return web.Response(text=text, content_type="application/xml")

    def _list(self, request: web.Request) -> web.Response:
        found = sorted(
            (key for key in self.objects if key.startswith(request.query.get("prefix", ""))), key=str.encode
        )
        found = [key for key in found if not self._contradicts(key)]
        if "list-late" in self.faults:
            found = found[:-1]
        if "list-unordered" in self.faults:
            found.reverse()
        after = request.query.get("continuation-token") or request.query.get("start-after", "")
        if after and "list-pages-overlap" in self.faults and "continuation-token" in request.query:
            found = [key for key in found if key >= after]
        elif after:
            found = [key for key in found if key > after]
        page = found[: int(request.query.get("max-keys", PAGE))]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in page
        )
        more = (
            f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
            if len(page) < len(found)
            else ""
        )
        is_cut = str(bool(more)).lower()
        listed = f"<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>{rows}{more}</ListBucketResult>"
        return web.Response(text=listed, content_type="application/xml")


def _etag(content: bytes) -> str:
    return f'"{md5(content, usedforsecurity=False).hexdigest()}"'


def _refusal(status: int, code: str) -> web.Response:
    return web.Response(
        status=status,
        text=f"<Error><Code>{code}</Code><Message>no</Message></Error>",
        content_type="application/xml",
    )
