"""`millrace fsck`: the bucket against the metadata; deletes orphans when asked, and then with care.

Exit codes: 0 nothing that was stored is affected (orphans do not count), 1 something is missing or damaged, 2
it, or the write-ahead log, could not be checked. What was found in the bucket is told also where the log
cannot be looked at or the store refuses to delete.

An orphan is deleted only with --delete-orphans, with no broker running on the directory, when it is older
than the grace, every composite could be read, and this metadata is the newest: no object has an id that it
has not given, and neither the bucket nor the write-ahead log names a newer owner or a place in the metadata
log behind its end. An unfinished upload is aborted in the same way; no composite can link it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millrace.broker.cli import RunLoop
from millrace.broker.cli.inspecting import CANNOT_LOOK, add_node_options, look, say_running, settings_of
from millrace.broker.cli.table import counted, size_text, table
from millrace.protocol.dataclass import dataclass

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.broker.inspection.bucket_check import Checked, Finding, Progress
    from millrace.broker.inspection.inventory import StreamName
    from millrace.broker.inspection.opening import Inspected
    from millrace.runtime.bundle import Runtime
    from millrace.runtime.objectstore import ObjectStore
    from millrace.wal.kind import WalPlace, WalReport

DATE_GRAIN_MS = 2_000
ABOUT = """\
Checks a node's bucket against its metadata: objects that are missing, that nobody knows (orphans), whose
footer, index or any block fails its checksum, offsets of streams that lie in no object or in two, and uploads
that nobody will finish. It reads everything that is stored, and changes nothing unless it is asked to. Where
the write-ahead log is made of objects these are looked at too: which lie there by kind, whether all that
counts is there and sound, what is litter; nothing of them is ever deleted here, the next start does that.
Records that are still in the log alone are in no object of a stream: offsets are checked without them.

  millrace fsck --data-dir /var/lib/millrace
  millrace fsck --config server.properties --quick --json
  millrace fsck --data-dir /var/lib/millrace --delete-orphans

Where a broker is running, objects that it uploads or deletes meanwhile may show as orphans or as missing;
nothing is deleted then.
"""
SAY_FIRST_S = 1.0
SAY_EVERY_S = 2.0
SHOWN_MAX = 200
LOG_ANSWERS_WITHIN_S = 60.0  # a log in a store that is away is waited for without end otherwise


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    parser = argparse.ArgumentParser(
        "millrace fsck",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_node_options(parser)
    parser.add_argument("--quick", action="store_true", help="footers and indexes only, not the blocks")
    parser.add_argument(
        "--delete-orphans",
        action="store_true",
        help="delete orphans, and abort unfinished uploads, that are older than the grace",
    )
    parser.add_argument(
        "--grace-minutes",
        type=minutes,
        default=1440.0,
        metavar="N",
        help="how old an orphan must be (default 1440, a day)",
    )
    given = parser.parse_args(words)
    settings = settings_of(given, env)
    if settings is None:
        return CANNOT_LOOK
    return run_loop(
        look(settings, True, lambda runtime, inspected: check(runtime, inspected, settings, given))
    )


def minutes(word: str) -> float:
    """Raises ArgumentTypeError, with a sentence."""
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of minutes: give 0 or more")
    return number


async def check(
    runtime: Runtime, inspected: Inspected, settings: BrokerSettings, given: argparse.Namespace
) -> int:
    from millrace.broker.identity.binding import read_bound_cluster
    from millrace.broker.inspection.bucket_check import BucketCheck
    from millrace.broker.inspection.opening import open_bucket
    from millrace.kraft.log.restored_from import read_restored_from
    from millrace.runtime.errors import MillraceError

    say_running(inspected, "what it uploads or deletes meanwhile may show as orphaned or missing")
    store = await open_bucket(runtime, settings)
    try:
        bound = await read_bound_cluster(store, str(settings.data))
        if bound != inspected.cluster_id:
            holds = (
                f"holds the data of cluster {bound}"
                if bound
                else "was never used by a cluster, or is not there"
            )
            print(
                f"millrace: {settings.data} {holds}; the metadata is of cluster {inspected.cluster_id}",
                file=sys.stderr,
            )
            return CANNOT_LOOK
        checking = BucketCheck(store, inspected.cluster_id, inspected.image, reads_data=not given.quick)
        async with ProgressLine(lambda: progress_text(checking.progress, reads_data=not given.quick)):
            found = await checking.run()
        async with ProgressLine(lambda: "looking for what may be deleted"):
            now_ms = earlier_time(store, runtime.clock.wall_ms())
            is_restored = await read_restored_from(runtime.disk, settings.controller.log_dir) is not None
            newer = partial(
                newer_owner, store, inspected, found, wal_place(runtime, settings), is_restored=is_restored
            )
            grace_ms = given.grace_minutes * 60_000
            deletion = Deletion(store, inspected, found, given.delete_orphans, grace_ms, now_ms, newer)
            deleted = await delete_orphans(deletion)
            aborted = await abort_uploads(deletion)
    finally:
        await store.close()
    log, log_fault = None, ""
    try:
        async with ProgressLine(lambda: "reading the write-ahead log"):
            log = await check_log(runtime, inspected, settings, reads_data=not given.quick)
    except (MillraceError, OSError) as error:
        log_fault = f"{settings.wal}: {error}"
    outcome = Outcome(inspected, found, {"orphans": deleted, "uploads": aborted}, log, log_fault)
    print(as_json(outcome) if given.json else as_text(outcome))
    return outcome.code


@dataclass(frozen=True, slots=True)
class Outcome:
    """`done`: what became of what may be deleted, in words. `log` is None for a kind that is not looked at,
    and where `log_fault` says why it could not be."""

    inspected: Inspected
    found: Checked
    done: Mapping[str, str]
    log: WalReport | None
    log_fault: str = ""

    @property
    def harm_count(self) -> int:
        return sum(one.is_harm for one in self.found.findings) + (
            len(self.log.harms) if self.log is not None else 0
        )

    @property
    def code(self) -> int:
        if not self.found.is_sound or (self.log is not None and not self.log.is_sound):
            return 1
        return CANNOT_LOOK if self.log_fault else 0

    @property
    def names(self) -> dict[int, StreamName]:
        """Of the streams that findings name, those that metadata knows."""
        from millrace.broker.inspection.inventory import stream_names

        return stream_names(
            self.inspected.image, [one.stream_id for one in self.found.findings if one.stream_id >= 0]
        )


async def check_log(
    runtime: Runtime, inspected: Inspected, settings: BrokerSettings, *, reads_data: bool
) -> WalReport | None:
    """What lies in the log and what is wrong with it; None for a kind that cannot be looked at while its
    owner is at work."""
    from millrace.wal.opening import kind_of

    inspect = kind_of(settings.wal).inspect
    if inspect is None:
        return None
    return await inspect(wal_place(runtime, settings), inspected.cluster_id, settings.node_id, reads_data)


def wal_place(runtime: Runtime, settings: BrokerSettings) -> WalPlace:
    """The node's log, to look at it."""
    from millrace.broker.inspection.opening import open_to_look
    from millrace.wal.kind import WalPlace

    rand = runtime.rand.split("wal inspection")
    return WalPlace(
        settings.wal,
        runtime.disk,
        lambda address: open_to_look(runtime, address),
        rand,
        settings.wal_settings,
    )


