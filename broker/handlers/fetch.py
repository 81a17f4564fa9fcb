"""Fetch (key 1): batches from partitions, for consumers.

A request, or the increment of a session, is a watcher over partitions; those that changed are looked at (fetch_look.py). What the log
cache holds is read at once; partitions that have to be opened, and what has to come from objects, make the rest of the request a task.
Too few bytes: the request parks until enough of them were counted or its time is over, and then looks at what changed alone.

    handle -> look -> enough, or an error -> answer
                   -> cold or opening     -> a task: open, read, look again -> answer or park
                   -> too little          -> park -> woken, or out of time -> look -> answer

Not here: sessions (fetch_sessions.py), counting (waiters.py). Replicas do not fetch: a partition has one, and that is the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from millrace.broker.damage_log import DamageLog
from millrace.broker.fetch_look import Look, failed
from millrace.broker.fetch_sessions import FINAL_EPOCH, FetchItem, FetchKind, FetchPlan, FetchSessions
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.request import RequestContext
from millrace.broker.waiters import WakeLine, Watcher
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

VERSION_WITH_SESSIONS = 7
VERSION_BY_ID = 13
VERSION_BY_STATE = 15
VERSION_WITH_HINTS = 16
COLD_READS_IN_FLIGHT = 64
OPENING_TIMEOUT_MS = 5000
OPENING_TIMEOUT_MS_MAX = 30_000  # for who would wait longer: the request is held meanwhile
HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class _Work:
    """One request under way. `is_final`: it answers with whatever there is. `is_far`: its task is reading."""

    __slots__ = (
        "_on_hurry",
        "_share_bytes",
        "asked_bytes",
        "context",
        "deadline",
        "future",
        "is_far",
        "is_final",
        "look",
        "min_bytes",
        "plan",
        "timer",
        "watcher",
    )

    def __init__(
        self,
        context: RequestContext,
        plan: FetchPlan,
        watcher: Watcher,
        look: Look,
        min_bytes: int,
        on_hurry: Callable[[_Work], None],
        share_bytes: Callable[[], int],
    ) -> None:
        self._on_hurry = on_hurry
        self._share_bytes = share_bytes
        self.asked_bytes = look.max_bytes
        self.context = context
        self.plan = plan
        self.watcher = watcher
        self.look = look
        self.min_bytes = min_bytes
        self.is_final = False
        self.is_far = False
        self.deadline = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.future: asyncio.Future[Any] | None = None

    def hurry(self) -> None:
        """As if its time were over."""
        self._on_hurry(self)

    @property
    def is_enough(self) -> bool:
        look = self.look
        return self.is_final or look.is_urgent or look.counted_bytes >= min(self.min_bytes, look.max_bytes)

    def look_anew(self) -> None:
        """With as much as it may take by now."""
        self.look.max_bytes = min(self.asked_bytes, self._share_bytes())
        self.look.look()

    @property
    def is_superseded(self) -> bool:
        """Its session went on without it, or is gone."""
        session = self.plan.session
        return session is not None and session.epoch != self.plan.epoch


class Fetch:
    def __init__(
        self,
        directory: PartitionDirectory,
        cache: MetadataCache,
        sessions: FetchSessions,
        *,
        response_bytes_max: int = 57_671_680,
        share_bytes: Callable[[], int] = lambda: 1 << 31,
    ) -> None:
        """`share_bytes`: as much as one answer may take of the memory for replies, now."""
        self._directory = directory
        self._damage = DamageLog()
        self._cache = cache
        self._sessions = sessions
        self._response_bytes_max = response_bytes_max
        self._share_bytes = share_bytes
        self._line = WakeLine(lambda call: asyncio.get_running_loop().call_soon(call))
        self._cold_reads = asyncio.Semaphore(COLD_READS_IN_FLIGHT)
        self._tasks: dict[asyncio.Task[None], None] = {}

    def handle(self, context: RequestContext, request: FetchRequest) -> Any:
        version = context.api_version
        replica_id = request.replica_state.replica_id if version >= VERSION_BY_STATE else request.replica_id
        if replica_id >= 0:
            return self.refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        plan = self._plan(request, version)
        if plan.error_code:
            return FetchResponse(error_code=int(plan.error_code))
        if plan.session is not None:
            watcher = plan.session.watcher
        else:
            watcher = Watcher(self._line)
            for item in plan.items:
                watcher.add(item)
        max_bytes = min(request.max_bytes, self._response_bytes_max)
        is_committed_only = request.isolation_level == 1
        look = Look(
            self._directory,
            watcher,
            self._damage,
            max_bytes=max_bytes,
            is_committed_only=is_committed_only,
            version=version,
        )
        min_bytes = min(request.min_bytes, max_bytes)
        work = _Work(context, plan, watcher, look, min_bytes, self._on_deadline, self._share_bytes)
        work.is_final = request.max_wait_ms <= 0 or (plan.session is None and not plan.items)
        return self._begin(work, request.max_wait_ms)

    def refuse(self, request: FetchRequest, code: int) -> FetchResponse:
        """Every partition named has the same error, and so has the answer where its version can say it."""
        topics = []
        for topic in request.topics:
            parts = [failed(asked.partition, code) for asked in topic.partitions]
            topics.append(FetchableTopicResponse(topic.topic, topic.topic_id, parts))
        return FetchResponse(error_code=int(code), responses=topics)

    def _plan(self, request: FetchRequest, version: int) -> FetchPlan:
        uses_ids = version >= VERSION_BY_ID
        items = [
            FetchItem(
                topic.topic_id if uses_ids else topic.topic,
                asked.partition,
                asked.fetch_offset,
                asked.partition_max_bytes,
                asked.current_leader_epoch,
                asked.last_fetched_epoch,
            )
            for topic in request.topics
            for asked in topic.partitions
        ]
        if version < VERSION_WITH_SESSIONS or (request.session_epoch == FINAL_EPOCH and not request.session_id):
            return FetchPlan(FetchKind.SESSIONLESS, items)
        forgotten = [
            (topic.topic_id if uses_ids else topic.topic, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ]
        tick_ms = int(asyncio.get_running_loop().time() * 1000)
        return self._sessions.begin(request.session_id, request.session_epoch, uses_ids, items, forgotten, tick_ms)

    # -- the course of one request

    def _begin(self, work: _Work, max_wait_ms: int) -> Any:
        """The first look, in the order of the connection: an answer, or a future of it."""
        look = work.look
        try:
            work.look_anew()
            if work.is_enough and not look.openings and not look.cold:
                return self._answer(work)
        except Exception:
            self._leave(work)
            raise
        loop = asyncio.get_running_loop()
        work.future = loop.create_future()
        work.context.connection.parked[work.future] = work
        work.deadline = loop.time() + max(0, max_wait_ms) / 1000
        self._go_on(work)
        return work.future

    def _go_on(self, work: _Work) -> None:
        """What comes after a look."""
        if not work.context.connection.is_open or work.is_superseded:  # else it would park where another is parked
            self._settle(work, lambda: self._answer_nobody(work))
        elif work.look.openings or work.look.cold:
            work.is_far = True
            task = asyncio.get_running_loop().create_task(self._look_far(work))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
        elif work.is_enough:
            self._settle(work, lambda: self._answer(work))
        else:
            self._park(work)

    def _park(self, work: _Work) -> None:
        if work.timer is None:
            work.timer = asyncio.get_running_loop().call_at(work.deadline, self._on_deadline, work)
        work.watcher.park(work.min_bytes - work.look.counted_bytes, lambda: self._on_ready(work))

    def _on_deadline(self, work: _Work) -> None:
        work.is_final = True
        if not work.is_far:
            if not work.is_superseded:  # else another is parked there
                work.watcher.unpark()
            self._on_ready(work)

    def _on_ready(self, work: _Work) -> None:
        if work.is_far or work.future is None or work.future.done():
            return  # the news and the end of its time may come in one turn
        if work.is_superseded:
            self._settle(work, lambda: self._answer_nobody(work))
            return
        try:
            work.look_anew()
            self._go_on(work)
        except Exception as error:
            self._fail(work, error)

    async def _look_far(self, work: _Work) -> None:
        """Opens and reads what was not at hand, then goes on as after any look."""
        look = work.look
        loop = asyncio.get_running_loop()
        try:
            if look.openings:
                left_ms = max(OPENING_TIMEOUT_MS, min(OPENING_TIMEOUT_MS_MAX, 1000 * (work.deadline - loop.time())))
                _, late = await asyncio.wait(look.openings, timeout=left_ms / 1000)
                work.look_anew()
                if late:
                    look.fail_late()
            await look.read_cold(self._cold_reads)
            work.is_far = False
            work.is_final = work.is_final or loop.time() >= work.deadline
            self._go_on(work)
        except Exception as error:
            self._fail(work, error)

    def _settle(self, work: _Work, give: Callable[[], FetchResponse]) -> None:
        assert work.future is not None
        work.context.connection.parked.pop(work.future, None)
        if work.timer is not None:
            work.timer.cancel()
        if not work.future.done():
            try:
                work.future.set_result(give())
            except Exception as error:
                self._leave(work)
                work.future.set_exception(error)

    def _fail(self, work: _Work, error: Exception) -> None:
        """A defect of ours: the dispatcher answers it."""

        def give() -> FetchResponse:
            raise error

        self._settle(work, give)

    def _leave(self, work: _Work) -> None:
        """No partition tells a request that is over; a session's items stay where they are."""
        if work.plan.session is None:
            for item in work.plan.items:
                work.watcher.remove(item)

    # -- answering

    def _answer(self, work: _Work) -> FetchResponse:
        plan, answers = work.plan, work.look.answers
        if plan.kind is FetchKind.INCREMENT:
            return self._answer_increment(work)
        response = FetchResponse()
        if plan.kind is FetchKind.FULL:
            tick_ms = int(asyncio.get_running_loop().time() * 1000)
            uses_ids = work.context.api_version >= VERSION_BY_ID
            session = self._sessions.open(plan.items, uses_ids, work.watcher, tick_ms)
            response.session_id = 0 if session is None else session.id
        self._put_topics(work, response, plan.items)
        for item in plan.items:
            if response.session_id:
                _is_news(item, answers[item])
            else:
                work.watcher.remove(item)
        return response

    def _answer_increment(self, work: _Work) -> FetchResponse:
        session = work.plan.session
        assert session is not None
        if work.is_superseded:
            return FetchResponse(error_code=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        response = FetchResponse(session_id=session.id)
        answers = work.look.answers
        news = [item for item, answer in answers.items() if item.watcher is not None and _is_news(item, answer)]
        self._put_topics(work, response, news)
        return response

    def _answer_nobody(self, work: _Work) -> FetchResponse:
        """The session went on, or the connection is gone."""
        self._leave(work)
        return FetchResponse(error_code=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH))

    def _put_topics(self, work: _Work, response: FetchResponse, items: Iterable[FetchItem]) -> None:
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        for item in items:
            topic = item.topic
            group = topics.get(topic)
            if group is None:
                group = FetchableTopicResponse(topic) if isinstance(topic, str) else FetchableTopicResponse("", topic)
                topics[topic] = group
                response.responses.append(group)
            answer = work.look.answers[item]
            group.partitions.append(answer)
            if answer.records:
                self._count_out(topic, answer)
            if answer.error_code in HINTED and work.context.api_version >= VERSION_WITH_HINTS:
                self._hint(work, response, item, answer)

    def _count_out(self, topic: str | bytes, answer: PartitionData) -> None:
        size_bytes = sum(map(len, cast("list[Buffer]", answer.records)))  # as FetchLook gives them
        self._directory.traffic.out_bytes += size_bytes
        led = self._directory.topic_named(topic) if isinstance(topic, str) else self._directory.topic_of(topic)
        if led is not None:
            led.traffic.out_bytes += size_bytes

    def _hint(self, work: _Work, response: FetchResponse, item: FetchItem, answer: PartitionData) -> None:
        """Who leads it, as far as is known here (KIP-951). By that version topics are named by id."""
        assert isinstance(item.topic, bytes)
        state = self._directory.leader_of(item.topic, item.partition)
        if state is None:
            return
        answer.current_leader = LeaderIdAndEpoch(state.leader, state.leader_epoch)
        if all(endpoint.node_id != state.leader for endpoint in response.node_endpoints):
            node = self._cache.node(state.leader, work.context.connection)
            if node is not None:
                response.node_endpoints.append(NodeEndpoint(node.node_id, node.host, node.port, node.rack))


def _is_news(item: FetchItem, answer: PartitionData) -> bool:
    is_told = item.is_news(answer.error_code, answer.high_watermark, answer.log_start_offset, bool(answer.records))
    return is_told or answer.diverging_epoch.epoch >= 0
