"""Our own records of the metadata log: streams and objects, keys from 501 on. Declared as in
metadata_records.py.

Kafka's tools step over keys they do not know. Not here: which version is written (kraft/image/records.py),
what a record does to the image (kraft/tables/). Kept true: a number is never used again for something else,
and a record says everything its effect needs, its time included: applying it asks no clock.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int8, Int32, Int64, Uuid, Versions, array, wire


@dataclass(slots=True)
class StreamRecord:
    """A stream as it now is, whole. `role` and `state` are numbers of s3stream/ids.py and
    kraft/tables/streams.py."""

    KEY = 501
    VERSIONS = Versions(0, 0, flexible=0)

    stream_id: Int64 = 0
    topic_id: Uuid = NO_UUID
    partition_index: Int32 = 0
    role: Int8 = 0
    epoch: Int64 = 0
    node_id: Int32 = -1
    state: Int8 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = 0  # of what is committed as objects


@dataclass(slots=True)
class RemoveStreamsRecord:
    """The streams go; an object none of whose ranges is alive any more is marked for deletion at
    `time_ms`."""

    KEY = 502
    VERSIONS = Versions(0, 0, flexible=0)

    stream_ids: list[Int64] = array()
    time_ms: Int64 = 0


@dataclass(slots=True)
class TrimStreamRecord:
    """The stream starts at `start_offset`, and ends no earlier.

    An object none of whose ranges is alive any more is marked for deletion at `time_ms`.
    """

    KEY = 503
    VERSIONS = Versions(0, 0, flexible=0)

    stream_id: Int64 = 0
    start_offset: Int64 = 0
    time_ms: Int64 = 0


@dataclass(slots=True)
class PrepareObjectsRecord:
    """`object_count` ids from `first_object_id` on may appear in the store.

    What is not committed by the deadline is marked for deletion later, by a record of its own.
    """

    KEY = 504
    VERSIONS = Versions(0, 0, flexible=0)

    first_object_id: Int64 = 0
    object_count: Int32 = 0
    node_id: Int32 = -1
    deadline_ms: Int64 = 0
    writer: Int64 = wire(0, tag=0)  # token of the incarnation that may write them; 0: millrace.version 0


@dataclass(slots=True)
class CommitObjectRecord:
    """A prepared object holds `ranges` from now on, packed as in kraft/tables/packing.py. Each begins at its
    stream's end and moves it.

    A stream-set object takes the next place of the group that is named by its first object's id. An object of
    which no range is alive is marked for deletion at once, at `time_ms`.
    """

    KEY = 505
    VERSIONS = Versions(0, 0, flexible=0)

    object_id: Int64 = 0
    kind: Int8 = 0
    size_bytes: Int64 = 0
    order_id: Int64 = 0
    time_ms: Int64 = 0
    node_id: Int32 = -1
    group_id: Int64 = -1
    group_slot: Int8 = 0
    ranges: bytes = b""


@dataclass(slots=True)
class PendingDeletionRecord:
    """The objects hold nothing that may be read; their files go after a grace. `was_committed`: they once
    were. `with_links`: they are composites, and what they link goes with them."""

    KEY = 506
    VERSIONS = Versions(0, 0, flexible=0)

    object_ids: list[Int64] = array()
    time_ms: Int64 = 0
    was_committed: bool = False
    with_links: bool = False


@dataclass(slots=True)
class RemoveObjectsRecord:
    """The files of these objects pending deletion are gone."""

    KEY = 507
    VERSIONS = Versions(0, 0, flexible=0)

    object_ids: list[Int64] = array()


@dataclass(slots=True)
class NextIdsRecord:
    """In snapshots: the ids that come next, since the highest ever given may no longer be in any table. In
    the log where a quorum of one goes on without a majority that may have given more."""

    KEY = 508
    VERSIONS = Versions(0, 0, flexible=0)

    next_stream_id: Int64 = 0
    next_object_id: Int64 = 0


@dataclass(slots=True)
class MadeObject:
    """A prepared object that compaction made; fields as in CommitObjectRecord. No range moves its stream's
    end."""

    object_id: Int64 = 0
    kind: Int8 = 0
    size_bytes: Int64 = 0
    order_id: Int64 = 0
    time_ms: Int64 = 0
    group_id: Int64 = -1
    group_slot: Int8 = 0
    ranges: bytes = b""


@dataclass(slots=True)
class CompactObjectsRecord:
    """At `time_ms` the made objects take over what of their ranges the sources held.

    The sources (replaced, superseded, linked) are committed no more, whatever is left of them. Linked ones
    are forgotten: a composite among the made links their files. Replaced and superseded ones are marked for
    deletion, a replaced composite with what it links; and so are dropped links, of which nothing was known.
    """

    KEY = 509
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = -1
    time_ms: Int64 = 0
    made: list[MadeObject] = array()
    replaced_ids: list[Int64] = array()
    superseded_ids: list[Int64] = array()
    linked_ids: list[Int64] = array()
    dropped_link_ids: list[Int64] = array()


@dataclass(slots=True)
class CommittedObjectRecord:
    """In snapshots: a committed object as it is; who names it follows in StreamHolders."""

    KEY = 510
    VERSIONS = Versions(0, 0, flexible=0)

    object_id: Int64 = 0
    kind: Int8 = 0
    size_bytes: Int64 = 0
    time_ms: Int64 = 0
    node_id: Int32 = -1
    stream_id: Int64 = wire(-1, tag=0)  # of an object of one stream: what of it
    start_offset: Int64 = wire(0, tag=1)
    end_offset: Int64 = wire(0, tag=2)
    order_id: Int64 = wire(0, tag=3)  # of a stream-set object, as the next two
    group_id: Int64 = wire(-1, tag=4)
    group_slot: Int8 = wire(0, tag=5)
    writer: Int64 = wire(0, tag=6)  # as in PrepareObjectsRecord


@dataclass(slots=True)
class StreamSetGroupRecord:
    """In snapshots: a group as it is. `members` by place, -1 for what is gone; `is_open`: the node's next
    object goes there."""

    KEY = 511
    VERSIONS = Versions(0, 0, flexible=0)

    group_id: Int64 = 0
    node_id: Int32 = -1
    purpose: Int8 = 0
    is_open: bool = False
    members: list[Int64] = array()


@dataclass(slots=True)
class StreamHoldersRecord:
    """In snapshots: who holds what of a stream, packed as in kraft/tables/packing.py."""

    KEY = 512
    VERSIONS = Versions(0, 0, flexible=0)

    stream_id: Int64 = 0
    holders: bytes = b""


@dataclass(slots=True)
class NodeWalRecord:
    """A write-ahead log of a node as it now is, whole. `state` is a number of kraft/tables/wals.py."""

    KEY = 513
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = -1
    wal_id: Uuid = NO_UUID
    kind: str = ""
    address: str = ""
    owner_epoch: Int64 = -1
    incarnation: Uuid = NO_UUID
    position: Int64 = 0
    state: Int8 = 0
    # Of a log that a restore found: streams from this id on were made after what it read. -1: all are known.
    unknown_from: Int64 = wire(-1, tag=0)


@dataclass(slots=True)
class RemoveNodeWalRecord:
    """The node has this write-ahead log no more: nothing in it is needed."""

    KEY = 514
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = -1
    wal_id: Uuid = NO_UUID


@dataclass(slots=True)
class MoveNodeWalRecord:
    """Everything below `position` of this write-ahead log is committed. Stands in the batch of the commit
    that moved it."""

    KEY = 515
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = -1
    wal_id: Uuid = NO_UUID
    position: Int64 = 0


@dataclass(slots=True)
class NodeClaimRecord:
    """An incarnation is about to claim the place `number` in a series of ownership. `node_id` -1: the
    metadata log's writer."""

    KEY = 516
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = -1
    number: Int64 = 0
    incarnation: Uuid = NO_UUID


