"""Wait of a controller that ends for brokers that end too: without it the last ones may find no majority,
and their streams stay open until their next start.

Not here: how a broker ends (heartbeats.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.node import ControllerNode

log = logging.getLogger(__name__)
WAIT_S: Final = 5.0  # a broker that was killed while it ended keeps its streams open


async def until_others_end(node: ControllerNode) -> None:
    """Returns once all brokers but this node that want to end have closed their streams, or after
    `WAIT_S`."""
    changed = asyncio.Event()
    unsubscribe = node.publisher.subscribe(lambda delta, image: changed.set())
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while waited_for := ending(node.publisher.image, node.settings.node_id):
                    log.info("waits for brokers that end: %s", ", ".join(map(str, waited_for)))
                    changed.clear()
                    await changed.wait()
    finally:
        unsubscribe()


def ending(image: MetadataImage, own_id: int) -> list[int]:
    """Brokers that want to end and have streams open, or owe some of others."""
    return [
        broker.broker_id
        for broker in image.brokers
        if broker.is_shutting_down
        and broker.broker_id != own_id
        and image.streams.are_in_log_of(broker.broker_id)
    ]
