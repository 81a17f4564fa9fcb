"""Topics made on the way: by Metadata for names nobody has, and internal ones on first need.

One creation of a name is in flight at a time, however many ask, and names asked for together are created
together, very many of them a request at a time, with a yield before each. Not here: what a topic may be (the
controller decides). An internal topic that this broker has no use for is not made for a client that names it:
it would have the wrong configuration on the day it is needed. One that the controller refuses is told to the
operator, at a bounded rate: the clients that wait for it are told only to ask again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from millrace.broker.metadata_cache import INTERNAL_TOPICS
from millrace.broker.requests.request import RequestContext
from millrace.kraft.channel import ControllerChannel
from millrace.kraft.commands.create_topics import name_fault
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millrace.runtime.errors import Exhausted, Unavailable, in_words
from millrace.runtime.scheduling.semaphore import Semaphore
from millrace.runtime.scheduling.yield_queue import YieldQueue

log = logging.getLogger(__name__)
CREATION_TIMEOUT_MS = 30_000
NAMES_A_REQUEST = 100
CREATIONS_AT_ONCE = 4  # requests under way, in which those who asked take turns
IS_THERE = ErrorCode.TOPIC_ALREADY_EXISTS
REFUSAL_PERIOD_S = 60.0  # one line a topic and period


class TopicCreation:
    def __init__(
        self,
        channel: ControllerChannel,
        internal: Mapping[str, tuple[int, Mapping[str, str]]],
        yield_queue: YieldQueue,
    ) -> None:
        """`internal`: name -> (partitions, configs) of topics that are not made with the defaults."""
        self._channel = channel
        self._internal = internal
        self._yield_queue = yield_queue
        self._permits = Semaphore(CREATIONS_AT_ONCE)
        self._in_flight: dict[str, asyncio.Task[dict[str, int]]] = {}
        self._told: dict[str, float] = {}  # internal topics alone
        self.on_created: Callable[[RequestContext, Sequence[str]], None] = lambda context, names: (
            None
        )  # whose request made them

    def may_create(self, name: str) -> bool:
        """Whether a client that merely names it gets it."""
        return name_fault(name) is None and (name not in INTERNAL_TOPICS or name in self._internal)

    async def ensure(self, names: Sequence[str], context: RequestContext) -> dict[str, int]:
        """Makes what is not there, for the request that needs it; gives an error code per name, NONE also
        when it was there by then."""
        new = [name for name in dict.fromkeys(names) if name not in self._in_flight]
        for first in range(0, len(new), NAMES_A_REQUEST):
            self._start(new[first : first + NAMES_A_REQUEST], context, is_first=not first)
        tasks = {name: self._in_flight[name] for name in names}
        return {name: (await asyncio.shield(task))[name] for name, task in tasks.items()}

    def _start(self, names: list[str], context: RequestContext, *, is_first: bool) -> None:
        create = self._create(names, context) if is_first else self._create_in_turn(names, context)
        task = asyncio.get_running_loop().create_task(create, name=f"create {len(names)} topics")
        self._in_flight.update(dict.fromkeys(names, task))
        task.add_done_callback(lambda _: [self._in_flight.pop(name, None) for name in names])

    async def _create_in_turn(self, names: list[str], context: RequestContext) -> dict[str, int]:
        await self._yield_queue.yield_now()
        return await self._create(names, context)

    async def _create(self, names: list[str], context: RequestContext) -> dict[str, int]:
        request = CreateTopicsRequest(
            topics=[self._topic(name) for name in names], timeout_ms=CREATION_TIMEOUT_MS
        )
        asker = context.connection.owner
        await self._permits.acquire(asker)
        try:
            response: CreateTopicsResponse = await self._channel.send(request)
        except (Unavailable, Exhausted) as error:
            log.warning("%d topics could not be created on the way: %s", len(names), in_words(error))
            return dict.fromkeys(names, int(ErrorCode.LEADER_NOT_AVAILABLE))
        finally:
            self._permits.release(asker)
        self.on_created(context, [topic.name for topic in response.topics if not topic.error_code])
        found = {
            topic.name: 0 if topic.error_code == IS_THERE else topic.error_code for topic in response.topics
        }
        for topic in response.topics:
            if found[topic.name] and topic.name in self._internal:
                self._tell(topic)
        return found

    def _tell(self, topic: CreatableTopicResult) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told.get(topic.name, float("-inf")) < REFUSAL_PERIOD_S:
            return
        self._told[topic.name] = now_s
        reason = topic.error_message or "no reason given"
        log.error("the internal topic %s cannot be made: error %d, %s", topic.name, topic.error_code, reason)

    def _topic(self, name: str) -> CreatableTopic:
        partitions, configs = self._internal.get(name, (-1, {}))
        return CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
