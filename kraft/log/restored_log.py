"""Writes a metadata log directory that begins with one snapshot, as a restore makes it. Durable on return.

Until it is whole a file says so: a directory with it is no log, and is made anew. `meta.properties` comes
last, as at a first start.
"""

from __future__ import annotations

from typing import Final

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.claim_basis import forget_claim_basis
from millrace.kraft.log.log_store import FOLDER, LogStore
from millrace.kraft.log.meta_properties import FILE, MetaProperties, write_meta_properties
from millrace.kraft.log.restored_from import RestoredFrom, write_restored_from
from millrace.kraft.log.snapshot import NO_VOTERS, write_snapshot
from millrace.kraft.raft.ready import QuorumState
from millrace.kraft.raft.voters import VoterSet
from millrace.runtime.disk import Disk

UNFINISHED: Final = "restore.unfinished"


async def holds_something(disk: Disk, log_dir: str) -> str | None:
    """A file that makes the directory no place for a new log; None where there is none, or what an
    interrupted restore left."""
    names = await disk.list_folder(log_dir)
    if UNFINISHED in names:
        return None
    if FILE in names:
        return f"{log_dir}/{FILE}"
    found = await disk.list_folder(f"{log_dir}/{FOLDER}")
    return f"{log_dir}/{FOLDER}/{found[0]}" if found else None


async def write_restored_log(
    disk: Disk,
    log_dir: str,
    meta: MetaProperties,
    voters: tuple[int, ...],
    image: MetadataImage,
    restored_from: RestoredFrom,
    time_ms: int,
    voter_set: VoterSet = NO_VOTERS,
) -> None:
    """The log begins and ends at the image's offset; its next epoch is above the image's. `voter_set`: who
    votes, from kraft.version 1 on; before it `voters` do."""
    await disk.make_folder(log_dir)
    await disk.write_file(f"{log_dir}/{UNFINISHED}", b"")
    store = LogStore(disk, log_dir, voters, 1)
    await store.list_segments()
    for name in await disk.list_folder(store.folder):
        await disk.remove(f"{store.folder}/{name}")
    await write_snapshot(disk, store.folder, image, time_ms, voter_set)
    await store.restart_at(image.offset)
    await store.save_state(QuorumState(image.epoch, kraft_version=voter_set.kraft_version))
    await store.close()
    await write_restored_from(disk, log_dir, restored_from)
    await forget_claim_basis(disk, log_dir)  # of a log that was here before
    await write_meta_properties(disk, log_dir, meta)
    await disk.remove(f"{log_dir}/{UNFINISHED}")
