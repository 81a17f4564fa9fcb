"""Deliberate bugs: each replaces one function of the product in the simulated process, and the hunt has to
find it within a bounded number of seeds. A bug that is not found means that the workload or the checkers are
blind there.

Planting happens here and nowhere else; what is planted stands in injected_faults.py. `python -m tests.sim
bugs [NAME ...]` plants one after the other; `find_bug` one. What a bug breaks is named by its invariant
(README.md). It counts as found by what it was planted for alone (`found_by`): a process that merely ends, or
a run that does not come to its end, shows that something is wrong and not that this would be seen.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.broker import app
from millrace.broker.background.object_cleaner import ObjectCleaner
from millrace.broker.controller_client import ControllerClient
from millrace.broker.coordinators.runtime.shard import ShardRuntime
from millrace.broker.identity import claims, metadata_check, wal_binding
from millrace.broker.identity.ownership import Owner
from millrace.broker.identity.wall_watch import WallWatch
from millrace.broker.partitions import opening, partition
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.producers import Producers
from millrace.broker.partitions.state import PartitionState
from millrace.broker.partitions.time_index import TimeTail
from millrace.broker.restore import plan as restore_plan
from millrace.broker.restore import restoring
from millrace.kraft.commands import objects as object_commands
from millrace.kraft.log import snapshot
from millrace.kraft.log.log_store import LogStore
from millrace.kraft.tables.claims import NodeClaims
from millrace.kraft.tables.objects import Objects
from millrace.kraft.tables.objects_edit import ObjectsEdit
from millrace.s3stream import recovery, storage, uploader
from millrace.s3stream.compaction import batch, copying, merging, spent
from millrace.s3stream.compaction.outputs import Output
from millrace.s3stream.log_cache import LogCache
from millrace.s3stream.room import RoomQueue
from millrace.s3stream.storage import Storage
from millrace.s3stream.uploader import Uploader
from millrace.wal.block.device import BlockDevice
from millrace.wal.block.log import BlockWal
from millrace.wal.block.recovery import RecoveryScan
from millrace.wal.block.writer import BlockWriter
from millrace.wal.object.fence import ConditionalFence
from millrace.wal.object.writer import BatchWriter
from tests.sim import injected_faults as do
from tests.sim.forks import run_all
from tests.sim.hunt import drawn_plan
from tests.sim.plan import CALM, PLAIN, Plan, Strike
from tests.sim.run import Outcome
from tests.sim.settings import FEW_HOT


@dataclass(frozen=True, slots=True)
class Bug:
    """`make(old)` gives what stands in the place of `owner.name` instead; `also`: more of the same.
    `found_by`: how the findings begin that count. `where` makes of a drawn plan one in which the bug has
    something to break."""

    what: str
    invariant: int
    owner: Any
    name: str
    make: Callable[[Any], Any]
    found_by: tuple[str, ...]
    also: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = ()
    where: Callable[[Plan], Plan] = lambda plan: plan

    def is_shown_by(self, outcome: Outcome) -> list[str]:
        """Its findings that count."""
        return [line for line in outcome.findings if line.startswith(self.found_by)]

    def planted(self) -> contextlib.AbstractContextManager[None]:
        return in_place((self.owner, self.name, self.make), *self.also)


@contextlib.contextmanager
def in_place(*places: tuple[Any, str, Callable[[Any], Any]]) -> Iterator[None]:
    """Of each owner's function of that name stands, for a while, what is made of it."""
    own = [vars(owner)[name] for owner, name, _ in places]  # a staticmethod or a property as it stands there
    for owner, name, make in places:
        setattr(owner, name, make(getattr(owner, name)))
    try:
        yield
    finally:
        for (owner, name, _), kept in zip(places, own, strict=True):
            setattr(owner, name, kept)


def with_settings(*names: str) -> Callable[[Plan], Plan]:
    """The last ones win, where two set the same."""

    def where(plan: Plan) -> Plan:
        own = [name for name in plan.settings.split("+") if name not in (PLAIN, *names)]
        return replace(plan, settings="+".join([*own, *names]))

    return where


def with_a_wrong_clock(plan: Plan) -> Plan:
    """The node starts again, with its clock ahead or behind."""
    strikes = (*plan.strikes, Strike("promise", 4 + int(plan.seed) % 12, "kill"))
    return replace(plan, strikes=tuple(dict.fromkeys(strikes)), weather="wrong clock")


