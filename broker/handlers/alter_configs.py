"""AlterConfigs (key 33) and IncrementalAlterConfigs (key 44): passed on to the active controller, but for
what the node that is asked alone can judge or do.

Versions 0 to 2 and 0 to 1. No field is ignored.

    its listeners     a new one is bound before the change is passed on, so that it is refused where the
                      address is taken
    its loggers       are set here, and nowhere written (log_levels.py)
    another broker    is no matter of this one: refused, as Kafka does

At a controller's listener that is its loggers alone.

Each resource stands or falls alone, and answers come in the order of the request, looked at in chunks. Not
here: what values may hold (kraft/commands/configs.py), which listeners there may be (listener_rules.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.network.listeners import Listeners
from millrace.broker.requests.forwarding import Forwarding
from millrace.broker.requests.request import RequestContext
from millrace.broker.settings.addresses import join_host_port
from millrace.broker.settings.dynamic_configs import DYNAMIC
from millrace.broker.settings.listener_rules import KEYS, LISTENERS, PROTOCOL_MAP
from millrace.broker.settings.log_levels import LogLevels
from millrace.kraft.commands.configs import decide_alter_configs, decide_incremental_alter_configs
from millrace.kraft.commands.decision import ConfigRules, Decision
from millrace.kraft.tables.configs import ResourceType, Values
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages import alter_configs as whole
from millrace.protocol.messages import incremental_alter_configs as incremental
from millrace.runtime.net import ListenFailed
from millrace.runtime.scheduling.chunks import in_chunks

RESOURCES_PER_CHUNK = 2_000
Answers = dict[
    int, KafkaError | None
]  # by the resource's place in the request: what is answered here; None: done
DECIDERS: Mapping[type[Any], Callable[..., Decision]] = {
    whole.AlterConfigsRequest: decide_alter_configs,
    incremental.IncrementalAlterConfigsRequest: decide_incremental_alter_configs,
}
RESULTS: Mapping[type[Any], type[Any]] = {
    whole.AlterConfigsRequest: whole.AlterConfigsResourceResponse,
    incremental.IncrementalAlterConfigsRequest: incremental.AlterConfigsResourceResponse,
}
RESPONSES: Mapping[type[Any], type[Any]] = {
    whole.AlterConfigsRequest: whole.AlterConfigsResponse,
    incremental.IncrementalAlterConfigsRequest: incremental.IncrementalAlterConfigsResponse,
}


class AlterControllerConfigs:
    """At a controller's listener. One class for both APIs, as they differ in what the controller makes of a
    resource alone."""

    def __init__(self, forwarding: Forwarding, node_id: int, levels: LogLevels) -> None:
        self._forwarding = forwarding
        self._node = str(node_id)
        self._levels = levels
        self.refuse = forwarding.refuse

    async def handle(self, context: RequestContext, request: Any) -> Any:
        answers: Answers = {}
        async for place, resource in _named_once(context, request):
            if _is_of_loggers(request, resource):
                answers[place] = self._alter_loggers(resource, request.validate_only)
        return await self._pass_on(context, request, answers)

    def _alter_loggers(
        self, resource: incremental.AlterConfigsResource, validate_only: bool
    ) -> KafkaError | None:
        name = resource.resource_name
        try:
            if not name.isdigit():
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
            if name != self._node:
                text = f"Unexpected node id. Expected {self._node}, but received {name}"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
            self._levels.alter(resource.configs, validate_only=validate_only)
        except KafkaError as error:
            return error
        return None

    async def _pass_on(self, context: RequestContext, request: Any, answers: Answers) -> Any:
        """All but what is answered here, whose answers are put in their places."""
        if not answers:
            return await self._forwarding.ask(request, context)
        rest: list[Any] = []
        async for places in in_chunks(enumerate(request.resources), RESOURCES_PER_CHUNK, context.work):
            rest += [resource for place, resource in places if place not in answers]
        if rest:
            wanted = replace(request, resources=rest)
            response = await self._forwarding.ask(wanted, context)
        else:
            response = RESPONSES[type(request)]()
        told: dict[Hashable, Any] = {}
        async for part in in_chunks(response.responses, RESOURCES_PER_CHUNK, context.work):
            told.update((_named(one), one) for one in part)
        response.responses = []
        async for places in in_chunks(enumerate(request.resources), RESOURCES_PER_CHUNK, context.work):
            response.responses += [
                _result(request, resource, answers[place]) if place in answers else told[_named(resource)]
                for place, resource in places
            ]
        return response


class AlterConfigs(AlterControllerConfigs):
    """At a broker's."""

    def __init__(
        self,
        forwarding: Forwarding,
        cache: MetadataCache,
        rules: ConfigRules,
        listeners: Listeners,
        levels: LogLevels,
    ) -> None:
        super().__init__(forwarding, cache.node_id, levels)
        self._cache = cache
        self._rules = rules
        self._listeners = listeners
        self._listening = asyncio.Lock()  # one change of listeners after the other

    async def handle(self, context: RequestContext, request: Any) -> Any:
        answers: Answers = {}
        own = None
        async for place, resource in _named_once(context, request):
            kind, name = resource.resource_type, resource.resource_name
            if _is_of_loggers(request, resource):
                answers[place] = self._alter_loggers(resource, request.validate_only)
            elif kind == ResourceType.BROKER and name == self._node:
                own = place
            elif kind == ResourceType.BROKER and name.isdigit():
                text = f"Unexpected broker id, expected {self._node}, but received {name}"
                answers[place] = KafkaError(ErrorCode.INVALID_REQUEST, text)
        if own is None or self._values_after(request, own) is None:
            return await self._pass_on(context, request, answers)
        async with self._listening:
            try:
                answers |= await self._prepare(request, own)
                return await self._pass_on(context, request, answers)
            finally:
                self._listeners.settle()

    async def _prepare(self, request: Any, place: int) -> Answers:
        """On return what this broker's resource asks for is listened on, or could be where it is only
        validated; else the answer says why it cannot be."""
        before, after = self._own_values(), self._values_after(request, place)
        if after is None:
            return {}
        try:
            endpoints = self._listeners.rules.judge(before, after)
            if request.validate_only:
                await self._listeners.check(endpoints)
            else:
                await self._listeners.prepare(endpoints)
        except ValueError as error:
            key = LISTENERS if after.get(LISTENERS) != before.get(LISTENERS) else PROTOCOL_MAP
            return {place: _refusal(key, after, f"it {error}")}
        except ListenFailed as error:
            address = join_host_port(error.host, error.port)
            return {place: _refusal(LISTENERS, after, f"{address} cannot be listened on: {error.reason}")}
        return {}

    def _values_after(self, request: Any, place: int) -> Values | None:
        """What is set for this broker afterwards, where that says something else of listeners; None for what
        the controller will refuse, too."""
        if len(request.resources[place].configs) > len(DYNAMIC):
            return None
        alone = replace(request, resources=[request.resources[place]], validate_only=False)
        decision = DECIDERS[type(request)](self._cache.image, alone, self._rules)
        before = self._own_values()
        after = dict(before)
        for record in decision.records:
            if record.value is None:
                after.pop(record.name, None)
            else:
                after[record.name] = record.value
        return after if any(after.get(key) != before.get(key) for key in KEYS) else None

    def _own_values(self) -> Values:
        return self._cache.image.configs.broker(self._cache.node_id)


