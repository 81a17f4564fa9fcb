"""LoadReports: tells the controller that leads, every interval, what this broker's partitions have moved.

A report that does not arrive is not sent again: the next one says what is so then.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millrace.broker.cluster.loads import report_of
from millrace.broker.controller_client import ControllerClient
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.kraft.channel import ControllerChannel
from millrace.kraft.commands.spreading import Key
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.report_load import ReportLoadRequest
from millrace.runtime.errors import MillraceError, in_words
from millrace.runtime.scheduling.yield_queue import YieldQueue

log = logging.getLogger(__name__)


STRIDE: Final = 2_000  # partitions that are looked at in one go


class LoadReports:
    def __init__(
        self,
        client: ControllerClient,
        channel: ControllerChannel,
        directory: PartitionDirectory,
        yield_queue: YieldQueue,
        every_s: float,
    ) -> None:
        self._client = client
        self._channel = channel
        self._directory = directory
        self._yield_queue = yield_queue
        self._every_s = every_s
        self._said = ""

    async def run(self) -> None:
        """Until cancelled."""
        loop, node_id = asyncio.get_running_loop(), self._directory.node_id
        before, before_s = await self._counters(), loop.time()
        while True:
            await asyncio.sleep(self._every_s)
            after, after_s = await self._counters(), loop.time()
            report = report_of(node_id, self._client.broker_epoch, before, after, after_s - before_s)
            before, before_s = after, after_s
            await self._send(report)

    async def _send(self, report: ReportLoadRequest) -> None:
        failure = ""
        try:
            async with asyncio.timeout(self._every_s):
                await self._channel.send(report)
        except (TimeoutError, MillraceError, KafkaError) as error:
            failure = in_words(error)
        if failure and failure != self._said:
            log.info("what this broker moves was not reported: %s", failure)
        self._said = failure

    async def _counters(self) -> dict[Key, tuple[int, int]]:
        """Of partitions of topics that moved anything at all."""
        found: dict[Key, tuple[int, int]] = {}
        looked_count = 0
        for led in [*self._directory.topics()]:
            if not led.traffic.in_bytes and not led.traffic.out_bytes:
                continue
            for index, partition in [*led.partitions.items()]:
                found[led.topic_id, index] = partition.in_bytes, partition.out_bytes
                looked_count += 1
                if looked_count % STRIDE == 0:
                    await self._yield_queue.yield_now()
        return found
