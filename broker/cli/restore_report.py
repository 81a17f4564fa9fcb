"""What `millrace restore` says of what it found and made: for people, partition by partition.

Not here: finding and making it (broker/restore).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from millrace.broker.cli.inspecting import time_text
from millrace.broker.identity.unknown_streams import range_text
from millrace.broker.restore.restoring import Restored, claim_text
from millrace.protocol.ids import uuid_text

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.kraft.raft.voters import Voter

SHOWN_MAX: Final = 100


def report(restored: Restored, settings: BrokerSettings, source: str, *, is_verified: bool) -> str:
    lines = head_lines(restored, settings, source, is_verified=is_verified)
    if restored.losses:
        lines += ["", "not everything could be read:", *(f"  {text}" for text in restored.losses)]
    lines += section("missing:", list(map(str, restored.missing)))
    lines += section(
        "behind what is committed, in write-ahead logs that are not seen from here, and not lost while these "
        "can be recovered:",
        list(map(str, restored.waiting)),
    )
    unknown = {settings.node_id: restored.unknown, **restored.unknown_elsewhere}
    lines += section(
        "in write-ahead logs, of streams that were made after what the bucket knows; their topics and "
        "partitions are not known:",
        [range_text(found, node_id) for node_id, ranges in unknown.items() for found in ranges],
    )
    return "\n".join(lines if is_verified else lines + next_lines(restored, settings, source))


def head_lines(restored: Restored, settings: BrokerSettings, source: str, *, is_verified: bool) -> list[str]:
    image, loaded = restored.loaded.image, restored.loaded
    snapshot = (
        f"the snapshot at offset {loaded.snapshot.end}" if loaded.snapshot is not None else "no snapshot"
    )
    lines = [
        f"{'can be restored' if is_verified else 'restored'}: cluster {restored.cluster_id}, "
        f"node {settings.node_id}, from {source}",
        f"  metadata as of {time_text(loaded.time_ms)} UTC: offset {image.offset} of epoch {image.epoch}, "
        f"from {snapshot} and {loaded.piece_count} pieces",
        f"  {len(image.topics)} topics, {image.topics.partition_count} partitions, "
        f"{image.objects.committed_count} objects named; {restored.object_count} in the bucket",
    ]
    if loaded.voters is not None and loaded.voters.voters:
        lines.append(f"  voted: {', '.join(map(voter_text, loaded.voters.voters))}")
    lines += [f"  write-ahead log of {text}" for text in restored.wals]
    lines += [f"  claimed by {claim_text(claim)}" for claim in restored.claims if claim.is_standing]
    return lines


def voter_text(voter: Voter) -> str:
    """As --initial-controllers takes it, where it has one listener."""
    at = "/".join(f"{one.host}:{one.port}" for one in voter.endpoints) or "an unknown place"
    return f"{voter.node_id}@{at}:{uuid_text(voter.directory_id)}"


def section(head: str, texts: Sequence[str]) -> list[str]:
    """Up to a bound; nothing where there is none."""
    if not texts:
        return []
    more = len(texts) - SHOWN_MAX
    shown = [f"  {text}" for text in texts[:SHOWN_MAX]]
    return ["", head, *shown, *([f"  and {more} more"] if more > 0 else [])]


def next_lines(restored: Restored, settings: BrokerSettings, source: str) -> list[str]:
    """What the operator does now."""
    own, quorum = settings.node_id, settings.quorum
    lines = ["", f"{settings.controller.log_dir} was written."]
    remedy = " with wal.lost.accept=true for this one start" if restored.needs_word else ""
    lines.append(f"Start the node{remedy}: millrace serve, with the same settings.")
    if restored.voters:
        others = [voter for voter in restored.voters if voter.node_id != own]
        lines += [
            f"Voter {voter.node_id} is formatted with the same --initial-controllers and "
            f"cluster.id={restored.cluster_id} (millrace format), and then started."
            for voter in others
        ]
    elif len(quorum.voters) > 1 and not quorum.is_dynamic:
        lines.append("The other voters are started with empty log directories, and follow it.")
    gone = [broker.broker_id for broker in restored.image.brokers if broker.broker_id != own]
    if gone:
        lines.append(
            f"Of brokers {', '.join(map(str, gone))} those that do not start again are gone: others recover "
            "their write-ahead logs where they reach them, and lead what they led. `millrace cluster status` "
            "says what waits, `millrace cluster give-up ID --accept-loss` gives up what a lost log held, "
            "`millrace cluster unregister ID` forgets a broker."
        )
    if str(settings.data) != source:
        lines.append(f"The node is set to use {settings.data}: the objects must be there (s3.data.buckets).")
    return lines