class ProgressLine:
    """Said on stderr after a second, then every few, by a task of its own: a store that does not answer is no
    silence."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    async def __aenter__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._say())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _say(self) -> None:
        await asyncio.sleep(SAY_FIRST_S)
        while True:
            print(f"  {self._text()}", file=sys.stderr, flush=True)
            await asyncio.sleep(SAY_EVERY_S)


def progress_text(progress: Progress, *, reads_data: bool) -> str:
    if not progress.objects_total and not progress.streams_total:
        return f"listing the bucket, {counted(progress.listed, 'object')} so far"
    if progress.streams:
        return f"compared {progress.streams} of {counted(progress.streams_total, 'stream')}"
    done = f"checked {progress.objects} of {counted(progress.objects_total, 'object')}"
    if not reads_data:
        return done
    return (
        f"{done}, {counted(progress.blocks, 'block')}, {size_text(progress.bytes)} of "
        f"{size_text(progress.bytes_total)}"
    )


def earlier_time(store: ObjectStore, wall_ms: int) -> int:
    """By which orphans are old: never a clock of this machine that is ahead of the store's, which dated them.
    A store's Date has whole seconds, and may be of the second before: a grace of nothing would else find
    nothing old."""
    from millrace.runtime.objectstore import last_date_of

    date = last_date_of(store)
    if date is None:
        return wall_ms
    elapsed_ms = int((asyncio.get_running_loop().time() - date.came_s) * 1000)
    return min(wall_ms, date.wall_ms + elapsed_ms + DATE_GRAIN_MS)


async def newer_owner(
    store: ObjectStore, inspected: Inspected, found: Checked, log: WalPlace, *, is_restored: bool = False
) -> str:
    """Why this metadata is not that of the bucket's owner, or an older copy of it, to which newer objects
    would look like orphans; "" when it is the newest that the bucket and the write-ahead log know of. Asked
    last, right before something is deleted."""
    from millrace.broker.identity.binding import BindingRefused
    from millrace.broker.identity.claims import check_claims
    from millrace.broker.inspection.bucket_check import Kind
    from millrace.kraft.bucket.reader import survey
    from millrace.runtime.errors import MillraceError

    image = inspected.image
    if is_restored:
        return (
            "the log directory was restored, and no start of it went through: what looks like an orphan may "
            "be named by metadata that could not be read"
        )
    if any(one.kind is Kind.NEWER for one in found.findings):
        return (
            "the bucket holds objects whose ids this metadata has not given yet: the log directory is an "
            "older copy"
        )
    try:
        await check_claims(store, "the bucket", inspected.cluster_id, image, inspected.node_id)
        highest = (await survey(store, inspected.cluster_id)).highest
    except BindingRefused as error:
        return str(error)
    except MillraceError as error:
        return f"the store does not say whether the node was taken over: {error}"
    if highest is not None and highest[::-1] > (image.epoch, image.offset):
        return (
            f"the bucket holds metadata up to offset {highest[0]} of epoch {highest[1]}, and this log "
            f"directory ends at offset {image.offset} of "
            f"epoch {image.epoch}: it is an older copy"
        )
    return await newer_log(log, inspected)


async def newer_log(place: WalPlace, inspected: Inspected) -> str:
    """Why this metadata is older than the node's write-ahead log; "" when it is not, or that log is of
    another cluster, or is not there, or was left to be recovered by a restore, which is known to be older."""
    from millrace.kraft.tables.wals import WalState
    from millrace.runtime.errors import MillraceError
    from millrace.wal.opening import identify_wal

    image = inspected.image
    try:
        async with asyncio.timeout(LOG_ANSWERS_WITHIN_S):
            identity = await identify_wal(place, inspected.node_id)
    except TimeoutError:
        return (
            f"the write-ahead log {place.address} does not say within {LOG_ANSWERS_WITHIN_S:g} s up to "
            "where it knows metadata"
        )
    except (MillraceError, OSError) as error:
        return f"the write-ahead log {place.address} does not say up to where it knows metadata: {error}"
    if identity is None:
        return ""
    if identity.cluster_id is None:
        return (
            f"the write-ahead log {place.address} cannot be read, and may know of newer metadata: "
            "`millrace wal` shows what it holds"
        )
    if identity.cluster_id != inspected.cluster_id:
        return ""
    registered = None if identity.wal_id is None else image.wals.get(inspected.node_id, identity.wal_id)
    if registered is not None and registered.state is WalState.RECOVERING:
        return ""
    mark = identity.mark
    if (mark.epoch, mark.offset) > (image.epoch, image.offset):
        return (
            f"the write-ahead log {place.address} knows of metadata up to offset {mark.offset} of epoch "
            f"{mark.epoch}, and this log directory ends "
            f"at offset {image.offset} of epoch {image.epoch}: it is an older copy"
        )
    return ""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What is decided by, of whatever may be deleted. `newer` says why this metadata is not the newest, ""
    when it is (`newer_owner`)."""

    store: ObjectStore
    inspected: Inspected
    found: Checked
    is_asked: bool
    grace_ms: float
    now_ms: int
    newer: Callable[[], Awaitable[str]]

    def is_old(self, since_ms: int) -> bool:
        return self.now_ms - since_ms >= self.grace_ms


