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
from millrace.broker.cli.inspecting import CANNOT_LOOK, settings_of
from millrace.broker.cli.serve import add_data_dir

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.kraft.raft.voters import Voter

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

The cluster may be of another size than the one that was lost. One node is restored, whichever: alone, or as
one of the voters that controller.quorum.voters names; all others start with empty log directories. A node
that is none of the bucket's says --new-node. Brokers of the bucket that do not start again are gone: what
their write-ahead logs hold is recovered where somebody reaches them, and otherwise waits for `millrace
cluster give-up`.

Where the voters are to stand in the log (kraft.version 1) the node is restored with --standalone, and others
are formatted (millrace format --no-initial-controllers) and added to it; or with --initial-controllers, and
the other voters are formatted with the same list and cluster.id.

What cannot be had is named by partition and offsets. A node that may still run keeps its claim on the bucket:
--take-over says that it is gone; one that lives all the same ends by itself within 10 s of the new node's
start.

Exit codes: 0 restored, 1 restored and something is missing, 2 not restored.
"""
SAY_AFTER_S, SAY_EVERY_S = 1.0, 2.0


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    given = parse(words)
    if given.node_id is not None:
        given.override = [*given.override, f"node.id={given.node_id}"]
    is_formatted = given.standalone or given.initial_controllers is not None
    settings = settings_of(given, env, is_formatted=is_formatted)
    if settings is None:
        return CANNOT_LOOK
    if not settings.is_controller:
        print(
            "millrace: a broker that is no controller (process.roles) is not restored: with an empty log "
            "directory it fetches the metadata from the controllers; restore one of these",
            file=sys.stderr,
        )
        return CANNOT_LOOK
    first: tuple[Voter, ...] = ()
    if given.initial_controllers is not None:
        from millrace.broker.cli.format import voters_of

        try:
            first = voters_of(given.initial_controllers, settings)
        except ValueError as error:
            print(f"millrace: --initial-controllers: {error}", file=sys.stderr)
            return CANNOT_LOOK
    return run_loop(restore(settings, given, first))


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
        "--new-node", action="store_true", help="it takes the place of no node of the bucket's cluster"
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--standalone", action="store_true", help="as the one voter of its quorum, to which others are added"
    )
    way.add_argument(
        "--initial-controllers",
        metavar="ID@HOST:PORT:DIRECTORY,...",
        help="as one of several first voters of its quorum, as in millrace format",
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


async def restore(settings: BrokerSettings, given: argparse.Namespace, first: Sequence[Voter]) -> int:
    """`first`: the voters that the log is to name; none of them where they stand in the settings, or this
    node is the only one."""
    from millrace.broker.cli.refusals import sentence_of
    from millrace.broker.cli.restore_logs import begin_of, look_at_log, streams_in
    from millrace.broker.cli.restore_report import report
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
            lambda wal: look_at_log(place, settings, wal),
            is_new_node=given.new_node,
        )
        try:
            if target is not None:
                await target.take()
                await restoring.check_target(runtime.disk)
            restored = await restoring.find(is_taking_over=given.take_over or given.verify)
            if target is not None:
                await restoring.write(restored, runtime.disk, runtime.rand, first)
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
    return 1 if restored.is_short else 0
