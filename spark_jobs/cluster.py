"""What the brokers say of themselves and their topics, by the Kafka client in Spark's connector: it reaches
them as Spark will, with the same options (TLS, SASL), and needs nothing installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from millrace.spark_jobs.agreement import TopicState
from millrace.spark_jobs.config import IngestSettings
from millrace.spark_jobs.failures import JAVA_ERRORS, causes_of, sentence_of_kafka
from millrace.spark_jobs.refusal import Refused, Stopped, Unreachable

REACHED_WITHIN_MS = 10_000
IN_BATCH_WITHIN_MS = 60_000  # a broker that is restarted meanwhile is waited for
LOOK_MS = 500  # how long a signal waits at most


class Cluster:
    """`is_stopped` is asked while an answer is waited for; from then on each question raises Stopped. Raises
    Unreachable where no answer comes."""

    def __init__(
        self,
        session: SparkSession,
        settings: IngestSettings,
        is_stopped: Callable[[], bool],
        within_ms: int = REACHED_WITHIN_MS,
    ) -> None:
        context: Any = session.sparkContext
        self._java = context._jvm
        self._settings, self._is_stopped, self._within_ms = settings, is_stopped, within_ms
        properties = self._java.java.util.Properties()
        for key, value in settings.kafka_options.items():
            if key.startswith("kafka."):
                properties.setProperty(key.removeprefix("kafka."), value)
        properties.setProperty("bootstrap.servers", settings.bootstrap_servers)
        properties.setProperty("request.timeout.ms", str(within_ms))
        properties.setProperty("default.api.timeout.ms", str(within_ms))
        self._client = self._call(lambda: self._java.org.apache.kafka.clients.admin.Admin.create(properties))

    def close(self) -> None:
        self._client.close(self._java.java.time.Duration.ZERO)

    def cluster_id(self) -> str:
        return str(self._wait(self._client.describeCluster().clusterId()))

    def topic_ids(self, within_ms: int | None = None) -> dict[str, str]:
        """Of the topics that the configuration names and the brokers have. With a time of its own it is asked
        in a batch, which goes on while the pipeline is being stopped."""
        if self._settings.topic_pattern:
            return self._matching_ids(within_ms)
        options = self._java.org.apache.kafka.clients.admin.DescribeTopicsOptions().timeoutMs(
            within_ms or self._within_ms
        )
        found = {}
        for topic, future in (
            self._client.describeTopics(list(self._settings.topics), options).topicNameValues().items()
        ):
            try:
                found[str(topic)] = str(self._wait(future, within_ms).topicId().toString())
            except JAVA_ERRORS as error:
                if not any("UnknownTopicOrPartition" in name for name, _ in causes_of(error)):
                    raise
        return found

    def _matching_ids(self, within_ms: int | None) -> dict[str, str]:
        options = self._java.org.apache.kafka.clients.admin.ListTopicsOptions().timeoutMs(
            within_ms or self._within_ms
        )
        listings = self._wait(self._client.listTopics(options).listings(), within_ms).toArray()
        return {
            str(listing.name()): str(listing.topicId().toString())
            for listing in listings
            if self.matches(listing.name())
        }

    def matches(self, topic: str) -> bool:
        """Whether the configuration names it; a pattern is Java's, as Spark takes it. Raises Refused for a
        pattern that is none."""
        if self._settings.topics:
            return topic in self._settings.topics
        try:
            return bool(self._java.java.util.regex.Pattern.matches(self._settings.topic_pattern, topic))
        except JAVA_ERRORS as error:
            reason = causes_of(error)[0][1].partition("\n")[0]
            raise Refused(f"[kafka] topic_pattern is no pattern of Java's: {reason}") from None

    def states(self) -> dict[str, TopicState]:
        """Of the same topics, with the offsets of their partitions."""
        ids = self.topic_ids()
        described = self._wait(self._client.describeTopics(list(ids)).allTopicNames())
        partitions = {topic: [int(at.partition()) for at in described[topic].partitions()] for topic in ids}
        kinds = self._java.org.apache.kafka.clients.admin.OffsetSpec
        starts, ends = (self._offsets(partitions, kind) for kind in (kinds.earliest(), kinds.latest()))
        return {topic: TopicState(ids[topic], starts[topic], ends[topic]) for topic in ids}

    def _offsets(self, partitions: dict[str, list[int]], kind: Any) -> dict[str, dict[int, int]]:
        asked = self._java.java.util.HashMap()
        partition = self._java.org.apache.kafka.common.TopicPartition
        for topic, numbers in partitions.items():
            for number in numbers:
                asked.put(partition(topic, number), kind)
        found: dict[str, dict[int, int]] = {topic: {} for topic in partitions}
        for place, result in self._wait(self._client.listOffsets(asked).all()).items():
            found[str(place.topic())][int(place.partition())] = int(result.offset())
        return found

    def _wait(self, future: Any, within_ms: int | None = None) -> Any:
        """In steps, so that a signal is seen between two."""
        is_stoppable, within_ms = within_ms is None, within_ms or self._within_ms
        unit = self._java.java.util.concurrent.TimeUnit.MILLISECONDS
        for _ in range(2 * within_ms // LOOK_MS):  # the client itself gives up after `within_ms`
            if is_stoppable and self._is_stopped():
                raise Stopped
            try:
                return self._call(lambda: future.get(LOOK_MS, unit))
            except TimeoutError:
                continue
        raise Unreachable(f"{self._settings.bootstrap_servers} did not answer within {within_ms // 1000} s")

    def _call(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except JAVA_ERRORS as error:
            causes = causes_of(error)
            if causes[0][0] == "java.util.concurrent.TimeoutException":
                raise TimeoutError from None
            refused = sentence_of_kafka(causes, self._settings.bootstrap_servers)
            if refused:
                raise refused from error  # which --trace shows
            raise