async def delete_orphans(deletion: Deletion) -> str:
    """What was done about orphans, in words."""
    from millrace.runtime.errors import MillraceError

    found = deletion.found
    if not found.orphans:
        return ""
    old = [entry for entry in found.orphans if deletion.is_old(entry.modified_ms)]
    sizes = (
        f"{counted(len(found.orphans), 'orphan')}, "
        f"{size_text(sum(entry.size_bytes for entry in found.orphans))}"
    )
    if not deletion.is_asked:
        return f"{sizes}; {len(old)} older than the grace: those go with --delete-orphans"
    if deletion.inspected.running_pid:
        return f"{sizes}; none was deleted, for a broker is running on the directory"
    if found.links_unknown:
        return f"{sizes}; none was deleted, for a composite could not be read and may link them"
    if foreign := await deletion.newer():
        return f"{sizes}; none was deleted: {foreign}"
    try:
        left = await deletion.store.delete([entry.key for entry in old])
    except MillraceError as error:
        return f"{sizes}; they could not be deleted, or not all: {error}"
    young = len(found.orphans) - len(old)
    return (
        f"{sizes}; {len(old) - len(left)} were deleted, {len(left)} could not be, {young} are younger "
        "than the grace"
    )


async def abort_uploads(deletion: Deletion) -> str:
    """Adds the unfinished uploads to what was found; what was done about them, in words."""
    from millrace.broker.background.unfinished_uploads import NOT_LISTED, is_nobodys
    from millrace.broker.inspection.bucket_check import Finding, Kind
    from millrace.s3stream.objects.keys import objects_prefix, parse_object_key

    cluster_id, image = deletion.inspected.cluster_id, deletion.inspected.image
    try:
        listed = [upload async for upload in deletion.store.list_uploads(objects_prefix(cluster_id))]
    except NOT_LISTED as error:
        return f"unfinished uploads could not be listed ({error}): let a rule of the bucket expire them"
    for upload in listed:
        object_id, hours = (
            parse_object_key(cluster_id, upload.key),
            (deletion.now_ms - upload.began_ms) / 3_600_000,
        )
        number = -1 if object_id is None else object_id
        deletion.found.findings.append(
            Finding(Kind.UPLOAD, f"began {hours:.1f} hours ago", number, upload.key)
        )
    if not listed:
        return ""
    nobodys = [upload for upload in listed if is_nobodys(upload, cluster_id, image)]
    old = [upload for upload in nobodys if deletion.is_old(upload.began_ms)]
    told = f"{len(listed)} unfinished uploads, {len(nobodys)} of them nobody's"
    if not deletion.is_asked:
        return f"{told}; {len(old)} of these are older than the grace and are aborted with --delete-orphans"
    if deletion.inspected.running_pid:
        return f"{told}; none was aborted, for a broker is running on the directory"
    if foreign := await deletion.newer():
        return f"{told}; none was aborted: {foreign}"
    failures = 0
    for upload in old:
        try:
            await upload.abort()
        except NOT_LISTED:
            failures += 1
    young = len(nobodys) - len(old)
    return (
        f"{told}; {len(old) - failures} were aborted, {failures} could not be, {young} are younger than "
        "the grace"
    )


