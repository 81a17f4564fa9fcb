"""Who changed topics, configurations, records and groups: a line a request that changed something, with
client id and address, at a bounded rate.

Behind the handlers of these APIs, once they have answered, and in chunks. What was refused, or only
validated, is not logged. The first LINES_MAX lines of a period are written, the rest are counted. Topics that
a request makes on the way (topic_creation.py) are told here, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from millrace.broker.requests.dispatch import Late
from millrace.broker.requests.request import Handle, RequestContext
from millrace.kraft.tables.configs import ResourceType
from millrace.protocol.dataclass import dataclass
from millrace.runtime.scheduling.chunks import in_chunks

log = logging.getLogger(__name__)
LINES_MAX = 60
PERIOD_S = 60.0
NAMES_MAX = 10  # of one request
RESULTS_PER_CHUNK = 2_000
VALUE_CHARS_MAX = 100  # of a value or a name, each of which may fill a string of the protocol
ITEM_CHARS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Change:
    """`done`: each thing that a response says was done, and None for each that was not, so that whoever asks
    knows how many were looked at. `say` puts one of these into words; asked for the few that are written
    only."""

    what: str
    done: Callable[[Any, Any], Iterable[Any]]
    say: Callable[[Any], str] = str


class ChangeLog:
    """The limiter, and what stands around the handlers."""

    def __init__(self) -> None:
        self._period_start_s = float("-inf")
        self._lines_count = 0
        self._unwritten_count = 0

    def wrap(self, handlers: Mapping[int, Handle | Late]) -> dict[int, Handle | Late]:
        return {
            key: self._wrapped(key, handle) if key in CHANGES else handle for key, handle in handlers.items()
        }

    def _wrapped(self, key: int, handle: Handle | Late) -> Handle | Late:
        if isinstance(handle, Late):
            make = handle.make
            return Late(lambda: LoggedHandle(key, make(), self).handle)
        return LoggedHandle(key, handle, self).handle

    def note_created(self, context: RequestContext, names: Iterable[str]) -> None:
        """Of topics that a request made by asking for them."""
        self.note(context, "topics auto-created", list(names))

    def note(
        self, context: RequestContext, what: str, done: Sequence[Any], say: Callable[[Any], str] = str
    ) -> None:
        """Nothing where nothing was changed."""
        if not done or not self._has_place(asyncio.get_running_loop().time()):
            return
        shown = [_shown(say(one), ITEM_CHARS_MAX) for one in done[:NAMES_MAX]]
        rest = len(done) - len(shown)
        more = f" and {rest} more" if rest else ""
        left_out = f" ({self._unwritten_count} such lines were left out)" if self._unwritten_count else ""
        self._unwritten_count = 0
        who = context.connection
        log.info(
            "%s by client %r at %s:%d: %s%s%s",
            what,
            None if context.client_id is None else _shown(context.client_id),
            who.peer_host,
            who.peer_port,
            ", ".join(shown),
            more,
            left_out,
        )

    def _has_place(self, now_s: float) -> bool:
        if now_s - self._period_start_s >= PERIOD_S:
            self._period_start_s, self._lines_count = now_s, 0
        if self._lines_count >= LINES_MAX:
            self._unwritten_count += 1
            return False
        self._lines_count += 1
        return True


class LoggedHandle:
    """The handler of one API, and the line behind it."""

    def __init__(self, key: int, inner: Handle, changes: ChangeLog) -> None:
        self._change = CHANGES[key]
        self._inner = inner
        self._changes = changes
        self.refuse: Callable[[Any, int], Any] | None = getattr(
            getattr(inner, "__self__", None), "refuse", None
        )

    def handle(self, context: RequestContext, request: Any) -> Any:
        outcome = self._inner(context, request)
        if asyncio.iscoroutine(outcome) or asyncio.isfuture(outcome):
            return self._log_behind(context, request, outcome)
        if not getattr(request, "validate_only", False):
            self._note(context, [one for one in self._change.done(request, outcome) if one is not None])
        return outcome

    async def _log_behind(self, context: RequestContext, request: Any, outcome: Any) -> Any:
        response = await outcome
        if not getattr(request, "validate_only", False):
            done: list[Any] = []
            async for part in in_chunks(
                self._change.done(request, response), RESULTS_PER_CHUNK, context.work
            ):
                done += [one for one in part if one is not None]
            self._note(context, done)
        return response

    def _note(self, context: RequestContext, done: Sequence[Any]) -> None:
        self._changes.note(context, self._change.what, done, self._change.say)


def _topics_created(request: Any, response: Any) -> Iterable[str | None]:
    return (None if topic.error_code else topic.name for topic in response.topics)


def _topics_deleted(request: Any, response: Any) -> Iterable[str | None]:
    return (None if topic.error_code else topic.name or topic.topic_id.hex() for topic in response.responses)


def _records_deleted(request: Any, response: Any) -> Iterator[str | None]:
    for topic in response.topics:
        for partition in topic.partitions:
            where = f"{topic.name}-{partition.partition_index}"
            yield None if partition.error_code else f"{where} below offset {partition.low_watermark}"


def _partitions_added(request: Any, response: Any) -> Iterator[str | None]:
    for topic in _answered(request.topics, response.results, lambda one: one.name):
        yield None if topic is None else f"{topic.name} to {topic.count}"


def _groups_deleted(request: Any, response: Any) -> Iterable[str | None]:
    return (None if result.error_code else result.group_id for result in response.results)


def _configs(request: Any, response: Any) -> Iterator[Any]:
    return _answered(
        request.resources, response.responses, lambda one: (one.resource_type, one.resource_name)
    )


def _answered(asked: Iterable[Any], answers: Iterable[Any], key: Callable[[Any], Any]) -> Iterator[Any]:
    """What was asked and is answered without an error. Answers come in the order of the request, of what it
    names again one or each."""
    left = iter(asked)
    for answer in answers:
        for one in left:
            if key(one) == key(answer):
                yield None if answer.error_code else one
                break
            yield None


def _say_replaced(resource: Any) -> str:
    return _say_configs(resource, lambda config: f"{_shown(config.name)}={_shown(config.value)}")


def _say_changed(resource: Any) -> str:
    verbs = {0: "{}={}", 1: "{} deleted", 2: "{}+={}", 3: "{}-={}"}
    return _say_configs(
        resource,
        lambda config: verbs.get(config.config_operation, "{}").format(
            _shown(config.name), _shown(config.value)
        ),
    )


def _say_configs(resource: Any, say: Callable[[Any], str]) -> str:
    """Of the first configurations: one request may name 500,000."""
    kind = resource.resource_type
    label = ResourceType(kind).name.lower().replace("_", " ") if kind in set(ResourceType) else str(kind)
    said = [say(config) for config in resource.configs[:NAMES_MAX]]
    rest = len(resource.configs) - len(said)
    more = [f"and {rest} more"] if rest else []
    return f"{label} {_shown(resource.resource_name) or 'default'}: {' '.join([*said, *more]) or 'none left'}"


def _shown(value: str | None, chars_max: int = VALUE_CHARS_MAX) -> str:
    """No secret is taken (dynamic_configs.py)."""
    text = "" if value is None else value
    return text if len(text) <= chars_max else f"{text[:chars_max]}..."


def _features_changed(request: Any, response: Any) -> Iterable[str]:
    refused = {result.feature for result in response.results if result.error_code}
    if response.error_code:
        return ()
    return (
        f"{one.feature}={one.max_version_level}"
        for one in request.feature_updates
        if one.feature not in refused
    )


def _elected(request: Any, response: Any) -> Iterator[str | None]:
    """Elections that gave something up."""
    for topic in response.replica_election_results:
        for one in topic.partition_result:
            is_done = not (response.error_code or one.error_code)
            yield f"{topic.topic}-{one.partition_id}: {one.error_message}" if is_done else None


def _broker_removed(request: Any, response: Any) -> Iterable[str]:
    return () if response.error_code else (str(request.broker_id),)


CHANGES: Mapping[int, Change] = {
    19: Change("topics created", _topics_created),
    20: Change("topics deleted", _topics_deleted),
    21: Change("records deleted", _records_deleted),
    33: Change("configurations replaced", _configs, _say_replaced),
    37: Change("partitions added", _partitions_added),
    42: Change("groups deleted", _groups_deleted),
    43: Change("unclean leaders elected", _elected),
    44: Change("configurations changed", _configs, _say_changed),
    57: Change("features changed", _features_changed),
    64: Change("brokers unregistered", _broker_removed),
}
