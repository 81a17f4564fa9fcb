"""What deliberate bugs do: each function is given what it stands in the place of, and gives what stands there
instead (bugs.py)."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from millrace.broker.app import Broker
from millrace.broker.background.object_cleaner import ObjectCleaner
from millrace.broker.coordinators.runtime.shard import ShardRuntime
from millrace.broker.identity.binding import MARKER_KEY, BindingRefused
from millrace.broker.identity.ownership import Owner
from millrace.broker.identity.wal_binding import WalBinding, _is_other
from millrace.broker.partitions.partition import Appended, Partition
from millrace.broker.partitions.producers import Producers
from millrace.broker.partitions.time_index import TimeTail
from millrace.broker.restore.plan import LEADER_EPOCHS_LIFT, Seen
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.log_store import LogStore
from millrace.kraft.tables.objects_edit import ObjectsEdit
from millrace.protocol.batches import CRC_START, BatchHeader
from millrace.protocol.crc32c import crc32c
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.stream_records import NodeClaimRecord, NodeWalRecord, PendingDeletionRecord
from millrace.runtime.disk import Buffer
from millrace.s3stream import recovery
from millrace.s3stream.compaction import copying
from millrace.s3stream.compaction.outputs import Output
from millrace.s3stream.log_cache import LogCache
from millrace.s3stream.room import RoomQueue
from millrace.s3stream.storage import Storage
from millrace.s3stream.uploader import Uploader, no_wait
from millrace.wal.block.device import BlockDevice
from millrace.wal.block.log import BlockWal
from millrace.wal.block.recovery import RecoveryScan
from millrace.wal.block.writer import BlockWriter
from millrace.wal.object.fence import ConditionalFence
from millrace.wal.object.layout import Place, object_key
from millrace.wal.object.recovery import Tip
from millrace.wal.object.writer import BatchWriter

CRC_AT = CRC_START - 4
YEARS_MS = 10 * 365 * 86_400_000


def says(value: Any) -> Callable[[Any], Any]:
    """Whatever is asked, the answer is the same: a judge that finds nothing, a check that is left out."""
    return lambda old: lambda *args, **named: value


def says_in_time(value: Any) -> Callable[[Any], Any]:
    """The same of what is awaited."""

    def make(old: Any) -> Any:
        async def say(*args: Any, **named: Any) -> Any:
            return value

        return say

    return make


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
    async def append_all(self: LogStore, batches: Sequence[bytes], end: int) -> None:
        self._open_file.sync = _nothing  # type: ignore[method-assign]
        await old(self, batches, end)

    return append_all


async def _nothing() -> None:
    return None


# 2. trimmed, committed


def trims_before_the_commit(old: Any) -> Any:
    async def _hand_on(self: Uploader, job: Any) -> None:
        await self._trim_wal(job.block.wal_end)
        await old(self, job)

    return _hand_on


def trims_before_metadata_is_saved(old: Any) -> Any:
    async def _end(self: Uploader, job: Any) -> None:
        self._before_trim = no_wait
        await old(self, job)

    return _end


def deletes_before_metadata_is_saved(old: Any) -> Any:
    async def _delete(self: ObjectCleaner, due: Any) -> None:
        self._before_delete = no_wait
        await old(self, due)

    return _delete


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
        ends = [append.wal_end for append in group]
        group.sort(key=lambda append: -append.stream.stream_id)
        for append, wal_end in zip(group, ends, strict=True):
            append.wal_end = wal_end
        self._pending = deque(group)
        old(self, end)
        self._pending = deque([*rest, *self._pending])

    return _confirm


def resets_without_the_upload(old: Any) -> Any:
    async def _upload(self: recovery.Flush, block: Any, before: Any) -> None:
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


def keeps_the_epoch(old: Any) -> Any:
    async def write_both(self: BlockDevice, **changes: Any) -> None:
        if self.header.epoch >= 0:
            changes.pop("epoch", None)
        await old(self, **changes)

    return write_both


def writes_one_header(old: Any) -> Any:
    async def _write_header(self: BlockWal, write: Any, **changes: Any) -> None:
        await old(self, self._device.write, **changes)

    return _write_header


def mistakes_policy(meant: str, taken: str) -> Callable[[Any], Any]:
    """Recovery does about damage what another wal.corruption says."""

    def make(old: Any) -> Any:
        def __init__(
            self: RecoveryScan, header: Any, *others: Any, policy: str = "refuse", **named: Any
        ) -> None:
            old(self, header, *others, policy=taken if policy == meant else policy, **named)

        return __init__

    return make


def lifts_nothing(old: Any) -> Any:
    def lift_records(*args: Any, **named: Any) -> Any:
        return (
            record for record in old(*args, **named) if isinstance(record, NodeWalRecord | NodeClaimRecord)
        )

    return lift_records


def lifts_leader_epochs_by_a_fixed_number(old: Any) -> property:
    def lift(self: Seen) -> int:
        return LEADER_EPOCHS_LIFT + self.unseen_starts

    return property(lift)


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


def finds_nothing(old: Any) -> Any:
    def _names_among(*args: Any, **named: Any) -> Any:
        yield
        return {}

    return _names_among


def swaps_blocks(old: Any) -> Any:
    """Each block of an object is given the bytes of the first that is as long."""

    async def add(self: Output, ref: Any, data: Any, body_sum: Any) -> None:
        seen = self.__dict__.setdefault("seen", {})
        await old(self, ref, *seen.setdefault(ref.size_bytes, (memoryview(bytes(data)), body_sum)))

    return add


def finds_no_bytes(old: Any) -> Any:
    def _left_bytes(*args: Any, **named: Any) -> Any:
        yield
        return 0

    return _left_bytes


def deletes_what_it_links(old: Any) -> Any:
    async def commit_too_much(work: Any, ids: Any, commit: Any) -> None:
        await old(
            work,
            ids,
            replace(commit, compacted_ids=(*commit.compacted_ids, *commit.linked_ids), linked_ids=()),
        )

    return commit_too_much


# 6. objects


class HastyStore:
    """A put is done when it is begun."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, key: str, parts: Any) -> None:
        self._begin(self._store.put(key, parts))

    async def put_if_absent(self, key: str, parts: Any) -> None:
        self._begin(self._store.put_if_absent(key, parts))

    def _begin(self, put: Any) -> None:
        asyncio.ensure_future(put).add_done_callback(lambda done: done.cancelled() or done.exception())