@dataclass(slots=True)
class FailoverRecord:
    """The write-ahead log of a fenced broker is to be recovered by another, as it now is, whole. From
    millrace.version 2 on."""

    KEY = 517
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = -1
    by_node: Int32 = -1  # -1: nobody who is there can
    unable_epochs: list[Int64] = array()  # broker epochs of those that said they cannot
    reason: str = ""  # why, of the last of them


@dataclass(slots=True)
class EndFailoverRecord:
    """Nothing of the broker's is to be recovered by another any more."""

    KEY = 518
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = -1


@dataclass(slots=True)
class OwedRangeRecord:
    """[start, end) of a stream is in a write-ahead log of `node_id` alone, appended there under `epoch`; the
    stream ends at its end, or later. Until it is committed nothing else holds those offsets. From
    millrace.version 3 on."""

    KEY = 519
    VERSIONS = Versions(0, 0, flexible=0)

    stream_id: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = 0
    node_id: Int32 = -1
    epoch: Int64 = 0
    wal_id: Uuid = NO_UUID


@dataclass(slots=True)
class LoseOwedRangeRecord:
    """What `node_id` owes of the stream is given up: nothing holds those offsets any more, and readers step
    over them. From millrace.version 3 on."""

    KEY = 520
    VERSIONS = Versions(0, 0, flexible=0)

    stream_id: Int64 = 0
    node_id: Int32 = -1


STREAM_RECORDS: tuple[type, ...] = (
    StreamRecord,
    RemoveStreamsRecord,
    TrimStreamRecord,
    PrepareObjectsRecord,
    CommitObjectRecord,
    PendingDeletionRecord,
    RemoveObjectsRecord,
    NextIdsRecord,
    CompactObjectsRecord,
    CommittedObjectRecord,
    StreamSetGroupRecord,
    StreamHoldersRecord,
    NodeWalRecord,
    RemoveNodeWalRecord,
    MoveNodeWalRecord,
    NodeClaimRecord,
    FailoverRecord,
    EndFailoverRecord,
    OwedRangeRecord,
    LoseOwedRangeRecord,
)
