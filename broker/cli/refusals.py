"""What an operator is told when a node cannot start or cannot go on: one plain sentence, with the remedy
where there is one. Pure.

Errors say themselves what is wrong (their `__str__`); what can be done about it is said here, where the
settings are known. An error that is not of the project, and no system call's, is a defect of ours: it has no
sentence, and its trace is printed instead.
"""

from __future__ import annotations

from millrace.broker.config import BrokerSettings
from millrace.broker.identity.binding import BindingRefused
from millrace.broker.settings.addresses import join_host_port
from millrace.kraft.errors import (
    LogCorrupt,
    LogMismatch,
    SnapshotCorrupt,
    UnknownRecord,
    VotersChanged,
    VotersDiffer,
)
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.disk import DiskFailed, DiskFull, DiskLocked, DiskTaken
from millrace.runtime.disk.opening import DirectRefused
from millrace.runtime.errors import MillraceError
from millrace.runtime.net import ListenFailed
from millrace.runtime.objectstore import (
    BucketMissing,
    FolderDenied,
    ObjectMissing,
    SaidByStore,
    StoreContradicts,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
)
from millrace.runtime.objectstore.watched import WAL_STORE
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap, StreamFenced
from millrace.wal.errors import (
    WalClaimLost,
    WalClaimsWantDirect,
    WalCorrupt,
    WalFenced,
    WalForeign,
    WalHeaderLost,
    WalMismatch,
    WalOutdated,
)
from millrace.wal.opening import kind_of

RESTORE_LOG = (
    "nothing was changed; put a copy of the metadata log's directory back, or build it from the "
    "bucket with `millrace restore`"
)
FETCH_LOG = (
    "nothing was changed. Put no copy there: an older one forgets votes, and what was acknowledged. Where "
    "other nodes have the metadata, start this one with an empty log directory (log.dirs) while they have a "
    "leader, and it fetches all from them; docs/quorum.md says what becomes of a voter. Where none has it, "
    "build one directory from the bucket with `millrace restore`"
)


def sentence_of(error: BaseException, settings: BrokerSettings) -> str | None:
    """None for a defect."""
    found = _of_start(error, settings) or _of_wal(error, settings) or _of_store(error, settings)
    if found is not None:
        return found
    if isinstance(error, KafkaError):
        return f"the controller refuses this broker ({ErrorCode(error.code).name}): {error.message}"
    if isinstance(error, DiskFailed):
        return f"cannot use the disk at {error}"
    if isinstance(error, DiskFull):
        other = "a smaller log (s3.wal.capacity)" if error.path == settings.wal.target else "another place"
        return f"no room on the disk for {error}: make room, or give {other}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'the system'}: {error.strerror}"
    return str(error) if isinstance(error, MillraceError | OSError | ValueError) else None


def _of_start(error: BaseException, settings: BrokerSettings) -> str | None:
    if isinstance(error, ListenFailed):
        address = join_host_port(error.host, error.port)
        return (
            f"cannot listen on {address}: {error.reason}; set listeners or admin.listener to an address "
            "that is free here"
        )
    if isinstance(error, BindingRefused | DiskLocked):
        return str(error)
    if isinstance(error, UnknownRecord):
        return f"{error}; start the version that wrote it, or a later one"
    if isinstance(error, VotersChanged):
        return (
            f"{error}: the others could go on without it, and both would acknowledge. Set "
            "controller.quorum.voters as it was; or, once no other node of the former quorum runs or will be "
            "started with its former voters, start once with controller.quorum.voters.change.accept=true"
        )
    if isinstance(error, VotersDiffer):
        return (
            f"{error}: give all of them the same list (controller.quorum.voters) and start this one again; "
            "nothing was taken over"
        )
    if isinstance(error, LogMismatch):
        return f"{error}: set it as it was, or give this node a directory of its own (log.dirs)"
    if isinstance(error, LogCorrupt | SnapshotCorrupt):
        is_only_voter = settings.is_alone or settings.controller.voters == (settings.node_id,)
        remedy = RESTORE_LOG if is_only_voter else FETCH_LOG
        return f"the metadata log cannot be used: {error}; {remedy}"
    return None


