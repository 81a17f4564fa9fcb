"""DescribeConfigs (key 32): what holds for a topic or a broker, where it comes from and what else there is.

Topics are described from the table of topic configurations, brokers from their settings and what is set dynamically. Secrets are never
shown. Broker loggers and client metrics have no values here: they answer with an empty list.

What holds for every topic that says nothing itself is described once and shared by all topics and answers, until a broker-wide value changes: nobody
changes a result that was given. A request for more than a slice is answered in slices, of one image.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

from millrace.broker.config_values import ShownValue
from millrace.broker.dynamic_configs import DYNAMIC, THROTTLES
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.request import RequestContext
from millrace.broker.slices import in_slices
from millrace.kraft.image import MetadataImage
from millrace.kraft.tables.configs import ResourceType, Values
from millrace.kraft.tables.create_topics import name_fault
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

GROUP_SOURCE, CLIENT_METRICS_SOURCE, STRING = 8, 7, 2
RESOURCES_A_SLICE = 16
Listing = Sequence[tuple[str, str, ConfigSource]]  # key, text, whose it is
# The names of a broker-wide default in larger units, by its first name.
LARGER_UNITS = {
    config.synonyms[0].key: tuple(synonym.key for synonym in config.synonyms[1:])
    for config in TOPIC_CONFIGS.values()
    if config.synonyms
}
Form = tuple[bool, bool]  # with synonyms, with documentation


class DescribeConfigs:
    """`shown` is every broker setting with its text and source."""

    def __init__(self, cache: MetadataCache, lookup: ConfigLookup, shown: Mapping[str, ShownValue]) -> None:
        self._cache = cache
        self._lookup = lookup
        self._shown = shown
        self._broker_wide: tuple[Values, Values] | None = None  # that `_plain` was made of
        self._plain: dict[Form, dict[str, DescribeConfigsResourceResult]] = {}  # of a topic without values of its own

    def handle(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> DescribeConfigsResponse | Coroutine[Any, Any, DescribeConfigsResponse]:
        image = self._cache.image
        if len(request.resources) > RESOURCES_A_SLICE:
            return self._describe_many(image, request)
        return DescribeConfigsResponse(results=self._describe_all(image, request.resources, request))

    async def _describe_many(self, image: MetadataImage, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        response = DescribeConfigsResponse()
        async for part in in_slices(request.resources, RESOURCES_A_SLICE):
            response.results += self._describe_all(image, part, request)
        return response

    def _describe_all(
        self, image: MetadataImage, resources: Iterable[DescribeConfigsResource], request: DescribeConfigsRequest
    ) -> list[DescribeConfigsResult]:
        form = request.include_synonyms, request.include_documentation
        results = []
        for resource in resources:
            result = DescribeConfigsResult(0, "", resource.resource_type, resource.resource_name)
            try:
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
                found = in_form(self._stored(image, resource, GROUP_SOURCE), form)
            case ResourceType.CLIENT_METRICS:
                found = in_form(self._stored(image, resource, CLIENT_METRICS_SOURCE), form)
            case ResourceType.BROKER_LOGGER:
                self._check_broker(resource.resource_name)
                found = []
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
        mine, every = image.configs.broker(self._cache.node_id), image.configs.broker(None)
        known = self._broker_wide
        if known is None or known[0] is not mine or known[1] is not every:
            self._broker_wide, self._plain = (mine, every), {}
        plain = self._plain.get(form)
        if plain is None:
            plain = {name: self._topic_value(image, "", config, form) for name, config in TOPIC_CONFIGS.items()}
            self._plain[form] = plain
        return plain

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
        configs = image.configs
        cluster = configs.broker(None), ConfigSource.DYNAMIC_DEFAULT_BROKER
        if not name:
            for key in cluster[0]:
                yield self._broker_value(key, [(key, cluster[0][key], cluster[1])])
            return
        self._check_broker(name)
        levels = ((configs.broker(self._cache.node_id), ConfigSource.DYNAMIC_BROKER), cluster)
        throttles = [key for key in THROTTLES if any(key in values for values, _ in levels)]
        for key in sorted((*self._shown, *throttles)):
            shown = self._shown.get(key)
            listing = [(key, values[key], source) for values, source in levels if key in values]
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

    def _check_broker(self, name: str) -> None:
        if name != str(self._cache.node_id):
            text = f"unexpected broker id {name}: this is broker {self._cache.node_id}"
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
                DescribeConfigsSynonym(other, None if is_secret else text, int(from_)) for other, text, from_ in listing
            ],
            config_type=STRING if key is None else key.kind,
            documentation="" if key is None else key.meaning,
        )

    def _stored(
        self, image: MetadataImage, resource: DescribeConfigsResource, source: int
    ) -> Iterable[DescribeConfigsResourceResult]:
        if not resource.resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "groups and client metrics have no default: name one")
        values = image.configs.of(resource.resource_type, resource.resource_name)
        for name, value in values.items():
            yield DescribeConfigsResourceResult(
                name=name,
                value=value,
                config_source=source,
                config_type=STRING,
                synonyms=[DescribeConfigsSynonym(name, value, source)],
            )


def is_broker_wide_named(config: TopicConfig, listing: Sequence[ConfigValue]) -> bool:
    """Kafka lists what is broker-wide under the first name of the key alone: of log.retention.ms, log.retention.minutes and log.retention.hours only
    where the first is set, although the others hold."""
    if len(config.synonyms) == 1:
        return True
    return any(found.key == config.synonyms[0].key for found in listing) if config.synonyms else False


def in_form(found: Iterable[DescribeConfigsResourceResult], form: Form) -> list[DescribeConfigsResourceResult]:
    """Results that are nobody else's, without what was not asked for."""
    has_synonyms, has_documentation = form
    kept = list(found)
    for result in kept:
        if not has_synonyms:
            result.synonyms = []
        if not has_documentation:
            result.documentation = None
    return kept
