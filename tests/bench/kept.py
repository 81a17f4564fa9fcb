"""Settings of a broker that keeps what it is given in its log, and uploads nothing of it meanwhile. Used by
cluster.py and elections.py."""

KEPT = {
    "s3.wal.upload.interval.ms": "3600000",
    "s3.wal.upload.threshold": "3GiB",
    "s3.wal.cache.size": "4GiB",
}