async def _named_once(context: RequestContext, request: Any) -> AsyncIterator[tuple[int, Any]]:
    """Resources with their places; those that are named again the controller refuses."""
    counts: Counter[Hashable] = Counter()
    async for part in in_chunks(request.resources, RESOURCES_PER_CHUNK, context.work):
        counts.update(map(_named, part))
    async for places in in_chunks(enumerate(request.resources), RESOURCES_PER_CHUNK, context.work):
        for place, resource in places:
            if counts[_named(resource)] == 1:
                yield place, resource


def _is_of_loggers(request: Any, resource: Any) -> bool:
    is_incremental = isinstance(request, incremental.IncrementalAlterConfigsRequest)
    return is_incremental and resource.resource_type == ResourceType.BROKER_LOGGER


def _named(one: Any) -> Hashable:
    """Of a resource, or of its answer."""
    return one.resource_type, one.resource_name


def _refusal(key: str, values: Values, why: str) -> KafkaError:
    shown = values.get(key)
    what = (
        f"value {shown} for configuration {key}" if shown is not None else f"deletion of configuration {key}"
    )
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid {what}: {why}")


def _result(request: Any, resource: Any, error: KafkaError | None) -> Any:
    code, message = (0, None) if error is None else (error.code, error.message)
    return RESULTS[type(request)](code, message, resource.resource_type, resource.resource_name)