def summary(found: Checked) -> dict[str, Any]:
    progress = found.progress
    counts: dict[str, int] = {}
    for finding in found.findings:
        counts[finding.kind.value] = counts.get(finding.kind.value, 0) + 1
    return {
        "objects": progress.objects,
        "blocks": progress.blocks,
        "bytes": progress.bytes,
        "streams": found.stream_count,
        "prepared": found.prepared_count,
        "pending_deletion": found.pending_deletion_count,
        "findings": counts,
    }


def as_json(outcome: Outcome) -> str:
    names, log = outcome.names, outcome.log
    fields = ("kind", "what", "object_id", "key", "stream_id", "start", "end")
    listed = [
        {**{name: getattr(finding, name) for name in fields}, "stream": str(names.get(finding.stream_id, ""))}
        for finding in outcome.found.findings
    ]
    told: dict[str, Any] | None = {"fault": outcome.log_fault} if outcome.log_fault else None
    if log is not None:
        told = {**log.facts, "is_sound": log.is_sound}
    inspected = outcome.inspected
    about = {"cluster_id": inspected.cluster_id, "running": inspected.running_pid, "sound": not outcome.code}
    return json.dumps(
        {**about, **summary(outcome.found), **outcome.done, "list": listed, "wal": told}, indent=1
    )


def as_text(outcome: Outcome) -> str:
    found, inspected = outcome.found, outcome.inspected
    lines = [f"cluster {inspected.cluster_id}, metadata up to offset {inspected.image.offset}", ""]
    if found.findings:
        lines += [*finding_lines(found.findings, outcome.names), ""]
    lines += [words for words in outcome.done.values() if words]
    told = summary(found)
    lines.append(
        f"{counted(told['objects'], 'object')}, {counted(told['blocks'], 'block')}, "
        f"{size_text(told['bytes'])} read; "
        f"{counted(told['streams'], 'stream')}; {told['prepared']} prepared, {told['pending_deletion']} "
        "pending deletion"
    )
    if outcome.log is not None:
        from millrace.broker.cli.wal_objects import overview

        lines += ["", "the write-ahead log:", *overview(outcome.log), ""]
    if outcome.log_fault:
        lines.append(f"the write-ahead log could not be checked: {outcome.log_fault}")
    if outcome.harm_count:
        lines.append(f"NOT sound: {counted(outcome.harm_count, 'finding')}")
    else:
        lines.append("sound, but for what could not be checked" if outcome.log_fault else "sound")
    return "\n".join(lines)


def finding_lines(findings: Sequence[Finding], names: Mapping[int, StreamName]) -> list[str]:
    """What does harm comes first, so that it is seen where not all is shown."""
    shown = sorted(findings, key=lambda one: not one.is_harm)[:SHOWN_MAX]
    rows = [
        (
            finding.kind.value,
            finding.object_id if finding.object_id >= 0 else "",
            finding.stream_id if finding.stream_id >= 0 else "",
            names.get(finding.stream_id, "no more in metadata") if finding.stream_id >= 0 else "",
            f"[{finding.start}, {finding.end})" if finding.start >= 0 else "",
            finding.what,
            finding.key,
        )
        for finding in shown
    ]
    lines = table(("finding", "object", "stream", "of", "offsets", "what", "key"), rows)
    if len(findings) > len(shown):
        lines.append(f"... and {len(findings) - len(shown)} more: --json lists all")
    return lines