def with_waiting(plan: Plan) -> Plan:
    """Much is written while nothing can be uploaded."""
    names = dict.fromkeys([*plan.weather.split("+"), "store away"])
    weather = "+".join(name for name in names if name != CALM)
    plan = replace(
        plan, weather=weather, settings="small log cache+large uploads", cast="plain+burst+idempotent+reader"
    )
    return replace(plan, batches=60)


def with_an_accepted_loss(plan: Plan) -> Plan:
    """Of a log that holds much which is not uploaded."""
    return replace(
        plan, strikes=(), weather="other wal", settings="large uploads", cast="plain+burst", batches=60
    )


def with_holes(plan: Plan) -> Plan:
    """The power goes when a block is written beside another, of which the older is lost; and again, when
    little was written after."""
    number = int(plan.seed)
    strikes = (Strike("crowd", 1 + number * 7 % 40), Strike("again", 1 + number % 3))
    return replace(plan, strikes=strikes, fate="holes", weather=CALM, settings="many writes")


def with_a_rotten_header(plan: Plan) -> Plan:
    """The log is struck where it takes what the last trim freed, and then one of its copies of the header may
    be wrong."""
    strikes = (Strike("lap", 1 + int(plan.seed) % 12),)
    cast = "plain+burst+idempotent+reader"
    return replace(
        plan, strikes=strikes, weather="wal rot", settings="small wal+large uploads", cast=cast, batches=40
    )


DURABLE = ("ack-before-durable", "shown-before-durable", "acknowledged-in-vain")
LOST = ("lost-write", "lost-log", "shown-and-gone", "watermark-fell", "gap")
# What is gone or wrong is met by a reader, by who opens a partition, or by the last look.
UNREAD = (
    "logged: millrace.broker.background.damage_log",
    "logged: millrace.broker.partitions.directory",
    "missing-object",
    "range-gap",
)


def with_weather(name: str, settings: str = PLAIN) -> Callable[[Plan], Plan]:
    """That one, on a log of blocks where nothing else is said."""
    return lambda plan: replace(plan, weather=name, settings=settings)


