"""Puts objects under keys that nobody else may have: if absent, where the store keeps that condition.

An object of our own is there already when an answer was lost. A whole put tells by all of its bytes (each
store compares when it loses); a multipart upload by its size and the writer's token, which the footer has.
What is neither is another's: two processes work with copies of one metadata log, and one of them has to end.
The one that still owns the node goes on under other ids. Kept true: nothing that is there is ever replaced.
Not here: repeating what was not answered (the store's wrapper, the uploader).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Fenced, MillraceError, Unavailable, in_words
from millrace.runtime.objectstore import (
    MultipartUpload,
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    StoreConflict,
    StoreDenied,
)
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import Writer
from millrace.s3stream.objects.composite import COMPOSITE_MAGIC
from millrace.s3stream.objects.format import FOOTER_BYTES, FOOTER_MAGIC, decode_footer
from millrace.s3stream.ownership import Ownership

log = logging.getLogger(__name__)
ABORT_S = 5.0


class ObjectForeign(Fenced):
    """Another object than ours lies under an id that was given to us: somebody else's, or one that we wrote
    and that has changed since. It was left as it is."""

    def __init__(self, key: str, own: Writer | None, found: Writer | None) -> None:
        super().__init__(key, own, found)
        self.key = key
        self.own = own
        self.found = found

    def __str__(self) -> str:
        if self.found is not None and self.found == self.own:
            return (
                f"the object {self.key} was written by this process, {self.own}, and its content is not what "
                "was sent: it is corrupt in the "
                "store; nothing was overwritten, and nothing more is committed here: find out what changes "
                "objects in the bucket, and "
                "start the node again, which writes what it holds anew under another id"
            )
        whose = "somebody who is not named in it" if self.found is None else str(self.found)
        return (
            f"the object {self.key} was written by {whose}, and its id was given to {self.own}: another "
            "process works with a copy of "
            "this node's log directory; nothing was overwritten, and nothing more is committed here: let one "
            "of the two run"
        )


async def put_object(store: ObjectStore, ownership: Ownership, key: str, parts: Sequence[Buffer]) -> None:
    """Durable on return. Raises ObjectForeign, and what the store raises; StoreConflict where it refuses the
    condition and has nothing there."""
    if not ownership.is_conditional:
        await store.put(key, parts)
        return
    try:
        await store.put_if_absent(key, parts)
    except PreconditionFailed:
        if await store.head(key) is None:
            raise StoreConflict(
                key, "an object is there, by the answer to a put, and there is none"
            ) from None
        raise ObjectForeign(key, ownership.writer, await writer_at(store, key)) from None


async def pass_over(ownership: Ownership, foreign: ObjectForeign) -> None:
    """Returns when the object is a replaced owner's, who put it before it knew: it is nobody's, and the id is
    given up. Raises what the look says, and `foreign` itself where nobody is named."""
    if foreign.found is None or foreign.found == ownership.writer:
        raise foreign
    await ownership.verify(asyncio.get_running_loop().time())
    log.warning(
        "%s was written by %s, which this process has replaced: it is left, and another id taken",
        foreign.key,
        foreign.found,
    )


async def complete_object(
    store: ObjectStore, ownership: Ownership, key: str, upload: MultipartUpload, size_bytes: int
) -> None:
    """As put_object, of an upload all of whose parts were sent. ObjectMissing when it is gone and must be
    made anew. Raises ObjectForeign where another's object lies under the key."""
    if not ownership.is_conditional:
        await upload.complete()
        return
    try:
        await upload.complete(if_absent=True)
    except (PreconditionFailed, ObjectMissing) as error:
        found = await writer_at(store, key)
        if found is not None and found == ownership.writer and await _size_of(store, key) == size_bytes:
            # An attempt of ours, whose answer was lost: by this upload, or by one before it, and then this
            # one is left over.
            with contextlib.suppress(Unavailable, StoreDenied, ObjectMissing):
                await upload.abort()
            return
        if isinstance(error, ObjectMissing) and await store.head(key) is None:
            raise
        raise ObjectForeign(key, ownership.writer, found) from None


async def abandon(key: str, upload: MultipartUpload) -> None:
    """Ends an upload that will not be completed; none of its parts may be under way. Waits a bounded time for
    the store to forget the parts; else its own rules, or the sweep of unfinished uploads, clean up."""
    try:
        async with asyncio.timeout(ABORT_S):
            await upload.abort()
    except (MillraceError, TimeoutError) as error:
        log.info("a multipart upload of %s was left behind: %s", key, in_words(error))


async def _size_of(store: ObjectStore, key: str) -> int | None:
    entry = await store.head(key)
    return None if entry is None else entry.size_bytes


async def writer_at(store: ObjectStore, key: str) -> Writer | None:
    """Whom the object there names; None when it names nobody, or is gone."""
    size_bytes = await _size_of(store, key)
    if size_bytes is None or size_bytes < FOOTER_BYTES:
        return None
    try:
        footer = memoryview(await store.get_range(key, size_bytes - FOOTER_BYTES, size_bytes))
        magic = COMPOSITE_MAGIC if footer[-len(COMPOSITE_MAGIC) :] == COMPOSITE_MAGIC else FOOTER_MAGIC
        return decode_footer(footer, size_bytes, magic).writer
    except (ObjectCorrupt, ObjectMissing):
        return None
