"""RemoteBackup: a broker's wait until the cluster's metadata is in the bucket, where the controller that
leads puts it.

In the place of a MetadataBackup. Before a log of objects acknowledges what was appended to a stream, and
before a log of blocks is trimmed, a restore from the bucket alone must know that stream, or that commit. Many
share a question, which goes over a connection of its own: an answer may take as long as the bucket is away.
The first answer of each term is compared with this broker's bucket (common_bucket.py): one that puts the
metadata elsewhere has said nothing of what a restore would find here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from millrace.broker.quorum.common_bucket import CommonBucket
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.news import QuorumNews
from millrace.kraft.peers.channel import QuorumChannel
from millrace.kraft.raft.messages import NOBODY
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.await_backup import AwaitBackupRequest
from millrace.runtime.errors import Closed, MillraceError, Unavailable, in_words

log = logging.getLogger(__name__)
AGAIN_S: Final = 1.0
LONG_S: Final = 5.0  # that a question may take before it is told as a reason


async def await_backup(channel: QuorumChannel, news: QuorumNews, end: int) -> int:
    """Returns once whoever leads says that its bucket has the metadata up to `end`: who that is, in the epoch
    that `news` has then. Of a question that is answered in another epoch than it was asked in, or while
    nobody leads any more, nobody knows who answered it: it is asked again."""
    while True:
        epoch = news.epoch
        try:
            await channel.send(AwaitBackupRequest(end))
        except (Unavailable, KafkaError) as error:
            log.info("asks again whether the metadata is in the bucket: %s", in_words(error))
            await asyncio.sleep(AGAIN_S)
        else:
            if epoch == news.epoch and news.leader != NOBODY:
                return news.leader


def why_not_put(leader: int) -> str:
    if leader == NOBODY:
        return "no controller leads, and puts the metadata into the bucket"
    return f"controller {leader} has not put the metadata into the bucket yet: its log says why"


class RemoteBackup:
    is_full = False
    on_full: Callable[[], None]

    def __init__(
        self, channel: QuorumChannel, publisher: MetadataPublisher, news: QuorumNews, common: CommonBucket
    ) -> None:
        self._channel = channel
        self._news = news
        self._common = common
        self._compared_epoch = -1  # of the quorum: whoever leads in it has this broker's bucket
        self._why_another = ""  # the bucket of who was asked last is another one
        self._asked_epoch = -1  # of the quorum: the one in which that was
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
        news = self._news
        if self._why_another and self._asked_epoch == news.epoch and news.leader != NOBODY:
            return self._why_another
        return why_not_put(news.leader)

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
        image = self._publisher.image
        target = image.offset
        try:
            while True:
                leader = await await_backup(self._channel, self._news, target)
                epoch = self._asked_epoch = self._news.epoch
                if epoch == self._compared_epoch or await self._is_here(leader, target):
                    break
                await asyncio.sleep(AGAIN_S)
            if epoch == image.epoch == self._news.epoch:  # what was put in it is in no copy of before
                self._compared_epoch = epoch
            self._saved_end = max(self._saved_end, target)
        finally:
            self._asking = None

    async def _is_here(self, leader: int, target: int) -> bool:
        """Whether this broker's bucket has what was said to be in one, as far as it can be asked."""
        try:
            why = await self._common.why_another(leader, target)
        except MillraceError as error:
            log.info("looks again whether the metadata is in the bucket: %s", in_words(error))
            return False
        if why and why != self._why_another:
            log.error("the write-ahead log is not trimmed: %s", why)
        self._why_another = why
        return not why

    async def close(self) -> None:
        """Who waits still is told Closed."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        self._channel.close()
