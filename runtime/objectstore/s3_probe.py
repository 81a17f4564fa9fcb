"""What only S3 has, asked request by request, so that it is the server that is judged and not the client's
remedies. Deleting many at once alone is asked as the broker asks it, remedies included.

Conditions on ETags, checksum headers, pages of a listing, bulk deletion, the server's clock. The findings
have the form of probe.py.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from email.utils import parsedate_to_datetime

from crc32c import crc32c

from millrace.runtime.objectstore import StoreDenied
from millrace.runtime.objectstore.probe import STORE_ERRORS, Finding, Unmet, Verdict, find_out
from millrace.runtime.objectstore.s3 import S3ObjectStore
from millrace.runtime.objectstore.s3_delete import Way
from millrace.runtime.objectstore.s3_errors import S3_ERRORS, s3_error, s3_refusal
from millrace.runtime.objectstore.s3_http import Answer
from millrace.runtime.objectstore.sigv4 import UNSIGNED_PAYLOAD

SKEW_WARNED_S, SKEW_REFUSED_S = 60, 900
LOST = (404, 409, 412)  # what a condition that does not hold may be answered with
_KEY = re.compile(r"<Key>([^<]+)</Key>")
_TOKEN = re.compile(r"<NextContinuationToken>([^<]+)</NextContinuationToken>")


def _sum_of(content: bytes) -> str:
    return base64.b64encode(crc32c(content).to_bytes(4, "big")).decode()


class S3Probe:
    def __init__(self, store: S3ObjectStore, prefix: str) -> None:
        self._store = store
        self._http = store.http
        self._prefix = prefix

    async def findings(self) -> AsyncIterator[Finding]:
        yield await find_out(
            "If-Match",
            "the name of the newest metadata snapshot is compared and put in two steps, by the one writer "
            "there is",
            self.match(),
        )
        sent_none = (
            "checksums are left out (set checksumAlgorithm=none to say so); objects carry their own "
            "CRC32C, which readers verify"
        )
        yield await find_out("checksum header taken", sent_none, self.checksum_taken())
        not_held = "a body that changes on its way is found by its first reader, not by the store"
        yield await find_out("wrong checksum refused", not_held, self.checksum_held())
        yield await find_out("list pages", "", self.pages())
        found = await find_out(
            "bulk delete", "objects are deleted one by one, 16 at a time", self.bulk_delete()
        )
        yield (
            replace(found, instead="") if found.verdict is Verdict.WRONG else found
        )  # the broker would not notice

    async def match(self) -> str:
        """If-Match takes the right ETag and no other. Raises Unmet where it is ignored, the store's refusal
        where it is not served."""
        key = f"{self._prefix}match"
        right = (await self._put(key, b"one")).headers.get("ETag", "")
        changed = await self._put(key, b"two", {"if-match": right})
        if changed.status != 200:
            raise self._denied(changed, key, "the right ETag is refused")
        for name, at, etag in (("a stale ETag", key, right), ("a missing key", f"{key}-none", right)):
            lost = await self._put(at, b"three", {"if-match": etag})
            if lost.status == 200:
                raise Unmet(f"If-Match is ignored: {name} is taken")
            if lost.status not in LOST:
                raise self._denied(lost, key, name)
        if (await self._ask("GET", key)).content != b"two":
            raise Unmet("a refused If-Match changed the object all the same")
        return "right, stale and missing are told apart"

    async def checksum_taken(self) -> str:
        answer = await self._put(f"{self._prefix}sum", b"body", {"x-amz-checksum-crc32c": _sum_of(b"body")})
        if answer.status != 200:
            raise self._denied(answer, "sum", "x-amz-checksum-crc32c")
        return "x-amz-checksum-crc32c"

    async def checksum_held(self) -> str:
        """The store's answer to a wrong checksum. Raises Unmet where the body is stored all the same."""
        key = f"{self._prefix}wrong-sum"
        answer = await self._put(key, b"body", {"x-amz-checksum-crc32c": _sum_of(b"another")})
        if answer.status == 200:
            raise Unmet("a body under another's CRC32C is stored")
        return f"{answer.status} {answer.code}"

    async def pages(self) -> str:
        """A listing in pages is whole and in order. Else raises Unmet, or the store's refusal."""
        keys = [f"{self._prefix}page/{number:02}" for number in range(7)]
        for key in keys:
            await self._put(key, b"x")
        listed: list[str] = []
        query = {"list-type": "2", "prefix": f"{self._prefix}page/", "max-keys": "2"}
        for _ in range(len(keys) + 1):
            page = await self._ask("GET", "", query)
            if page.status != 200:
                raise self._denied(page, "page", "a listing in pages")
            text = page.content.decode()
            listed += _KEY.findall(text)
            token = _TOKEN.search(text)
            if token is None:
                break
            query["continuation-token"] = token[1].replace("&amp;", "&")
        if listed != keys:
            raise Unmet(f"pages of 2 give {len(listed)} keys of {len(keys)}, or in another order")
        return "every key once, in order"

    async def bulk_delete(self) -> str:
        """One request deletes several keys. Raises StoreDenied where refused, Unmet where keys stay."""
        keys = [f"{self._prefix}bulk/{number}" for number in range(3)]
        for key in keys:
            await self._put(key, b"x")
        bulk = self._store.bulk_delete
        left = await bulk.delete([*keys, f"{self._prefix}bulk/none"])
        told = "" if bulk.refusal is None else f"{bulk.refusal.args[1]}"
        if left is None:
            raise StoreDenied("POST ?delete", told)
        if left:
            raise Unmet(f"some of 4 keys are refused ({len(left)})")
        still = [key for key in keys if (await self._ask("HEAD", key)).status != 404]
        if still:
            raise Unmet(f"a bulk deletion is taken, and {len(still)} of {len(keys)} keys are still there")
        after = f", after {told} to {Way.CRC32.value}" if told else ""
        return f"four keys in one request, one of them missing, under {bulk.way.value}{after}"

    async def clock(self) -> Finding:
        """From the date of whatever the store answers: what is wrong with the clock may be all that it ever
        says."""
        began = time.time()
        harmless = "nothing depends on it but signatures"
        try:
            answer = await self._ask("GET", "", {"list-type": "2", "max-keys": "1", "prefix": self._prefix})
            middle = (began + time.time()) / 2
            skew_s = middle - parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
        except STORE_ERRORS:
            return Finding("clock", Verdict.UNKNOWN, "no answer", harmless)
        except (TypeError, ValueError):
            return Finding("clock", Verdict.UNKNOWN, "the server sends no Date", harmless)
        seen = (
            f"ours is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"
            if abs(skew_s) >= 1.5
            else "the same"
        )
        if abs(skew_s) < SKEW_WARNED_S:
            return Finding("clock", Verdict.YES, seen)
        refused = f"signatures are refused beyond {SKEW_REFUSED_S // 60} minutes"
        advice = "set this machine's clock, unless it is the store's that is wrong"
        return Finding("clock", Verdict.WRONG, seen, refused if abs(skew_s) < SKEW_REFUSED_S else "", advice)

    async def _put(self, key: str, content: bytes, headers: dict[str, str] | None = None) -> Answer:
        sized = {**(headers or {}), "content-length": str(len(content))}
        return await self._ask("PUT", key, None, sized, content)

    async def _ask(
        self,
        method: str,
        key: str,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        try:
            return await self._http.ask(method, key, query, headers, body, UNSIGNED_PAYLOAD)
        except S3_ERRORS as error:
            raise s3_error(error, key) from error

    def _denied(self, answer: Answer, key: str, what: str) -> Exception:
        found = s3_refusal(answer.status, answer.code, key, answer.message)
        return type(found)(what, *found.args[1:]) if isinstance(found, StoreDenied) else found
