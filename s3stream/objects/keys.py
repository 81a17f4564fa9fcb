"""Names of objects in the bucket.

    {cluster id}/objects/{reversed hex of the id, 8 digits}/{object id}

Keys begin with the cluster's id, so that clusters share a bucket without meeting. The eight digits are the
low 32 bits of the id, backwards: consecutive ids differ in their first character, which spreads the load over
a store's partitions. The name ends in the whole id, so that it is unique beyond 2**32 and can be read back.
Other kinds of key (WAL, snapshots) stand under the cluster's id beside `objects/` and are named by their own
packages. An object is found through metadata; a listing is for fsck alone.
"""

from __future__ import annotations

from millrace.s3stream.ids import ObjectId


def objects_prefix(cluster_id: str) -> str:
    """Every object of the cluster has a key that begins so, and no other key does."""
    return f"{cluster_id}/objects/"


def object_key(cluster_id: str, object_id: ObjectId) -> str:
    assert object_id >= 0, object_id
    return f"{objects_prefix(cluster_id)}{_spread(object_id)}/{object_id}"


def parse_object_key(cluster_id: str, key: str) -> ObjectId | None:
    """The id in a key of this cluster, or None when `object_key` would not have made that key."""
    prefix = objects_prefix(cluster_id)
    number = key.rpartition("/")[2]
    if not key.startswith(prefix) or not number.isdecimal():
        return None
    object_id = ObjectId(int(number))
    return object_id if object_key(cluster_id, object_id) == key else None


def _spread(object_id: int) -> str:
    return f"{object_id & 0xFFFFFFFF:08x}"[::-1]
