"""DescribeConfigs (key 32): what holds for a topic or a broker, where it comes from and what else there is.

Versions 1 to 4. No field is ignored.

Topics are described from the table of topic configurations, brokers from their settings and what is set
dynamically. Secrets are never shown. A broker's loggers are described by the levels that hold.

What holds for every topic that says nothing itself is described once and shared by all topics and answers,
until a broker-wide value changes: nobody changes a result that was given; so is what holds for every group. A
request for more than a chunk of resources or of their keys is answered in chunks, of one image. A question
that is asked again is answered once. Groups and client metrics need not exist to be described, so that of
these a request may name only so many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.requests.repeated import unmet
from millrace.broker.requests.request import RequestContext
from millrace.broker.requests.work import RequestWork
from millrace.broker.settings.dynamic_configs import DYNAMIC, THROTTLES
from millrace.broker.settings.other_configs import (
    CLIENT_METRICS_KEYS,
    GROUP_KEYS,
    Listing,
    describe_client_metrics,
    describe_group,
)
from millrace.broker.settings.values import ShownValue
from millrace.kraft.commands.create_topics import name_fault
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.configs import ResourceType, Values
from millrace.kraft.topic_configs import TOPIC_CONFIGS, ConfigLookup, ConfigSource, ConfigValue, TopicConfig
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from millrace.runtime.scheduling.chunks import in_chunks

LOGGER_SOURCE, STRING = 6, 2
RESOURCES_PER_CHUNK, BROKERS_PER_CHUNK, KEYS_PER_CHUNK = 16, 2, 8_000
# Each name of a few bytes is answered with up to 1.5 KB.
NEVER_MISSING_MAX = 5_000
NEVER_MISSING = frozenset((ResourceType.GROUP, ResourceType.CLIENT_METRICS))
TOO_MANY = (
    f"more than {NEVER_MISSING_MAX} groups and client metrics subscriptions in one request: ask in several"
)
Levels = tuple[tuple[Values, ConfigSource], ...]
# The names of a broker-wide default in larger units, by its first name.
LARGER_UNITS = {
    config.synonyms[0].key: tuple(synonym.key for synonym in config.synonyms[1:])
    for config in TOPIC_CONFIGS.values()
    if config.synonyms
}
Form = tuple[bool, bool]  # with synonyms, with documentation


class DescribeConfigs:
    """`shown` is every broker setting with its text and source, `levels` gives the level of each logger."""

    def __init__(
        self,
        cache: MetadataCache,
        lookup: ConfigLookup,
        shown: Mapping[str, ShownValue],
        levels: Callable[[], Mapping[str, str]],
    ) -> None:
        self._levels = levels
        self._cache = cache
        self._lookup = lookup
        self._shown = shown
        self._broker_wide: tuple[Values, Values] | None = None  # that `_plain` was made of
        # of a topic without values of its own
        self._plain: dict[Form, dict[str, DescribeConfigsResourceResult]] = {}
        self._plain_group: dict[Form, list[DescribeConfigsResourceResult]] = {}  # likewise

    def handle(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> DescribeConfigsResponse | Coroutine[Any, Any, DescribeConfigsResponse]:
        image = self._cache.image
        if (
            len(request.resources) > RESOURCES_PER_CHUNK
            or sum(map(_weight, request.resources)) > KEYS_PER_CHUNK
        ):
            return self._describe_many(context, image, request)
        return DescribeConfigsResponse(
            results=self._describe_all(image, unmet(request.resources, set(), _question), request)
        )

    async def _describe_many(
        self, context: RequestContext, image: MetadataImage, request: DescribeConfigsRequest
    ) -> DescribeConfigsResponse:
        response = DescribeConfigsResponse()
        met: dict[int, set[Hashable]] = {}  # by type of the resource
        left = NEVER_MISSING_MAX
        known = frozenset(
            (*TOPIC_CONFIGS, *self._shown, *THROTTLES, *GROUP_KEYS, *CLIENT_METRICS_KEYS, *self._levels())
        )
        async for resources in in_chunks(request.resources, KEYS_PER_CHUNK, context.work, _weight):
            part = [
                await _narrowed(context.work, image, known, resource)
                if _weight(resource) > KEYS_PER_CHUNK
                else resource
                for resource in resources
            ]
            asked = [one for one in part if unmet([one], met.setdefault(one.resource_type, set()), _named)]
            left -= sum(resource.resource_type in NEVER_MISSING for resource in asked)
            response.results += self._describe_all(image, asked, request, is_over=left < 0)
        return response

    def _describe_all(
        self,
        image: MetadataImage,
        resources: Iterable[DescribeConfigsResource],
        request: DescribeConfigsRequest,
        *,
        is_over: bool = False,
    ) -> list[DescribeConfigsResult]:
        """`is_over`: more was named of what never is missing than one request may."""
        form = request.include_synonyms, request.include_documentation
        results = []
        for resource in resources:
            result = DescribeConfigsResult(0, "", resource.resource_type, resource.resource_name)
            try:
                if is_over and resource.resource_type in NEVER_MISSING:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, TOO_MANY)
                result.configs = self._describe(image, resource, form)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
            results.append(result)
        return results

    def _describe(
        self, image: MetadataImage, resource: DescribeConfigsResource, form: Form
    ) -> list[DescribeConfigsResourceResult]:
        match resource.resource_type:
            case ResourceType.TOPIC:
                found = self._topic(image, resource.resource_name, form)
            case ResourceType.BROKER:
                found = in_form(self._broker(image, resource.resource_name), form)
            case ResourceType.GROUP:
                found = self._group(image, resource.resource_name, form)
            case ResourceType.CLIENT_METRICS:
                found = in_form(self._client_metrics(image, resource.resource_name), form)
            case ResourceType.BROKER_LOGGER:
                found = self._loggers(resource.resource_name)
            case _:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown resource type {resource.resource_type}")
        wanted = frozenset(resource.configuration_keys or ())  # none named: all
        return [result for result in found if result.name in wanted] if wanted else found

    def _topic(self, image: MetadataImage, name: str, form: Form) -> list[DescribeConfigsResourceResult]:
        fault = name_fault(name)
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if image.topics.by_name(name) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        plain, own = self._plain_topic(image, form), image.configs.topic(name)
        if not own:
            return list(plain.values())
        return [
            self._topic_value(image, name, config, form) if config.name in own else plain[config.name]
            for config in TOPIC_CONFIGS.values()
        ]

    def _plain_topic(self, image: MetadataImage, form: Form) -> dict[str, DescribeConfigsResourceResult]:
        """Of a topic without values of its own, made anew when a broker-wide value has changed."""
        self._forget_changed(image)
        plain = self._plain.get(form)
        if plain is None:
            plain = {
                name: self._topic_value(image, "", config, form) for name, config in TOPIC_CONFIGS.items()
            }
            self._plain[form] = plain
        return plain

    def _forget_changed(self, image: MetadataImage) -> None:
        mine, every = image.configs.broker(self._cache.node_id), image.configs.broker(None)
        known = self._broker_wide
        if known is None or known[0] is not mine or known[1] is not every:
            self._broker_wide, self._plain, self._plain_group = (mine, every), {}, {}

    def _topic_value(
        self, image: MetadataImage, topic: str, config: TopicConfig, form: Form
    ) -> DescribeConfigsResourceResult:
        listing = self._lookup.listing(image, topic, config.name)
        named = (
            listing
            if is_broker_wide_named(config, listing)
            else [found for found in listing if found.source is ConfigSource.TOPIC]
        )
        has_synonyms, has_documentation = form
        return DescribeConfigsResourceResult(
            name=config.name,
            value=listing[0].value,
            config_source=int(named[0].source if named else ConfigSource.DEFAULT),
            synonyms=[DescribeConfigsSynonym(found.key, found.stated, int(found.source)) for found in named]
            if has_synonyms
            else [],
            config_type=int(config.kind),
            documentation=config.doc if has_documentation else None,
        )

    def _broker(self, image: MetadataImage, name: str) -> Iterable[DescribeConfigsResourceResult]:
        levels = self._levels_of(image)
        if not name:
            values, source = levels[1]
            for key in values:
                yield self._broker_value(key, [(key, values[key], source)])
            return
        self._check_broker(name)
        throttles = [key for key in THROTTLES if _dynamic(key, levels)]
        for key in sorted((*self._shown, *throttles)):
            shown = self._shown.get(key)
            listing = _dynamic(key, levels)
            listing += self._stated(key)
            if listing:
                for larger in LARGER_UNITS.get(key, ()):
                    listing += self._stated(larger)
            if listing or (shown is not None and not shown.key.is_ours):
                yield self._broker_value(key, listing)

    def _stated(self, name: str) -> Listing:
        """What the broker was started with, and the default."""
        shown = self._shown.get(name)
        if shown is None or shown.text is None:
            return []
        if shown.source == "default":
            return [(name, shown.text, ConfigSource.DEFAULT)]
        default = [] if shown.key.default is None else [(name, shown.key.default, ConfigSource.DEFAULT)]
        return [(name, shown.text, ConfigSource.STATIC_BROKER), *default]

    def _loggers(self, name: str) -> list[DescribeConfigsResourceResult]:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        if name.isdigit() and name != str(self._cache.node_id):
            text = f"Unexpected broker id, expected {self._cache.node_id} but received {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        self._check_broker(name)
        return [
            DescribeConfigsResourceResult(
                name=logger, value=level, config_source=LOGGER_SOURCE, documentation=""
            )
            for logger, level in self._levels().items()
        ]

    def _check_broker(self, name: str) -> None:
        if not name.isdigit():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
        if name != str(self._cache.node_id):
            text = (
                f"Unexpected broker id, expected {self._cache.node_id} or empty string, but received {name}"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)

    def _broker_value(self, name: str, listing: Listing) -> DescribeConfigsResourceResult:
        """`listing` has what holds first; empty: Kafka's default, which is none."""
        key = self._shown[name].key if name in self._shown else THROTTLES.get(name)
        is_secret = key is not None and key.is_secret
        _, value, source = listing[0] if listing else (name, None, ConfigSource.DEFAULT)
        return DescribeConfigsResourceResult(
            name=name,
            value=None if is_secret else value,
            read_only=name not in DYNAMIC,
            config_source=int(source),
            is_sensitive=is_secret,
            synonyms=[
                DescribeConfigsSynonym(other, None if is_secret else text, int(from_))
                for other, text, from_ in listing
            ],
            config_type=STRING if key is None else key.kind,
            documentation="" if key is None else key.meaning,
        )

    def _group(self, image: MetadataImage, name: str, form: Form) -> list[DescribeConfigsResourceResult]:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        own = image.configs.of(ResourceType.GROUP, name)
        if own:
            return self._group_values(image, own, form)
        self._forget_changed(image)
        if form not in self._plain_group:
            self._plain_group[form] = self._group_values(image, own, form)
        return self._plain_group[form]

    def _group_values(
        self, image: MetadataImage, own: Values, form: Form
    ) -> list[DescribeConfigsResourceResult]:
        levels = self._levels_of(image)
        return in_form(describe_group(own, lambda key: [*_dynamic(key, levels), *self._stated(key)]), form)

    def _client_metrics(self, image: MetadataImage, name: str) -> Iterable[DescribeConfigsResourceResult]:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return describe_client_metrics(image.configs.of(ResourceType.CLIENT_METRICS, name))

    def _levels_of(self, image: MetadataImage) -> Levels:
        """What is set dynamically: for this broker, for all."""
        mine, every = image.configs.broker(self._cache.node_id), self._lookup.of_all_brokers(image)
        return (mine, ConfigSource.DYNAMIC_BROKER), (every, ConfigSource.DYNAMIC_DEFAULT_BROKER)


