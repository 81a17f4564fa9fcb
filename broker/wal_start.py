"""What a start does with a write-ahead log (WAL) beside opening it: empties one that is not this node's any more, and tells of losses.

Not here: judging (wal_binding.py), recovery (s3stream/recovery.py). Kept true: records of a WAL that metadata does not have as this
node's current one never enter a stream: their offsets may have been given to other records since.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from millrace.broker.binding import BindingRefused
from millrace.wal.log import WriteAheadLog

if TYPE_CHECKING:
    from millrace.protocol.messages.accept_wal_loss import LostPartition

log = logging.getLogger(__name__)
LOGGED_MAX = 200


async def discard_foreign(wal: WriteAheadLog, path: str, *, is_accepted: bool) -> None:
    """Empties a WAL that is not the node's registered one, durably on return. Raises BindingRefused when it holds records and their loss was
    not accepted; the WAL is then as it was, but for what opening it changed."""
    count = 0
    async with aclosing(wal.recover()) as records:
        async for _ in records:
            if not is_accepted:
                raise BindingRefused(
                    f"the WAL {path} is not the one that this node wrote last, and holds records of an earlier time, whose offsets may have been "
                    "given to others since: give the WAL that the node wrote last, or a new place (s3.wal.path), or start once with "
                    "wal.lost.accept=true, which empties this one"
                )
            count += 1
    await wal.reset()
    if count:
        log.warning("WAL %s emptied: %d records of an earlier time given up (wal.lost.accept)", path, count)


def say_given_up(partitions: Sequence[LostPartition]) -> None:
    """One line a partition, up to a bound."""
    for lost in partitions[:LOGGED_MAX]:
        log.warning(
            "WAL loss accepted: %s-%d: records from offset %d on that were in the WAL alone are given up; leader epoch is now %d",
            lost.topic_name,
            lost.partition_index,
            lost.end_offset,
            lost.leader_epoch,
        )
    if len(partitions) > LOGGED_MAX:
        log.warning("WAL loss accepted: %d more partitions likewise", len(partitions) - LOGGED_MAX)
