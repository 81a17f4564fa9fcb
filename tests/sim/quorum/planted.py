"""What is planted in the controllers on purpose (bugs.py says as what): each makes, of what the product does,
what stands in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from millrace.kraft.controller import Pending
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.messages import NOBODY, FetchReply, Vote
from millrace.kraft.raft.quorum import VoteResult, majority_end
from millrace.kraft.raft.ready import QuorumState
from millrace.kraft.raft.roles import Follower, Leader, Resigned, Unattached
from millrace.kraft.raft.voters import VoterSet
from millrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsResponse

Old = Callable[..., Any]


def says(value: object) -> Callable[[Old], Old]:
    """Whatever is asked."""
    return lambda old: lambda *args, **named: value


def remembers_no_vote(old: Old) -> Old:
    async def save_state(self: Any, state: QuorumState) -> None:
        await old(self, QuorumState(state.epoch, state.leader, NOBODY))

    return save_state


def votes_again(old: Old) -> Old:
    def _would_grant(self: Raft, message: Vote) -> bool:
        if isinstance(self.role, Unattached) and not message.is_pre_vote:
            self.role.voted = NOBODY
        return bool(old(self, message))

    return _would_grant


def votes_for_shorter_logs(old: Old) -> Old:
    def _would_grant(self: Raft, message: Vote) -> bool:
        return bool(
            old(self, Vote(message.source, message.target, message.epoch, 1 << 30, 0, message.is_pre_vote))
        )

    return _would_grant


def helps_against_a_leader(old: Old) -> Old:
    def _would_grant(self: Raft, message: Vote) -> bool:
        if message.is_pre_vote and isinstance(self.role, Follower):
            return (message.last_epoch, message.end) >= (self.log.last_epoch, self.log.end)
        return bool(old(self, message))

    return _would_grant


def commits_what_is_of_earlier_epochs(old: Old) -> Old:
    def _advance(self: Raft, role: Leader) -> None:
        start, role.start = role.start, -1
        old(self, role)
        role.start = start

    return _advance


def counts_observers(old: Old) -> Old:
    def _advance(self: Raft, role: Leader) -> None:
        end = majority_end(progress.end for progress in (*role.voters.values(), *role.observers.values()))
        if self.high_watermark < end <= self.log.stable_end and end > role.start:
            self.high_watermark = end
            self._answer_parked(role, only_due=False)
        old(self, role)

    return _advance


def believes_the_leaders_end(old: Old) -> Old:
    def _on_fetch_reply(self: Raft, role: Follower, message: FetchReply) -> None:
        message.high_watermark = max(message.high_watermark, message.end)
        old(self, role, message)

    return _on_fetch_reply


def appends_without_a_sync(old: Old) -> Old:
    async def append_all(self: Any, batches: Any, end: int) -> None:
        file = self._open_file

        async def nothing() -> None:
            pass

        file.sync = nothing
        try:
            await old(self, batches, end)
        finally:
            del file.sync

    return append_all


def sends_whatever_it_holds(old: Old) -> Old:
    return lambda self, message: True


def cuts_too_much(old: Old) -> Old:
    def _truncate(self: Raft, cut: int) -> None:
        cut = max(self.log.start, min(cut, self.high_watermark) - 3)
        self.log.truncate(cut)
        self._truncate_to = cut
        self._given = min(self._given, cut)

    return _truncate


def keeps_the_log_beside_a_snapshot(old: Old) -> Old:
    async def restart_at(self: Any, end: int) -> None:
        self.end = end

    return restart_at


def misses_a_batch_after_an_install(old: Old) -> Old:
    def install(self: Any, image: MetadataImage) -> None:
        old(self, image)
        apply = self.apply

        def apply_rest(batches: Sequence[Any]) -> None:
            del self.apply
            first, *later = batches
            self._publisher.load(replace(self.image, offset=first.end, epoch=first.epoch))
            if later:
                apply(later)

        self.apply = apply_rest

    return install


def goes_on_leading(old: Old) -> Old:
    def _tick_leader(self: Raft, role: Leader) -> None:
        for progress in role.voters.values():
            progress.fetched_at = self.now
        old(self, role)

    return _tick_leader


def leads_again_at_once(old: Old) -> Old:
    def __init__(self: Raft, *args: Any, **named: Any) -> None:
        old(self, *args, **named)
        if isinstance(self.role, Resigned):
            self._become_leader((self.node_id,))

    return __init__


def answers_what_is_proposed(old: Old) -> Old:
    def _propose(self: Any, decision: Any, reply: Any) -> None:
        old(self, decision, reply)
        if not reply.done():
            reply.set_result(decision.response)

    return _propose


def gives_out_blocks_early(old: Old) -> Old:
    def _propose(self: Any, decision: Any, reply: Any) -> None:
        old(self, decision, reply)
        if isinstance(decision.response, AllocateProducerIdsResponse) and not reply.done():
            reply.set_result(decision.response)

    return _propose


def tells_nobody_of_what_is_dropped(old: Old) -> Old:
    def on_dropped(self: Any, end: int, error: Exception) -> None:
        for group in self._groups:
            if group.image.offset > end:
                group.commands[:] = [
                    Pending(one.end, one.records, one.response, one.reply.get_loop().create_future())
                    for one in group.commands
                ]
        old(self, end, error)

    return on_dropped


def takes_any_log_for_its_own(old: Old) -> Old:
    def check_fetch(self: Any, offset: int, last_epoch: int) -> Any:
        found = old(self, offset, last_epoch)
        return found if isinstance(found, str) or offset > self.stable_end else None

    return check_fetch


def loses_ids_in_snapshots(old: Old) -> Old:
    def image_records(image: MetadataImage) -> Any:
        for record in old(image):
            if type(record).__name__ == "ProducerIdsRecord":
                record.next_producer_id -= 1_000
            yield record

    return image_records


def counts_the_furthest(old: Old) -> Old:
    def majority_end(ends: Iterable[int]) -> int:
        ordered = sorted(ends, reverse=True)
        return ordered[len(ordered) // 2 - 1]

    return majority_end


def leaves_parts(old: Old) -> Old:
    @asynccontextmanager
    async def part_of(disk: Any, path: str) -> AsyncIterator[str]:
        part = f"{path}.part"
        await disk.remove(part)
        yield part
        await disk.rename(part, path)

    return part_of


def wins_with_its_own_vote(old: Old) -> Old:
    def count_votes(voters: Sequence[int], votes: Mapping[int, bool]) -> VoteResult:
        return VoteResult.WON

    return count_votes


def believes_any_watermark(old: Old) -> Old:
    def _on_fetch_reply(self: Raft, role: Follower, message: FetchReply) -> None:
        old(self, role, message)
        if message.leader == message.source and message.snapshot is None:
            self.high_watermark = min(message.high_watermark, self.log.end)

    return _on_fetch_reply


def loses_topics_in_snapshots(old: Old) -> Old:
    def image_records(image: MetadataImage) -> Iterator[Any]:
        lost = min((topic.topic_id for topic in image.topics), default=b"")
        return (record for record in old(image) if getattr(record, "topic_id", None) != lost)

    return image_records


def writes_no_block_down(old: Old) -> Old:
    def _propose(self: Any, decision: Any, reply: Any) -> None:
        if isinstance(decision.response, AllocateProducerIdsResponse):
            decision.records = []
        old(self, decision, reply)

    return _propose


def changes_voters_at_once(old: property) -> property:
    return property(lambda self: self.is_leader)


def changes_voters_at_commit(old: property) -> property:
    """A set is in force once it is committed, as far as the node knows."""
    return property(lambda self: self.log.voters.at(max(self.high_watermark, 1)))


def takes_any_directory_for_the_voter(old: Old) -> Old:
    def has(self: VoterSet, node_id: int, directory_id: bytes) -> bool:
        return node_id in self.ids

    return has


def hears_no_leader(old: Old) -> Old:
    def _on_fetch_reply(self: Raft, role: Follower, message: FetchReply) -> None:
        due = role.due
        old(self, role, message)
        role.due = due

    return _on_fetch_reply
