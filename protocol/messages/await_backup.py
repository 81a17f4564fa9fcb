"""AwaitBackup (private, key 527): a broker waits until the cluster's metadata is in the bucket.

Answered by the controller that leads once all that was committed below the offset is there, so that a restore
from the bucket alone finds it. It travels as a ForwardCommand, and decides nothing.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int64, Versions


@dataclass(slots=True)
class AwaitBackupRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    metadata_offset: Int64 = 0  # exclusive


@dataclass(slots=True)
class AwaitBackupResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    error_code: Int16 = 0
