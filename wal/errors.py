"""The WAL's errors.

Exhausted  <- WalFull     no room for this record; wait for a trim
Fenced     <- WalFenced   a newer epoch owns the log
Corrupt    <- WalCorrupt  a record below the confirmed position fails its check
              WalCorrupt <- WalForeign     where a new log was to be made lies something else
              WalCorrupt <- WalHeaderLost  a log of ours whose header cannot be read in either copy
              WalCorrupt <- WalClaimLost   the claim of a log in use is not sound: nobody knows whose it is
Corrupt    <- WalMismatch the device is sound, but not this owner's: another cluster, node, capacity or
           version
Corrupt    <- WalOutdated the log is an older copy: metadata knows that it went further
Closed     <- WalClosed   append after close or after a failed write
Unavailable <- WalHeldElsewhere  a lock alone fences the log, and is none that can be seen from here
              WalClaimsWantDirect  a log that has claims lies where no direct I/O is to be had
WalStoreUnfit             the store lacks what the log's fence stands on; says what to do instead
"""

from __future__ import annotations

from millrace.runtime.disk.opening import DirectRefused
from millrace.runtime.errors import Closed, Corrupt, Exhausted, Fenced, MillraceError, Unavailable

NO_POSITION = -1


class WalFull(Exhausted):
    def __init__(self, needed_bytes: int, room_bytes: int) -> None:
        super().__init__(needed_bytes, room_bytes)
        self.needed_bytes = needed_bytes
        self.room_bytes = room_bytes

    def __str__(self) -> str:
        return f"the WAL has room for {self.room_bytes} bytes, and {self.needed_bytes} are needed"


class WalFenced(Fenced):
    """`found_epoch` is -1 where nobody can tell any more."""

    def __init__(self, own_epoch: int, found_epoch: int) -> None:
        super().__init__(own_epoch, found_epoch)
        self.own_epoch = own_epoch
        self.found_epoch = found_epoch

    def __str__(self) -> str:
        if 0 <= self.found_epoch < self.own_epoch:
            return f"the WAL was claimed in epoch {self.found_epoch}, and we opened it in {self.own_epoch}"
        when = (
            f"in epoch {self.found_epoch}"
            if self.found_epoch >= 0
            else "in an epoch that cannot be told any more"
        )
        return f"the WAL was taken {when}, not before our own, {self.own_epoch}"


class WalCorrupt(Corrupt):
    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"the WAL is damaged at position {self.position}: {self.reason}"


class WalForeign(WalCorrupt):
    """`place` is a byte of the file or device. There is no log, so there is no position."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(NO_POSITION, f"{what} at byte {place}")
        self.place = place
        self.what = what

    def __str__(self) -> str:
        return f"there is no log, and it is not empty: {self.reason}"


class WalHeaderLost(WalCorrupt):
    """`what` lies at byte `place`, and shows that there is a log."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(
            NO_POSITION,
            f"neither copy of the header can be read, at bytes 0 and 4096, and there is {what} at byte "
            f"{place}",
        )
        self.place = place
        self.what = what

    def __str__(self) -> str:
        return self.reason


class WalClaimLost(WalCorrupt):
    """`place` is a byte of the file or device."""

    def __init__(self, place: int) -> None:
        super().__init__(NO_POSITION, f"there is no sound claim at byte {place}")
        self.place = place

    def __str__(self) -> str:
        return f"nobody can tell whose the WAL is: {self.reason}"


class WalMismatch(Corrupt):
    def __init__(self, field: str, expected: object, found: object) -> None:
        super().__init__(field, expected, found)
        self.field = field
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"the WAL's {self.field} is {self.found}, where {self.expected} is due"


class WalOutdated(Corrupt):
    """`end` is where the log ends, `committed_end` up to where metadata has it committed."""

    def __init__(self, end: int, committed_end: int) -> None:
        super().__init__(end, committed_end)
        self.end = end
        self.committed_end = committed_end

    def __str__(self) -> str:
        return (
            f"the WAL ends at position {self.end}, and metadata has it committed up to "
            f"{self.committed_end}: it is an older copy"
        )


class WalHeldElsewhere(Unavailable):
    """Of a log that another node is to take over. Attribute: path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path} was opened last on another machine, or by another mount, and a lock alone holds "
            "it, which is not seen from here"
        )


class WalClaimsWantDirect(DirectRefused):
    """As its header says, whatever its address does."""

    def __str__(self) -> str:
        return f"the WAL {self.path} is fenced by claims, and it keeps them, which needs direct I/O"


class WalClosed(Closed):
    pass


class WalStoreUnfit(MillraceError):
    """No start can go well on this store; the argument is a sentence."""
