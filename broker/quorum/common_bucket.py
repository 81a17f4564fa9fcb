"""Whether a broker's bucket is the one into which whoever leads the controllers puts the metadata.

A copy of the bucket names the same cluster and holds all that is older, so nothing that lies in it tells it
from its original. What is put after the copy does: the controller that leads puts all that is committed, and
says so; then a broker's own bucket has it, or is another one. Not here: asking whoever leads
(remote_backup.py); another cluster's bucket, or an older one (identity/binding.py, identity/bucket_age.py).
"""

from __future__ import annotations

import asyncio
from typing import Final

from millrace.kraft.bucket.reader import survey
from millrace.runtime.objectstore import ObjectStore

LOOKS: Final = 3  # before it is believed that nothing is there: some stores list late
LOOK_AGAIN_S: Final = 0.5


class CommonBucket:
    """`store` is this broker's, `bucket` its name in the settings."""

    def __init__(self, store: ObjectStore, bucket: str, cluster_id: str) -> None:
        self._store = store
        self._bucket = bucket
        self._cluster_id = cluster_id

    async def why_another(self, leader: int, end: int) -> str:
        """Once `leader` has said that its bucket has the metadata up to `end`: why that bucket is not this
        one, "" where it is. Raises what the store raises."""
        highest = None
        for look in range(LOOKS):
            if look:
                await asyncio.sleep(LOOK_AGAIN_S)
            highest = (await survey(self._store, self._cluster_id)).highest
            if highest is not None and highest[0] >= end:
                return ""
        held = "none" if highest is None else f"metadata up to offset {highest[0]}"
        return (
            f"{self._bucket} does not have the metadata that controller {leader}, which leads, has put into "
            f"its own bucket up to offset {end}: it holds {held}, and is a copy, or that one is: give all "
            "nodes of the cluster one bucket (s3.data.buckets)"
        )
