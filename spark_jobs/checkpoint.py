"""A checkpoint and its table, held together: read, compared with the brokers and written, before Spark plans
anything. One driver at a time, which lease.py sees to."""

from __future__ import annotations

import uuid
from dataclasses import replace

from millrace.spark_jobs.agreement import Agreement, Policies, TopicState, agree_on_topics
from millrace.spark_jobs.binding import (
    BATCHES,
    BINDING_FILE,
    TABLE_FILE,
    Binding,
    BoundTopic,
    Change,
    Offsets,
    TableMark,
    decode_binding,
    decode_mark,
    encode_binding,
    encode_mark,
)
from millrace.spark_jobs.files import Files
from millrace.spark_jobs.places import ANEW, Places, check_places
from millrace.spark_jobs.progress import (
    COMMITS,
    INITIAL_FILE,
    NO_COMMIT,
    OFFSETS,
    Progress,
    batches_in,
    check_whole,
    moved_entry,
    positions_in,
    progress_of,
)
from millrace.spark_jobs.refusal import Refused
from millrace.spark_jobs.sinks import PARTITION_COLUMNS


class Checkpoint:
    """`claim`, then `agree`; from then on `binding` is what is bound."""

    def __init__(self, files: Files, checkpoint: str, table: str) -> None:
        self._files = files
        self.path, self.table = files.full_name(checkpoint), files.full_name(table)
        self._binding_file = files.child(self.path, BINDING_FILE)
        self._table_file = files.child(self.table, TABLE_FILE)
        self._batches = files.child(self.table, BATCHES)
        self._notes: set[int] = (
            set()
        )  # as the table has them: one, or more where a driver was killed between two
        self.binding: Binding | None = None

    def check(self) -> None:
        """Raises Refused where checkpoint and table do not belong together; makes nothing."""
        check_places(self._places())

    def claim(self, cluster_id: str) -> None:
        """Binds the three to one another, on the first run; on return it is durable. Raises Refused where
        they do not belong together."""
        found = self._places()
        check_places(found)
        self._check_cluster(found.binding, cluster_id)
        wanted = replace(
            found.binding or Binding(uuid.uuid4().hex, cluster_id, "", ""),
            checkpoint=self.path,
            table=self.table,
        )
        self._files.make_folder(self.path)
        self._files.make_folder(self.table)
        self.binding = found.binding
        self._bind(wanted)
        mark = TableMark(wanted.identity, self.path)
        if found.written is not None and found.written < found.due[0]:
            self.note_batch(found.due[0])  # by somebody's word, which the next line takes away
        if mark != found.mark:
            self._files.write_whole(self._table_file, encode_mark(mark))
        if wanted.change:
            self._make(wanted.change)

    def agree(self, topics: dict[str, TopicState], gone: frozenset[str], policies: Policies) -> Agreement:
        """Binds the topics, and makes Spark go on from elsewhere where it has to. Raises Refused; then
        nothing is changed."""
        assert self.binding is not None
        progress = self._progress()
        base = self._base(progress)
        begun = self._begun(progress)
        agreed = agree_on_topics(self.binding, base, progress.next_batch, topics, gone, policies, begun)
        self._bind(replace(self.binding, topics=agreed.topics, parked=agreed.parked, change=agreed.change))
        if agreed.change:
            self._make(agreed.change)
        return agreed

    def check_cluster(self, cluster_id: str) -> None:
        """Raises Refused where the brokers are of another one by now."""
        self._check_cluster(self.binding, cluster_id)

    def _check_cluster(self, binding: Binding | None, cluster_id: str) -> None:
        if binding and binding.cluster_id != cluster_id:
            raise Refused(
                f"the checkpoint {self.path} is of the cluster {binding.cluster_id}, and the brokers are of "
                f"{cluster_id}: "
                "correct bootstrap_servers, or begin with a new table and a new checkpoint"
            )

    def topics_taken(self) -> frozenset[str]:
        """Those that Spark has positions of."""
        return frozenset(self._base(self._progress()) or ())

    def bind_more(self, ids: dict[str, str], batch: int) -> None:
        """Topics that a pattern meets while the pipeline runs; durable on return."""
        assert self.binding is not None
        more = {
            topic: BoundTopic(found, batch)
            for topic, found in ids.items()
            if topic not in self.binding.topics
        }
        self._bind(replace(self.binding, topics={**self.binding.topics, **more}))

    def note_batch(self, batch: int) -> None:
        """In the table, before the batch's rows are; killed in it, the newest note counts. Raises Refused
        where the table is not this checkpoint's by now."""
        self._check_mark()
        if batch not in self._notes:
            self._files.put(self._files.child(self._batches, str(batch)), "")
            self._notes.add(batch)
        for before in sorted(self._notes):
            if before < batch:
                self._files.remove(self._files.child(self._batches, str(before)))
                self._notes.remove(before)

    def _check_mark(self) -> None:
        """Two pipelines that are given one new table at the same time both find it new; the later one's file
        is there then."""
        assert self.binding is not None
        mark = decode_mark(self._files.text(self._table_file), self._table_file)
        if mark is None:
            raise Refused(
                f"the table {self.table} was removed, or emptied, while the pipeline ran: put it back, or "
                f"{ANEW}"
            )
        if mark.checkpoint != self.path or mark.identity not in ("", self.binding.identity):
            raise Refused(
                f"the table {self.table} was given to the checkpoint {mark.checkpoint} while {self.path} "
                "wrote it: "
                "give each pipeline a table of its own"
            )

    def drop_rows(self, batch: int) -> None:
        """Of a batch that is not done: the next one of its number holds other records."""
        topic, date, number = PARTITION_COLUMNS
        for folder in self._files.matching(self.table, f"{topic}=*/{date}=*/{number}={batch}"):
            self._files.remove(folder)

    def _places(self) -> Places:
        names = self._files.names(self.table)
        text = self._files.text(self._binding_file)
        binding = decode_binding(text, self._binding_file) if text else None
        progress = self._progress()
        for name in progress.read_first:
            place = self._files.child(self.path, name)
            if self._files.matching(self.path, name):
                check_whole(self._files.text(place), place)
        self._notes = batches_in(self._files.names(self._batches))
        return Places(
            self.path,
            self.table,
            binding,
            decode_mark(self._files.text(self._table_file), self._table_file),
            has_batches=progress.planned is not None,
            has_rows=any(name.startswith(f"{PARTITION_COLUMNS[0]}=") for name in names),
            written=max(self._notes, default=None),
            due=progress.due(binding.change.batch if binding and binding.change else None),
        )

    def _progress(self) -> Progress:
        offsets, commits = (
            self._files.names(self._files.child(self.path, name)) for name in (OFFSETS, COMMITS)
        )
        return progress_of(offsets, commits, self.path)

    def _base(self, progress: Progress) -> Offsets | None:
        name = self._files.child(self.path, progress.base)
        text = self._files.text(name)
        return positions_in(text, name) if text or progress.planned is not None else None

    def _begun(self, progress: Progress) -> Offsets | None:
        if progress.planned is None or progress.is_done:
            return None
        name = self._file(OFFSETS, progress.planned)
        return positions_in(self._files.text(name), name)

    def _bind(self, binding: Binding) -> None:
        if binding != self.binding:
            self._files.write_whole(self._binding_file, encode_binding(binding))
            self.binding = binding

    def _make(self, change: Change) -> None:
        """Killed anywhere in it, the next claim makes it again."""
        assert self.binding is not None
        self.drop_rows(change.batch)
        entry, before = (self._file(OFFSETS, batch) for batch in (change.batch, change.batch - 1))
        model = self._files.text(entry) or self._files.text(before)
        if model:
            self._files.write_whole(entry, moved_entry(model, change.offsets))
            commit = self._files.text(self._file(COMMITS, change.batch - 1)) or NO_COMMIT
            self._files.write_whole(self._file(COMMITS, change.batch), commit)
            self.note_batch(change.batch)
        else:  # Spark drew where to begin, and planned nothing yet
            initial = self._files.child(self.path, INITIAL_FILE)
            self._files.write_whole(initial, moved_entry(self._files.text(initial), change.offsets))
        self._bind(replace(self.binding, change=None))

    def _file(self, folder: str, batch: int) -> str:
        return self._files.child(self._files.child(self.path, folder), str(batch))
