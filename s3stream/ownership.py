"""What the engine asks before it makes something final: for whom it writes objects, and whether this process still owns the node.

Declared here, implemented above (broker/ownership.py). Who was replaced by a newer owner commits nothing and deletes nothing more.
"""

from __future__ import annotations

from typing import Final, Protocol

from millrace.s3stream.ids import Writer


class Ownership(Protocol):
    @property
    def writer(self) -> Writer | None:
        """Whom footers name; None at millrace.version 0, which has no owners."""
        ...

    @property
    def is_conditional(self) -> bool:
        """Objects are put if absent: the store was seen to keep that condition."""
        ...

    async def verify(self, since_s: float) -> None:
        """Returns when the store was asked, not before `since_s` on the loop's clock, and knew no newer owner. Raises Fenced when it
        does, Unavailable (or StoreDenied) when it did not answer: then nothing is known, and nothing may be made final."""
        ...


class Unowned:
    """At millrace.version 0: nobody is named, and nothing is asked."""

    writer = None
    is_conditional = False

    async def verify(self, since_s: float) -> None:
        return


UNOWNED: Final = Unowned()
