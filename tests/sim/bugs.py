"""Deliberate bugs: each replaces one function of the product in the simulated process, and the hunt has to find it within a bounded number of
seeds. A bug that is not found means that the workload or the checkers are blind there.

Planting happens here and nowhere else. `python -m tests.sim bugs [NAME ...]` plants one after the other; `find_bug` one. What a bug breaks is
named by its invariant (README.md); which checker found it is told by the kinds of its findings.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.broker.coordinators.shard_loop import ShardLoop
from millrace.broker.object_cleaner import ObjectCleaner
from millrace.broker.partitions import opening
from millrace.broker.partitions.partition import Appended, Partition
from millrace.broker.partitions.producers import Producers
from millrace.broker.partitions.time_index import TimeTail
from millrace.kraft.log_store import LogStore
from millrace.kraft.tables.objects_edit import ObjectsEdit
from millrace.s3stream import recovery, uploader
from millrace.s3stream.compaction import batch, copying, merging
from millrace.s3stream.compaction.outputs import Output
from millrace.s3stream.log_cache import LogCache
from millrace.s3stream.storage import Storage
from millrace.s3stream.uploader import Uploader
from millrace.wal.block.device import BlockDevice
from millrace.wal.block.log import BlockWal
from millrace.wal.block.recovery import RecoveryScan
from millrace.wal.block.writer import BlockWriter
from tests.sim.forks import run_all
from tests.sim.hunt import drawn_plan
from tests.sim.run import Outcome


@dataclass(frozen=True, slots=True)
class Bug:
    """`make(old)` gives what stands in the place of `owner.name` instead; `also`: more of the same."""

    what: str
    invariant: int
    owner: Any
    name: str
    make: Callable[[Any], Any]
    also: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = ()

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        places = ((self.owner, self.name, self.make), *self.also)
        own = [vars(owner)[name] for owner, name, _ in places]  # a staticmethod or a property as it stands there
        for owner, name, make in places:
            setattr(owner, name, make(getattr(owner, name)))
        try:
            yield
        finally:
            for (owner, name, _), kept in zip(places, own, strict=True):
                setattr(owner, name, kept)


# 1. acknowledged, durable


def confirms_all_in_flight(old: Any) -> Any:
    def _on_written(self: BlockWriter, future: asyncio.Future[None]) -> None:
        if self.has_failed or future.exception() is not None:
            old(self, future)
            return
        before = self.confirmed
        while self._in_flight:
            self.confirmed = max(self.confirmed, self._in_flight.popleft()[1].end)
        if self.confirmed != before:
            self.pump()
            self._on_group()

    return _on_written


def confirms_when_begun(old: Any) -> Any:
    def append(self: BlockWal, *parts: Any, tail_crc: int | None = None) -> Any:
        record = old(self, *parts, tail_crc=tail_crc)
        asyncio.get_running_loop().call_soon(lambda: self._failure or self._on_confirmed(record.end))
        return record

    return append


def syncs_nothing(old: Any) -> Any:
    async def append(self: LogStore, batch: bytes, end: int) -> None:
        self._open_file.sync = _nothing  # type: ignore[method-assign]
        await old(self, batch, end)

    return append


async def _nothing() -> None:
    return None


# 2. trimmed, committed


def trims_before_the_commit(old: Any) -> Any:
    async def _end(self: Uploader, job: Any) -> None:
        await self._trim_wal(job.block.wal_end)
        await old(self, job)

    return _end


def blocks_end_too_late(old: Any) -> Any:
    def put(self: LogCache, stream_id: int, entry: Any, wal_end: int) -> None:
        old(self, stream_id, entry, wal_end + 4096)

    return put


def confirms_backwards(old: Any) -> Any:
    """Entries of a group enter the log cache with the stream that is last in the log first."""

    def _confirm(self: Storage, end: int) -> None:
        group, rest = [], self._pending
        while rest and rest[0].wal_end <= end:
            group.append(rest.popleft())
        self._pending = deque(sorted(group, key=lambda append: -append.stream.stream_id))
        old(self, 1 << 62)
        self._pending = deque([*rest, *self._pending])

    return _confirm


def resets_without_the_upload(old: Any) -> Any:
    async def _upload(self: recovery.Flush, block: Any) -> None:
        self.cache.free(block)
        self.cache.evict()

    return _upload


# 3. ranges


def drops_a_run(old: Any) -> Any:
    def plan_upload(runs: Any, split_bytes: int) -> Any:
        ordered = sorted(runs, key=lambda run: run.stream_id)
        return old(ordered[:-1] if len(ordered) > 3 else ordered, split_bytes)

    return plan_upload


def drops_an_entry(old: Any) -> Any:
    async def _fill(writer: Any, planned: Any) -> Any:
        for run in planned.runs:
            writer.add(run.stream_id, run.entries(0, len(run) - (len(run) > 4)))
            yield

    return _fill


# 4. epochs


def accepts_any_epoch(old: Any) -> Any:
    return lambda self, header: True


def keeps_the_epoch(old: Any) -> Any:
    async def write_both(self: BlockDevice, **changes: Any) -> None:
        if self.header.epoch >= 0:
            changes.pop("epoch", None)
        await old(self, **changes)

    return write_both


# 5. compaction


def drops_blocks(old: Any) -> Any:
    """The last block of each stream that has several does not come over."""

    async def _add(self: copying.Copying, portion: Any, ref: Any, data: Any, body_sum: Any) -> None:
        last = self.__dict__.setdefault("last", {})
        if last.get("stream") != ref.stream_id:
            last.clear()
            last["stream"] = ref.stream_id
            await old(self, portion, ref, data, body_sum)
            return
        if "held" in last:
            await old(self, *last["held"])
        last["held"] = portion, ref, memoryview(bytes(data)), body_sum

    return _add


def checks_nothing(old: Any) -> Any:
    async def check_covered(*args: Any) -> None: ...

    return check_covered


def misses_nothing(old: Any) -> Any:
    return lambda *args: ""


def finds_nothing(old: Any) -> Any:
    def _names_among(*args: Any) -> Any:
        yield
        return {}

    return _names_among


def swaps_blocks(old: Any) -> Any:
    """Each block of an object is given the bytes of the first that is as long."""

    async def add(self: Output, ref: Any, data: Any, body_sum: Any) -> None:
        seen = self.__dict__.setdefault("seen", {})
        await old(self, ref, *seen.setdefault(ref.size_bytes, (memoryview(bytes(data)), body_sum)))

    return add


def dooms_what_it_links(old: Any) -> Any:
    async def commit(work: Any, ids: Any, asked: Any) -> None:
        await old(work, ids, replace(asked, compacted_ids=(*asked.compacted_ids, *asked.linked_ids), linked_ids=()))

    return commit


# 6. objects


def commits_before_the_put(old: Any) -> Any:
    async def _put_whole(self: Uploader, key: str, parts: Any) -> None:
        task = asyncio.ensure_future(old(self, key, parts))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    return _put_whole


def deletes_at_once(old: Any) -> Any:
    def __init__(self: ObjectCleaner, *args: Any, **named: Any) -> None:
        old(self, *args, **named)
        self._grace_ms = 0

    return __init__


def forgets_without_deleting(old: Any) -> Any:
    async def _delete_due(self: ObjectCleaner) -> bool:
        store, self._store = self._store, _DeletesNothing()  # type: ignore[assignment]
        try:
            return bool(await old(self))
        finally:
            self._store = store

    return _delete_due


class _DeletesNothing:
    async def delete(self, keys: Sequence[str]) -> list[str]:
        return []


# 8, 13. offsets


def skips_a_record(old: Any) -> Any:
    def _records(self: RecoveryScan, data: memoryview, header: Any) -> Any:
        found = old(self, data, header)
        return found[:-1] if found and len(found) > 2 else found

    return _records


def goes_on_behind_a_hole(old: Any) -> Any:
    """Up to eight blocks that are not sound are passed over."""

    def _on_bad_block(self: RecoveryScan) -> None:
        known = self.__dict__.setdefault("hole", {"skipped": 0, "tail": self.tail, "blocks": len(self.ends)})
        if known["skipped"] > 8:
            old(self)
            return
        if known["skipped"] < 8 and self._at == self.tail and self._at + 8192 < self._geometry.lap_end(self._at):
            if len(self.ends) != known["blocks"]:
                known.update(tail=self.tail, blocks=len(self.ends))
            known["skipped"] += 1
            self._at = self.tail = self._at + 4096
            return
        known["skipped"] = 9
        if len(self.ends) == known["blocks"]:
            self._at = self.tail = known["tail"]
        old(self)

    return _on_bad_block


def ends_early(old: Any) -> Any:
    """Recovery takes the last block for torn: what was acknowledged is lost, and its offsets are given again."""

    async def recover(self: BlockWal) -> Any:
        records = [record async for record in old(self)]
        for record in records[:-2]:
            yield record

    return recover


def answers_repeats_at_once(old: Any) -> Any:
    def _repeat(self: Partition, known: Any, on_done: Any) -> Appended:
        return Appended(known.base_offset, -1, True)

    return _repeat


def forgets_producers(old: Any) -> Any:
    def restore(data: Any, *args: Any, **named: Any) -> Producers:
        return Producers()

    return restore


def replays_nothing(old: Any) -> Any:
    async def _replay(data: Any, state: Any, settings: Any, found: Any) -> None:
        return None

    return _replay


def judges_no_sequence(old: Any) -> Any:
    return lambda self, *args: None


def shows_what_is_not_durable(old: Any) -> Any:
    return property(lambda self: self.data.next_offset)


def raises_the_start_at_once(old: Any) -> Any:
    def raise_log_start(self: Partition, offset: int, now_ms: int, on_done: Any = None) -> None:
        old(self, offset, now_ms, None)
        if on_done is not None:
            self._on_log_start(offset, on_done)

    return raise_log_start


def notes_times_too_far(old: Any) -> Any:
    def note(self: TimeTail, end_offset: int, max_timestamp_ms: int, size_bytes: int, interval_bytes: int) -> None:
        old(self, end_offset + 3, max_timestamp_ms, size_bytes + 600, 1)

    return note


# 11. groups


def answers_groups_at_once(old: Any) -> Any:
    def append(self: ShardLoop, records: Any, line: Any) -> None:
        old(self, records, [])
        for ticket, answer in line:
            ticket.give(answer)

    return append


# 12. bounds


def never_evicts(old: Any) -> Any:
    return lambda self, capacity_bytes=None: None


BUGS = {
    "ack-out-of-order": Bug(
        "all writes are confirmed with the first", 1, BlockWriter, "_on_written", confirms_all_in_flight
    ),
    "metadata-not-synced": Bug("the metadata log is not synced", 10, LogStore, "append", syncs_nothing),
    "ack-before-durable": Bug("appends are confirmed at once", 1, BlockWal, "append", confirms_when_begun),
    "trim-too-early": Bug("the WAL is trimmed before the commit", 2, Uploader, "_end", trims_before_the_commit),
    "block-ends-too-late": Bug("a cache block's end covers what follows it", 2, LogCache, "put", blocks_end_too_late),
    "cache-order": Bug("entries enter the cache in another order", 2, Storage, "_confirm", confirms_backwards),
    "recovery-uploads-nothing": Bug(
        "recovered entries are not uploaded", 2, recovery.Flush, "_upload", resets_without_the_upload
    ),
    "run-dropped": Bug("an upload leaves a stream out", 3, uploader, "plan_upload", drops_a_run),
    "entry-dropped": Bug("an object lacks an entry of its range", 3, uploader, "_fill", drops_an_entry),
    "stale-epoch": Bug("recovery takes blocks of any epoch", 4, RecoveryScan, "_is_lawful", accepts_any_epoch),
    "epoch-not-raised": Bug("a start leaves the epoch in the header", 4, BlockDevice, "write_both", keeps_the_epoch),
    "block-dropped": Bug("compaction leaves blocks out", 5, copying.Copying, "_add", drops_blocks),
    "coverage-unchecked": Bug(
        "compaction leaves blocks out, and nobody checks that all is covered",
        5,
        copying.Copying,
        "_add",
        drops_blocks,
        (
            (merging, "check_covered", checks_nothing),
            (ObjectsEdit, "_left_behind", misses_nothing),
            (ObjectsEdit, "_names_among", finds_nothing),
        ),
    ),
    "blocks-swapped": Bug("compaction writes one block twice", 5, Output, "add", swaps_blocks),
    "links-doomed": Bug("what a composite links is doomed", 5, batch, "commit", dooms_what_it_links),
    "commit-before-put": Bug(
        "objects are committed while they are put", 6, Uploader, "_put_whole", commits_before_the_put
    ),
    "no-grace": Bug("doomed objects are deleted at once", 5, ObjectCleaner, "__init__", deletes_at_once),
    "never-deleted": Bug(
        "doomed objects are forgotten, not deleted", 6, ObjectCleaner, "_delete_due", forgets_without_deleting
    ),
    "record-skipped": Bug("recovery skips a record of a block", 8, RecoveryScan, "_records", skips_a_record),
    "behind-a-hole": Bug("recovery goes on behind a hole", 8, RecoveryScan, "_on_bad_block", goes_on_behind_a_hole),
    "offsets-again": Bug("recovery ends early", 13, BlockWal, "recover", ends_early),
    "repeat-too-early": Bug(
        "a repeat is answered before its original is durable", 13, Partition, "_repeat", answers_repeats_at_once
    ),
    "producers-forgotten": Bug("a checkpoint's producers are not restored", 8, Producers, "restore", forgets_producers),
    "no-replay": Bug("what lies behind a checkpoint is not read", 8, opening, "_replay", replays_nothing),
    "no-sequences": Bug("repeats are taken for new batches", 8, Producers, "judge", judges_no_sequence),
    "watermark-too-high": Bug(
        "what is not durable is shown", 8, Partition, "high_watermark", shows_what_is_not_durable
    ),
    "start-not-durable": Bug(
        "a log start is told before it is durable", 8, Partition, "raise_log_start", raises_the_start_at_once
    ),
    "time-index-off": Bug("the time index points too far", 8, TimeTail, "note", notes_times_too_far),
    "group-before-durable": Bug(
        "a group's commit is answered at once", 11, ShardLoop, "append", answers_groups_at_once
    ),
    "never-evicted": Bug("the log cache keeps all", 12, LogCache, "evict", never_evicts),
}


@dataclass(frozen=True, slots=True)
class Hunted:
    """`outcome` is that of the first seed with a finding; None: so many seeds found nothing."""

    name: str
    seeds: int
    outcome: Outcome | None
    took_s: float


def find_bug(name: str, seeds_max: int, workers: int = 1) -> Hunted:
    """Seeds are run in order; with several workers a few more than were needed."""
    began = time.monotonic()
    plans = [drawn_plan(number) for number in range(seeds_max)]
    found: dict[int, Outcome] = {}
    owed = dict.fromkeys(range(seeds_max))
    with BUGS[name].planted(), contextlib.closing(run_all(plans, workers)) as outcomes:
        for outcome in outcomes:
            number = int(outcome.plan.seed)
            del owed[number]
            if outcome.findings:
                found[number] = outcome
            first = min(found, default=seeds_max)
            if next(iter(owed), seeds_max) > first:  # none before it is under way
                return Hunted(name, first + 1, found[first], time.monotonic() - began)
    return Hunted(name, seeds_max, None, time.monotonic() - began)


def hunt_bugs(names: Sequence[str], seeds_max: int, workers: int) -> int:
    """One after the other. Exit code 1 when one is not found."""
    chosen = list(names) or list(BUGS)
    missed = []
    for name in chosen:
        bug, hunted = BUGS[name], find_bug(name, seeds_max, workers)
        print(f"{name} (invariant {bug.invariant}: {bug.what})")
        if hunted.outcome is None:
            missed.append(name)
            print(f"    NOT FOUND in {hunted.seeds} seeds, {hunted.took_s:.0f} s", flush=True)
            continue
        kinds = dict.fromkeys(line.partition(":")[0] for line in hunted.outcome.findings)
        print(f"    found at seed {hunted.seeds}, {hunted.took_s:.0f} s, by {', '.join(kinds)}")
        print(f"    {hunted.outcome.findings[0][:200]}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} bugs were found; missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0