BUGS = {
    "older-log-served": Bug(
        "nobody looks whether the WAL, or the bucket's metadata, objects and claims, know of later metadata",
        17,
        wal_binding,
        "_check_metadata_age",
        do.says(None),
        ("strange-place-served", "metadata-lost"),
        (
            (metadata_check, "newer_metadata", do.says(None)),
            (metadata_check, "newer_objects", do.says_in_time(None)),
            (claims, "why_refused", do.says("")),
            (NodeClaims, "has_incarnation", do.says(True)),
        ),
        where=with_weather("older log"),
    ),
    "older-wal-served": Bug(
        "nobody looks whether metadata knows a later owner of the WAL, or that it went further",
        17,
        app,
        "judge_wal",
        do.takes_any_wal,
        ("strange-place-served",),
        where=with_weather("older wal"),
    ),
    "older-object-wal-served": Bug(
        "an older copy of a log of objects is taken for the one that was written last",
        17,
        wal_binding,
        "_fault",
        do.says(None),
        ("refused-start-changed", "strange-place-served"),
        where=with_weather("older wal", "object wal"),
    ),
    "older-pair-served": Bug(
        "nobody asks the WAL whether the metadata log is an older copy",
        17,
        wal_binding,
        "_check_metadata_age",
        do.says(None),
        ("metadata-lost", "strange-place-served"),
        where=with_weather("older pair"),
    ),
    "older-pair-beside-objects-served": Bug(
        "nobody asks a log of objects whether the metadata log is an older copy",
        17,
        wal_binding,
        "_check_metadata_age",
        do.says(None),
        ("metadata-lost", "strange-place-served"),
        where=with_weather("older pair", "object wal"),
    ),
    "other-wal-served": Bug(
        "a WAL that is not the registered one is taken for it",
        17,
        wal_binding,
        "_fault",
        do.takes_any_used_wal,
        ("strange-place-served",),
        where=with_weather("other wal"),
    ),
    "other-kind-served": Bug(
        "a new WAL is taken, though streams were open in the one that the node had",
        17,
        wal_binding,
        "_fault",
        do.takes_any_new_wal,
        ("strange-place-served",),
        where=with_weather("other kind"),
    ),
    "refused-wal-changed": Bug(
        "a WAL is judged after its node has claimed and registered",
        17,
        app,
        "judge_wal",
        do.judges_late,
        ("refused-start-changed",),
        ((app.Broker, "_open_wal", do.refuses_late),),
        where=with_weather("other wal"),
    ),
    "given-up-untold": Bug(
        "a start does not say what it gives up for an accepted loss",
        17,
        app,
        "say_given_up",
        do.says(None),
        ("two-meanings", *LOST),
        where=with_an_accepted_loss,
    ),
    "replaced-and-unaware": Bug(
        "a process never looks whether its node was taken over",
        17,
        Owner,
        "_look",
        do.looks_never,
        ("replaced-lives", "replaced-committed"),
        where=with_weather("cloned"),
    ),
    "left-untold": Bug(
        "who was replaced does not say what its WAL alone holds",
        17,
        app,
        "left_in_wal",
        do.says(""),
        ("left-not-named",),
        where=with_weather("cloned", "large uploads"),
    ),
    "older-bucket-served": Bug(
        "nobody looks whether metadata knows of claims and objects that the bucket lacks",
        17,
        app,
        "check_bucket_age",
        do.says_in_time(None),
        ("strange-place-served", "start-failed: PreconditionFailed"),
        where=with_weather("older bucket"),
    ),
    "another-bucket-served": Bug(
        "nobody looks whose a bucket is",
        17,
        app,
        "bind_bucket",
        do.says_in_time(None),
        ("strange-place-served",),
        where=with_weather("wrong bucket"),
    ),
    "refused-late": Bug(
        "a bucket is bound before it is judged",
        17,
        app,
        "check_bucket_age",
        do.binds_before_it_judges,
        ("refused-start-changed",),
        where=with_weather("wrong bucket"),
    ),
    "damage-stepped-over": Bug(
        "a start steps over damage, whatever it is told",
        1,
        RecoveryScan,
        "__init__",
        do.mistakes_policy("refuse", "skip"),
        (*LOST, "trimmed-too-early", "start-failed: OffsetGap"),
        where=lambda plan: replace(
            plan, weather="salvage", settings=PLAIN, cast="plain+burst+idempotent+reader"
        ),
    ),
    "skipped-too-much": Bug(
        "with wal.corruption=skip all that follows the damage is given up, too",
        1,
        RecoveryScan,
        "__init__",
        do.mistakes_policy("skip", "truncate"),
        (*LOST, "skip-refused"),
        where=with_weather("salvage"),
    ),
    "loss-not-told": Bug(
        "what was given up raises no leader epoch",
        17,
        ControllerClient,
        "accept_wal_loss",
        do.says_in_time(()),
        ("epoch-stays", "epoch-goes-on"),
        where=with_weather("salvage"),
    ),
    "restored-not-lifted": Bug(
        "a restored log gives out what the lost one gave",
        4,
        restore_plan,
        "lift_records",
        do.lifts_nothing,
        ("given-again", "epoch-stays", "producer-id-again"),
        where=with_weather("lost log"),
    ),
    "loss-unnamed": Bug(
        "a restore does not say what the lost log held",
        1,
        restoring,
        "ranges_in_wal",
        do.says([]),
        ("loss-not-named",),
        where=with_weather("lost log"),
    ),
    "lost-wal-unasked": Bug(
        "a restored log directory starts without its WAL, and nobody was asked",
        1,
        app,
        "judge_wal",
        do.takes_any_wal,
        ("loss-not-asked",),
        where=with_weather("lost log"),
    ),
    "given-up-comes-back": Bug(
        "of the registered WAL as an earlier owner left it all is recovered, once its loss was accepted",
        17,
        app,
        "judge_wal",
        do.recovers_what_an_earlier_owner_left,
        ("two-meanings", "given-up-wrongly", "followed-unaware"),
        where=with_weather("found wal", "large uploads"),
    ),
    "restored-to-the-same-epochs": Bug(
        "a restore lifts leader epochs by the same whatever the age of the copy",
        4,
        restore_plan.Seen,
        "leader_epochs_lift",
        do.lifts_leader_epochs_by_a_fixed_number,
        ("followed-unaware", "epoch-stays", "epoch-goes-on"),
        where=with_weather("same copy"),
    ),
    "ack-out-of-order": Bug(
        "all writes are confirmed with the first",
        1,
        BlockWriter,
        "_on_written",
        do.confirms_all_in_flight,
        DURABLE,
    ),
    "metadata-not-synced": Bug(
        "the metadata log is not synced",
        10,
        LogStore,
        "append_all",
        do.syncs_nothing,
        ("metadata-lost", "stream-fell", "lost-topic", "producer-id-again", "start-failed: LogCorrupt"),
    ),
    "ack-before-durable": Bug(
        "appends are confirmed at once", 1, BlockWal, "append", do.confirms_when_begun, DURABLE
    ),
    "trim-too-early": Bug(
        "the WAL is trimmed before the commit",
        2,
        Uploader,
        "_hand_on",
        do.trims_before_the_commit,
        ("trimmed-too-early",),
    ),
    "trim-before-backup": Bug(
        "the WAL is trimmed before the bucket's metadata has the commit",
        2,
        Uploader,
        "_end",
        do.trims_before_metadata_is_saved,
        ("trimmed-before-saved",),
    ),
    "delete-before-backup": Bug(
        "an object is deleted before the bucket's metadata has its pending deletion",
        6,
        ObjectCleaner,
        "_delete",
        do.deletes_before_metadata_is_saved,
        ("deleted-before-saved",),
        where=with_settings("small merges", "small uploads"),
    ),
    "block-ends-too-late": Bug(
        "a cache block's end covers what follows it",
        2,
        LogCache,
        "put",
        do.blocks_end_too_late,
        ("trimmed-too-early", "cache-order"),
    ),
    "cache-order": Bug(
        "entries enter the cache in another order",
        2,
        Storage,
        "_confirm",
        do.confirms_backwards,
        ("trimmed-too-early", "cache-order"),
        where=with_settings("small uploads", "few streams"),
    ),
    "recovery-uploads-nothing": Bug(
        "recovered entries are not uploaded",
        2,
        recovery.Flush,
        "_upload",
        do.resets_without_the_upload,
        ("trimmed-too-early", *LOST),
    ),
    "run-dropped": Bug(
        "an upload leaves a stream out",
        3,
        uploader,
        "plan_upload",
        do.drops_a_run,
        ("trimmed-too-early", "range-gap"),
    ),
    "entry-dropped": Bug(
        "an object lacks an entry of its range", 3, uploader, "_fill", do.drops_an_entry, (*LOST, *UNREAD)
    ),
    "stale-epoch": Bug(
        "recovery takes blocks of any epoch",
        4,
        RecoveryScan,
        "_is_lawful",
        do.says(True),
        (*LOST, "two-meanings", "duplicate", "start-failed: OffsetGap"),
        where=with_holes,
    ),
    "epoch-not-raised": Bug(
        "a start leaves the epoch in the header",
        4,
        BlockDevice,
        "write_both",
        do.keeps_the_epoch,
        ("epoch-not-raised", "acknowledged-in-vain"),
    ),
    "one-header": Bug(
        "a trim is written to one copy of the header",
        2,
        BlockWal,
        "_write_header",
        do.writes_one_header,
        ("header-not-enough", *LOST),
        where=with_a_rotten_header,
    ),
    "slot-overwritten": Bug(
        "an object of the log is put whatever lies in its slot",
        4,
        ConditionalFence,
        "put",
        do.puts_over,
        ("seal-overwritten", "acknowledged-in-vain"),
        where=with_settings("object wal"),
    ),
    "seal-skipped": Bug(
        "a log of objects is taken without a seal",
        4,
        ConditionalFence,
        "take",
        do.takes_without_a_seal,
        ("epoch-not-taken", "wrong-link"),
        where=with_settings("object wal"),
    ),
    "slots-out-of-order": Bug(
        "objects of the log are confirmed with any after them",
        1,
        BatchWriter,
        "_done_count",
        do.counts_to_the_last_done,
        ("ack-before-durable", "acknowledged-in-vain"),
        where=with_settings("quick object wal"),
    ),
    "closed-before-reset": Bug(
        "streams are closed before it is settled what counts in the log",
        3,
        storage,
        "recover",
        do.closes_before_the_reset,
        ("closed-unsettled", "trimmed-too-early"),
        where=with_settings("reserved object wal"),
    ),
    "block-dropped": Bug(
        "compaction leaves blocks out",
        5,
        copying.Copying,
        "_add",
        do.drops_blocks,
        ("logged: millrace.s3stream.compaction.merging: compaction would lose data",),
    ),
    "coverage-unchecked": Bug(
        "compaction leaves blocks out, and nobody checks that all is covered",
        5,
        copying.Copying,
        "_add",
        do.drops_blocks,
        (*LOST, *UNREAD),
        (
            (merging, "check_covered", do.says_in_time(None)),
            (ObjectsEdit, "_left_behind", do.says("")),
            (ObjectsEdit, "_names_among", do.finds_nothing),
        ),
    ),
    "wanted-reclaimed": Bug(
        "a full store ends objects of which something is wanted, and nobody checks it",
        5,
        spent,
        "_left_bytes",
        do.finds_no_bytes,
        (*LOST, *UNREAD),
        (
            (ObjectsEdit, "_left_behind", do.says("")),
            (ObjectsEdit, "_names_among", do.finds_nothing),
        ),
        where=with_weather("full bucket"),
    ),
    "blocks-swapped": Bug(
        "compaction writes one block twice", 5, Output, "add", do.swaps_blocks, (*LOST, *UNREAD)
    ),
    "links-deleted": Bug(
        "what a composite links is marked for deletion",
        5,
        batch,
        "commit",
        do.deletes_what_it_links,
        (*LOST, *UNREAD),
    ),
    "commit-before-put": Bug(
        "objects are committed while they are put",
        6,
        Uploader,
        "__init__",
        do.commits_before_the_put,
        ("commit-before-put",),
    ),
    "no-grace": Bug(
        "objects pending deletion are deleted at once",
        5,
        ObjectCleaner,
        "__init__",
        do.deletes_at_once,
        ("deleted-early",),
    ),
    "never-deleted": Bug(
        "objects pending deletion are forgotten, not deleted",
        6,
        ObjectCleaner,
        "_delete_due",
        do.forgets_without_deleting,
        ("forgotten-object", "orphan-object"),
    ),
    "never-expired": Bug(
        "what was prepared and not committed stays for ever",
        6,
        Objects,
        "prepared_before",
        do.never_expires,
        ("prepared-for-ever",),
    ),
    "prepared-for-years": Bug(
        "what is prepared has a deadline that nobody will see",
        6,
        ObjectsEdit,
        "apply_prepare",
        do.prepares_for_years,
        ("prepared-too-long",),
    ),
    "repeat-committed": Bug(
        "the repeat of a commit is carried out again",
        7,
        object_commands,
        "is_committed",
        do.says(False),
        (*LOST, *UNREAD, "object-back"),
    ),
    "snapshot-incomplete": Bug(
        "a snapshot lacks what is marked for deletion",
        9,
        snapshot,
        "object_records",
        do.snapshots_lack_pending_deletions,
        ("replay-differs", "metadata-differs", "forgotten-object"),
    ),
    "record-skipped": Bug(
        "recovery skips a record of a block",
        8,
        RecoveryScan,
        "_records",
        do.skips_a_record,
        ("start-failed: OffsetGap", "trimmed-too-early", *LOST),
    ),
    "behind-a-hole": Bug(
        "recovery goes on behind a hole",
        8,
        RecoveryScan,
        "_on_bad_block",
        do.goes_on_behind_a_hole,
        ("start-failed: OffsetGap", "invented", *LOST),
        where=with_holes,
    ),
    "offsets-again": Bug(
        "recovery ends early",
        13,
        BlockWal,
        "recover",
        do.ends_early,
        ("two-meanings", "trimmed-too-early", *LOST),
    ),
    "repeat-too-early": Bug(
        "a repeat is answered before its original is durable",
        13,
        Partition,
        "_repeat",
        do.answers_repeats_at_once,
        DURABLE,
    ),
    "producers-forgotten": Bug(
        "a checkpoint's producers are not restored",
        8,
        Producers,
        "restore",
        do.forgets_producers,
        ("duplicate",),
    ),
    "no-replay": Bug(
        "what lies behind a checkpoint is not read",
        8,
        opening,
        "replay",
        do.says_in_time(None),
        ("duplicate", "wrong-time", "producer-refused"),
    ),
    "no-sequences": Bug(
        "repeats are taken for new batches", 8, Producers, "judge", do.says(None), ("duplicate",)
    ),
    "cold-unknown": Bug(
        "a producer whose state is in the log is taken for a new one",
        8,
        Producers,
        "is_cold",
        do.says(False),
        ("duplicate",),
        where=with_settings(FEW_HOT),
    ),
    "cold-not-loaded": Bug(
        "a partition that opens does not know whose states are in its log",
        8,
        PartitionState,
        "adopt_cold",
        do.adopts_nobody,
        ("duplicate",),
        where=with_settings(FEW_HOT),
    ),
    "watermark-too-high": Bug(
        "what is not durable is shown",
        8,
        Partition,
        "high_watermark",
        do.shows_what_is_not_durable,
        ("shown-before-durable",),
    ),
    "start-not-durable": Bug(
        "a log start is told before it is durable",
        8,
        Partition,
        "raise_log_start",
        do.raises_the_start_at_once,
        ("log-start-fell", "deleted-is-back"),
    ),
    "time-index-off": Bug(
        "the time index points too far", 8, TimeTail, "note", do.notes_times_too_far, ("wrong-time",)
    ),
    "group-before-durable": Bug(
        "a group's commit is answered at once",
        11,
        ShardRuntime,
        "append",
        do.answers_groups_at_once,
        ("lost-commit", "two-owners"),
    ),
    "never-evicted": Bug("the log cache keeps all", 12, LogCache, "evict", do.says(None), ("beyond-bound",)),
    "last-served-first": Bug(
        "who asks for room last has it first",
        14,
        RoomQueue,
        "ask",
        do.serves_the_last_first,
        ("out-of-turn", "disorder"),
        where=with_waiting,
    ),
    "room-not-asked": Bug(
        "offsets are given whether there is room or not",
        14,
        Storage,
        "has_room",
        do.says(True),
        ("beyond-bound", "offset-without-room"),
        where=with_waiting,
    ),
    "corrupt-taken": Bug(
        "a batch is taken whose checksum is wrong",
        15,
        partition,
        "check_produced_batch",
        do.takes_corrupt_batches,
        ("corrupt-taken",),
    ),
    "ended-by-a-request": Bug(
        "a corrupted batch ends the process",
        15,
        Partition,
        "append",
        do.ends_for_a_bad_request,
        ("process-ended: KafkaError",),
    ),
    "clock-believed": Bug(
        "a clock that jumps is believed", 16, WallWatch, "look", do.says(0), ("log-start-rose",)
    ),
    "start-clock-believed": Bug(
        "a start believes the clock that it finds",
        16,
        WallWatch,
        "__init__",
        do.believes_the_clock_it_finds,
        ("log-start-rose",),
        where=with_a_wrong_clock,
    ),
}