def _dynamic(key: str, levels: Levels) -> list[tuple[str, str, ConfigSource]]:
    return [(key, values[key], source) for values, source in levels if key in values]


def _question(resource: DescribeConfigsResource) -> Hashable:
    return resource.resource_type, _named(resource)


def _named(resource: DescribeConfigsResource) -> Hashable:
    """The question among those of its type: mostly a name that the request holds, so that nothing is made of
    each of 100,000."""
    keys = resource.configuration_keys
    return (resource.resource_name, *keys) if keys else resource.resource_name


def _weight(resource: DescribeConfigsResource) -> int:
    """In keys that are named."""
    is_wide = resource.resource_type == ResourceType.BROKER  # its keys are put together, whichever are asked
    each = KEYS_PER_CHUNK // (BROKERS_PER_CHUNK if is_wide else RESOURCES_PER_CHUNK)
    return each + len(resource.configuration_keys or ())


async def _narrowed(
    work: RequestWork, image: MetadataImage, known: Collection[str], resource: DescribeConfigsResource
) -> DescribeConfigsResource:
    """The same question without most keys that nothing has: its first key stays, for no key would ask for
    all."""
    keys = resource.configuration_keys or []
    own = image.configs.of(resource.resource_type, resource.resource_name)
    kept = dict.fromkeys(keys[:1])
    async for part in in_chunks(keys, KEYS_PER_CHUNK, work):
        kept.update((key, None) for key in part if key in known or key in own)
    return replace(resource, configuration_keys=list(kept))


def is_broker_wide_named(config: TopicConfig, listing: Sequence[ConfigValue]) -> bool:
    """Kafka lists what is broker-wide under the first name of the key alone: of log.retention.ms,
    log.retention.minutes and log.retention.hours only where the first is set, although the others hold."""
    if len(config.synonyms) == 1:
        return True
    return any(found.key == config.synonyms[0].key for found in listing) if config.synonyms else False


def in_form(
    found: Iterable[DescribeConfigsResourceResult], form: Form
) -> list[DescribeConfigsResourceResult]:
    """Results that are nobody else's, without what was not asked for."""
    has_synonyms, has_documentation = form
    kept = list(found)
    for result in kept:
        if not has_synonyms:
            result.synonyms = []
        if not has_documentation:
            result.documentation = None
    return kept
