"""ClaimNode (private, key 521): an incarnation is about to claim a number of a series in the bucket.

Recorded before the claim is put, so that the node knows its own claim when it finds it there after a crash.
The claim that stands before it is recorded again with it: what the bucket holds is never forgotten here. Sent
again it changes nothing.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions


@dataclass(slots=True)
class ClaimNodeRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    series: Int32 = 0  # a node id, or -1: the metadata log's writer
    number: Int64 = 0  # above `found_number`
    incarnation: Uuid = NO_UUID  # drawn by the start that claims
    found_number: Int64 = 0  # of the newest claim that the bucket holds; 0: it holds none
    found_incarnation: Uuid = NO_UUID


@dataclass(slots=True)
class ClaimNodeResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # INVALID_REQUEST: millrace.version 0, or a number that does not follow the one that was found;
    # FENCED_MEMBER_EPOCH: what was found is no claim that this log knows
    error_code: Int16 = 0
    error_message: str | None = None
