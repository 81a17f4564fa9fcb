"""DescribeConfigs (key 32): what holds for a topic or a broker, where it comes from and what else there is.

Topics are described from the table of topic configurations, brokers from their settings and what is set dynamically. Secrets are never
shown. Broker loggers and client metrics have no values here: they answer with an empty list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millrace.broker.config_values import ShownValue
from millrace.broker.dynamic_configs import DYNAMIC, THROTTLES
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.request import RequestContext
from millrace.kraft.tables.configs import ResourceType
from millrace.kraft.tables.create_topics import name_fault
from millrace.kraft.topic_configs import TOPIC_CONFIGS, ConfigLookup, ConfigSource
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
Listing = Sequence[tuple[str, ConfigSource]]


class DescribeConfigs:
    """`shown` is every broker setting with its text and source."""

    def __init__(self, cache: MetadataCache, lookup: ConfigLookup, shown: Mapping[str, ShownValue]) -> None:
        self._cache = cache
        self._lookup = lookup
        self._shown = shown

    def handle(self, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        results = []
        for resource in request.resources:
            result = DescribeConfigsResult(0, None, resource.resource_type, resource.resource_name)
            try:
                result.configs = self._describe(resource, request)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
            results.append(result)
        return DescribeConfigsResponse(results=results)

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest
    ) -> list[DescribeConfigsResourceResult]:
        match resource.resource_type:
            case ResourceType.TOPIC:
                found = self._topic(resource.resource_name)
            case ResourceType.BROKER:
                found = self._broker(resource.resource_name)
            case ResourceType.GROUP:
                found = self._stored(resource, GROUP_SOURCE)
            case ResourceType.CLIENT_METRICS:
                found = self._stored(resource, CLIENT_METRICS_SOURCE)
            case ResourceType.BROKER_LOGGER:
                self._check_broker(resource.resource_name)
                found = []
            case _:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown resource type {resource.resource_type}")
        wanted = resource.configuration_keys  # none named: all
        kept = [result for result in found if not wanted or result.name in wanted]
        for result in kept:
            if not request.include_synonyms:
                result.synonyms = []
            if not request.include_documentation:
                result.documentation = None
        return kept

    def _topic(self, name: str) -> Iterable[DescribeConfigsResourceResult]:
        image = self._cache.image
        fault = name_fault(name)
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if image.topics.by_name(name) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        for config in TOPIC_CONFIGS.values():
            listing = self._lookup.listing(image, name, config.name)
            is_nowhere_else = not config.synonyms  # no broker-wide key: Kafka names no default
            synonyms = [
                DescribeConfigsSynonym(found.key, found.stated, int(found.source))
                for found in listing
                if not (is_nowhere_else and found.source is ConfigSource.DEFAULT)
            ]
            yield DescribeConfigsResourceResult(
                name=config.name,
                value=listing[0].value,
                config_source=int(listing[0].source),
                synonyms=synonyms,
                config_type=int(config.kind),
                documentation=config.doc,
            )

    def _broker(self, name: str) -> Iterable[DescribeConfigsResourceResult]:
        configs = self._cache.image.configs
        cluster = configs.broker(None), ConfigSource.DYNAMIC_DEFAULT_BROKER
        if not name:
            for key in cluster[0]:
                yield self._broker_value(key, [(cluster[0][key], cluster[1])])
            return
        self._check_broker(name)
        levels = ((configs.broker(self._cache.node_id), ConfigSource.DYNAMIC_BROKER), cluster)
        throttles = [key for key in THROTTLES if any(key in values for values, _ in levels)]
        for key in (*self._shown, *throttles):
            shown = self._shown.get(key)
            listing = [(values[key], source) for values, source in levels if key in values]
            if shown is not None and shown.text is not None:
                is_default = shown.source == "default"
                listing.append((shown.text, ConfigSource.DEFAULT if is_default else ConfigSource.STATIC_BROKER))
            if listing or (shown is not None and not shown.key.is_ours):
                yield self._broker_value(key, listing)

    def _check_broker(self, name: str) -> None:
        if name != str(self._cache.node_id):
            text = f"unexpected broker id {name}: this is broker {self._cache.node_id}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)

    def _broker_value(self, name: str, listing: Listing) -> DescribeConfigsResourceResult:
        """`listing` has what holds first; empty: Kafka's default, which is none."""
        key = self._shown[name].key if name in self._shown else THROTTLES.get(name)
        is_secret = key is not None and key.is_secret
        value, source = listing[0] if listing else (None, ConfigSource.DEFAULT)
        return DescribeConfigsResourceResult(
            name=name,
            value=None if is_secret else value,
            read_only=name not in DYNAMIC,
            config_source=int(source),
            is_sensitive=is_secret,
            synonyms=[DescribeConfigsSynonym(name, None if is_secret else text, int(from_)) for text, from_ in listing],
            config_type=STRING if key is None else key.kind,
            documentation="" if key is None else key.meaning,
        )

    def _stored(self, resource: DescribeConfigsResource, source: int) -> Iterable[DescribeConfigsResourceResult]:
        if not resource.resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "groups and client metrics have no default: name one")
        values = self._cache.image.configs.of(resource.resource_type, resource.resource_name)
        for name, value in values.items():
            yield DescribeConfigsResourceResult(
                name=name,
                value=value,
                config_source=source,
                config_type=STRING,
                synonyms=[DescribeConfigsSynonym(name, value, source)],
            )
