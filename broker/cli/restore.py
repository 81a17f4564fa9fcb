"""`millrace restore`: a metadata log directory that was lost, built from the metadata in the bucket.

Exit codes: 0 restored (or, with --verify, it could be) and nothing is known to be missing, 1 restored, and
something is missing, which is said; 2 it was not restored, and nothing is left of it. Nothing but the log
directory is written, and that at the very end.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millrace.broker.cli import RunLoop
from millrace.broker.cli.inspecting import CANNOT_LOOK, settings_of, time_text
from millrace.broker.cli.serve import add_data_dir

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.broker.identity.unknown_streams import WalStream
    from millrace.broker.restore.restoring import Restored
    from millrace.runtime.objectstore.address import StoreAddress
    from millrace.wal.kind import WalPlace

ABOUT = """\
Builds a node's metadata log directory (log.dirs) from its bucket, when the directory was lost.

  millrace restore --from s3://BUCKET?region=eu-central-1 --config server.properties
  millrace restore --from file:///mnt/objects --data-dir /var/lib/millrace
  millrace restore --from s3://BUCKET --config server.properties --verify      looks, and changes nothing

It reads the newest snapshot of the metadata and what was written behind it, and puts a log directory together
that begins above everything that the lost one may have given out. The bucket and the write-ahead log are not
changed. Say the node's settings as for serve; the directory must be empty. Afterwards start the node as ever:

  with the write-ahead log still there (on its disk, or in a bucket) it is recovered, and nothing acknowledged
    is missing;
  with a log on a disk that was lost too, everything that was committed as objects is there; start once with
    wal.lost.accept=true.

Of a quorum whose voters stand in its log (kraft.version 1) one node is restored, with --standalone; others
are formatted anew (millrace format --no-initial-controllers) and added to it.

What cannot be had is named by partition and offsets. A node that may still run keeps its claim on the bucket:
--take-over says that it is gone; one that lives all the same ends by itself within 10 s of the new node's
start.