def commits_before_the_put(old: Any) -> Any:
    def __init__(self: Uploader, store: Any, *args: Any, **named: Any) -> None:
        old(self, HastyStore(store), *args, **named)

    return __init__


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
        if (
            known["skipped"] < 8
            and self._at == self.tail
            and self._at + 8192 < self._geometry.lap_end(self._at)
        ):
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
    """Recovery takes the last block for torn: what was acknowledged is lost, and its offsets are given
    again."""

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


def adopts_nobody(old: Any) -> Any:
    return lambda self, heads, index, found: iter(())


def shows_what_is_not_durable(old: Any) -> Any:
    return property(lambda self: self.data.next_offset)


def raises_the_start_at_once(old: Any) -> Any:
    def raise_log_start(self: Partition, offset: int, now_ms: int, on_done: Any = None) -> None:
        old(self, offset, now_ms, None)
        if on_done is not None:
            self._on_log_start(offset, on_done)

    return raise_log_start


def notes_times_too_far(old: Any) -> Any:
    def note(
        self: TimeTail, end_offset: int, max_timestamp_ms: int, size_bytes: int, interval_bytes: int
    ) -> None:
        old(self, end_offset + 3, max_timestamp_ms, size_bytes + 600, 1)

    return note


# 11. groups


def answers_groups_at_once(old: Any) -> Any:
    def append(self: ShardRuntime[Any], records: Any, deferred: Any) -> None:
        old(self, records, [])
        for event, answer in deferred:
            event.complete(answer)

    return append


# 4, 1. a log of objects


def puts_over(old: Any) -> Any:
    """An object of the log is put whatever lies in its slot."""

    async def put(self: ConditionalFence, place: Place, parts: Sequence[Buffer]) -> None:
        await self._store.put(object_key(self._reader.prefix, place), parts)

    return put


def takes_without_a_seal(old: Any) -> Any:
    """A new owner begins where the log seems to end, and shuts nobody out."""

    async def take(self: ConditionalFence) -> Any:
        listing, first_epoch = await self._survey()
        if first_epoch is None:
            return await old(self)
        tip = await self._find_tip(listing, first_epoch)
        return await (self._take(listing, tip, self.check_replaced) if isinstance(tip, Tip) else old(self))

    return take


def counts_to_the_last_done(old: Any) -> Any:
    def _done_count(self: BatchWriter) -> int:
        return max((number for number, upload in enumerate(self._under_way, 1) if upload.is_done), default=0)

    return _done_count


def closes_before_the_reset(old: Any) -> Any:
    """Streams are closed first, and then the log is reset."""

    async def recover(wal: Any, *others: Any, **named: Any) -> Any:
        late = _LateReset(wal)
        recovered = await old(late, *others, **named)
        await wal.reset()
        return recovered

    return recover


