"""Who changed topics, configurations, records and groups: a line a request that changed something, with client id and address, at a bounded rate.

Behind the handlers of these APIs, once they have answered: what was refused, or only validated, is not logged. The first LINES_MAX lines of a period
are written, the rest are counted. Not here: topics that are made by being asked for (topic_creation.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from millrace.broker.dispatch import Late
from millrace.broker.request import Handle, RequestContext
from millrace.kraft.tables.configs import ResourceType

log = logging.getLogger(__name__)
LINES_MAX = 60
PERIOD_S = 60.0
NAMES_MAX = 10  # of one request
VALUE_CHARS_MAX = 100


@dataclass(frozen=True, slots=True)
class Change:
    """`done`: what of a request its response says was done. `say` puts one of these into words; asked for the few that are written only."""

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
        return {key: self._wrapped(key, handle) if key in CHANGES else handle for key, handle in handlers.items()}

    def _wrapped(self, key: int, handle: Handle | Late) -> Handle | Late:
        if isinstance(handle, Late):
            make = handle.make
            return Late(lambda: LoggedHandle(key, make(), self).handle)
        return LoggedHandle(key, handle, self).handle

    def note(self, context: RequestContext, change: Change, done: Iterable[Any]) -> None:
        """Nothing where nothing was changed."""
        listed = iter(done)
        shown = [change.say(one) for one in islice(listed, NAMES_MAX)]
        if not shown or not self._has_place(asyncio.get_running_loop().time()):
            return
        rest = sum(1 for _ in listed)
        more = f" and {rest} more" if rest else ""
        left_out = f" ({self._unwritten_count} such lines were left out)" if self._unwritten_count else ""
        self._unwritten_count = 0
        who = context.connection
        log.info(
            "%s by client %r at %s:%d: %s%s%s",
            change.what,
            context.client_id,
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
        self.refuse: Callable[[Any, int], Any] | None = getattr(getattr(inner, "__self__", None), "refuse", None)

    def handle(self, context: RequestContext, request: Any) -> Any:
        outcome = self._inner(context, request)
        if asyncio.iscoroutine(outcome) or asyncio.isfuture(outcome):
            return self._log_behind(context, request, outcome)
        self._note(context, request, outcome)
        return outcome

    async def _log_behind(self, context: RequestContext, request: Any, outcome: Any) -> Any:
        response = await outcome
        self._note(context, request, response)
        return response

    def _note(self, context: RequestContext, request: Any, response: Any) -> None:
        if not getattr(request, "validate_only", False):
            self._changes.note(context, self._change, self._change.done(request, response))


def _topics_created(request: Any, response: Any) -> Iterable[str]:
    return (topic.name for topic in response.topics if not topic.error_code)


def _topics_deleted(request: Any, response: Any) -> Iterable[str]:
    return (topic.name or topic.topic_id.hex() for topic in response.responses if not topic.error_code)


def _records_deleted(request: Any, response: Any) -> Iterable[str]:
    for topic in response.topics:
        for partition in topic.partitions:
            if not partition.error_code:
                yield f"{topic.name}-{partition.partition_index} below offset {partition.low_watermark}"


def _partitions_added(request: Any, response: Any) -> Iterable[str]:
    done = {result.name for result in response.results if not result.error_code}
    return (f"{topic.name} to {topic.count}" for topic in request.topics if topic.name in done)


def _groups_deleted(request: Any, response: Any) -> Iterable[str]:
    return (result.group_id for result in response.results if not result.error_code)


def _configs(request: Any, response: Any) -> Iterable[Any]:
    done = {(one.resource_type, one.resource_name) for one in response.responses if not one.error_code}
    return (one for one in request.resources if (one.resource_type, one.resource_name) in done)


def _say_replaced(resource: Any) -> str:
    return _say_configs(resource, [f"{config.name}={_shown(config.value)}" for config in resource.configs])


def _say_changed(resource: Any) -> str:
    verbs = {0: "{}={}", 1: "{} deleted", 2: "{}+={}", 3: "{}-={}"}
    said = [
        verbs.get(config.config_operation, "{}").format(config.name, _shown(config.value))
        for config in resource.configs
    ]
    return _say_configs(resource, said)


def _say_configs(resource: Any, said: list[str]) -> str:
    kind = resource.resource_type
    label = ResourceType(kind).name.lower().replace("_", " ") if kind in set(ResourceType) else str(kind)
    return f"{label} {resource.resource_name or 'default'}: {' '.join(said) or 'none left'}"


def _shown(value: str | None) -> str:
    """No secret is taken (dynamic_configs.py)."""
    text = "" if value is None else value
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}..."


def _features_changed(request: Any, response: Any) -> Iterable[str]:
    refused = {result.feature for result in response.results if result.error_code}
    if response.error_code:
        return ()
    return (f"{one.feature}={one.max_version_level}" for one in request.feature_updates if one.feature not in refused)


def _broker_removed(request: Any, response: Any) -> Iterable[str]:
    return () if response.error_code else (str(request.broker_id),)


CHANGES: Mapping[int, Change] = {
    19: Change("topics created", _topics_created),
    20: Change("topics deleted", _topics_deleted),
    21: Change("records deleted", _records_deleted),
    33: Change("configurations replaced", _configs, _say_replaced),
    37: Change("partitions added", _partitions_added),
    42: Change("groups deleted", _groups_deleted),
    44: Change("configurations changed", _configs, _say_changed),
    57: Change("features changed", _features_changed),
    64: Change("brokers unregistered", _broker_removed),
}
