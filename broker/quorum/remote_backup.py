"""RemoteBackup: a broker's wait until the cluster's metadata is in the bucket, where the controller that
leads puts it.

In the place of a MetadataBackup. Before a log of objects acknowledges what was appended to a stream, and
before a log of blocks is trimmed, a restore from the bucket alone must know that stream, or that commit. Many
share a question, which goes over a connection of its own: an answer may take as long as the bucket is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.news import QuorumNews
from millrace.kraft.peers.channel import QuorumChannel
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.await_backup import AwaitBackupRequest
from millrace.runtime.errors import Closed, Unavailable, in_words

log = logging.getLogger(__name__)
AGAIN_S: Final = 1.0
LONG_S: Final = 5.0  # that a question may take before it is told as a reason


class RemoteBackup:
    is_full = False
    on_full: Callable[[], None]

    def __init__(self, channel: QuorumChannel, publisher: MetadataPublisher, news: QuorumNews) -> None:
        self._channel = channel
        self._news = news
        self._publisher = publisher
        self._saved_end = -1
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = 0.0
        self._is_closed = False

    @property
    def blocked_reason(self) -> str:
        """Why nothing is trimmed, or acknowledged where the log is one of objects; "" when nothing waits
        long."""
        if self._asking is None or asyncio.get_running_loop().time() - self._asked_s < LONG_S:
            return ""
        leader = self._news.leader
        if leader < 0:
            return "no controller leads, and puts the metadata into the bucket"
        return f"controller {leader} has not put the metadata into the bucket yet: its log says why"

    async def reach_committed(self) -> None:
        """Returns when all that is committed in this broker's image now is in the bucket. At millrace.version
        0, at which none is put there, at once. Cancelling gives up the wait alone. Raises Closed."""
        image = self._publisher.image
        while image.features.has_identities and self._saved_end < image.offset:
            if self._is_closed:
                raise Closed("the wait for the metadata backup")
            if self._asking is None:
                self._asked_s = asyncio.get_running_loop().time()
                self._asking = asyncio.get_running_loop().create_task(self._ask(), name="await backup")
            await asyncio.wait([self._asking])

    async def _ask(self) -> None:
        """Until it is answered."""
        target = self._publisher.image.offset
        try:
            while True:
                try:
                    await self._channel.send(AwaitBackupRequest(target))
                    break
                except (Unavailable, KafkaError) as error:
                    log.info("asks again whether the metadata is in the bucket: %s", in_words(error))
                await asyncio.sleep(AGAIN_S)
            self._saved_end = max(self._saved_end, target)
        finally:
            self._asking = None

    async def close(self) -> None:
        """Who waits still is told Closed."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        self._channel.close()