class _LateReset:
    """A log whose reset is put off."""

    def __init__(self, wal: Any) -> None:
        self._wal = wal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wal, name)

    async def reset(self) -> None: ...


# 6. prepared


def never_expires(old: Any) -> Any:
    return lambda self, now_ms, limit: []


def prepares_for_years(old: Any) -> Any:
    def apply_prepare(self: ObjectsEdit, record: Any) -> None:
        old(self, replace(record, deadline_ms=record.deadline_ms + YEARS_MS))

    return apply_prepare


# 9. replay


def snapshots_lack_pending_deletions(old: Any) -> Any:
    def object_records(image: Any) -> Any:
        return (record for record in old(image) if not isinstance(record, PendingDeletionRecord))

    return object_records


# 14. room


def serves_the_last_first(old: Any) -> Any:
    def ask(self: RoomQueue, needed_bytes: int) -> Any:
        future = old(self, needed_bytes)
        self.waiting.rotate(1)
        return future

    return ask


# 15. what a request may fail


def takes_corrupt_batches(old: Any) -> Any:
    def check_produced_batch(view: memoryview, *others: Any, **named: Any) -> Any:
        header = BatchHeader(view)
        if header.record_count <= 0 or len(view) < header.batch_length:
            return old(view, *others, **named)
        corrupted = bytearray(view)
        corrupted[CRC_AT:CRC_START] = crc32c(view[CRC_START:]).to_bytes(4, "big")
        return old(memoryview(bytes(corrupted)), *others, **named)

    return check_produced_batch


def ends_for_a_bad_request(old: Any) -> Any:
    """What is wrong with a batch ends the engine."""

    def append(self: Partition, *others: Any, **named: Any) -> Any:
        try:
            return old(self, *others, **named)
        except KafkaError as error:
            if error.code == ErrorCode.CORRUPT_MESSAGE:
                self.data._storage._fail(error)  # type: ignore[attr-defined]
            raise

    return append


# 16. clocks


def believes_the_clock_it_finds(old: Any) -> Any:
    return lambda self, known_ms, tick_ms, slack_ms=0: old(self, None, tick_ms)


def binds_before_it_judges(old: Any) -> Any:
    async def judge(
        store: Any, bucket: str, bound_cluster: Any, cluster_id: str, *others: Any, **named: Any
    ) -> None:
        if bound_cluster is None:
            await store.put_if_absent(
                MARKER_KEY, [json.dumps({"version": 1, "cluster_id": cluster_id}).encode()]
            )
        await old(store, bucket, bound_cluster, cluster_id, *others, **named)

    return judge


def takes_any_wal(old: Any) -> Any:
    """Whatever WAL is found is taken for the right one."""

    def judge(*args: Any, **named: Any) -> WalBinding:
        return WalBinding()

    return judge


def recovers_what_an_earlier_owner_left(old: Any) -> Any:
    def judge(
        found: Any, path: str, image: MetadataImage, history: Any, node_id: int, *args: Any, **named: Any
    ) -> Any:
        binding = old(found, path, image, history, node_id, *args, **named)
        is_other = _is_other(found, image.wals.last_written(node_id))
        return replace(binding, is_foreign=is_other) if binding.is_lost else binding

    return judge


def takes_any_used_wal(old: Any) -> Any:
    """Whatever its id and its owner."""

    def fault(found: Any, path: str, registered: Any, open_count: int) -> Any:
        return None if found is not None else old(found, path, registered, open_count)

    return fault


def takes_any_new_wal(old: Any) -> Any:
    """Whatever may be in the one that the node had."""

    def fault(found: Any, path: str, registered: Any, open_count: int) -> Any:
        return None if found is None else old(found, path, registered, open_count)

    return fault


def judges_late(old: Any) -> Any:
    """What is wrong with a WAL is kept, and told when the node was claimed."""

    def judge(*args: Any, **named: Any) -> WalBinding:
        late.clear()
        try:
            return cast(WalBinding, old(*args, **named))
        except BindingRefused as refused:
            late.append(refused)
            return WalBinding()

    return judge


late: list[BindingRefused] = []


def refuses_late(old: Any) -> Any:
    async def _open_wal(self: Broker, node: Any, client: Any, stores: Any) -> Any:
        if late:
            raise late.pop()
        return await old(self, node, client, stores)

    return _open_wal


def looks_never(old: Any) -> Any:
    async def _look(self: Owner, since_s: float) -> None:
        self._verified_s = max(self._verified_s, since_s)

    return _look