def _of_wal(error: BaseException, settings: BrokerSettings) -> str | None:
    path = settings.wal.target
    if isinstance(error, WalMismatch):
        return _mismatch(error, path)
    if isinstance(error, WalOutdated):
        return (
            f"{error}; the WAL was not changed: put the current WAL back at {path}, or start once with "
            "wal.lost.accept=true, which gives up "
            "the records that only the current one held"
        )
    if isinstance(error, WalFenced | StreamFenced | DiskTaken):
        return (
            f"another owner has the WAL or the streams of node {settings.node_id} ({error}): a later start "
            "of this node, or, while this process was not heard of, a broker that recovered its WAL, an "
            "unclean election, or whoever unregistered this node; let one process run with this node.id, and "
            "where none runs start it again"
        )
    if isinstance(error, WalClaimLost):
        return (
            f"{error} ({path}), so nothing more is acknowledged: start again, which writes a claim over it "
            "and recovers what was acknowledged"
        )
    if isinstance(error, WalForeign | WalHeaderLost):
        return _no_header(error, path)
    if isinstance(error, WalCorrupt | OffsetGap) or (isinstance(error, ObjectCorrupt) and not error.key):
        kind = kind_of(settings.wal)
        name = kind.name_of(settings.wal)
        see = f"see with `{kind.verify} {name}` what is left, and " if kind.verify else ""
        return (
            f"the WAL {name} cannot be recovered: {error}; the WAL was not changed: {kind.mend}; or {see}"
            "start once with wal.corruption=skip, which gives up what is damaged and is refused where that "
            "leaves a hole in a stream, or "
            "=truncate, which gives up all from the damage on; or start once with wal.lost.accept=true, "
            "which gives up what lies behind a hole, or, with the WAL moved away, all that only it held"
        )
    if isinstance(error, WalClaimsWantDirect):
        return (
            f"{error}: put it where the file system has that, and start without wal.direct.io=never; stopped "
            "in order there, it can be moved away for a new one"
        )
    if isinstance(error, DirectRefused):
        return (
            f"the file system of {path} has no direct I/O: put the WAL on a disk, or set wal.direct.io=prefer"
            " and leave fencing=claim away (s3.wal.path)"
        )
    return None


def _no_header(error: WalForeign | WalHeaderLost, path: str) -> str:
    if isinstance(error, WalForeign):
        return (
            f"{path} holds no WAL, but {error.reason}, which a WAL would overwrite; nothing was changed: "
            "give another file or device "
            "(s3.wal.path); or, if nothing there is needed, delete the file, or clear the device so that all "
            "of it reads as zeros: "
            f"`blkdiscard -z {path}`, or `dd if=/dev/zero of={path} bs=1M` (`wipefs` takes the names away "
            "alone)"
        )
    return (
        f"the WAL {path} has lost its header: {error}; nothing was changed. `millrace wal verify {path}` "
        "shows the records that are left, but no "
        "wal.corruption helps a start here, for where the log begins and ends is not known: put the whole "
        "file or device back from a copy; or "
        "keep it aside, give another (s3.wal.path), and start once with wal.lost.accept=true, which gives up "
        "the records that only it held"
    )


def _mismatch(error: WalMismatch, path: str) -> str:
    if error.field in ("cluster", "node"):
        what = (
            f"the WAL {path} belongs to {error.field} {error.found}, and this is {error.field} "
            f"{error.expected}"
        )
        return f"{what}: give the WAL that belongs to this node (s3.wal.path)"
    if error.field == "reservation":
        return (
            f"the WAL {path} is on no device that keeps other machines out: give it one, or leave "
            "fencing=reservation or reservation=require away (s3.wal.path)"
        )
    if error.field == "fencing":
        return (
            f"the WAL {path} can be fenced by claims only once it has {error.expected}, and it is "
            f"{error.found}: raise millrace.version, or leave fencing=claim away (s3.wal.path)"
        )
    if error.field == "fence":
        return (
            f"the WAL {path} was not closed in order by its last owner, which had fence={error.found}, and "
            f"fence={error.expected} is set: "
            "start once as it was set before and stop in order, then change it (s3.wal.path)"
        )
    if error.field == "version":
        return (
            f"the WAL {path} has version {error.found}, and this millrace writes {error.expected}: start "
            "the later millrace that wrote it"
        )
    return (
        f"the WAL {path} is {error.found} bytes, and {error.expected} are due: give it back the size it "
        "had, or more room"
    )


def _of_store(error: BaseException, settings: BrokerSettings) -> str | None:
    bucket, key = f"the data bucket {settings.data}", "s3.data.buckets"
    if isinstance(error, SaidByStore) and error.store == WAL_STORE:
        bucket, key = f"the store of the WAL {settings.wal}", "s3.wal.path"
    if isinstance(error, BucketMissing):
        return f"{bucket} does not exist: {error}; make it, or give another ({key})"
    if isinstance(error, FolderDenied):
        return (
            f"{bucket} may not be used by this process: {error}; let that user read and write there (chown, "
            "or chmod where it is the owner), "
            f"or give another folder to this node ({key})"
        )
    if isinstance(error, StoreDenied):
        return f"{bucket} refuses us: {error}; mend the credentials or the rights, or {key}"
    if isinstance(error, StoreContradicts):
        return (
            f"{bucket} contradicts itself: {error}; nothing was overwritten: look for a cache or a proxy on "
            "the way that keeps old answers, "
            f"and let `millrace doctor` try the store; or give another ({key})"
        )
    if isinstance(error, StoreUnavailable):
        return f"{bucket} does not answer: {error}; it is needed to start"
    if isinstance(error, StoreFull):
        return f"{bucket} is full: {error}"
    if isinstance(error, ObjectCorrupt):
        return f"in {bucket}, {error}"
    if isinstance(error, ObjectMissing):
        return f"{bucket} lacks what should be in it: {error}"
    return None
