"""Deliberate bugs between the nodes of a cluster, which a hunt has to find within a bounded number of seeds,
by the checker that is there for each (`found_by`).

`python -m tests.sim.cluster.bugs [NAME ...]` plants one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from millrace.broker.controller_client import ControllerClient
from millrace.broker.identity import wal_binding
from millrace.broker.identity.wal_binding import WalBinding
from millrace.broker.identity.wall_watch import WallWatch
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.reading_copies import ReadingCopies
from millrace.broker.quorum import follower
from millrace.broker.quorum.failovers import Failovers
from millrace.broker.quorum.log_recovery import Found, LogRecovery, LogUnreachable
from millrace.kraft.commands import partitions, streams
from millrace.kraft.commands.objects import RangePlan
from millrace.kraft.peers.channel import QuorumChannel
from millrace.kraft.raft import core
from millrace.kraft.tables.features import OWED_RANGES_LEVEL
from millrace.runtime.objectstore import ObjectMissing
from millrace.runtime.rand import Rand
from millrace.s3stream import storage
from millrace.s3stream.owed_reads import OwedReads
from millrace.s3stream.recovery import close_in_catalog
from millrace.s3stream.storage import Storage
from millrace.wal.block import device
from millrace.wal.block.claim import CLAIM_BYTES, decode_claim
from millrace.wal.block.fence import SETTLE_S, ClaimFence
from millrace.wal.block.layout import BLOCK_BYTES, CLAIM_PLACE
from millrace.wal.identity import NO_WAL_ID
from millrace.wal.object.fence import ConditionalFence
from tests.sim.bugs import in_place
from tests.sim.cluster.plan import BEFORE_OWED_RANGES, CLAIMED, OWN_DISK, RIGHT, SET, SHARED, Plan, drawn_plan
from tests.sim.cluster.run import Outcome, run_plan
from tests.sim.cluster.strikes import Strike

SEEDS_MAX = 40


@dataclass(frozen=True, slots=True)
class Bug:
    """`places`: owner, name and what makes of the function there the one that stands in its place; more than
    one where two guards stand before the same harm. `where` makes of a drawn plan one in which the bug has
    something to break."""

    what: str
    places: tuple[tuple[Any, str, Callable[[Any], Any]], ...]
    found_by: str
    where: Callable[[Plan], Plan] = lambda plan: plan

    def planted(self) -> contextlib.AbstractContextManager[None]:
        return in_place(*self.places)

    def is_shown_by(self, outcome: Outcome) -> list[str]:
        """Its findings that count."""
        return [line for line in outcome.findings if line.startswith(f"{self.found_by}:")]


def over_objects(plan: Plan) -> Plan:
    """Logs that others reach."""
    return replace(plan, wal="quick object" if plan.seed % 2 else "object", troubles=plan.troubles + 3)


def sealing(plan: Plan) -> Plan:
    """Streams that move are sealed."""
    return replace(plan, level=OWED_RANGES_LEVEL, troubles=plan.troubles + 3)


def owing(plan: Plan) -> Plan:
    """Logs that others reach, and that go on without the bucket, owe what has moved, and lose their
    brokers."""
    return replace(plan, wal=SHARED, level=OWED_RANGES_LEVEL, only_trouble="owed", troubles=8)


def by_wrong_clocks(plan: Plan) -> Plan:
    return replace(plan, clocks=SET, troubles=plan.troubles + 3)


def by_claims(plan: Plan) -> Plan:
    """Logs that claims alone fence."""
    return Plan(plan.seed, wal=CLAIMED, troubles=5, only_trouble="claims")


def in_halves(plan: Plan) -> Plan:
    """Logs that others reach, of brokers that run, and nothing is wrong but that the network falls in two."""
    return Plan(plan.seed, controllers=3, wal="object", troubles=0, splits=2, is_calm=True)


def struck(plan: Plan) -> Plan:
    """Processes are killed as they open partitions, as they start, and as they recover logs."""
    rand = Rand(f"strikes of a bug {plan.seed}".encode())
    starts = [Strike("open", 2 + rand.below(12), rand.below(200))]
    starts += [Strike("start", number, 40 + rand.below(400)) for number in range(5, 11)]
    starts += [Strike("recovery", number, 40 + rand.below(400)) for number in range(1, 4)]
    return Plan(plan.seed, wal="object", troubles=6, strikes=tuple(starts), is_calm=True)


def losing_logs(plan: Plan) -> Plan:
    """Nothing is wrong but that logs are lost; others would reach them."""
    return Plan(plan.seed, wal=SHARED, troubles=0, lost_logs=2, is_calm=True)


def out_of_reach(plan: Plan) -> Plan:
    """Logs that nobody else reaches, and one broker that stays away at the end."""
    return Plan(plan.seed, wal=OWN_DISK, troubles=0)


def sees_its_own(old: Any) -> Any:
    def judge(self: ClaimFence, block: Any, began_s: float) -> None:
        self._seen_s, self._is_unknown = max(self._seen_s, began_s), False

    return judge


def adopts_what_it_finds(old: Any) -> Any:
    async def take(self: ClaimFence) -> None:
        found = await self._file.read_at(CLAIM_PLACE, BLOCK_BYTES)
        if decode_claim(found) is None:
            await old(self)
        else:
            self._own = bytes(found[:CLAIM_BYTES])

    return take


def reads_first(old: Any) -> Any:
    async def claim(file: Any, path: str, header: Any, owner: Any, incarnation: bytes) -> Any:
        read_at, seen = file.read_at, bytes(await file.read_at(0, file.size_bytes))
        await asyncio.sleep(SETTLE_S)

        async def read_seen(position: int, length: int) -> bytes:
            if position == CLAIM_PLACE:
                return bytes(await read_at(position, length))
            return bytes(seen[position : position + length])

        fence, _ = await old(file, path, header, owner, incarnation)
        if header is not None:
            file.read_at = read_seen
        return fence, header

    return claim


def recovers_nothing(old: Any) -> Any:
    async def recover(self: LogRecovery, found: Any, client: Any, owner: Any) -> None:
        wal = await self._open(found, client)
        opened = await client.opening_streams()
        await close_in_catalog(client, [(one.stream_id, one.epoch) for one in opened])
        await wal.close()

    return recover


def finds_any(old: Any) -> Any:
    async def find(self: LogRecovery) -> Any:
        wal: Any = self._image.wals.last_written(self._node_id)
        place: Any = None
        return Found(wal, place, place)

    return find


def recovers_unopened(old: Any) -> Any:
    async def recover(self: LogRecovery, found: Any, client: Any, owner: Any) -> None:
        opened = await client.opening_streams()
        await close_in_catalog(client, [(one.stream_id, one.epoch) for one in opened])

    return recover


def wants_none(old: Any) -> Any:
    def are_wanted_of(self: ReadingCopies, key: Any) -> bool:
        return False

    return are_wanted_of


def takes_open_streams(old: Any) -> Any:
    def taken(stream: Any, request: Any) -> Any:
        return stream._replace(epoch=request.leader_epoch, node_id=request.node_id, is_open=True)

    return taken


def closes_at_once(old: Any) -> Any:
    async def close_stream(self: Storage, stream: Any) -> None:
        stream.is_closed = True
        await self._catalog.close(stream.stream_id, stream.epoch)
        self._streams.pop(stream.stream_id, None)

    return close_stream


def passes_over_what_is_owed(old: Any) -> Any:
    def clipped(self: RangePlan, stream_id: int, start: int, end: int) -> Any:
        owed = self._image.streams.owed.by(stream_id, self._node_id)
        return None if owed is not None and start <= owed.start < end else old(self, stream_id, start, end)

    return clipped


def steps_over_what_is_owed(old: Any) -> Any:
    async def read_owed(self: OwedReads, accumulator: Any, owed: Any) -> bool:
        accumulator.skip_to(owed.end)
        return False

    return read_owed


def recovers_what_is_open(old: Any) -> Any:
    async def opening_streams(self: ControllerClient) -> Any:
        return [one for one in await old(self) if one.sealed_end is None]

    return opening_streams


def waits_for_nothing(old: Any) -> Any:
    async def wait(*args: Any, **keys: Any) -> None:
        pass

    return wait


def reaches_no_image(old: Any) -> Any:
    async def reply(self: QuorumChannel, request: Any, leader: int, version: int, response: Any) -> Any:
        response.metadata_offset = 0
        return await old(self, request, leader, version, response)

    return reply


def never_begins(old: Any) -> Any:
    def begin(self: Failovers, node_id: int) -> None:
        pass

    return begin


def believes_the_clock(old: Any) -> Any:
    def look(self: WallWatch, wall_ms: int, tick_ms: int) -> int:
        return 0

    return look


def is_enough_alone(old: Any) -> Any:
    def majority(voter_count: int) -> int:
        return 1

    return majority


def counts_its_own(old: Any) -> Any:
    def majority_end(ends: Iterable[int]) -> int:
        return max(ends)

    return majority_end


def seals_nothing(old: Any) -> Any:
    async def take(self: ConditionalFence) -> Any:
        listing, first_epoch = await self._survey()
        tip = None if first_epoch is None else await self._find_tip(listing, first_epoch)
        if tip is None or isinstance(tip, ObjectMissing):
            return await old(self)
        return await self._take(listing, tip, self.check_replaced)

    return take


def empties_as_it_reads(old: Any) -> Any:
    async def recover(wal: Any, records: Any, *args: Any, **keys: Any) -> Any:
        async def read() -> Any:
            async with contextlib.aclosing(records):
                async for record in records:
                    yield record
            await wal.reset()

        return await old(wal, None if records is None else read(), *args, **keys)

    return recover


def closes_before_the_end(old: Any) -> Any:
    def record(stream: Any) -> Any:
        return old(stream._replace(end=max(stream.start, stream.end - 8)))

    return record


def raises_nothing(old: Any) -> Any:
    async def accept_wal_loss(self: ControllerClient) -> Any:
        return ()

    return accept_wal_loss


def discards_what_is_there(old: Any) -> Any:
    async def recover(wal: Any, records: Any, *args: Any, **keys: Any) -> Any:
        async def read() -> Any:
            async with contextlib.aclosing(records):
                async for record in records:
                    if not keys.get("is_loss_accepted"):
                        yield record

        return await old(wal, None if records is None else read(), *args, **keys)

    return recover


def finds_an_empty_one(old: Any) -> Any:
    async def find(self: LogRecovery) -> Any:
        try:
            return await old(self)
        except LogUnreachable as error:
            wal = self._image.wals.last_written(self._node_id)
            if wal is None or "no write-ahead log is at" not in str(error):
                raise
            return Found(wal, self._place_of(wal), WalBinding())

    return find


def misses_nothing(old: Any) -> Any:
    def fault(found: Any, *args: Any) -> Any:
        return None if found is None or found.wal_id in (None, NO_WAL_ID) else old(found, *args)

    return fault


BUGS = {
    "recovers-nobody": Bug(
        "nobody recovers the log of a broker that is gone",
        ((Failovers, "_begin", never_begins),),
        "waits",
        over_objects,
    ),
    "recovers-nothing": Bug(
        "a log that is recovered is closed, and not read",
        ((LogRecovery, "_recover", recovers_nothing),),
        "two-meanings",
        over_objects,
    ),
    "recovers-unreached": Bug(
        "a log that nobody reaches is taken for a recovered one",
        ((LogRecovery, "find", finds_any), (LogRecovery, "_recover", recovers_unopened)),
        "taken-unrecovered",
        out_of_reach,
    ),
    "reads-no-history": Bug(
        "what objects hold of a partition that nobody can lead is read by nobody",
        ((ReadingCopies, "are_wanted_of", wants_none),),
        "history-unread",
        lambda plan: replace(plan, wal=OWN_DISK),
    ),
    "takes-open-streams": Bug(
        "a partition is opened while another broker has it open",
        (
            (streams, "taken", takes_open_streams),
            (PartitionDirectory, "_until_closed_elsewhere", waits_for_nothing),
        ),
        "stream-taken",
        over_objects,
    ),
    "closes-at-once": Bug(
        "a partition that moves is closed before it is uploaded",
        ((Storage, "close_stream", closes_at_once),),
        "two-meanings",
        lambda plan: replace(plan, level=BEFORE_OWED_RANGES),
    ),
    "owes-nobody": Bug(
        "a partition that moves is sealed, and nothing is said to be owed",
        ((Storage, "seal_stream", closes_at_once),),
        "two-meanings",
        sealing,
    ),
    "passes-over": Bug(
        "the commit of what is owed is taken for one that was made before",
        ((RangePlan, "_clipped", passes_over_what_is_owed),),
        "not-settled",
        sealing,
    ),
    "steps-over": Bug(
        "readers are not given what an earlier owner's log owes",
        ((OwedReads, "_read_owed", steps_over_what_is_owed),),
        "stepped-over",
        owing,
    ),
    "recovers-no-owed": Bug(
        "who recovers a log passes over what it owes",
        ((ControllerClient, "opening_streams", recovers_what_is_open),),
        "not-settled",
        owing,
    ),
    "reaches-no-image": Bug(
        "a reply of the controller is not waited for in the image",
        ((QuorumChannel, "_reply", reaches_no_image),),
        "process-ended",
    ),
    "starts-behind": Bug(
        "a broker starts with metadata of before",
        ((follower, "catch_up", waits_for_nothing),),
        "process-ended",
    ),
    "clock-believed": Bug(
        "a broker's clock that jumps is believed by retention",
        ((WallWatch, "look", believes_the_clock),),
        "log-start-rose",
        by_wrong_clocks,
    ),
    "acknowledged-unlooked": Bug(
        "what was written is acknowledged whatever claim stands there",
        ((ClaimFence, "_judge", sees_its_own),),
        "lost-write",
        by_claims,
    ),
    "claim-not-raised": Bug(
        "who opens a log leaves the claim of its owner standing",
        ((ClaimFence, "take", adopts_what_it_finds),),
        "lost-write",
        by_claims,
    ),
    "read-before-claimed": Bug(
        "who opens a log waits and reads it, and claims it then",
        ((device, "_claim", reads_first),),
        "two-meanings",
        by_claims,
    ),
    "leads-alone": Bug(
        "a leader of the quorum in the lesser half goes on, and commits what it alone has",
        ((core, "majority", is_enough_alone), (core, "majority_end", counts_its_own)),
        "unequal-image",
        in_halves,
    ),
    "serves-in-both-halves": Bug(
        "who recovers the log of a broker in the other half does not shut that one out",
        ((ConditionalFence, "take", seals_nothing),),
        "two-meanings",
        in_halves,
    ),
    "empties-as-it-reads": Bug(
        "a log is emptied once it is read, before what was in it is committed",
        ((storage, "recover", empties_as_it_reads),),
        "lost-write",
        struck,
    ),
    "gives-up-more": Bug(
        "an unclean election gives up some of what objects have",
        ((partitions, "stream_record", closes_before_the_end),),
        "stream-fell",
        losing_logs,
    ),
    "accepts-unseen": Bug(
        "a loss is accepted, and leader epochs stay",
        ((ControllerClient, "accept_wal_loss", raises_nothing),),
        "epoch-stays",
        losing_logs,
    ),
    "accepts-too-much": Bug(
        "a broker that starts with wal.lost.accept gives up what its log has, too",
        ((storage, "recover", discards_what_is_there),),
        "lost-write",
        losing_logs,
    ),
    "recovers-an-empty-one": Bug(
        "where no log is, who is to recover it makes one, and finds that nothing is in it",
        ((LogRecovery, "find", finds_an_empty_one),),
        "taken-unrecovered",
        losing_logs,
    ),
    "starts-with-an-empty-one": Bug(
        "a broker starts without the log that its open streams are in",
        ((wal_binding, "_fault", misses_nothing),),
        "served-without-log",
        losing_logs,
    ),
}


def find_bug(name: str, seeds: Iterable[int]) -> tuple[int, Outcome | None]:
    """How many seeds were run, and the outcome of the one that shows it."""
    bug, count = BUGS[name], 0
    with bug.planted():
        for seed in dict.fromkeys(seeds):
            count += 1
            drawn = drawn_plan(seed).without_further()
            plan = replace(drawn, is_calm=False, clocks=RIGHT, loses_disks=False)
            outcome = run_plan(bug.where(plan))
            if bug.is_shown_by(outcome):
                return count, outcome
            if outcome.findings:
                print(f"    seed {seed}: {outcome.findings[0][:160]}", flush=True)
    return count, None


def main() -> int:
    """Exit code 1 when one is not found."""
    parser = argparse.ArgumentParser("python -m tests.sim.cluster.bugs", description="Plants bugs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BUGS)}")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    given = parser.parse_args()
    missed = []
    for name in given.names or BUGS:
        began = time.monotonic()
        print(f"{name}: {BUGS[name].what}", flush=True)
        count, outcome = find_bug(name, range(given.seeds))
        took_s = time.monotonic() - began
        if outcome is None:
            missed.append(name)
            print(f"    NOT FOUND in {count} seeds, {took_s:.0f} s", flush=True)
            continue
        shown = BUGS[name].is_shown_by(outcome)[0][:160]
        print(f"    found with {count} seeds, {took_s:.0f} s: {shown}", flush=True)
    print(f"missed: {', '.join(missed) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