Exit codes: 0 restored, 1 restored and something is missing, 2 not restored.
"""
MISSING_SHOWN = 100
SAY_AFTER_S, SAY_EVERY_S = 1.0, 2.0


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    given = parse(words)
    if given.node_id is not None:
        given.override = [*given.override, f"node.id={given.node_id}"]
    settings = settings_of(given, env, is_formatted=given.standalone)
    if settings is None:
        return CANNOT_LOOK
    return run_loop(restore(settings, given))


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "millrace restore",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--from", dest="source", metavar="ADDRESS", help="the bucket; without it s3.data.buckets"
    )
    parser.add_argument("--config", metavar="FILE", help="the node's settings, as for serve")
    parser.add_argument("--override", metavar="KEY=VALUE", action="append", default=[], help="one setting")
    add_data_dir(parser)
    parser.add_argument("--node-id", type=int, metavar="N", help="which node this is; without it node.id")
    parser.add_argument(
        "--standalone", action="store_true", help="as the one voter of its quorum, to which others are added"
    )
    parser.add_argument("--take-over", action="store_true", help="the node that claims the bucket is gone")
    parser.add_argument(
        "--verify", action="store_true", help="say what could be restored, and change nothing"
    )
    return parser.parse_args(words)


class Progress:
    """Lines on stderr, once it takes longer than a second."""

    def __init__(self) -> None:
        self._due = time.monotonic() + SAY_AFTER_S

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + SAY_EVERY_S
            print(f"millrace: {text}", file=sys.stderr, flush=True)


async def restore(settings: BrokerSettings, given: argparse.Namespace) -> int:
    from millrace.broker.cli.refusals import sentence_of
    from millrace.broker.inspection.opening import open_to_look
    from millrace.broker.restore.restoring import Restoring
    from millrace.broker.restore.target import RestoreTarget
    from millrace.runtime.bundle import real_runtime
    from millrace.runtime.errors import MillraceError
    from millrace.runtime.objectstore.address import AddressError, parse_address
    from millrace.wal.kind import WalPlace
    from millrace.wal.opening import identify_wal

    runtime = real_runtime()
    target = None if given.verify else RestoreTarget(runtime.disk, settings.controller.log_dir)
    try:
        address = settings.data
        if given.source is not None:
            text = given.source
            address = parse_address(text if "@" in text.partition("://")[0] else f"0@{text}")
        store = await open_to_look(runtime, address)
        rand = runtime.rand.split("wal inspection")
        place = WalPlace(
            settings.wal,
            runtime.disk,
            lambda where: open_to_look(runtime, where),
            rand,
            settings.wal_settings,
        )
        restoring = Restoring(
            settings,
            store,
            str(address),
            lambda: identify_wal(place, settings.node_id),
            lambda: streams_in(settings.wal),
            lambda cluster_id: begin_of(place, cluster_id, settings.node_id),
            runtime.clock,
            Progress(),
        )
        try:
            if target is not None:
                await target.take()
                await restoring.check_target(runtime.disk)
            restored = await restoring.find(is_taking_over=given.take_over or given.verify)
            if target is not None:
                await restoring.write(restored, runtime.disk, runtime.rand)
                target.keep()
        finally:
            await store.close()
    except (MillraceError, OSError, AddressError, ValueError) as error:
        print(f"millrace: not restored: {sentence_of(error, settings) or repr(error)}", file=sys.stderr)
        return CANNOT_LOOK
    finally:
        if target is not None:
            await target.close()
    print(report(restored, settings, str(address), is_verified=given.verify))
    return 1 if restored.losses or restored.missing or restored.unknown else 0


def streams_in(address: StoreAddress) -> list[WalStream]:
    """What a WAL in a file or on a device holds, by streams. A log of objects is not read: metadata in the
    bucket knows its streams."""
    from millrace.broker.cli.wal import file_of, walk_of
    from millrace.broker.identity.unknown_streams import WalStream
    from millrace.runtime.disk.peek import PeekFile
    from millrace.s3stream.ids import StreamId

    path = file_of(address)
    found: dict[int, WalStream] = {}
    if path is None:
        return []
    with PeekFile(path) as file:
        for record in walk_of(file).records():
            if record.stream is None or record.start is None or record.count is None or record.epoch is None:
                continue
            before = found.get(record.stream)
            start = record.start if before is None else before.start
            end = record.start + record.count
            found[record.stream] = WalStream(StreamId(record.stream), record.epoch, start, end)
    return list(found.values())


async def begin_of(place: WalPlace, cluster_id: str, node_id: int) -> int | None:
    """The position below which the WAL was trimmed; None where it does not say."""
    from millrace.broker.cli.wal import Walk, file_of, walk_of
    from millrace.runtime.disk.peek import PeekFile
    from millrace.wal.opening import kind_of

    path, inspect = file_of(place.address), kind_of(place.address).inspect
    if inspect is not None:
        facts = (await inspect(place, cluster_id, node_id, False)).facts
        return None if facts["faults"] else max(facts["head"], facts["trim"])
    if path is None:
        return None
    with PeekFile(path) as file:
        walk = walk_of(file)
        return max(walk.header.head, walk.header.trim) if isinstance(walk, Walk) else None


def report(restored: Restored, settings: BrokerSettings, source: str, *, is_verified: bool) -> str:
    from millrace.broker.identity.unknown_streams import range_text
    from millrace.broker.restore.restoring import claim_text

    image, loaded = restored.loaded.image, restored.loaded
    partitions = image.topics.partition_count
    verb = "can be restored" if is_verified else "restored"
    snapshot = (
        f"the snapshot at offset {loaded.snapshot.end}" if loaded.snapshot is not None else "no snapshot"
    )
    lines = [
        f"{verb}: cluster {restored.cluster_id}, node {settings.node_id}, from {source}",
        f"  metadata as of {time_text(loaded.time_ms)} UTC: offset {image.offset} of epoch {image.epoch}, "
        f"from {snapshot} and "
        f"{loaded.piece_count} pieces",
        f"  {len(image.topics)} topics, {partitions} partitions, {image.objects.committed_count} objects "
        "named; "
        f"{restored.object_count} in the bucket",
    ]
    lines += [f"  write-ahead log of {text}" for text in restored.wals]
    lines += [f"  claimed by {claim_text(claim)}" for claim in restored.claims if claim.is_standing]
    if restored.losses:
        lines += ["", "not everything could be read:", *(f"  {text}" for text in restored.losses)]
    if restored.missing:
        shown = [str(found) for found in restored.missing[:MISSING_SHOWN]]
        more = len(restored.missing) - len(shown)
        lines += ["", "missing:", *(f"  {text}" for text in shown), *([f"  and {more} more"] if more else [])]
    if restored.unknown:
        shown = [range_text(found, settings.node_id) for found in restored.unknown[:MISSING_SHOWN]]
        more = len(restored.unknown) - len(shown)
        lines += [
            "",
            "in the write-ahead log, of streams that were made after what the bucket knows; their topics and "
            "partitions are not known:",
            *(f"  {text}" for text in shown),
            *([f"  and {more} more"] if more else []),
        ]
    if is_verified:
        return "\n".join(lines)
    lines += ["", f"{settings.controller.log_dir} was written."]
    remedy = " with wal.lost.accept=true for this one start" if restored.needs_word else ""
    lines.append(f"Start the node{remedy}: millrace serve, with the same settings.")
    if str(settings.data) != source:
        lines.append(f"The node is set to use {settings.data}: the objects must be there (s3.data.buckets).")
    return "\n".join(lines)
