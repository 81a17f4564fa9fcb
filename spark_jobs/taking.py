"""What stands around Spark's query: the brokers are reached, the checkpoint is leased, bound and agreed on,
and each batch's topics are compared with what is bound, before it is written and before it counts as done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.spark_jobs.agreement import Policies, check_ids
from millrace.spark_jobs.checkpoint import Checkpoint
from millrace.spark_jobs.cluster import IN_BATCH_WITHIN_MS, Cluster
from millrace.spark_jobs.config import IngestSettings
from millrace.spark_jobs.ending import WriteBatch
from millrace.spark_jobs.failures import JAVA_ERRORS, causes_of, sentence_of_files
from millrace.spark_jobs.files import Files
from millrace.spark_jobs.lease import Lease
from millrace.spark_jobs.processes import process_of
from millrace.spark_jobs.refusal import Refused, Unreachable


class Taking:
    """`open` once, `prepare` before each query, `close`. All raise Refused with what the operator can do."""

    def __init__(
        self, session: SparkSession, settings: IngestSettings, is_stopped: Callable[[], bool]
    ) -> None:
        self._session, self._settings, self._is_stopped = session, settings, is_stopped
        self._policies = Policies(settings.on_recreated_topic, settings.on_lost_records)
        self._cluster: Cluster | None = None
        self._lease: Lease | None = None
        self._checkpoint: Checkpoint | None = None
        self.failure: Exception | None = None  # of a batch, as it was before Spark wrapped it

    def open(self) -> None:
        """The brokers are reached, checkpoint and table belong together and to these brokers, and no other
        driver runs."""
        settings = self._settings
        self._cluster = Cluster(self._session, settings, self._is_stopped)
        cluster_id = self._cluster.cluster_id()
        self._check_topics_exist(self._cluster.topic_ids())
        try:
            files = Files(self._session)
            for folder in (settings.checkpoint, settings.table_path):
                files.check_reached(folder)
            self._checkpoint = Checkpoint(files, settings.checkpoint, settings.table_path)
            self._checkpoint.check()
            files.make_folder(self._checkpoint.path)
            context: Any = self._session.sparkContext
            jvm = process_of(int(context._jvm.java.lang.ProcessHandle.current().pid()))
            self._lease = Lease(files, self._checkpoint.path, jvm)
            self._lease.take(self._is_stopped, say)
            self._lease.keep()
            self._checkpoint.claim(cluster_id)
        except JAVA_ERRORS as error:
            refused = sentence_of_files(causes_of(error), f"{settings.checkpoint} or {settings.table_path}")
            if refused:
                raise refused from error  # which --trace shows
            raise

    def close(self) -> None:
        if self._lease:
            self._lease.give_back()
        if self._cluster:
            self._cluster.close()

    def prepare(self) -> bool:
        """Binds the topics there are, and says what is new of them. True where Spark goes on from elsewhere
        than it would have."""
        assert self._cluster
        assert self._checkpoint
        self.check_lease()
        self._checkpoint.check_cluster(self._cluster.cluster_id())
        states = self._cluster.states()
        self._check_topics_exist({topic: state.topic_id for topic, state in states.items()})
        if not states:
            say(f"no topic of {self._settings.bootstrap_servers} matches [kafka] topic_pattern yet")
        taken = self._checkpoint.topics_taken()
        gone = frozenset(topic for topic in taken if topic not in states and self._cluster.matches(topic))
        agreed = self._checkpoint.agree(states, gone, self._policies)
        for note in agreed.notes:
            say(note)
        return agreed.change is not None

    def around_batches(self, write: WriteBatch) -> WriteBatch:
        """The same, refused where a topic is not the bound one: before, nothing is written; after, what was
        written is taken back. Refused, too, where another driver has the checkpoint: then nothing is touched,
        and the batch does not count as done."""

        def write_batch(frame: DataFrame, batch: int) -> None:
            assert self._checkpoint
            try:
                self.check_lease()
                self._check(batch)
                self._checkpoint.note_batch(batch)
                write(frame, batch)
                self._check_after(batch)
                self.check_lease()
            except Exception as error:
                self.failure = error
                raise

        return write_batch

    @property
    def checkpoint(self) -> str:
        """By its full name."""
        assert self._checkpoint
        return self._checkpoint.path

    def check_lease(self) -> None:
        """Raises Refused where another driver has the checkpoint."""
        assert self._lease
        self._lease.hold()

    def stop_if_lost(self) -> None:
        """As far as it is known: between batches, so that no further one is planned."""
        if self._lease and self._lease.is_lost:
            self._lease.hold()

    def _check(self, batch: int) -> None:
        assert self._cluster
        assert self._checkpoint
        assert self._checkpoint.binding
        ids = self._cluster.topic_ids(IN_BATCH_WITHIN_MS)
        check_ids(self._checkpoint.binding.topics, ids)
        self._checkpoint.bind_more(ids, batch)

    def _check_after(self, batch: int) -> None:
        assert self._checkpoint
        try:
            self._check(batch)
        except Unreachable:
            raise  # nothing was seen of the topics: the batch is run again, or taken back, by the next start
        except Refused:
            self.check_lease()
            self._checkpoint.drop_rows(batch)
            raise

    def _check_topics_exist(self, found: dict[str, str]) -> None:
        missing = [topic for topic in self._settings.topics if topic not in found]
        if missing:
            raise Refused(
                f"{self._settings.bootstrap_servers} has no topic {', '.join(missing)}: create it, or take "
                "it out of [kafka] topics"
            )


def say(note: str) -> None:
    print(f"ingest: {note}", flush=True)
