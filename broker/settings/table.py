"""The settings that this broker obeys, one row each, and the whole table put together. Pure: rows only.

Not here: what the texts become (key.py), the settings made of them (config.py). The rows of what is
stored and of what is refused stand in stored.py and refused.py, so that every broker key of
Kafka 4.4 has one row somewhere. Kept true: an obeyed key changes a field of BrokerSettings, and each field
has a reader (both tested); names are unique.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.broker.settings.key import BOOLEAN, INT, LIST, LONG, STRING, Key
from millrace.broker.settings.quorum_table import QUORUM
from millrace.broker.settings.refused import REFUSED_KEYS
from millrace.broker.settings.stored import STORED_KEYS

CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
FOREVER = "9223372036854775807"
CLIENT_LISTENER = "PLAINTEXT://127.0.0.1:9092"  # of a broker that names none

NODE = (
    Key("node.id", INT, "1", "This node's id in the cluster; it is bound to the data directory.", low=0),
    Key("broker.id", INT, None, "The old name of node.id.", low=-1),
    Key(
        "process.roles",
        LIST,
        "broker,controller",
        "The parts this process runs: both, or controller or broker alone in a cluster of several nodes.",
        choices=("broker", "controller"),
    ),
    Key("broker.rack", STRING, None, "The zone that clients are told this broker stands in."),
    Key(
        "cluster.id",
        STRING,
        None,
        "The id a new cluster gets, 22 characters of base64; without it one is made up, but for a cluster of "
        "several nodes, which have to be given the same.",
        is_ours=True,
    ),
    Key(
        "listeners",
        LIST,
        CLIENT_LISTENER,
        "Addresses served; an empty host is every address. While a broker runs others come and go, and those "
        "that clients are told of stay.",
        shape="endpoints",
    ),
    Key(
        "advertised.listeners",
        LIST,
        None,
        "What clients are told; without it, the address that they reached. A broker among several that "
        "listens on every address has to say it.",
        shape="endpoints",
    ),
    Key(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The protocol of each listener name; one that is in use must map to PLAINTEXT.",
    ),
    *QUORUM,
    Key(
        "log.dirs",
        LIST,
        None,
        "The metadata log's folder; the first entry is used. Records live in the data bucket.",
    ),
    Key("log.dir", LIST, None, "As log.dirs, which wins."),
    Key(
        "metadata.log.dir", STRING, None, "The metadata log's folder, where it is not the first of log.dirs."
    ),
    Key(
        "admin.listener",
        STRING,
        "127.0.0.1:9644",
        "HOST:PORT of /health and /metrics; empty turns it off.",
        shape="host:port",
        is_ours=True,
    ),
    Key(
        "log.level",
        STRING,
        "INFO",
        "How much is logged: TRACE, DEBUG, INFO, WARN, ERROR or FATAL, and PART=LEVEL for a part of the code "
        "(INFO,wal=DEBUG), 32 at most. Kafka's"
        " broker-logger API sets levels over it until the process ends.",
        is_ours=True,
    ),
    Key(
        "request.timeout.ms",
        INT,
        "30000",
        "How long a broker waits for the controller's answer before it refuses.",
        low=1,
    ),
)

CONNECTIONS = (
    Key("socket.request.max.bytes", INT, "104857600", "A larger request closes its connection.", low=1),
    Key(
        "socket.listen.backlog.size",
        INT,
        "1024",
        "Connections the system holds before they are accepted; one more waits a second.",
        low=1,
    ),
    Key(
        "max.connections",
        INT,
        "2147483647",
        "One connection more is closed at once. What the process needs of its open files is kept back, so "
        "that fewer may fit; where a broker is a controller too, a quarter is the controller's listener's.",
        low=0,
    ),
    Key(
        "max.connections.per.ip",
        INT,
        "2147483647",
        "One connection more from an address is closed at once.",
        low=0,
    ),
    Key(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "ADDRESS:COUNT pairs, by commas, that replace max.connections.per.ip for an IP address; names are "
        "not looked up.",
    ),
    Key(
        "connections.max.idle.ms",
        LONG,
        "600000",
        "A connection that is quiet for this long is closed; negative: never.",
    ),
    Key(
        "queued.max.request.bytes",
        LONG,
        "-1",
        "Fixes the part of memory for requests in flight; -1: a quarter of what states leave.",
        low=-1,
        shape="bytes",
    ),
    Key(
        "memory.max.bytes",
        LONG,
        "-1",
        "Bounds caches, requests in flight and clients' states together; -1: a quarter of the machine's or "
        "cgroup's memory, at least 128 MiB.",
        low=-1,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "states.memory.max.bytes",
        LONG,
        "-1",
        "Fixes the part of memory for groups, committed offsets and producers' states, 1 MiB at least; -1: "
        "an eighth. At the bound whoever holds "
        "most is told to try again, and what exists goes on.",
        low=-1,
        shape="bytes",
        is_ours=True,
    ),
)

TOPICS = (
    Key("num.partitions", INT, "1", "Partitions of a topic that is created without a count.", low=1),
    Key("auto.create.topics.enable", BOOLEAN, "true", "A client that asks for an unknown topic creates it."),
    Key("delete.topic.enable", BOOLEAN, "true", "When false, deleting a topic is refused."),
    Key(
        "message.max.bytes",
        INT,
        "1048588",
        "A larger batch is refused, where the topic sets no max.message.bytes.",
        low=0,
    ),
    Key(
        "compression.type",
        STRING,
        "producer",
        "Other than producer: batches are recompressed on arrival, which costs a thread's time and up to a "
        "sixteenth of memory.max.bytes (16 to"
        " 100 MiB); one that unpacks to more is refused.",
        choices=CODECS,
    ),
    Key(
        "record.validation",
        STRING,
        "header",
        "What of a batch is judged before it is taken. header: what its header says; records that no "
        "consumer can read are taken. records: each of"
        " them, as Kafka does; what is compressed is unpacked for it, with up to a sixteenth of "
        "memory.max.bytes (16 to 100 MiB), and refused where"
        " it comes to more.",
        choices=("header", "records"),
    ),
    Key(
        "compression.gzip.level",
        INT,
        "-1",
        "Level used when batches are recompressed with gzip.",
        low=-1,
        high=9,
    ),
    Key(
        "compression.lz4.level",
        INT,
        "9",
        "Level used when batches are recompressed with lz4.",
        low=1,
        high=17,
    ),
    Key(
        "compression.zstd.level",
        INT,
        "3",
        "Level used when batches are recompressed with zstd; at most 9 for those above 1 MiB unpacked.",
        low=-131072,
        high=22,
    ),
    Key(
        "log.cleanup.policy",
        LIST,
        "delete",
        "What becomes of old records: deleted, or compacted by key.",
        choices=("compact", "delete"),
    ),
    Key(
        "log.retention.ms",
        LONG,
        None,
        "Records older than this are dropped; -1: never. Wins over minutes and hours.",
        low=-1,
    ),
    Key("log.retention.minutes", INT, None, "As log.retention.ms; wins over hours.", low=-1),
    Key("log.retention.hours", INT, "168", "As log.retention.ms, in hours.", low=-1),
    Key(
        "log.retention.bytes",
        LONG,
        "-1",
        "A partition larger than this loses its oldest segments; -1: without bound.",
        low=-1,
    ),
    Key(
        "log.retention.check.interval.ms",
        LONG,
        "300000",
        "How often retention looks; records stay up to this much longer.",
        low=1,
    ),
    Key(
        "clock.unconfirmed.gap.max.ms",
        LONG,
        "86400000",
        "Without a store that tells the time, a node that was off for longer deletes nothing for that time's "
        "age "
        "until the clock is confirmed (millrace clock). An hour is always believed.",
        low=0,
        is_ours=True,
    ),
    Key(
        "log.segment.bytes",
        INT,
        "1073741824",
        "A segment, the unit of retention, is closed at this size.",
        low=1048576,
    ),
    Key("log.roll.ms", LONG, None, "A segment is closed at this age; wins over hours.", low=1),
    Key("log.roll.hours", INT, "168", "As log.roll.ms, in hours.", low=1),
    Key(
        "log.roll.jitter.ms",
        LONG,
        None,
        "Segments' ages differ by up to this, so that they do not all close at once.",
        low=0,
    ),
    Key("log.roll.jitter.hours", INT, "0", "As log.roll.jitter.ms, in hours.", low=0),
    Key(
        "log.index.interval.bytes",
        INT,
        "4096",
        "Bytes between entries of the time index: how near a search by time lands.",
        low=0,
    ),
    Key(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "Whose clock stamps records: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    Key(
        "log.message.timestamp.before.max.ms",
        LONG,
        FOREVER,
        "A batch stamped further in the past is refused.",
        low=0,
    ),
    Key(
        "log.message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "A batch stamped further in the future is refused.",
        low=0,
    ),
    Key(
        "fetch.max.bytes", INT, "57671680", "No fetch is answered with more, whatever it asks for.", low=1024
    ),
    Key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "1000",
        "Fetch sessions kept; clients beyond it, or beyond a quarter of the memory for requests in flight, "
        "send full requests.",
        low=0,
    ),
)

GROUPS = (
    Key(
        "group.initial.rebalance.delay.ms",
        INT,
        "3000",
        "An empty group waits this long for more members.",
        low=0,
    ),
    Key("group.min.session.timeout.ms", INT, "6000", "A shorter session timeout is refused.", low=1),
    Key("group.max.session.timeout.ms", INT, "1800000", "A longer session timeout is refused.", low=1),
    Key("group.max.size", INT, "2147483647", "One member more is refused.", low=1),
    Key(
        "offsets.topic.num.partitions",
        INT,
        "50",
        "Partitions of __consumer_offsets when it is made; CreatePartitions is refused there.",
        low=1,
        high=10_000,
    ),
    Key("offsets.topic.segment.bytes", INT, "104857600", "segment.bytes of __consumer_offsets.", low=1048576),
    Key(
        "offsets.retention.minutes",
        INT,
        "10080",
        "A group without members loses its offsets after this long.",
        low=1,
    ),
    Key(
        "offsets.retention.check.interval.ms",
        LONG,
        "600000",
        "How often expired offsets are looked for.",
        low=1,
    ),
    Key("offset.metadata.max.bytes", INT, "4096", "Longer text beside a committed offset is refused.", low=0),
    Key(
        "producer.id.expiration.ms",
        INT,
        "86400000",
        "An idempotent producer that is quiet for this long is forgotten.",
        low=1,
    ),
    Key(
        "producer.id.expiration.check.interval.ms",
        INT,
        "600000",
        "How often forgotten producers are looked for.",
        low=1,
    ),
)

CONTROLLER = (
    Key(
        "metadata.log.segment.bytes",
        INT,
        "67108864",
        "A segment of the metadata log is closed at this size.",
        low=8388608,
    ),
    Key(
        "metadata.log.max.record.bytes.between.snapshots",
        LONG,
        "20971520",
        "A snapshot is made after this much metadata: bounds what a start replays.",
        low=1,
    ),
)

STORAGE = (
    Key(
        "s3.data.buckets", LIST, None, "Where objects go: 0@s3://BUCKET?..., or 0@file:///DIR.", is_ours=True
    ),
    Key(
        "s3.wal.path",
        STRING,
        None,
        "The write-ahead log: 0@file:///FILE-OR-DEVICE?capacity=&iops=&fencing=, "
        "0@s3://BUCKET?batchInterval=&hedge=, or 0@file:///DIR/ with a slash.",
        is_ours=True,
    ),
    Key(
        "s3.wal.capacity",
        LONG,
        "-1",
        "Size of the log where s3.wal.path has no capacity; a file takes it at once. -1: a log that is there "
        "keeps its size; a new one takes 2 GiB,"
        " in a file no more than a tenth of what is free (rounded down to a power of two, 64 MiB at least), "
        "on a device no more than it has.",
        low=-1,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "wal.corruption",
        STRING,
        "refuse",
        "What a start does about a damaged record in the middle of the log: refuse, skip over it, or "
        "truncate the log before it.",
        choices=("refuse", "skip", "truncate"),
        is_ours=True,
    ),
    Key(
        "objects.corruption",
        STRING,
        "refuse",
        "What a partition does about producers when batches behind its last checkpoint, which tell of them, "
        "are damaged or missing in the bucket:"
        " refuse all, until the objects are back; or skip these batches, and forget who may have written "
        "them. Either way the rest is read.",
        choices=("refuse", "skip"),
        is_ours=True,
    ),
    Key(
        "wal.direct.io",
        STRING,
        "prefer",
        "Whether the log bypasses the page cache; require refuses to start where it cannot.",
        choices=("prefer", "require", "never"),
        is_ours=True,
    ),
    Key(
        "wal.lost.accept",
        BOOLEAN,
        "false",
        "For one start after the log was lost: gives up what only it held, and begins a new one.",
        is_ours=True,
    ),
    Key(
        "s3.wal.cache.size",
        LONG,
        "-1",
        "Fixes the log cache's part of memory; -1: a half.",
        low=-1,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "s3.block.cache.size",
        LONG,
        "-1",
        "Fixes the block cache's part of memory; -1: a quarter of what states leave.",
        low=-1,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "s3.wal.upload.threshold",
        LONG,
        "-1",
        "Bytes that wait before an upload begins: fewer objects, a longer recovery. -1: 500 MB.",
        low=-1,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "s3.object.delete.retention.minutes",
        INT,
        "1",
        "An object that nothing needs any more stays in the store this long, for reads that began before.",
        low=0,
        is_ours=True,
    ),
    Key(
        "s3.metadata.upload.interval.ms",
        INT,
        "20000",
        "Committed metadata that nothing waits for is in the bucket after this long: what a restore may miss "
        "of it where log.dirs is lost.",
        low=100,
        is_ours=True,
    ),
    Key(
        "s3.wal.upload.interval.ms",
        LONG,
        "60000",
        "Age at which an upload begins: bounds requests an hour at low rates.",
        low=1,
        is_ours=True,
    ),
    Key(
        "s3.stream.object.split.size",
        LONG,
        "8388608",
        "A stream with this much in an upload gets its own object.",
        low=1,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "s3.object.block.size",
        LONG,
        "1048576",
        "Where data is cut inside objects: the unit of reads of history.",
        low=4096,
        high=256 << 20,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "s3.object.part.size",
        LONG,
        "33554432",
        "Objects above this are put in parts of this size.",
        low=5242880,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "s3.network.baseline.bandwidth",
        LONG,
        "1073741824",
        "Bytes a second between node and store, each way: beyond it reads of history and compaction wait, "
        "what is produced does not.",
        low=1048576,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "s3.network.bandwidth.mode",
        STRING,
        "separate",
        "shared: both ways together have twice the bandwidth, rather than each its own.",
        choices=("separate", "shared"),
        is_ours=True,
    ),
    Key(
        "s3.max.stream.num.per.stream.set.object",
        INT,
        "20000",
        "Streams that one upload may hold.",
        low=1,
        is_ours=True,
    ),
    Key(
        "s3.max.stream.object.num.per.commit",
        INT,
        "10000",
        "Objects of one stream that one compaction of stream-set objects may make.",
        low=2,
        high=10_000,
        is_ours=True,
    ),
    Key(
        "s3.stream.set.object.compaction.interval.minutes",
        INT,
        "5",
        "Pause between two looks at this node's stream-set objects, if any came (a full store has one at "
        "once); 0: none to speak of, for tests.",
        low=0,
        is_ours=True,
    ),
    Key(
        "s3.stream.set.object.compaction.force.split.minutes",
        INT,
        "120",
        "So old, and then at this pause, a stream-set object is looked into, and written anew when half of "
        "it is trimmed or large.",
        low=1,
        is_ours=True,
    ),
    Key(
        "s3.stream.set.object.compaction.stream.split.size",
        LONG,
        "25165824",
        "A stream with this much in merged objects gets its own. Smaller: more objects, each a PUT and a "
        "place in metadata.",
        low=1,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "s3.stream.set.object.compaction.max.num",
        INT,
        "500",
        "Objects that one compaction reads.",
        low=2,
        is_ours=True,
    ),
    Key(
        "s3.stream.set.object.compaction.cache.size",
        LONG,
        "268435456",
        "Memory of compaction, up to three tenths of the block cache's part. From 144 MiB on it asks for "
        "less than 100 PUT and 100 GET a GiB.",
        low=4194304,
        shape="bytes",
        is_ours=True,
    ),
    Key(
        "s3.stream.object.compaction.interval.minutes",
        INT,
        "30",
        "Pause between two looks at the objects of streams that are open here, if any changed; 0: none to "
        "speak of, for tests.",
        low=0,
        is_ours=True,
    ),
    Key(
        "s3.stream.object.compaction.max.size.bytes",
        LONG,
        "10737418240",
        "A composite links no more than this, and a stream's objects are merged up to it; stream-set objects "
        "up to four times this together.",
        low=1,
        shape="bytes",
        is_ours=True,
    ),
)

OBEYED_KEYS: tuple[Key, ...] = NODE + CONNECTIONS + TOPICS + GROUPS + CONTROLLER + STORAGE

# Keys of Kafka before 4.0, gone there: named so that their users are not told of a misspelling.
_REMOVED = """
    advertised.host.name advertised.port broker.id.generation.enable control.plane.listener.name host.name
    inter.broker.protocol.version log.message.downconversion.enable log.message.format.version
    log.message.timestamp.difference.max.ms offsets.commit.required.acks password.encoder.secret port
    reserved.broker.max.id zookeeper.connect
    zookeeper.connection.timeout.ms zookeeper.max.in.flight.requests zookeeper.metadata.migration.enable
    zookeeper.session.timeout.ms zookeeper.set.acl
"""
REMOVED: tuple[str, ...] = tuple(_REMOVED.split())


def all_keys() -> Mapping[str, Key]:
    """Every key by name."""
    keys = (*OBEYED_KEYS, *STORED_KEYS, *REFUSED_KEYS)
    table = {key.name: key for key in keys}
    assert len(table) == len(keys), [key.name for key in keys if table[key.name] is not key]
    return table
