"""Writes a log directory for a quorum whose voters stand in its log (kraft.version 1): what `kafka-storage
format` writes. Durable on return.

    meta.properties                                       cluster, node, and the directory's id
    __cluster_metadata-0/
        00000000000000000000-0000000000.checkpoint        the first voters; not where the node joins others
        00000000000000000000.log                          empty
        quorum-state                                      version 1, epoch 0

Until it is whole a file says so: a directory with it is no log, and is made anew. Not here: whether the
directory may be formatted (broker/cli/format.py).
"""

from __future__ import annotations

from typing import Final

from millrace.kraft.image.delta import at_offset
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.log.log_store import FOLDER, LogStore
from millrace.kraft.log.meta_properties import FILE, MetaProperties, write_meta_properties
from millrace.kraft.log.snapshot import write_snapshot
from millrace.kraft.raft.ready import QuorumState
from millrace.kraft.raft.voters import DYNAMIC, VoterSet
from millrace.runtime.disk import Disk

UNFINISHED: Final = "format.unfinished"


async def is_formatted(disk: Disk, log_dir: str) -> bool:
    """Whether it is a log already, or was one. False for what an interrupted format left."""
    names = await disk.list_folder(log_dir)
    if UNFINISHED in names:
        return False
    return FILE in names or bool(await disk.list_folder(f"{log_dir}/{FOLDER}"))


async def write_formatted_log(
    disk: Disk, log_dir: str, meta: MetaProperties, voters: VoterSet | None, time_ms: int
) -> None:
    """`voters`: the first ones, each with its directory; None where the node joins others."""
    assert voters is None or voters.kraft_version == DYNAMIC
    await disk.make_folder(log_dir)
    await disk.write_file(f"{log_dir}/{UNFINISHED}", b"")
    store = LogStore(disk, log_dir, (), 1)
    await store.list_segments()
    for name in await disk.list_folder(store.folder):
        await disk.remove(f"{store.folder}/{name}")
    if voters is not None:
        await write_snapshot(disk, store.folder, at_offset(EMPTY_IMAGE, 0, 0), time_ms, voters)
    await store.restart_at(0)
    await store.save_state(QuorumState(kraft_version=DYNAMIC))
    await store.close()
    await write_meta_properties(disk, log_dir, meta)
    await disk.remove(f"{log_dir}/{UNFINISHED}")
