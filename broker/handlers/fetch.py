"""Fetch (key 1): batches from partitions, for consumers.

Versions 4 to 18. Ignored: `rack_id`, `cluster_id`, `replica_epoch`, `replica_directory_id`,
`log_start_offset`, `high_watermark`.

A request, or the increment of a session, subscribes to partitions; those that are dirty are read
(read_pass.py). What the log cache holds is read at once; partitions that have to be opened, and what has to
come from objects, make the rest of the request a task. With too little it is delayed until enough bytes were
counted (purgatory.py) or its time is over, and then reads what is dirty alone. The states are
fetch_machine.py's; here its effects are carried out.

A request for very many partitions, or of a session in which very many are dirty, is a task from the
beginning: it reads them, and answers, in chunks. What comes while it does, or while anybody reads from
objects, is counted, so that nothing need be read at one moment before it is delayed.

Not here: sessions (fetch_sessions.py), counting (purgatory.py). Replicas do not fetch: a partition has one,
and that is the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar, cast

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.partition import NO_EPOCH
from millrace.broker.partitions.visibility import isolation_of
from millrace.broker.purgatory import CompletionQueue, Subscriber
from millrace.broker.requests.fetch_machine import (
    ANSWER,
    DELAY,
    DROP,
    FAIL,
    NOTHING,
    OPEN,
    READ,
    READ_OR_REFUSE,
    READ_REMOTE,
    FetchEffect,
    FetchMachine,
)
from millrace.broker.requests.fetch_sessions import (
    FINAL_EPOCH,
    FetchItem,
    FetchKind,
    FetchPlan,
    FetchSessions,
    Key,
)
from millrace.broker.requests.openings import until_open
from millrace.broker.requests.read_pass import ITEMS_PER_CHUNK, ReadPass, failed
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from millrace.runtime.disk import Buffer
from millrace.runtime.scheduling.semaphore import Semaphore
from millrace.runtime.scheduling.yield_queue import YieldQueue

T = TypeVar("T")
VERSION_WITH_SESSIONS = 7
VERSION_BY_ID = 13
VERSION_BY_STATE = 15
VERSION_WITH_HINTS = 16
REMOTE_READS_IN_FLIGHT = 64
COUNTED_BYTES_MAX = 1 << 62
_Topics = dict[str | bytes, FetchableTopicResponse]  # of a response, by what names them
TAKES_TIME = (OPEN, READ_REMOTE, READ, READ_OR_REFUSE)
HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class _Operation:
    """One request under way, delayed or not (`DelayedOperation` of request.py). `is_wide`: it is for so many
    partitions that it reads and answers in chunks. `future`: of its answer, once the first pass gave none."""

    __slots__ = (
        "_on_expired",
        "_share_bytes",
        "asked_bytes",
        "context",
        "future",
        "is_wide",
        "machine",
        "plan",
        "read_pass",
        "subscriber",
        "timer",
    )

    def __init__(
        self,
        context: RequestContext,
        plan: FetchPlan,
        subscriber: Subscriber,
        read_pass: ReadPass,
        machine: FetchMachine,
        on_expired: Callable[[_Operation], None],
        share_bytes: Callable[[], int],
    ) -> None:
        self._on_expired = on_expired
        self._share_bytes = share_bytes
        self.asked_bytes = read_pass.max_bytes
        self.context = context
        self.plan = plan
        self.subscriber = subscriber
        self.read_pass = read_pass
        self.machine = machine
        self.is_wide = False
        self.timer: asyncio.TimerHandle | None = None
        self.future: asyncio.Future[Any] | None = None

    def force_complete(self) -> None:
        """As if its time were over."""
        self._on_expired(self)

    def begin_pass(self) -> None:
        """With as much as it may take by now."""
        self.read_pass.max_bytes = min(self.asked_bytes, self._share_bytes())

    def listen(self) -> None:
        """From now on what becomes visible is counted, so that nobody waits for what is there."""
        self.subscriber.delay(COUNTED_BYTES_MAX, lambda: None)

    def heard(self) -> tuple[int, bool]:
        """The bytes that were counted since, and whether something came that cannot wait."""
        return COUNTED_BYTES_MAX - self.subscriber.missing_bytes, not self.subscriber.is_delayed

    @property
    def is_superseded(self) -> bool:
        """Its session went on without it, or is gone: another may be delayed at its subscriber."""
        session = self.plan.session
        return session is not None and session.epoch != self.plan.epoch

    @property
    def is_abandoned(self) -> bool:
        """Nobody reads its answer."""
        return not self.context.connection.is_open or self.is_superseded


class Fetch:
    def __init__(
        self,
        directory: PartitionDirectory,
        cache: MetadataCache,
        sessions: FetchSessions,
        yield_queue: YieldQueue,
        *,
        response_bytes_max: int = 57_671_680,
        share_bytes: Callable[[], int] = lambda: 1 << 31,
    ) -> None:
        """`share_bytes`: as much as one answer may take of the memory for replies, now."""
        self._directory = directory
        self._cache = cache
        self._sessions = sessions
        self._yield_queue = yield_queue
        self._response_bytes_max = response_bytes_max
        self._share_bytes = share_bytes
        self._completions = CompletionQueue(lambda call: asyncio.get_running_loop().call_soon(call))
        self._remote_reads = Semaphore(REMOTE_READS_IN_FLIGHT)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._left: deque[list[FetchItem]] = deque()  # of wide requests that are over, subscribed yet
        sessions.on_leaving = lambda: self._repeat(sessions.leave_some)

    def handle(self, context: RequestContext, request: FetchRequest) -> Any:
        context.connection.is_consuming = True
        version = context.api_version
        replica_id = request.replica_state.replica_id if version >= VERSION_BY_STATE else request.replica_id
        if replica_id >= 0:
            return self.refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if _is_wide(request):
            return self._handle_wide(context, request)
        items = dict(_items_of(request, version))
        plan = self._plan(request, version, items)
        if plan.session is not None:
            self._sessions.fold(plan, _forgotten(request, version), items.items())
            self._sessions.end_fold(plan)
        if plan.error_code:
            return FetchResponse(error_code=int(plan.error_code))
        operation = self._operation_of(context, request, plan)
        if plan.session is None:
            for item in plan.items.values():
                operation.subscriber.add(item)
        elif len(operation.subscriber.dirty) > ITEMS_PER_CHUNK:
            return self._serve_in_chunks(operation, request.max_wait_ms)
        return self._begin(operation, request.max_wait_ms)

    async def _handle_wide(self, context: RequestContext, request: FetchRequest) -> FetchResponse:
        """Others have the loop between its chunks."""
        version = context.api_version
        items: dict[Key, FetchItem] = {}
        async for named in self._chunks(_items_of(request, version)):
            items.update(named)
        plan = self._plan(request, version, items)
        if plan.session is not None:
            async for wanted in self._chunks(items.items()):
                self._sessions.fold(plan, (), wanted)
            async for forgotten in self._chunks(_forgotten(request, version)):
                self._sessions.fold(plan, forgotten, ())
            self._sessions.end_fold(plan)
        if plan.error_code:
            return FetchResponse(error_code=int(plan.error_code))
        operation = self._operation_of(context, request, plan)
        if plan.session is None:
            async for added in self._chunks(plan.items.values()):
                for item in added:
                    operation.subscriber.add(item)
        return await self._serve_in_chunks(operation, request.max_wait_ms)

    async def _serve_in_chunks(self, operation: _Operation, max_wait_ms: int) -> FetchResponse:
        operation.is_wide = True
        effect = READ
        try:
            while effect is READ:
                effect = await self._read_in_chunks(operation, effect)
        except BaseException:
            self._leave(operation)
            raise
        if effect is not ANSWER:
            found: FetchResponse | None = await self._wait(operation, max_wait_ms, effect)
            if found is not None:
                return found
        return await self._answer_in_chunks(operation)

    def _operation_of(self, context: RequestContext, request: FetchRequest, plan: FetchPlan) -> _Operation:
        max_bytes = min(request.max_bytes, self._response_bytes_max)
        subscriber = Subscriber(self._completions) if plan.session is None else plan.session.subscriber
        read_pass = ReadPass(
            self._directory,
            subscriber,
            context.connection,
            max_bytes=max_bytes,
            isolation=isolation_of(request.isolation_level),
            version=context.api_version,
        )
        is_expired = request.max_wait_ms <= 0 or (plan.session is None and not plan.items)
        machine = FetchMachine(min(request.min_bytes, max_bytes), is_expired)
        return _Operation(context, plan, subscriber, read_pass, machine, self._on_expired, self._share_bytes)

    def refuse(self, request: FetchRequest, code: int) -> FetchResponse:
        """Every partition named has the same error, and so has the answer where its version can say it."""
        topics = []
        for topic in request.topics:
            parts = [failed(asked.partition, code) for asked in topic.partitions]
            topics.append(FetchableTopicResponse(topic.topic, topic.topic_id, parts))
        return FetchResponse(error_code=int(code), responses=topics)

    def _plan(self, request: FetchRequest, version: int, items: dict[Key, FetchItem]) -> FetchPlan:
        uses_ids = version >= VERSION_BY_ID
        if version < VERSION_WITH_SESSIONS or (
            request.session_epoch == FINAL_EPOCH and not request.session_id
        ):
            return FetchPlan(FetchKind.SESSIONLESS, items)
        tick_ms = int(asyncio.get_running_loop().time() * 1000)
        return self._sessions.begin(request.session_id, request.session_epoch, uses_ids, items, tick_ms)

    # -- the course of one request

    def _begin(self, operation: _Operation, max_wait_ms: int) -> Any:
        """The first pass, in the order of the connection: an answer, or a future of it."""
        try:
            effect = self._pass(operation, READ)
            if effect is ANSWER:
                return self._answer(operation)
        except Exception:
            self._leave(operation)
            raise
        return self._wait(operation, max_wait_ms, effect)

    def _wait(self, operation: _Operation, max_wait_ms: int, effect: FetchEffect) -> asyncio.Future[Any]:
        """For what the first pass did not find. None is what a wide request is given when it may answer."""
        loop = asyncio.get_running_loop()
        operation.future = loop.create_future()
        operation.context.connection.purgatory[operation.future] = operation
        operation.machine.deadline_s = loop.time() + max(0, max_wait_ms) / 1000
        self._carry_out(operation, effect)
        return operation.future

    def _carry_out(self, operation: _Operation, effect: FetchEffect) -> None:
        """What the machine says is to be done."""
        if effect is READ and not operation.is_wide:
            effect = self._read(operation, effect)
        if effect is DELAY:
            self._delay(operation)
        elif effect is ANSWER:
            self._complete(operation, lambda: None if operation.is_wide else self._answer(operation))
        elif effect is DROP:
            self._complete(operation, lambda: self._answer_nobody(operation))
        elif effect is not NOTHING:
            task = asyncio.get_running_loop().create_task(self._run(operation, effect))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def _delay(self, operation: _Operation) -> None:
        machine = operation.machine
        if operation.timer is None:
            operation.timer = asyncio.get_running_loop().call_at(
                machine.deadline_s, self._on_expired, operation
            )
        operation.read_pass.drop_records()
        operation.subscriber.delay(machine.missing_bytes, lambda: self._on_satisfied(operation))

    def _on_expired(self, operation: _Operation) -> None:
        self._go_on(operation, operation.machine.on_expired())

    def _on_satisfied(self, operation: _Operation) -> None:
        self._go_on(operation, operation.machine.on_satisfied())

    def _go_on(self, operation: _Operation, effect: FetchEffect) -> None:
        """As `_carry_out`, from a callback of the loop."""
        try:
            self._carry_out(operation, effect)
        except Exception as error:
            self._fail(operation, error)

    async def _run(self, operation: _Operation, effect: FetchEffect) -> None:
        """Carries out this effect, which takes time, and those after it as long as they do."""
        try:
            while effect in TAKES_TIME:
                effect = await self._await(operation, effect)
            self._carry_out(operation, effect)
        except Exception as error:
            self._fail(operation, error)

    async def _await(self, operation: _Operation, effect: FetchEffect) -> FetchEffect:
        machine, read_pass, loop = operation.machine, operation.read_pass, asyncio.get_running_loop()
        if effect is OPEN:
            is_late = await until_open(read_pass.openings)
            return machine.on_opened(loop.time(), is_late=is_late)
        if effect is READ_REMOTE:
            await read_pass.read_remote(self._remote_reads)
            if operation.is_abandoned:
                return machine.on_abandoned()
            return machine.on_remote_read(read_pass, loop.time(), *operation.heard())
        if operation.is_wide:
            return await self._read_in_chunks(operation, effect)
        return self._read(operation, effect)

    def _read(self, operation: _Operation, effect: FetchEffect) -> FetchEffect:
        """A pass that is not the first."""
        if not self._is_wanted(operation):
            return operation.machine.on_abandoned()
        return self._pass(operation, effect)

    def _pass(self, operation: _Operation, effect: FetchEffect) -> FetchEffect:
        """A pass in one piece."""
        read_pass = operation.read_pass
        operation.begin_pass()
        read_pass.run()
        if effect is READ_OR_REFUSE:
            read_pass.refuse_unopened()
        effect = operation.machine.on_pass(read_pass)
        if effect is READ_REMOTE:
            operation.listen()
        return effect

    async def _read_in_chunks(self, operation: _Operation, effect: FetchEffect) -> FetchEffect:
        """A pass of a wide one."""
        machine, read_pass = operation.machine, operation.read_pass
        if not self._is_wanted(operation):
            return machine.on_abandoned()
        operation.begin_pass()
        operation.listen()
        await read_pass.run_in_chunks(self._yield_queue)
        heard_bytes, is_interrupted = operation.heard()
        if operation.is_abandoned:  # else it goes on to listen, to the end of a remote read
            return machine.on_abandoned()
        if effect is READ_OR_REFUSE:
            read_pass.refuse_unopened()
        return machine.on_pass(read_pass, heard_bytes, is_interrupted)

    def _is_wanted(self, operation: _Operation) -> bool:
        """Whether somebody reads its answer. It is delayed at its subscriber no longer, where another may
        be."""
        if operation.is_superseded:
            return False
        operation.subscriber.cancel()
        return operation.context.connection.is_open

    def _complete(self, operation: _Operation, give: Callable[[], FetchResponse | None]) -> None:
        """It leaves the purgatory, and its future is done."""
        assert operation.future is not None
        operation.context.connection.purgatory.pop(operation.future, None)
        if operation.timer is not None:
            operation.timer.cancel()
        if not operation.future.done():
            try:
                operation.future.set_result(give())
            except Exception as error:
                self._leave(operation)
                operation.future.set_exception(error)

    def _fail(self, operation: _Operation, error: Exception) -> None:
        """A defect of ours: the dispatcher answers it."""

        def give() -> FetchResponse:
            raise error

        if operation.machine.on_failed() is FAIL:
            self._complete(operation, give)

    def _leave(self, operation: _Operation) -> None:
        """No partition notifies a request that is over; a session's items stay where they are."""
        if operation.plan.session is not None:
            return
        if operation.is_wide:
            self._left.append(list(operation.plan.items.values()))
            if len(self._left) == 1:
                self._repeat(self._leave_some)
            return
        for item in operation.plan.items.values():
            operation.subscriber.remove(item)

    def _leave_some(self) -> bool:
        """Of what wide requests left behind; whether there is more."""
        items = self._left[0]
        for item in items[-ITEMS_PER_CHUNK:]:
            if item.subscriber is not None:
                item.subscriber.remove(item)
        del items[-ITEMS_PER_CHUNK:]
        if not items:
            self._left.popleft()
        return bool(self._left)

    async def _chunks(self, items: Iterable[T]) -> AsyncIterator[list[T]]:
        """So many of them, then a yield, behind the last ones too. With none of the permits of large answers
        (broker/requests/work.py): a Fetch may wait for a minute."""
        iterator = iter(items)
        while part := list(islice(iterator, ITEMS_PER_CHUNK)):
            yield part
            await self._yield_queue.yield_now()

    def _repeat(self, step: Callable[[], bool]) -> None:
        """Calls it, in the queue of what is large, as long as it says that there is more."""

        def run() -> None:
            if step():
                self._yield_queue.call_soon(run)

        self._yield_queue.call_soon(run)

    # -- answering

    def _answer(self, operation: _Operation) -> FetchResponse:
        if operation.plan.kind is FetchKind.INCREMENT:
            return self._answer_increment(operation)
        response = self._begin_answer(operation)
        self._put_all(operation, response, operation.plan.items.values(), {})
        return response

    async def _answer_in_chunks(self, operation: _Operation) -> FetchResponse:
        if operation.plan.kind is FetchKind.INCREMENT:
            return await self._answer_increment_in_chunks(operation)
        # A session's items change with it: those of the request are answered.
        items, response, topics = (
            list(operation.plan.items.values()),
            self._begin_answer(operation),
            _Topics(),
        )
        async for part in self._chunks(items):
            self._put_all(operation, response, part, topics)
        return response

    def _begin_answer(self, operation: _Operation) -> FetchResponse:
        """Of a full request, with the session that it opens."""
        plan, response = operation.plan, FetchResponse()
        if plan.kind is FetchKind.FULL:
            tick_ms = int(asyncio.get_running_loop().time() * 1000)
            uses_ids = operation.context.api_version >= VERSION_BY_ID
            session = self._sessions.open(plan.items, uses_ids, operation.subscriber, tick_ms)
            response.session_id = 0 if session is None else session.id
        return response

    def _put_all(
        self, operation: _Operation, response: FetchResponse, items: Iterable[FetchItem], topics: _Topics
    ) -> None:
        self._put_topics(operation, response, items, topics)
        answers = operation.read_pass.answers
        for item in items:
            if response.session_id:
                _is_news(item, answers[item])
            else:
                operation.subscriber.remove(item)

    def _answer_increment(self, operation: _Operation) -> FetchResponse:
        session = operation.plan.session
        assert session is not None
        if operation.is_superseded:
            return FetchResponse(error_code=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        response = FetchResponse(session_id=session.id)
        self._put_news(operation, response, list(operation.read_pass.answers), {})
        return response

    async def _answer_increment_in_chunks(self, operation: _Operation) -> FetchResponse:
        session = operation.plan.session
        assert session is not None
        response, items, topics = (
            FetchResponse(session_id=session.id),
            list(operation.read_pass.answers),
            _Topics(),
        )
        async for part in self._chunks(items):
            self._put_news(operation, response, part, topics)
        if operation.is_superseded:
            return FetchResponse(error_code=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        return response

    def _put_news(
        self, operation: _Operation, response: FetchResponse, items: Iterable[FetchItem], topics: _Topics
    ) -> None:
        answers = operation.read_pass.answers
        news = [item for item in items if item.subscriber is not None and _is_news(item, answers[item])]
        self._put_topics(operation, response, news, topics)

    def _answer_nobody(self, operation: _Operation) -> FetchResponse:
        """The session went on, or the connection is gone."""
        self._leave(operation)
        return FetchResponse(error_code=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH))

    def _put_topics(
        self, operation: _Operation, response: FetchResponse, items: Iterable[FetchItem], topics: _Topics
    ) -> None:
        """`topics`: those that the response has already."""
        for item in items:
            topic = item.topic
            group = topics.get(topic)
            if group is None:
                group = (
                    FetchableTopicResponse(topic)
                    if isinstance(topic, str)
                    else FetchableTopicResponse("", topic)
                )
                topics[topic] = group
                response.responses.append(group)
            answer = operation.read_pass.answers[item]
            group.partitions.append(answer)
            if answer.records:
                self._count_out(topic, answer)
                operation.subscriber.requeue(item)
            if answer.error_code in HINTED and operation.context.api_version >= VERSION_WITH_HINTS:
                self._hint(operation, response, item, answer)

    def _count_out(self, topic: str | bytes, answer: PartitionData) -> None:
        size_bytes = sum(map(len, cast("list[Buffer]", answer.records)))  # as ReadPass gives them
        self._directory.traffic.out_bytes += size_bytes
        led = (
            self._directory.topic_named(topic) if isinstance(topic, str) else self._directory.topic_of(topic)
        )
        if led is not None:
            led.traffic.out_bytes += size_bytes
            partition = led.partitions.get(answer.partition_index)
            if partition is not None:
                partition.out_bytes += size_bytes

    def _hint(
        self, operation: _Operation, response: FetchResponse, item: FetchItem, answer: PartitionData
    ) -> None:
        """Who leads it, as far as is known here (KIP-951). By that version topics are named by id."""
        assert isinstance(item.topic, bytes)
        found = self._cache.leader(item.topic, item.partition)
        if found is None:
            return
        leader, epoch = found
        answer.current_leader = LeaderIdAndEpoch(leader, epoch)
        if all(endpoint.node_id != leader for endpoint in response.node_endpoints):
            node = self._cache.node(leader, operation.context.connection)
            if node is not None:
                response.node_endpoints.append(NodeEndpoint(node.node_id, node.host, node.port, node.rack))


def _is_wide(request: FetchRequest) -> bool:
    count = len(request.topics)
    for topic in request.topics:
        count += len(topic.partitions)
    if request.forgotten_topics_data:
        count += sum(len(topic.partitions) for topic in request.forgotten_topics_data)
    return count > ITEMS_PER_CHUNK


def _items_of(request: FetchRequest, version: int) -> Iterator[tuple[Key, FetchItem]]:
    """Of a partition that is named twice the last mention counts, and any epoch below 0 is none given, as in
    Kafka."""
    uses_ids = version >= VERSION_BY_ID
    for topic in request.topics:
        name = topic.topic_id if uses_ids else topic.topic
        for asked in topic.partitions:
            index = asked.partition
            yield (
                (name, index),
                FetchItem(
                    name,
                    index,
                    asked.fetch_offset,
                    asked.partition_max_bytes,
                    max(asked.current_leader_epoch, NO_EPOCH),
                    max(asked.last_fetched_epoch, NO_EPOCH),
                ),
            )


def _forgotten(request: FetchRequest, version: int) -> Iterable[Key]:
    uses_ids = version >= VERSION_BY_ID
    for topic in request.forgotten_topics_data:
        name = topic.topic_id if uses_ids else topic.topic
        for index in topic.partitions:
            yield name, index


def _is_news(item: FetchItem, answer: PartitionData) -> bool:
    is_told = item.is_news(
        answer.error_code, answer.high_watermark, answer.log_start_offset, bool(answer.records)
    )
    return is_told or answer.diverging_epoch.epoch >= 0