@dataclass(frozen=True, slots=True)
class Hunted:
    """`outcome` is that of the first seed that shows it; None: so many seeds did not."""

    name: str
    seeds: int
    outcome: Outcome | None
    took_s: float


def find_bug(name: str, seeds: Sequence[int], workers: int = 1) -> Hunted:
    """Seeds are run in order, none twice; with several workers a few more than were needed."""
    began, bug = time.monotonic(), BUGS[name]
    order = {seed: index for index, seed in enumerate(dict.fromkeys(seeds))}
    plans = [bug.where(drawn_plan(seed)) for seed in order]
    found: dict[int, Outcome] = {}
    pending = dict.fromkeys(range(len(plans)))
    with bug.planted(), contextlib.closing(run_all(plans, workers)) as outcomes:
        for outcome in outcomes:
            index = order[int(outcome.plan.seed)]
            del pending[index]
            if bug.is_shown_by(outcome):
                found[index] = outcome
            first = min(found, default=len(plans))
            if next(iter(pending), len(plans)) > first:  # none before it is under way
                return Hunted(name, first + 1, found[first], time.monotonic() - began)
    return Hunted(name, len(plans), None, time.monotonic() - began)


def hunt_bugs(names: Sequence[str], seeds_max: int, workers: int) -> int:
    """One after the other. Exit code 1 when one is not found."""
    chosen = list(names) or list(BUGS)
    missed = []
    for name in chosen:
        bug, hunted = BUGS[name], find_bug(name, range(seeds_max), workers)
        print(f"{name} (invariant {bug.invariant}: {bug.what})")
        if hunted.outcome is None:
            missed.append(name)
            print(f"    NOT FOUND in {hunted.seeds} seeds, {hunted.took_s:.0f} s", flush=True)
            continue
        shown_by = bug.is_shown_by(hunted.outcome)
        kinds = dict.fromkeys(line.partition(":")[0] for line in shown_by)
        print(f"    found at seed {hunted.seeds}, {hunted.took_s:.0f} s, by {', '.join(kinds)}")
        print(f"    {shown_by[0][:200]}")
        print(f"    again: python -m tests.sim one {str(hunted.outcome.plan)!r} --bug {name}", flush=True)
    print(
        f"{len(chosen) - len(missed)} of {len(chosen)} bugs were found; missed: {', '.join(missed) or 'none'}"
    )
    return 1 if missed else 0
